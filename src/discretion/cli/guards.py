"""Commands for clients that are parties of their own: `guard`, `guards`, `key`."""

import logging
import shlex
from enum import Enum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from discretion.audit import receipts
from discretion.cli import Json, Override, output
from discretion.clients.messages import write_key
from discretion.errors import InputError, LedgerError, MessageError
from discretion.guard import policy as policies
from discretion.ledger.keys import Head
from discretion.report import numbers, receipt_page
from discretion.runs import config
from discretion.runs.guard_folders import write_guards


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
    rotate_key: Annotated[
        bool, Option("--rotate-key", help="Replace the key that signs the ledger, and do not start.")
    ] = False,
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
    asked = {"--show": show, "--backup": backup, "--receipt": receipt, "--recover": recover}
    if len(given := [name for name, value in asked.items() if value]) > 1:
        raise InputError(f"found {' and '.join(given)}, expected one of them: give them one after the other")
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
        charged = own_ledger.recover(said, recover.value)
        note = (
            f"Charged what was lost ({recover.value}). Spent before: {charged.spent_before:.4f}, now "
            f"{charged.spent:.4f}; left before: {charged.left_before:.4f}, now {charged.left:.4f}. Start the "
            "guard again."
        )
        return output.answer(json_, {"recovered": recover.value, **charged._asdict()}, note=note)
    if rotate_key:
        public = own_ledger.rotate_key(said).key
        note = f"The ledger is signed by a new key from now on: {public}. Start the guard again."
        return output.answer(json_, {"key": public}, note=note)
    if receipt:
        found = [_head_in(path, said.client) for path in receipt]
        own_ledger.require_known(said, [head for head in found if head is not None])
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    serve.serve(said)


def _head_in(path: Path, client: str) -> Head | None:
    """Return the head in a receipt for this client; raise if it is another's, or not as it was signed."""
    try:
        signed = receipts.read(path, receipt_page.render)
        receipts.check(signed)
    except MessageError as problem:
        raise LedgerError(f"{path} shows nothing: {problem}") from None
    if signed.receipt.client != client:
        raise InputError(
            f"{path} is a receipt for {signed.receipt.client}, but the guard is {client}'s: give a receipt "
            f"for {client}"
        )
    return signed.receipt.guard


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


HoldOut = Annotated[
    float | None,
    Option(
        "--hold-out",
        min=0,
        max=1,
        help="csv: share of each client's records to keep for testing, not training.",
    ),
]


def held_out(share: float | None) -> list[str]:
    """Return the settings that hold this share of each client's records out of training."""
    return [] if share is None else [f"data.hold_out={share}", "data.test=held-out"]


def guards(
    settings: Annotated[Path, Argument(metavar="CONFIG", help="A config.toml.")],
    out: Annotated[Path, Option("--out", "-o", help="The folder to make.")] = Path("guards"),
    hold_out: HoldOut = None,
    change: Override = None,
    json_: Json = False,
) -> None:
    """Write a guard policy for every client of a run, and split a table among them.

    Each client gets a folder with its policy and, of a CSV table, its own rows; an operator's key and the
    addresses of all guards stand beside.

    Example: `discretion guards config.toml --out guards`, then `discretion guard guards/c0/GUARD.toml` and so
    on for each, then `discretion run config.toml --on guards -c clients.addresses=guards/addresses.toml -c
    clients.key=guards/operator.key`
    """
    wanted = config.read(settings, [*(change or []), *held_out(hold_out)])
    names = write_guards(wanted, out, output.say)
    message = (
        f"Wrote policies of {numbers.count(len(names), 'client')} to {out}. Next, a guard for each: "
        f"discretion guard {shlex.quote(f'{out}/{names[0]}/GUARD.toml')} and so on, then discretion run "
        f"{settings} --on guards -c clients.addresses={out}/addresses.toml -c clients.key={out}/operator.key"
    )
    output.answer(json_, {"guards": str(out), "clients": len(names)}, note=message)
