"""The command line: each command a thin function over the package."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from discretion import (
    __version__,
    advice,
    budgets,
    catalogue,
    config,
    ledger_command,
    looking,
    operate,
    results,
    terminal,
)
from discretion.accounting import Accountant, Certificate, Pld, Reference, Renyi, certify
from discretion.errors import DiscretionError, InputError
from discretion.experiments import command
from discretion.files import read_text
from discretion.materials import load_data, plan_of
from discretion.methods import Details, explain
from discretion.options import Json, Override
from discretion.plan import Plan
from discretion.population import Population
from discretion.profile import Profile
from discretion.runs import Progress, RunFolder, Task, execute, prepare
from discretion.streams import Purpose, stream
from discretion.track import tracking

app = typer.Typer(
    name="discretion",
    no_args_is_help=True,
    add_completion=False,
    rich_markup_mode="markdown",
    pretty_exceptions_enable=False,
    help="Federated learning where every client keeps its own privacy budget.\n\n"
    "First steps: `discretion demo`, then `discretion init`, `discretion run config.toml`.\n\n"
    "Exit codes: 0 done, 2 bad input, 3 a budget would be overspent, 4 a ledger said no, 1 other.",
)

app.command()(operate.guard)
app.command()(operate.guards)
app.command()(operate.key)
app.command()(operate.replan)
app.add_typer(operate.flower, name="flower")

INTERRUPTED = 130  # the exit code after Ctrl-C
DEFAULTS = config.PlanConfig()
ACCOUNTANTS: dict[str, Accountant] = {"pld": Pld(), "dp-accounting": Reference(), "renyi": Renyi()}


def _version(wanted: bool) -> None:
    if wanted:
        terminal.out.print(f"discretion {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    pass


app.command()(command.demo)
app.command()(command.experiment)


@app.command()
def init(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("config.toml"),
    json_: Json = False,
) -> None:
    """Write a config.toml with every setting, its default and what it means.

    Example: `discretion init && discretion run config.toml --out runs/first`
    """
    if path.exists():
        raise InputError(f"{path} exists already: give another name")
    path.write_text(config.template(), encoding="utf-8")
    if json_:
        terminal.print_json({"config": str(path)})
    else:
        terminal.say(f"Wrote {path}. Next: discretion run {path} --out runs/first")


@app.command()
def population(
    mix: Annotated[str, typer.Argument(help="A budget mix: 10-20-30, uniform:0.1,1, groups:1@50,8@50")],
    clients: Annotated[int, typer.Option(min=1, help="How many clients.")] = 100,
    delta: Annotated[float, typer.Option(help="Each client's delta.")] = 1e-5,
    size: Annotated[int, typer.Option(min=1, help="Each client's number of records.")] = 100,
    seed: Annotated[int, typer.Option(min=0, help="Who gets which budget.")] = 0,
    json_: Json = False,
) -> None:
    """Print a population as CSV: who takes part, with which budget.

    Example: `discretion population 10-20-30 --clients 100 > population.csv`
    """
    epsilon = budgets.draw(mix, clients, stream(seed, Purpose.BUDGETS))
    made = Population.of(epsilon, delta, size)
    if json_:
        columns = {"epsilon": made.epsilon, "delta": made.delta, "size": made.size}
        terminal.print_json({"client": list(made.client)} | {k: v.tolist() for k, v in columns.items()})
    else:
        sys.stdout.write(made.to_csv())


@app.command()
def plan(
    method: Annotated[str, typer.Argument(help="A method; see `discretion methods`.")],
    people: Annotated[Path, typer.Argument(metavar="POPULATION", help="CSV: client,epsilon,delta,size")],
    rounds: Annotated[int, typer.Option(min=1, help="Rounds of training.")] = DEFAULTS.rounds,
    rate: Annotated[float, typer.Option(min=0, max=1, help="Mean chance to take part.")] = DEFAULTS.rate,
    clip: Annotated[float, typer.Option(min=0, help="Mean bound on an update's norm.")] = DEFAULTS.clip,
    option: Annotated[
        list[str] | None,
        typer.Option("-p", "--parameter", metavar="KEY=VALUE", help="A parameter of the method."),
    ] = None,
    accounting: Annotated[
        str | None,
        typer.Option(help="tight; or paper: noise by the paper's own formula, whatever that costs."),
    ] = None,
    out: Annotated[Path | None, typer.Option("--out", "-o", help="Write the plan here.")] = None,
    advise: Annotated[
        bool, typer.Option("--advise", help="Show what more participation or rounds would buy.")
    ] = False,
    plot: Annotated[bool, typer.Option("--plot", help="Draw what the method decided.")] = False,
    plot_out: Annotated[
        Path | None, typer.Option(help="The HTML file to draw to; else METHOD-plan.html.")
    ] = None,
    json_: Json = False,
) -> None:
    """Plan by a method, and show what it costs each budget class.

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
        plot_out = plot_out or (out.parent if out else Path()) / f"{method}-plan.html"
        _draw(made, clients, certificate, details, plot_out)
    if json_:
        record = terminal.certificate_record(made, certificate)
        figures = str(plot_out) if plot_out else None
        terminal.print_json(record | {"details": details.to_record(), "plot": figures})
        return
    _show(made, clients, certificate, json_)
    if out:
        terminal.say(f"Wrote {out}. Next: discretion check {out} {people}")
    if plot_out:
        terminal.say(f"Wrote {plot_out}. {terminal.how_to_open(plot_out)}")


def _advise(settings: config.Config, clients: Population, as_json: bool) -> None:
    def make(rate: float, rounds: int) -> Plan:
        chosen = settings.plan.model_copy(update={"rate": rate, "rounds": rounds})
        return plan_of(settings.model_copy(update={"plan": chosen}), clients)

    found = advice.options(make, clients, settings.plan.rate, settings.plan.rounds)
    chosen = advice.recommended(found, settings.plan.rounds)
    if as_json:
        rows = [vars(option) for option in found]
        terminal.print_json({"options": rows, "recommended": vars(chosen) if chosen else None})
    else:
        terminal.show_advice(found, chosen, settings.plan.rate, settings.plan.rounds)


def _draw(made: Plan, clients: Population, certificate: Certificate, details: Details, out: Path) -> None:
    from discretion.plots import write

    write(made, clients, certificate, details, out)


@app.command()
def check(
    target: Annotated[Path | None, typer.Argument(help="A run folder, or a plan.json.")] = None,
    people: Annotated[Path | None, typer.Argument(metavar="POPULATION", help="CSV, with a plan.json")] = None,
    accountant: Annotated[
        str, typer.Option(help="pld, dp-accounting (a second opinion) or renyi (looser).")
    ] = "pld",
    accounting: Annotated[
        str, typer.Option(help="tight; or paper: what the papers charge, and what their noise truly costs.")
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
    folder = RunFolder(target)
    if target.is_dir():
        folder.require()
    elif people is None:
        raise InputError(f"to check {target}, give the population, too: discretion check PLAN POPULATION")
    if accountant not in ACCOUNTANTS:
        raise InputError(f"unknown accountant {accountant!r}; known are {', '.join(ACCOUNTANTS)}")
    clients = Population.from_csv(people or folder.population)
    made = Plan.from_json(read_text(folder.plan if target.is_dir() else target))
    certificate = certify(made, clients, ACCOUNTANTS[accountant])
    _show(made, clients, certificate, json_)
    if target.is_dir():
        Certificate.from_json(read_text(folder.certificate)).require(made, accept_no_privacy=True)
    certificate.require(made)


@app.command()
def run(
    target: Annotated[Path, typer.Argument(help="A config.toml, or a run folder with --resume.")],
    out: Annotated[
        Path | None, typer.Option("--out", "-o", help="The run folder to make; else runs/NAME.")
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with a run that stopped.")] = False,
    on: Annotated[
        str | None,
        typer.Option("--on", help="Where clients are: here, guards, flower or flower-sim; see [clients]."),
    ] = None,
    change: Override = None,
    device: Annotated[str | None, typer.Option(help="auto, cpu, cuda or cuda:1: where to train.")] = None,
    threads: Annotated[
        int | None, typer.Option(min=0, help="Of compiled code and torch; 0: as many as cores.")
    ] = None,
    workers: Annotated[
        int | None,
        typer.Option(min=0, help="Processes for models that only torch can train; 0: as many as cores."),
    ] = None,
    track: Annotated[
        str | None, typer.Option(help="tensorboard or mlflow: hand the history on, too; see [track].")
    ] = None,
    write_report: Annotated[bool, typer.Option("--report/--no-report", help="Write report.html.")] = True,
    show_profile: Annotated[bool, typer.Option("--profile", help="Say where the time went.")] = False,
    json_: Json = False,
) -> None:
    """Plan, prove and train; everything is kept in one folder.

    Examples: `discretion run config.toml --out runs/first -c plan.rounds=20`,
    `discretion run runs/first --resume` (after any crash: the same model, nothing counted twice),
    `discretion run config.toml --device cpu --workers 4`
    """
    folder = RunFolder(target if target.is_dir() else out or Path("runs") / target.stem)
    wanted = {"device": device, "threads": threads, "workers": workers}
    where = [f"train.{name}={value}" for name, value in wanted.items() if value is not None]
    where += [f"track.to={track}"] if track else []
    task, profile = None, Profile()
    if not (resume and folder.about.exists()):
        if target.is_dir():
            raise InputError(f"{target} is a folder: give a config.toml, or --resume to go on with a run")
        place = [f"clients.where={on}"] if on else []
        settings = config.read(target, [*(change or []), *place, *where])
        task = prepare(settings, folder, load_data(settings, terminal.say))
    elif change or on:
        raise InputError("a run keeps its settings: neither -c nor --on can be used when it is resumed")
    if folder.model.exists():
        terminal.say(f"{folder.path} is finished already.")
    else:
        _train(folder, task, json_, profile, where)
        if show_profile and not json_:
            terminal.show_profile(profile)
    extra = {"profile": profile.to_record()} if show_profile else None
    terminal.compare_runs([folder.path], folder.report if write_report else None, None, json_, extra)


def _train(
    folder: RunFolder, task: Task | None, as_json: bool, profile: Profile, overrides: list[str]
) -> None:
    made = Plan.from_json(read_text(folder.plan))
    certificate = Certificate.from_json(read_text(folder.certificate))
    if not as_json:
        _show(made, Population.from_csv(folder.population), certificate, as_json)
    settings = config.read(folder.config, overrides)
    with terminal.bars(as_json) as progress, tracking(folder.path, settings.track, terminal.say) as hand_on:
        bar = terminal.bar(progress, made.method, made.rounds)

        def show(now: Progress) -> None:
            hand_on()
            note = terminal.progress_note(now.accuracy, now.spent)
            progress.update(bar, completed=now.round, note=note)
            if not as_json and not terminal.err.is_terminal and now.round % max(1, now.rounds // 10) == 0:
                terminal.say(f"round {now.round} of {now.rounds}: {note}")

        if settings.clients.where == "flower":
            operate.submit(folder, settings, made, certificate, show)
        elif settings.clients.where == "flower-sim":
            operate.simulate(folder, settings, show)
        else:
            execute(folder, task, show, profile, overrides=overrides)


app.command()(ledger_command.ledger)
app.command()(looking.show)
app.command()(looking.watch)
app.command()(looking.export)
app.command()(results.compare)
app.command()(results.report)
app.command()(results.verify)
app.command()(results.receipt)
app.command()(catalogue.methods)
app.command()(catalogue.data)


def _show_papers(as_json: bool) -> None:
    from discretion.accounting.papers import comparison

    if not as_json:
        terminal.say("Computing what the papers' noise costs: about ten seconds.")
    rows = comparison()
    if as_json:
        records = [{**vars(row), "ratio": row.ratio, "verdict": row.verdict} for row in rows]
        terminal.print_json({"papers": records})
    else:
        terminal.show_papers(rows)


def _show(made: Plan, clients: Population, certificate: Certificate, as_json: bool) -> None:
    if as_json:
        terminal.print_json(terminal.certificate_record(made, certificate))
    else:
        terminal.out.print(terminal.certificate_table(made, clients, certificate))
        if table := terminal.adversaries_table(clients, certificate):
            terminal.out.print(table)
        terminal.out.print(terminal.statement(certificate))


def main() -> None:
    """Run the command line; what goes wrong on purpose becomes one message and an exit code."""
    try:
        app(prog_name="discretion")
    except DiscretionError as problem:
        terminal.fail(str(problem), "--json" in sys.argv)
        sys.exit(problem.exit_code)
    except OSError as problem:
        terminal.fail(f"{problem.strerror}: {problem.filename}", "--json" in sys.argv)
        sys.exit(InputError.exit_code)
    except SystemExit as end:
        if end.code == INTERRUPTED:
            terminal.say("Stopped. What is done is kept: a run goes on with --resume, all else by itself.")
        raise
