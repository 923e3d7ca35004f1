"""Commands for clients that are parties of their own: `guard`, `guards`, `key`, `roster`."""

import json
import logging
from enum import Enum
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from discretion.audit import receipts
from discretion.cli import Json, Override, output
from discretion.clients.messages import read_key, write_key
from discretion.errors import InputError, LedgerError, MessageError
from discretion.files import read_text, trying_to
from discretion.guard import policy as policies
from discretion.ledger.keys import Head
from discretion.report import receipt_page
from discretion.runs import config
from discretion.runs.guard_folders import ROSTER, write_guards
from discretion.secure_sum.roster import Contact, Roster, contact_text, operators_roster, roster_text


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
    contact: Annotated[
        bool,
        Option("--contact", help="Print the guard's public keys, for the others' rosters, and do not start."),
    ] = False,
    json_: Json = False,
) -> None:
    """Guard one client's data and budget: answer a server's orders on a Unix socket, or refuse them.

    Examples: `discretion guard GUARD.toml`, `discretion guard GUARD.toml --show` (digests of the models),
    `discretion guard GUARD.toml --contact > hospital-a.json` (for `discretion roster`),
    `discretion guard GUARD.toml --backup copy.sqlite`, `discretion guard GUARD.toml --recover rounds` (rounds
    of runs that the ledger has on record were lost; everything: runs, too; nothing: it is a false alarm)
    """
    from discretion.guard import own_ledger, serve
    from discretion.guard.data import own_records
    from discretion.guard.identity import own_keys
    from discretion.tasks import models

    said = policies.read(policy)
    asked = {
        "--show": show,
        "--contact": contact,
        "--backup": backup,
        "--receipt": receipt,
        "--recover": recover,
    }
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
    if contact:
        told = own_keys(Path(said.folder)).contact(said.client)
        return output.print_json(json.loads(contact_text(told)))
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


def roster(
    contacts: Annotated[
        list[Path],
        Argument(
            metavar="CONTACT…", help="What `discretion guard GUARD.toml --contact` printed for each client."
        ),
    ],
    out: Annotated[Path, Option("--out", "-o", help="Where to write it.")] = Path("roster.json"),
    consortium: Annotated[
        Path | None,
        Option(metavar="KEY", help="Sign it with this key, as `discretion key` makes it."),
    ] = None,
    json_: Json = False,
) -> None:
    """Put clients' public keys together to a roster, for secure sums.

    Owners who made no key to sign it compare the printed identity keys with each other, by a way that the
    operator cannot change, and write them in [secure_sum.owners] of GUARD.toml.

    Example: `discretion roster hospital-a.json hospital-b.json hospital-c.json --consortium consortium.key`
    """
    if out.exists():
        raise InputError(f"{out} exists already: give another name, or delete it")
    known: dict[str, Contact] = {}
    for path in contacts:
        try:
            found = operators_roster(read_text(path)).contacts
        except InputError as problem:
            raise InputError(f"{path}: {problem}") from None
        if twice := sorted(known.keys() & found.keys()):
            raise InputError(f"{path}: {twice[0]} came before: give one contact of each client")
        known |= found
    text = roster_text(Roster(known), read_key(consortium) if consortium else None)
    with trying_to("write", out):
        out.write_text(text, encoding="utf-8")
    identities = {name: known[name].identity.hex() for name in sorted(known)}
    lines = [f"{name} {key}" for name, key in identities.items()]
    output.answer(json_, {"roster": str(out), "identities": identities}, note="\n".join(lines))


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
    clients.key=guards/operator.key`; with `-c secure_sum.roster=guards/roster.json`, too, for a secure sum
    """
    wanted = config.read(settings, [*(change or []), *held_out(hold_out)])
    count = len(write_guards(wanted, out, output.say))
    message = f"Wrote policies of {count} clients to {out}. Start a guard for each of them."
    if (out / ROSTER).exists():
        message += f" They take part in secure sums: run with -c secure_sum.roster={out / ROSTER}"
    output.answer(json_, {"guards": str(out), "clients": count}, note=message)
