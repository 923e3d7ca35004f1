"""The line to a run's clients elsewhere: by a transport, or by their guards' sockets on this machine."""

from pathlib import Path

from discretion.clients.exchange import Exchange
from discretion.clients.messages import read_key
from discretion.clients.remote import RemoteClients
from discretion.clients.transport import Sockets, Transport, read_addresses
from discretion.errors import InputError
from discretion.files import read_text
from discretion.ledger.heads import KnownHeads
from discretion.runs.build import local_training
from discretion.runs.config import Config
from discretion.runs.prepare import Task
from discretion.runs.read import Run
from discretion.secure_sum.roster import Roster, operators_roster


def remote_clients(run: Run, task: Task, transport: Transport | None = None) -> RemoteClients | None:
    """Reach clients elsewhere by this transport, or by their guards' sockets; None where all are here."""
    config = run.config
    if config.clients.where == "here":
        return None
    return RemoteClients(
        transport or _sockets(run),
        read_key(Path(config.clients.key)),
        run.plan,
        run.population,
        run.about.id,
        model=config.model.name,
        shapes=task.clients.shapes,
        records=task.records,
        local=local_training(config),
        timeout=config.clients.timeout,
        heads=_heads(run),
        least_answers=config.clients.least_answers,
        roster=roster_of(config),
    )


def exchange_of(run: Run, transport: Transport | None = None) -> Exchange:
    """Return the operator's line to the guards of a run whose clients are elsewhere."""
    config = run.config.clients
    roster = roster_of(run.config)
    identities = {
        name: contact.identity.hex() for name, contact in (roster.contacts if roster else {}).items()
    }
    sockets, key = transport or _sockets(run), read_key(Path(config.key))
    return Exchange(sockets, key, config.timeout, _heads(run), identities)


def roster_of(config: Config) -> Roster | None:
    """Return the operator's roster; None where the settings name none."""
    path = Path(config.secure_sum.roster)
    if not config.secure_sum.roster:
        return None
    try:
        return operators_roster(read_text(path))
    except InputError as problem:
        raise InputError(f"{path}: {problem}") from None


def _sockets(run: Run) -> Sockets:
    return Sockets(read_addresses(Path(run.config.clients.addresses)))


def _heads(run: Run) -> KnownHeads:
    """Return the operator's file of heads; before the run is written, no file is made, or told of the run."""
    path, written = run.files.heads(run.config), run.files.about.exists()
    return KnownHeads(path if written or path.exists() else None, run.about.id if written else "")
