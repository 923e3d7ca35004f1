"""Commands that plan and prove: `population`, `plan`, `check`."""

import csv
import io
import math
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from rich.console import Group, RenderableType
from rich.table import Table
from typer import Argument, Option

from discretion.accounting import Accountant, Certificate, Pld, Reference, Renyi, certify
from discretion.audit import cautions
from discretion.audit.verify import other_entries
from discretion.cli import Json, output
from discretion.errors import FolderError, InputError
from discretion.files import read_text
from discretion.methods import Details, explain
from discretion.methods.papers import RUNS, comparison
from discretion.plan import advice, budgets
from discretion.plan.plan import Plan
from discretion.plan.population import COLUMNS, Population
from discretion.randomness.streams import Purpose, stream
from discretion.report import plan_page
from discretion.runs import config
from discretion.runs.build import load_data, owner_sizes, plan_of
from discretion.runs.manifest import compare_file
from discretion.runs.read import Run, read_run
from discretion.tasks.datasets import HOLD_OUT, training_sizes
from discretion.tasks.own_table import TableForm

DEFAULTS = config.PlanConfig()
ACCOUNTANTS: dict[str, Accountant] = {"pld": Pld(), "dp-accounting": Reference(), "renyi": Renyi()}
PROMISES = {"kept": "[green]kept[/]", "broken": "[bold red]broken[/]", "unproven": "[yellow]unproven[/]"}


def population(
    mix: Annotated[
        str | None,
        Argument(help="A budget mix: 10-20-30, uniform:0.1,1, groups:1@50,8@50", show_default=False),
    ] = None,
    clients: Annotated[int, Option(min=1, help="How many clients.")] = 100,
    delta: Annotated[float, Option(help="Each client's delta.")] = 1e-5,
    size: Annotated[int, Option(min=1, help="Each client's number of records.")] = 100,
    source: Annotated[
        Path | None,
        Option(
            "--from", metavar="TABLE", help="Clients and sizes of a CSV table, or of a config.toml's data."
        ),
    ] = None,
    client_column: Annotated[str, Option(help="--from: the column that names clients.")] = TableForm.client,
    label_column: Annotated[str, Option(help="--from: the column of labels.")] = TableForm.label,
    hold_out: Annotated[
        float, Option(min=0, max=1, help="--from: share of each client's records that is not for training.")
    ] = HOLD_OUT,
    seed: Annotated[int, Option(min=0, help="Seed of the draw of budgets.")] = 0,
    json_: Json = False,
) -> None:
    """Print a population as CSV: who takes part, with which budget.

    A client's size is the number of its records for training.

    Examples: `discretion population 10-20-30 --clients 100 > population.csv`, `discretion population --from
    table.csv --client-column hospital > people.csv` (epsilon is left for you to fill in)
    """
    found = {} if source is None else _counted(source, TableForm(label_column, client_column), hold_out)
    if mix is None and source is None:
        raise InputError("give a budget mix, such as 10-20-30, or --from a table to count the records in")
    sizes = list(found.values()) or size
    number = len(found) or clients
    epsilon = np.ones(number) if mix is None else budgets.draw(mix, number, stream(seed, Purpose.BUDGETS))
    made = Population.of(epsilon, delta, sizes)
    made = replace(made, client=tuple(found) or made.client)
    columns = {name: getattr(made, name) for name in COLUMNS}
    if mix is None:  # whose budgets nobody may make up
        columns["epsilon"] = [None] * number
    if json_:
        return output.print_json(columns)
    sys.stdout.write(made.to_csv() if mix else _to_fill_in(columns))


def _counted(source: Path, form: TableForm, hold_out: float) -> dict[str, int]:
    """Return the number of each client's training records in a table, or in the data of a config.toml."""
    if source.suffix != ".toml":
        return training_sizes(source, hold_out, form)
    settings = config.read(source)
    if found := owner_sizes(load_data(settings, output.say)):
        return found
    raise InputError(f"{source}: its data does not say who owns which record; expected a column of clients")


def _to_fill_in(columns: Mapping[str, Sequence[object]]) -> str:
    """Return the CSV text of a population with empty cells for epsilon, which cannot be read as it is."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(columns)
    writer.writerows(zip(*columns.values(), strict=True))
    return out.getvalue()


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
        found, chosen = _alternatives(settings, clients)
        return output.answer(json_, _advice_record(found, chosen), _advice(settings, found, chosen))
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
    warnings = cautions.of_plan(made, clients, certificate)
    shown: list[RenderableType] = [output.certificate_text(made, clients, certificate)]
    if any(caution.kind == "noise" for caution in warnings):
        found, chosen = _alternatives(settings, clients)
        record |= {"advice": _advice_record(found, chosen)}
        shown.append(_advice(settings, found, chosen))
    notes = [f"Wrote {out}. Next: discretion check {out} {people}"] if out else []
    notes += [output.wrote(plot_out)] if plot_out else []
    output.answer(json_, record, *shown, note="\n".join(notes), warnings=warnings)
    certificate.require(made)


def _alternatives(
    settings: config.Config, clients: Population
) -> tuple[list[advice.Option], advice.Option | None]:
    """Return plans with other rates and rounds, and the one to recommend."""

    def make(rate: float, rounds: int) -> Plan:
        chosen = settings.plan.model_copy(update={"rate": rate, "rounds": rounds})
        return plan_of(settings.model_copy(update={"plan": chosen}), clients)

    found = advice.options(make, clients, settings.plan.rate, settings.plan.rounds)
    return found, advice.recommended(found, settings.plan.rounds)


def _advice_record(found: Sequence[advice.Option], chosen: advice.Option | None) -> dict[str, Any]:
    return {"options": [vars(option) for option in found], "recommended": vars(chosen) if chosen else None}


def _advice(
    settings: config.Config, found: Sequence[advice.Option], chosen: advice.Option | None
) -> RenderableType:
    """Return a row for each rate: noise over signal of the mean update, of one round and of whole runs."""
    rate, rounds = settings.plan.rate, settings.plan.rounds
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
    return Group(table, said, advice.LIMITS)


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
    for path in filter(None, (target, people)):
        compare_file(path)
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
    warnings = cautions.of_plan(made, clients, certificate) + (cautions.of_ledger(run) if run else ())
    output.answer(json_, output.certificate_record(made, certificate), shown, warnings=warnings)
    if run:
        same = accountant == "pld" and people is None
        _require_same(run, certificate if same else certify(made, run.population))
    certificate.require(made)


def _require_same(run: Run, fresh: Certificate) -> None:
    """Refuse a run whose certificate.json is not what the accountant says of its plan now."""
    run.certificate.require(run.plan, accept_no_privacy=True)
    if odd := other_entries(run, fresh):
        raise FolderError(
            f"{run.files.certificate} is not what the accountant says of the plan now: it differs in "
            f"{', '.join(odd)}. It was changed, or made by another version: restore it, or start a new run."
        )


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
