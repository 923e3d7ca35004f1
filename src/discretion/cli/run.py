"""Commands that make, execute and continue runs: `init`, `run`, `replan`."""

import sys
from pathlib import Path
from typing import Annotated, cast, get_args

import numpy as np
import typer
from typer import Argument, Option

from discretion.audit import cautions, statements
from discretion.cli import Json, On, Override, doctor, flower, output
from discretion.errors import InputError
from discretion.export.feed import tracking
from discretion.plan.steps import Unit
from discretion.runs import config
from discretion.runs import replan as plan_again
from discretion.runs.build import load_data
from discretion.runs.execute import Progress, execute
from discretion.runs.folder import RunFolder
from discretion.runs.places import require_places
from discretion.runs.prepare import prepare
from discretion.runs.read import Run, read_run
from discretion.timing import Profile

UNITS = get_args(Unit)


def init(
    path: Annotated[Path, Argument(help="Where to write it.")] = Path("config.toml"),
    protect: Annotated[
        Unit | None,
        Option(help="What is protected: a client with all of its records, or each record. Else it is asked."),
    ] = None,
    json_: Json = False,
) -> None:
    """Write a config.toml with every setting, its default and what it means.

    On a terminal it asks what is to be protected; elsewhere it takes whole clients, and says so.

    Examples: `discretion init && discretion run config.toml --out runs/first`, `discretion init --protect
    record`
    """
    if path.exists():
        raise InputError(f"{path} exists already: give another name")
    asked = not json_ and sys.stdin.isatty() and output.err.is_terminal
    unit: Unit = protect or (_ask_unit() if asked else "client")
    path.write_text(config.template(unit), encoding="utf-8")
    other = "record" if unit == "client" else "client"
    message = (
        f"Wrote {path}. {statements.UNIT[unit]} For the other: discretion init --protect {other}. "
        f"Next: discretion run {path} --out runs/first"
    )
    output.answer(json_, {"config": str(path), "unit": unit}, note=message)


def _ask_unit() -> Unit:
    """Ask what is to be protected, until the answer is one of the two."""
    for name, meaning in statements.UNIT.items():
        output.say(f"{name}: {meaning}")
    while (chosen := typer.prompt("Protect client or record?", default="client", err=True)) not in UNITS:
        output.say(f"found {chosen!r}, expected client or record")
    return cast(Unit, chosen)


def run(
    target: Annotated[Path, Argument(help="A config.toml, or a run folder with --resume.")],
    out: Annotated[Path | None, Option("--out", "-o", help="The run folder to make; else runs/NAME.")] = None,
    resume: Annotated[bool, Option("--resume", help="Go on with a run that stopped.")] = False,
    on: On = None,
    change: Override = None,
    device: Annotated[str | None, Option(help="Device to train on: auto, cpu, cuda or cuda:1.")] = None,
    threads: Annotated[
        int | None, Option(min=0, help="Threads of compiled code and torch; 0: one for each core.")
    ] = None,
    workers: Annotated[
        int | None,
        Option(min=0, help="Processes for models that only torch can train; 0: one for each core."),
    ] = None,
    track: Annotated[
        str | None, Option(help="Send the history to tensorboard or mlflow, too; see [track].")
    ] = None,
    write_report: Annotated[bool, Option("--report/--no-report", help="Write report.html.")] = True,
    show_profile: Annotated[bool, Option("--profile", help="Show where the time went.")] = False,
    json_: Json = False,
) -> None:
    """Plan, certify and train; everything is kept in one folder.

    Examples: `discretion run config.toml --out runs/first -c plan.rounds=20`,
    `discretion run runs/first --resume` (after any crash: the same model, nothing counted twice),
    `discretion run config.toml --device cpu --workers 4`
    """
    path = target if target.is_dir() else out or Path("runs") / target.stem
    wanted = {"device": device, "threads": threads, "workers": workers}
    means = [f"train.{name}={value}" for name, value in wanted.items() if value is not None]
    means += [f"track.to={track}"] if track else []
    profile, asked = Profile(), False
    if resume and RunFolder(path).about.exists():
        if change or on:
            raise InputError("a run keeps its settings: leave out -c and --on when it is resumed")
        made = read_run(path)
    elif target.is_dir():
        raise InputError(f"{target} is a folder: give a config.toml, or --resume to go on with a run")
    else:
        place = [f"clients.where={on}"] if on else []
        settings = config.read(target, [*(change or []), *place, *means])
        require_places(settings)
        dataset = load_data(settings, output.say)
        asked = settings.clients.where == "guards"
        made = prepare(settings, path, dataset, preflight=doctor.require_ready if asked else None)
    if made.finished:
        output.say(f"{path} is finished already.")
    else:
        _train(made, json_, profile, means, asked)
        if show_profile and not json_:
            output.show_profile(profile)
    ended = made.refreshed()
    if not json_:
        told = [ended.answered] if ended.answered else []
        for line in [*told, *ended.refusal_lines(why for _, why in ended.refusals.values())]:
            output.say(line)
    extra = {"profile": profile.to_record()} if show_profile else {}
    page = made.files.report if write_report else None
    output.compare_runs([ended], page, None, json_, extra)
    ended.require_trained()  # last, so that no file of the run depends on it


def _train(made: Run, as_json: bool, profile: Profile, overrides: list[str], asked: bool) -> None:
    if not as_json:
        output.out.print(output.certificate_text(made.plan, made.population, made.certificate))
        if (again := made.about.cross_check) and again.kinds:
            counted = f"{again.counted} of {again.kinds} kinds of clients"
            output.say(f"Counted again by {again.accountant}: {counted}.")
        warnings = cautions.of_plan(made.plan, made.population, made.certificate)
        output.warn((*cautions.of_ledger(made), *warnings))
    settings = made.config.executed_with(overrides, str(made.files.config))
    with output.bars(as_json) as progress, tracking(made.folder, settings.track, output.say) as hand_on:
        done = made.history.done
        bar = progress.add_task(made.plan.method, total=made.plan.rounds, completed=done, note="")
        evaluated: list[float] = []

        def show(now: Progress) -> None:
            hand_on()
            evaluated.extend([] if now.accuracy is None else [now.accuracy])
            last = evaluated[-1] if evaluated else None  # a bar shows it until there is a newer one
            note = output.progress_note(last, now.spent, now.turnout)
            progress.update(bar, completed=now.round, note=note)
            told = now.accuracy is not None or now.round % max(1, now.rounds // 10) == 0
            if told and not as_json and not output.err.is_terminal:
                note = output.progress_note(now.accuracy, now.spent, now.turnout)
                output.say(f"round {now.round} of {now.rounds}: {note}")

        if settings.clients.where == "flower":
            flower.submit(made, show)
        elif settings.clients.where == "flower-sim":
            flower.simulate(made, show)
        else:
            execute(made, show, profile, overrides=overrides, tell=doctor.tell, asked=asked)


def replan(
    run: Annotated[Path, Argument(metavar="RUN", help="Folder of a run that was stopped.")],
    people: Annotated[
        Path, Argument(metavar="POPULATION.csv", help="All clients from now on, with their budgets.")
    ],
    out: Annotated[Path, Option("--out", "-o", help="The run folder to make.")],
    json_: Json = False,
) -> None:
    """Plan the remaining rounds of a run again, for clients that joined, left or changed their budgets.

    What is spent stays spent; a changed epsilon becomes an entry in the ledger. The old run is closed.

    Example: `discretion replan runs/first people.csv --out runs/second`, then `discretion run runs/second
    --resume`
    """
    made = plan_again.replan(run, people, out, output.say)
    names = {
        "joined": made.joined,
        "left": made.left,
        "nothing left of the budget": made.exhausted,
        "budget changed": made.changed,
    }
    if json_:
        columns = (made.population.epsilon, made.before, made.total)
        rows = zip(made.population.client, *(column.tolist() for column in columns), strict=True)
        clients = {
            name: {"budget": epsilon, "spent": before, "spent_in_the_end": total}
            for name, epsilon, before, total in rows
        }
        return output.print_json({"rounds": made.rounds, **names, "clients": clients})
    for what, who in names.items():
        if who:
            output.say(f"{what}: {', '.join(who[:10])}{' …' if len(who) > 10 else ''}")
    share = float(np.max(made.total / made.population.epsilon))
    output.say(
        f"Planned {made.rounds} rounds for {len(made.population)} clients; in the end each has spent at most "
        f"{share:.1%} of its budget, what was spent before included. Next: discretion run {out} --resume"
    )
