"""Preflight of a run: who is ready, who is not and why, before anything is charged."""

from dataclasses import asdict, dataclass
from typing import Any

from discretion.clients.readiness import Readiness
from discretion.clients.transport import Transport
from discretion.clients.turnout import needed
from discretion.errors import AnswersError, InputError, UnverifiedError
from discretion.files import read_text, write_safely
from discretion.jsonfile import Record, dump, parse
from discretion.runs.elsewhere import remote_clients
from discretion.runs.folder import RunFolder
from discretion.runs.prepare import Task
from discretion.runs.read import Run

PATIENCE = 60.0  # seconds for a guard to answer
NOTHING = "Nothing was joined or charged"


@dataclass(frozen=True)
class Preflight:
    """What every guard said of a run; `least` is the least share of clients that must be ready."""

    clients: tuple[Readiness, ...]
    least: float

    @property
    def ready(self) -> int:
        return sum(each.ready for each in self.clients)

    @property
    def all_ready(self) -> bool:
        return self.ready == len(self.clients)

    @property
    def words(self) -> str:
        return f"{self.ready:,} of {len(self.clients):,} clients are ready"

    def require(self) -> None:
        """Raise unless a run may begin: enough clients are ready, and nobody differs in what all share."""
        odd = {each.client: each.shared for each in self.clients if each.shared}
        for client, shared in odd.items():
            raise InputError(
                f"{len(odd)} of {len(self.clients)} clients differ in what all must share, first {client}: "
                f"{shared[0]}. {NOTHING}. Settle it with their owners, or end their guards to begin without "
                "them."
            )
        least = needed(self.least, len(self.clients))
        if self.ready < least:
            raise AnswersError(
                f"{self.words}, and {least:,} must be (clients.least_answers = {self.least:g}). {NOTHING}. "
                "Start the guards, or settle with their owners why they are not ready."
            )

    def require_all(self) -> None:
        """Raise unless every client is ready."""
        self.require()
        if not self.all_ready:
            raise UnverifiedError(f"{self.words}: a run would begin without the others. {NOTHING}.")

    def to_record(self) -> dict[str, Any]:
        clients = [{**asdict(each), "ready": each.ready} for each in self.clients]
        return {"ready": self.ready, "expected": len(self.clients), "least": self.least, "clients": clients}


class _Client(Record):
    client: str
    answered: bool
    differs: list[tuple[str, str]]
    ready: bool


class _Preflight(Record):
    """preflight.json, in which a server's process on Flower tells what it heard."""

    ready: int
    expected: int
    least: float
    clients: list[_Client]


def ask(run: Run, task: Task, transport: Transport | None = None) -> Preflight | None:
    """Ask the guards of all clients side by side; None where all clients are in this process."""
    clients = remote_clients(run, task, transport)
    if clients is None:
        return None
    how = run.config.clients
    return Preflight(tuple(clients.check(min(PATIENCE, how.timeout))), how.least_answers)


def write(folder: RunFolder, found: Preflight) -> None:
    write_safely(folder.preflight, dump(found.to_record()).encode())


def read(folder: RunFolder) -> Preflight | None:
    """Return the last preflight that was written; None where there is none."""
    if not folder.preflight.exists():
        return None
    record = parse(read_text(folder.preflight), _Preflight, folder.preflight.name)
    clients = (Readiness(each.client, each.answered, tuple(each.differs)) for each in record.clients)
    return Preflight(tuple(clients), record.least)
