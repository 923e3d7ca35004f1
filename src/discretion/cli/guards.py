"""Commands for clients that are parties of their own: `guard`, `guards`, `key`."""

import logging
from collections.abc import Sequence
from enum import Enum
from pathlib import Path
from typing import Annotated

import tomli_w
from typer import Argument, Option

from discretion.audit import receipts
from discretion.cli import Json, Override, output
from discretion.clients.messages import write_key
from discretion.errors import InputError, PopulationError, listed
from discretion.guard import policy as policies
from discretion.plan.names import same_files
from discretion.report import receipt_page
from discretion.runs import config
from discretion.runs.build import divide, fitted, load_data, plan_of
from discretion.runs.prepare import build_task


class Lost(Enum):
    """What a guard's ledger lost."""

    nothing = "nothing"
    rounds = "rounds"
    everything = "everything"


def guard(
    policy: Annotated[
        Path,
        Argument(metavar="GUARD.toml", help="The client's policy: what it allows, and to which operators."),
    ],
    show: Annotated[
        bool, Option("--show", help="Print the client's records and model digests, and do not start.")
    ] = False,
    backup: Annotated[
        Path | None,
        Option(metavar="FILE", help="Copy the ledger, whole, to a new file, and do not start."),
    ] = None,
    receipt: Annotated[
        list[Path] | None,
        Option(metavar="FILE", help="Start only if the ledger has all that this receipt saw of it."),
    ] = None,
    recover: Annotated[
        Lost | None,
        Option(help="After a loss, say what was lost: it is charged as if all of it had been spent."),
    ] = None,
    json_: Json = False,
) -> None:
    """Guard one client's data and budget: answer a server's orders on a Unix socket, or refuse them.

    Examples: `discretion guard GUARD.toml`, `discretion guard GUARD.toml --show` (digests of the models),
    `discretion guard GUARD.toml --backup copy.sqlite`, `discretion guard GUARD.toml --recover rounds` (rounds
    of runs that the ledger has on record were lost; everything: runs, too; nothing: it is a false alarm)
    """
    from discretion.guard import own_ledger, serve
    from discretion.guard.data import own_records
    from discretion.tasks import models

    said = policies.read(policy)
    if show:
        data = own_records(said.data)
        digests = {name: models.shapes_digest(models.build(name, data, seed=0)) for name in said.models}
        records = len(data.train.labels)
        record = {"client": said.client, "records": records, "models": digests}
        lines = [f"client {said.client} with {records} records"]
        lines += [f"model {name}: {digest}" for name, digest in digests.items()]
        return output.answer(json_, record, note="\n".join(lines))
    if backup is not None:
        own_ledger.back_up(said, backup)
        return output.answer(json_, {"backup": str(backup)}, note=f"Copied the ledger to {backup}.")
    if recover is not None:
        own_ledger.recover(said, recover.value)
        note = f"Charged what was lost ({recover.value}). Start the guard again."
        return output.answer(json_, {"recovered": recover.value}, note=note)
    if receipt:
        found = [receipts.read(path, receipt_page.render).receipt.guard for path in receipt]
        own_ledger.require_known(said, [head for head in found if head is not None])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    serve.serve(said)


def key(
    path: Annotated[Path, Argument(help="Where to write it.")] = Path("operator.key"),
    json_: Json = False,
) -> None:
    """Make an operator's key and print its public part, for [operators] in the clients' GUARD.toml.

    Example: `discretion key operator.key`
    """
    if path.exists():
        raise InputError(f"{path} exists already: a key is never replaced; give another name")
    public = write_key(path)
    output.answer(json_, {"key": str(path), "public": public}, public)


def guards(
    settings: Annotated[Path, Argument(metavar="CONFIG", help="A config.toml.")],
    out: Annotated[Path, Option("--out", "-o", help="The folder to make.")] = Path("guards"),
    change: Override = None,
    json_: Json = False,
) -> None:
    """Write a guard policy for every client of a run, to try guards out on this machine.

    Example: `discretion guards config.toml --out guards`, then `discretion guard guards/c0/GUARD.toml` and so
    on for each, then `discretion run config.toml --on guards -c clients.addresses=guards/addresses.toml -c
    clients.key=guards/operator.key`
    """
    count = len(write_guards(config.read(settings, change or []), out))
    message = f"Wrote policies of {count} clients to {out}. Start a guard for each of them."
    output.answer(json_, {"guards": str(out), "clients": count}, note=message)


def write_guards(wanted: config.Config, out: Path, taken: Sequence[str] = ()) -> tuple[str, ...]:
    """Write a policy for each client of a run, and an operator's key; return the clients' names.

    Each client gets a folder of its name in `out`; `taken` has names of what else will be there.
    """
    if out.exists():
        raise InputError(f"{out} exists already: give another --out")
    dataset = load_data(wanted, output.say)
    task = build_task(wanted, dataset)
    _, holdings = divide(wanted, dataset, task.population)
    if wanted.data.name == "csv" or not holdings.sizes.all():
        raise InputError("give each guard a table of its own client's records, and write its GUARD.toml")
    if same := same_files(task.population.client, ("operator.key", "addresses.toml", *taken)):
        raise PopulationError("\n  ".join([f"{out}: cannot make a folder for each client", *listed(same)]))
    plan = fitted(plan_of(wanted, task.population), wanted, task.clients.layers)
    out.mkdir(parents=True)
    public = write_key(out / "operator.key")
    for i, name in enumerate(task.population.client):
        home = out / name
        home.mkdir()
        (home / "records.txt").write_text("\n".join(map(str, holdings.of(i).tolist())) + "\n")
        policy = policies.new_policy(
            plan,
            task.population,
            i,
            operator=public,
            model=(wanted.model.name, task.clients.shapes),
            data=wanted.data.name,
            epochs=wanted.train.epochs,
            steps=wanted.train.steps,
            seed=wanted.seed,
        )
        (home / "GUARD.toml").write_text(policy, encoding="utf-8")
    addresses = {name: f"{name}/guard/guard.sock" for name in task.population.client}
    (out / "addresses.toml").write_text(tomli_w.dumps(addresses), encoding="utf-8")
    return task.population.client
