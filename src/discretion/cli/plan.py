"""Commands that plan and prove: `population`, `plan`, `check`."""

import math
import sys
from pathlib import Path
from typing import Annotated

from rich.table import Table
from typer import Argument, Option

from discretion.accounting import Accountant, Pld, Reference, Renyi, certify
from discretion.cli import Json, output
from discretion.errors import InputError
from discretion.files import read_text
from discretion.methods import Details, explain
from discretion.methods.papers import RUNS, comparison
from discretion.plan import advice, budgets
from discretion.plan.plan import Plan
from discretion.plan.population import COLUMNS, Population
from discretion.randomness.streams import Purpose, stream
from discretion.report import plan_page
from discretion.runs import config
from discretion.runs.build import plan_of
from discretion.runs.read import read_run

DEFAULTS = config.PlanConfig()
ACCOUNTANTS: dict[str, Accountant] = {"pld": Pld(), "dp-accounting": Reference(), "renyi": Renyi()}
PROMISES = {"kept": "[green]kept[/]", "broken": "[bold red]broken[/]", "unproven": "[yellow]unproven[/]"}


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
        output.print_json({name: getattr(made, name) for name in COLUMNS})
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
    record = output.certificate_record(made, certificate)
    record |= {"details": details.to_record(), "plot": str(plot_out) if plot_out else None}
    notes = [f"Wrote {out}. Next: discretion check {out} {people}"] if out else []
    notes += [output.wrote(plot_out)] if plot_out else []
    shown = output.certificate_text(made, clients, certificate)
    output.answer(json_, record, shown, note="\n".join(notes))


def _advise(settings: config.Config, clients: Population, as_json: bool) -> None:
    """Print a row for each rate: noise over signal of the mean update, of one round and of whole runs."""

    def make(rate: float, rounds: int) -> Plan:
        chosen = settings.plan.model_copy(update={"rate": rate, "rounds": rounds})
        return plan_of(settings.model_copy(update={"plan": chosen}), clients)

    rate, rounds = settings.plan.rate, settings.plan.rounds
    found = advice.options(make, clients, rate, rounds)
    chosen = advice.recommended(found, rounds)
    if as_json:
        rows = [vars(option) for option in found]
        return output.print_json({"options": rows, "recommended": vars(chosen) if chosen else None})
    counts = sorted({option.rounds for option in found})
    table = Table(
        *output.right("rate", "updates a round", "one round", *(f"run of {count}" for count in counts)),
        title="noise over signal, in one coordinate of the mean update",
        title_justify="left",
    )
    for each in sorted({option.rate for option in found}):
        runs = {option.rounds: option for option in found if option.rate == each}
        usual = runs.get(rounds)
        one = (f"{usual.updates:,.1f}", f"{usual.noise:.3g}") if usual else ("–", "–")
        whole = [f"{runs[count].noise_of_run:.3g}" if count in runs else "–" for count in counts]
        table.add_row(f"{each:.3g}", *one, *whole, style="bold" if each == rate else None)
    said = "There is no noise in these plans, or nothing else."
    if chosen:
        asked = next((o.noise_of_run for o in found if (o.rate, o.rounds) == (rate, rounds)), math.nan)
        said = (
            f"Every row keeps every budget. At {rounds} rounds, a mean rate of {chosen.rate:.3g} is near the "
            f"least noise there is: {chosen.noise_of_run / asked:.0%} of that at {rate:.3g}, for "
            f"{chosen.rate / rate:.3g} times the updates."
        )
    output.out.print(table)
    for sentence in (said, advice.LIMITS):
        output.out.print(sentence, soft_wrap=True)


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
    shown = output.certificate_text(made, clients, certificate)
    output.answer(json_, output.certificate_record(made, certificate), shown)
    if run:
        run.certificate.require(made, accept_no_privacy=True)
    certificate.require(made)


def _show_papers(as_json: bool) -> None:
    """Print a table for each paper: its epsilon, what its noise costs, which noise is enough."""
    if not as_json:
        output.say("Computing what the papers' noise costs: about ten seconds.")
    rows = comparison()
    if as_json:
        papers = [{**vars(row), "ratio": row.ratio, "verdict": row.verdict} for row in rows]
        return output.print_json({"papers": papers})
    for paper in dict.fromkeys(row.paper for row in rows):
        first, last = output.right("promised", "Rényi", "PLD"), output.right("noise", "needed")
        table = Table("setting", *first, "", *last, title=paper, title_justify="left")
        for row in (row for row in rows if row.paper == paper):
            setting = f"{row.source}: {row.setting}\n[dim]{row.run}[/]"
            epsilons = [f"{row.epsilon:.3g}", f"{row.epsilon_renyi:.3g}", f"{row.epsilon_pld:.3g}"]
            if row.run == "fixed number":  # Rényi bounds from above and PLD from below
                epsilons[1:] = f"≤ {epsilons[1]}", f"≥ {epsilons[2]}"
            noise = f"{row.multiplier:.3g}", f"{row.needed_pld:.3g}"
            table.add_row(setting, *epsilons, PROMISES[row.verdict], *noise)
        output.out.print(table)
    noise_needed = "the paper's noise multiplier, and the least that keeps the promise (PLD)"
    for name, meaning in (RUNS | {"noise, needed": noise_needed}).items():
        output.out.print(f"[dim]{name}:[/] {meaning}")
