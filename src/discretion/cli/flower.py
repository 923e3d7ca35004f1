"""Commands that try a run on Flower, on this machine: `flower init`, `up`, `down`."""

from importlib import resources
from pathlib import Path
from typing import Annotated

import typer
from typer import Argument, Option

from discretion.cli import Json, Override, doctor, output
from discretion.cli.guards import HoldOut, held_out
from discretion.errors import InputError
from discretion.runs import config, preflight
from discretion.runs.execute import OnRound, Progress
from discretion.runs.guard_folders import ROSTER, write_guards
from discretion.runs.read import Run

flower = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Try a run on Flower, on this machine."
)


def submit(run: Run, on_round: OnRound) -> None:
    """Do what is left of a run on Flower: its server app, another process, writes to the run folder."""
    from discretion.flower import project

    seen, told = run.history.done, False

    def look() -> None:
        nonlocal seen, told
        now = run.refreshed()
        if not told and (found := preflight.read(run.files)) is not None:
            told = True
            doctor.tell(found)
        answers = {heard.round: heard.turnout for heard in now.answers}
        for line in now.history.lines:
            if line.round > seen:
                seen = line.round
                spent = run.certificate.spending.share(seen)
                on_round(Progress(seen, run.plan.rounds, line.accuracy, spent, answers.get(seen)))

    project.submit(run, look, output.say)


def simulate(run: Run, on_round: OnRound) -> None:
    """Do what is left of a run in Flower's simulation, with guards in the run folder."""
    try:
        from discretion.flower.simulate import simulate as on_ray
    except ModuleNotFoundError:
        raise InputError(
            "Flower's simulation is not installed: pip install 'discretion[flower-sim]'"
        ) from None

    guards = run.folder / "guards"
    if not guards.exists():
        write_guards(run.config, guards, output.say)
    on_ray(run, guards, on_round)


@flower.command()
def init(
    settings: Annotated[Path, Argument(metavar="CONFIG", help="A config.toml.")],
    out: Annotated[Path, Option("--out", "-o", help="The folder to make.")] = Path("flower"),
    port: Annotated[int, Option(help="Port of the SuperLink; nodes take the ports after it.")] = 18_000,
    hold_out: HoldOut = None,
    change: Override = None,
    json_: Json = False,
) -> None:
    """Write TLS certificates, keys, guard policies and Flower configurations for a run on this machine.

    Example: `discretion flower init config.toml --out flower`
    """
    from discretion.flower import cluster

    wanted = config.read(settings, [*(change or []), *held_out(hold_out)])
    names = write_guards(wanted, out, output.say, cluster.FILES)
    cluster.write(out, names, port)
    sums = f" -c secure_sum.roster={out / ROSTER}" if (out / ROSTER).exists() else ""
    output.answer(
        json_,
        {"flower": str(out), "clients": len(names), "port": port},
        note=f"Wrote {out}. Next: discretion flower up {out}, then discretion run {settings} --on flower -c "
        f"clients.home={out}/flower -c clients.key={out}/operator.key{sums}",
    )


@flower.command()
def up(
    folder: Annotated[Path, Argument(help="The folder that `flower init` made.")] = Path("flower"),
    clients: Annotated[
        int | None,
        Option(min=3, help="Make the folder first: a trial on the digits data with this number of clients."),
    ] = None,
    json_: Json = False,
) -> None:
    """Start a SuperLink, and for each client a guard and a SuperNode, with TLS and node authentication.

    Examples: `discretion flower up flower`, `discretion flower up --clients 5` (nothing else is needed)
    """
    from discretion.flower import cluster

    if clients is not None:
        settings = folder.with_name(folder.name + ".toml")
        if folder.exists() or settings.exists():
            raise InputError(f"{folder} or {settings} is there already: leave --clients out, or give another")
        trial = resources.files("discretion.flower").joinpath("trial.toml").read_text(encoding="utf-8")
        settings.write_text(trial.replace("clients = 5", f"clients = {clients}"), encoding="utf-8")
        init(settings, folder)
    cluster.up(folder, output.say)
    output.answer(json_, {"up": str(folder)})


@flower.command()
def down(
    folder: Annotated[Path, Argument(help="The folder that `flower up` was given.")] = Path("flower"),
    json_: Json = False,
) -> None:
    """Stop exactly the processes that `flower up` started.

    Example: `discretion flower down flower`
    """
    from discretion.flower import cluster

    cluster.down(folder, output.say)
    output.answer(json_, {"down": str(folder)})
