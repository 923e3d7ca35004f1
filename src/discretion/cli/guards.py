"""Commands for clients that are parties of their own: guards, keys, and guards for trying out."""

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import tomli_w
import typer

from discretion import config, journal, terminal
from discretion.accounting import Certificate
from discretion.errors import InputError
from discretion.materials import divide, fitted, load_data, plan_of
from discretion.messages import write_key
from discretion.options import Json, Override
from discretion.plan import Plan
from discretion.runs import Progress, RunFolder, Task, set_up

TRIAL = """\
[population]
clients = {clients}
budgets = "groups:8,16"

[data]
name = "digits"
records = 60

[model]
name = "mlp"

[plan]
method = "spend_as_you_go"
rounds = 5
rate = 0.8
clip = 0.5
"""

flower = typer.Typer(
    no_args_is_help=True, rich_markup_mode="markdown", help="Try a run on Flower, on this machine."
)


def guard(
    policy: Annotated[Path, typer.Argument(metavar="GUARD.toml", help="What the client allows, to whom.")],
    show: Annotated[
        bool, typer.Option("--show", help="Say what it would approve, and do not start.")
    ] = False,
    json_: Json = False,
) -> None:
    """Guard a client's data and budget: answer orders on a Unix socket, or refuse them.

    Examples: `discretion guard GUARD.toml`, `discretion guard GUARD.toml --show` (digests of the models)
    """
    from discretion.guard import policy as policies
    from discretion.guard import serve
    from discretion.guard.data import own_records
    from discretion.tasks import models

    said = policies.read(policy)
    if show:
        data = own_records(said.data)
        digests = {name: models.shapes_digest(models.build(name, data, seed=0)) for name in said.models}
        record: dict[str, Any] = {"client": said.client, "records": len(data.train.labels), "models": digests}
        if json_:
            terminal.print_json(record)
            return
        terminal.say(f"client {said.client} with {len(data.train.labels)} records")
        for name, digest in digests.items():
            terminal.say(f"model {name}: {digest}")
        return
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    serve.serve(said)


def key(
    path: Annotated[Path, typer.Argument(help="Where to write it.")] = Path("operator.key"),
    json_: Json = False,
) -> None:
    """Make an operator's key, and print its public part, which goes into the clients' GUARD.toml.

    Example: `discretion key operator.key`
    """
    if path.exists():
        raise InputError(f"{path} exists already: a key is never replaced; give another name")
    public = write_key(path)
    if json_:
        terminal.print_json({"key": str(path), "public": public})
    else:
        terminal.out.print(public)


def guards(
    settings: Annotated[Path, typer.Argument(metavar="CONFIG", help="A config.toml.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to make.")] = Path("guards"),
    change: Override = None,
    json_: Json = False,
) -> None:
    """Write policies for guards of all clients of a run on this machine: for trying out.

    Example: `discretion guards config.toml --out guards`, then `discretion guard guards/c0/GUARD.toml` and so
    on for each, then `discretion run config.toml --on guards -c clients.addresses=guards/addresses.toml -c
    clients.key=guards/operator.key`
    """
    wanted = config.read(settings, change or [])
    names = write_guards(wanted, out)
    if json_:
        terminal.print_json({"guards": str(out), "clients": len(names)})
    else:
        terminal.say(f"Wrote policies of {len(names)} clients to {out}. Start a guard for each of them.")


def write_guards(wanted: config.Config, out: Path) -> tuple[str, ...]:
    """A folder with a policy for each client of a run, and an operator's key; their names."""
    if out.exists():
        raise InputError(f"{out} exists already: give another --out")
    dataset = load_data(wanted, terminal.say)
    task = set_up(wanted, dataset)
    _, holdings = divide(wanted, dataset, task.population)
    if wanted.data.name == "csv" or not holdings.sizes.all():
        raise InputError("give each guard a table of its own client's records, and write its GUARD.toml")
    plan = fitted(plan_of(wanted, task.population), wanted, task.clients.layers)
    out.mkdir(parents=True)
    public = write_key(out / "operator.key")
    for i, name in enumerate(task.population.client):
        home = out / name
        home.mkdir()
        (home / "records.txt").write_text("\n".join(map(str, holdings.of(i).tolist())) + "\n")
        (home / "GUARD.toml").write_text(_policy(wanted, plan, task, i, public), encoding="utf-8")
    addresses = {name: f"{name}/guard/guard.sock" for name in task.population.client}
    (out / "addresses.toml").write_text(tomli_w.dumps(addresses), encoding="utf-8")
    return task.population.client


def submit(
    folder: RunFolder,
    settings: config.Config,
    plan: Plan,
    certificate: Certificate,
    on_round: Callable[[Progress], None],
) -> None:
    """Do what is left of a run on Flower: its server app, another process, writes to the run folder."""
    from discretion.flower import project

    seen = len(journal.read(folder.history))

    def look() -> None:
        nonlocal seen
        for record in journal.read(folder.history):
            if record["round"] > seen:
                seen = record["round"]
                spent = certificate.spending.share(seen)
                on_round(Progress(seen, plan.rounds, record.get("accuracy"), spent))

    project.submit(folder.path, settings.clients.connection, settings.clients.home, look)


def simulate(folder: RunFolder, settings: config.Config, on_round: Callable[[Progress], None]) -> None:
    """Do what is left of a run in Flower's simulation, with guards in the run folder."""
    try:
        from discretion.flower.simulate import simulate as on_ray
    except ModuleNotFoundError:
        raise InputError(
            "Flower's simulation is not installed: pip install 'discretion[flower-sim]'"
        ) from None

    guards = folder.path / "guards"
    if not guards.exists():
        write_guards(settings, guards)
    on_ray(folder, guards, on_round)


def replan(
    run: Annotated[Path, typer.Argument(metavar="RUN", help="The folder of a run that stopped.")],
    people: Annotated[
        Path, typer.Argument(metavar="POPULATION.csv", help="All clients from now on, with their budgets.")
    ],
    out: Annotated[Path, typer.Option("--out", "-o", help="The run folder to make.")],
    json_: Json = False,
) -> None:
    """Plan the remaining rounds of a run anew: clients joined, left, or changed their budgets.

    What is spent stays spent; a changed epsilon becomes an entry in the ledger. The old run is closed.

    Example: `discretion replan runs/first people.csv --out runs/second`, then `discretion run runs/second
    --resume`
    """
    from discretion.replan import replan as plan_anew

    made = plan_anew(RunFolder(run), people, RunFolder(out), terminal.say)
    names = {
        "joined": made.joined,
        "left": made.left,
        "nothing left of the budget": made.exhausted,
        "budget changed": made.changed,
    }
    if json_:
        clients = {
            name: {"budget": epsilon, "spent": before, "spent_in_the_end": total}
            for name, epsilon, before, total in zip(
                made.population.client,
                *(column.tolist() for column in (made.population.epsilon, made.before, made.total)),
                strict=True,
            )
        }
        terminal.print_json({"rounds": made.rounds, **names, "clients": clients})
        return
    for what, who in names.items():
        if who:
            terminal.say(f"{what}: {', '.join(who[:10])}{' …' if len(who) > 10 else ''}")
    share = float(np.max(made.total / made.population.epsilon))
    terminal.say(
        f"Planned {made.rounds} rounds for {len(made.population)} clients; in the end each has spent at most "
        f"{share:.1%} of its budget, what was spent before included. Next: discretion run {out} --resume"
    )


@flower.command()
def init(
    settings: Annotated[Path, typer.Argument(metavar="CONFIG", help="A config.toml.")],
    out: Annotated[Path, typer.Option("--out", "-o", help="The folder to make.")] = Path("flower"),
    port: Annotated[int, typer.Option(help="Of the SuperLink; nodes take those after it.")] = 18_000,
    change: Override = None,
    json_: Json = False,
) -> None:
    """Write certificates, keys of nodes and operator, policies and configurations for a run on this machine.

    Example: `discretion flower init config.toml --out flower`
    """
    from discretion.flower import local

    names = write_guards(config.read(settings, change or []), out)
    local.write(out, names, port)
    if json_:
        terminal.print_json({"flower": str(out), "clients": len(names), "port": port})
    else:
        terminal.say(
            f"Wrote {out}. Next: discretion flower up {out}, then discretion run {settings} --on flower -c "
            f"clients.home={out}/flower -c clients.key={out}/operator.key"
        )


@flower.command()
def up(
    folder: Annotated[Path, typer.Argument(help="What init made.")] = Path("flower"),
    clients: Annotated[
        int | None, typer.Option(min=2, help="Make the folder first: a trial on the digits for so many.")
    ] = None,
    json_: Json = False,
) -> None:
    """Start a SuperLink, and a guard and a node for each client, with TLS and authentication of nodes.

    Examples: `discretion flower up flower`, `discretion flower up --clients 5` (nothing else is needed)
    """
    from discretion.flower import local

    if clients is not None:
        settings = folder.with_name(folder.name + ".toml")
        if folder.exists() or settings.exists():
            raise InputError(f"{folder} or {settings} is there already: leave --clients out, or give another")
        settings.write_text(TRIAL.format(clients=clients), encoding="utf-8")
        init(settings, folder)
    local.up(folder, terminal.say)
    if json_:
        terminal.print_json({"up": str(folder)})


@flower.command()
def down(
    folder: Annotated[Path, typer.Argument(help="What was started.")] = Path("flower"), json_: Json = False
) -> None:
    """End exactly what `up` started.

    Example: `discretion flower down flower`
    """
    from discretion.flower import local

    local.down(folder, terminal.say)
    if json_:
        terminal.print_json({"down": str(folder)})


def _policy(wanted: config.Config, plan: Plan, task: Task, client: int, public: str) -> str:
    trusting = plan.promise != "server" or plan.noise_at == "secure_sum"
    against = "clients" if plan.promise == "server" and trusting else plan.promise
    turns = max(1 if p.turns is None else int(p.turns[client]) for p in plan.phases)
    record: dict[str, Any] = {
        "client": task.population.client[client],
        "epsilon": float(task.population.epsilon[client]),
        "delta": float(task.population.delta[client]),
        "unit": plan.unit,
        "adjacency": plan.adjacency,
        "against": against,
        "colluding": plan.colluding,
        "trust_server": trusting,
        "size": int(task.population.size[client]),
        "operators": {"here": public},
        "models": {wanted.model.name: task.clients.shapes},
        "statistics": [plan.reading.rule] if plan.reading else [],
        "rule": wanted.rule,
        "data": {"name": wanted.data.name, "records": "records.txt"},
        "ceilings": {
            "rounds": plan.rounds,
            "turns": max(turns, 1),
            "epochs": max(wanted.train.epochs, 1),
            "steps": max(wanted.train.steps, *(phase.steps for phase in plan.phases)),
        },
    }
    if plan.randomness == "seeded":
        record["test_seed"] = wanted.seed
    return tomli_w.dumps(record)
