"""Commands that plan and prove: `population`, `plan`, `check`."""

import sys
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from discretion.accounting import Accountant, Pld, Reference, Renyi, certify
from discretion.cli import Json, output
from discretion.errors import InputError
from discretion.files import read_text
from discretion.methods import Details, explain
from discretion.methods.papers import comparison
from discretion.plan import advice, budgets
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.randomness.streams import Purpose, stream
from discretion.report import plan_page
from discretion.runs import config
from discretion.runs.build import plan_of
from discretion.runs.read import read_run

DEFAULTS = config.PlanConfig()
ACCOUNTANTS: dict[str, Accountant] = {"pld": Pld(), "dp-accounting": Reference(), "renyi": Renyi()}


def population(
    mix: Annotated[str, Argument(help="A budget mix: 10-20-30, uniform:0.1,1, groups:1@50,8@50")],
    clients: Annotated[int, Option(min=1, help="How many clients.")] = 100,
    delta: Annotated[float, Option(help="Each client's delta.")] = 1e-5,
    size: Annotated[int, Option(min=1, help="Each client's number of records.")] = 100,
    seed: Annotated[int, Option(min=0, help="Seed of the draw of budgets.")] = 0,
    json_: Json = False,
) -> None:
    """Print a population as CSV: who takes part, with which budget.

    Example: `discretion population 10-20-30 --clients 100 > population.csv`
    """
    epsilon = budgets.draw(mix, clients, stream(seed, Purpose.BUDGETS))
    made = Population.of(epsilon, delta, size)
    if json_:
        columns = {"epsilon": made.epsilon, "delta": made.delta, "size": made.size}
        output.print_json({"client": list(made.client)} | {k: v.tolist() for k, v in columns.items()})
    else:
        sys.stdout.write(made.to_csv())


def plan(
    method: Annotated[
        str, Argument(help="A method of `discretion methods`, or your own package.module:function.")
    ],
    people: Annotated[Path, Argument(metavar="POPULATION", help="CSV: client,epsilon,delta,size")],
    rounds: Annotated[int, Option(min=1, help="Rounds of training.")] = DEFAULTS.rounds,
    rate: Annotated[
        float, Option(min=0, max=1, help="Sampling rate: mean chance of a client to take part in a round.")
    ] = DEFAULTS.rate,
    clip: Annotated[
        float, Option(min=0, help="Clipping norm: mean bound on an update's L2 norm.")
    ] = DEFAULTS.clip,
    option: Annotated[
        list[str] | None, Option("-p", "--parameter", metavar="KEY=VALUE", help="A parameter of the method.")
    ] = None,
    accounting: Annotated[
        str | None, Option(help="tight, or paper: the paper's own noise, with its true cost shown.")
    ] = None,
    out: Annotated[Path | None, Option("--out", "-o", help="Write the plan here.")] = None,
    advise: Annotated[
        bool, Option("--advise", help="Compare noise and signal for other rates and rounds.")
    ] = False,
    plot: Annotated[bool, Option("--plot", help="Draw what the method decided.")] = False,
    plot_out: Annotated[Path | None, Option(help="The HTML file to write; else METHOD-plan.html.")] = None,
    json_: Json = False,
) -> None:
    """Plan by a method, and show what the plan costs each budget class.

    Examples: `discretion plan METHOD population.csv --rounds 50 --rate 0.02 -o plan.json`,
    `discretion plan METHOD population.csv --plot`, `discretion plan METHOD population.csv --accounting
    paper`, `discretion plan METHOD population.csv --advise` (noise of plans with other rates and rounds)
    """
    overrides = [f"plan.options.{item}" for item in option or []]
    if accounting is not None:
        overrides.append(f"plan.options.accounting={accounting}")
    shared = {"method": method, "rounds": rounds, "rate": rate, "clip": clip}
    settings = config.make({"plan": shared}, overrides, "the command line")
    clients = Population.from_csv(people)
    if advise:
        if out or plot or plot_out:
            raise InputError("--advise compares plans and keeps none: leave out --out and --plot")
        return _advise(settings, clients, json_)
    made = plan_of(settings, clients)
    certificate = certify(made, clients)
    if out:
        out.write_text(made.to_json(), encoding="utf-8")
    details = explain(made, clients) if json_ or plot or plot_out else Details()
    if plot or plot_out:
        plot_out = plot_out or (out.parent if out else Path()) / f"{method.replace(':', '.')}-plan.html"
        plan_page.write(made, clients, certificate, details, plot_out)
    if json_:
        record = output.certificate_record(made, certificate)
        figures = str(plot_out) if plot_out else None
        return output.print_json(record | {"details": details.to_record(), "plot": figures})
    output.show_certificate(made, clients, certificate)
    if out:
        output.say(f"Wrote {out}. Next: discretion check {out} {people}")
    if plot_out:
        output.say(output.wrote(plot_out))


def _advise(settings: config.Config, clients: Population, as_json: bool) -> None:
    def make(rate: float, rounds: int) -> Plan:
        chosen = settings.plan.model_copy(update={"rate": rate, "rounds": rounds})
        return plan_of(settings.model_copy(update={"plan": chosen}), clients)

    found = advice.options(make, clients, settings.plan.rate, settings.plan.rounds)
    chosen = advice.recommended(found, settings.plan.rounds)
    if as_json:
        rows = [vars(option) for option in found]
        output.print_json({"options": rows, "recommended": vars(chosen) if chosen else None})
    else:
        output.show_advice(found, chosen, settings.plan.rate, settings.plan.rounds)


def check(
    target: Annotated[Path | None, Argument(help="A run folder, or a plan.json.")] = None,
    people: Annotated[Path | None, Argument(metavar="POPULATION", help="CSV, with a plan.json")] = None,
    accountant: Annotated[
        str, Option(help="pld, dp-accounting (Google's, as a second opinion) or renyi (looser).")
    ] = "pld",
    accounting: Annotated[
        str, Option(help="tight, or paper: compare what the papers charge with what their noise costs.")
    ] = "tight",
    json_: Json = False,
) -> None:
    """Prove, or disprove, that a plan stays within every client's budget.

    Exits with 3 and names who would overspend if it does not. Examples:
    `discretion check plan.json population.csv`, `discretion check runs/first --accountant dp-accounting`,
    `discretion check --accounting paper`
    """
    if accounting == "paper":
        return _show_papers(json_)
    if accounting != "tight":
        raise InputError(f"unknown accounting {accounting!r}; known are tight and paper")
    if target is None:
        raise InputError("give a run folder or a plan.json to check, or --accounting paper")
    if accountant not in ACCOUNTANTS:
        raise InputError(f"unknown accountant {accountant!r}; known are {', '.join(ACCOUNTANTS)}")
    run = read_run(target) if target.is_dir() else None
    if people is not None:
        clients = Population.from_csv(people)
    elif run is not None:
        clients = run.population
    else:
        raise InputError(f"to check {target}, give the population, too: discretion check PLAN POPULATION")
    made = run.plan if run else Plan.from_json(read_text(target))
    certificate = certify(made, clients, ACCOUNTANTS[accountant])
    if json_:
        output.print_json(output.certificate_record(made, certificate))
    else:
        output.show_certificate(made, clients, certificate)
    if run:
        run.certificate.require(made, accept_no_privacy=True)
    certificate.require(made)


def _show_papers(as_json: bool) -> None:
    if as_json:
        rows = [{**vars(row), "ratio": row.ratio, "verdict": row.verdict} for row in comparison()]
        output.print_json({"papers": rows})
    else:
        output.say("Computing what the papers' noise costs: about ten seconds.")
        output.show_papers(comparison())
