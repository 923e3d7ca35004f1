"""Preflight of a run: who is ready, who is not and why, before anything is charged."""

from dataclasses import asdict, dataclass
from typing import Any

from discretion.clients.readiness import Readiness
from discretion.clients.transport import Transport
from discretion.clients.turnout import needed
from discretion.errors import AnswersError, InputError, PlanError, UnverifiedError
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

    clients: tuple[Readiness, ...]  # those that the plan may ask
    least: float
    planned: int = 0  # clients of the plan, those that it never asks included; 0: not counted
    charged: int = 0  # rounds of the run, before

    @property
    def ready(self) -> int:
        return sum(each.ready for each in self.clients)

    @property
    def all_ready(self) -> bool:
        return self.ready == len(self.clients)

    @property
    def cut_short(self) -> int:
        """Clients that are ready, but whose budgets do not allow all of their turns."""
        return sum(each.cut_short for each in self.clients)

    @property
    def words(self) -> str:
        asked, among = len(self.clients), ""
        if (never := self.planned - asked) > 0:
            among = f" (the plan never asks {never:,} of its {self.planned:,})"
        short = f", {self.cut_short:,} of them not for all of their turns" if self.cut_short else ""
        return f"{self.ready:,} of {asked:,} clients are ready{short}{among}"

    @property
    def nothing(self) -> str:
        """That asking cost nothing, and how many rounds of the run are charged already."""
        if not self.charged:
            return NOTHING
        rounds = "1 round of the run is" if self.charged == 1 else f"{self.charged:,} rounds of the run are"
        return f"Nothing more was joined or charged; {rounds} charged already"

    def require(self) -> None:
        """Raise unless a run may begin: enough clients are ready, and nobody differs in what all share."""
        odd = {each.client: each.shared for each in self.clients if each.shared}
        for client, shared in odd.items():
            raise InputError(
                f"{len(odd)} of {len(self.clients)} clients differ in what all must share, first {client}: "
                f"{shared[0]}. {self.nothing}. Settle it with their owners, or end their guards to begin "
                "without them."
            )
        least = needed(self.least, len(self.clients))
        if self.ready < least:
            raise AnswersError(
                f"{self.words}, and {least:,} must be (clients.least_answers = {self.least:g}). "
                f"{self.nothing}. Start the guards, or settle with their owners why they are not ready."
            )

    def require_all(self) -> None:
        """Raise unless every client is ready, for all of its turns."""
        self.require()
        if not self.all_ready:
            raise UnverifiedError(f"{self.words}: a run would begin without the others. {self.nothing}.")
        if self.cut_short:
            raise UnverifiedError(f"{self.words}: a run would end without them. {self.nothing}.")

    def to_record(self) -> dict[str, Any]:
        clients = [{**asdict(each), "ready": each.ready} for each in self.clients]
        return {
            "ready": self.ready,
            "expected": len(self.clients),
            "planned": self.planned,
            "charged": self.charged,
            "least": self.least,
            "clients": clients,
        }


class _Client(Record):
    client: str
    answered: bool
    differs: list[tuple[str, str]]
    turns: tuple[int, int] | None
    ready: bool


class _Preflight(Record):
    """preflight.json, in which a server's process on Flower tells what it heard."""

    ready: int
    expected: int
    planned: int
    charged: int
    least: float
    clients: list[_Client]


def ask(run: Run, task: Task, transport: Transport | None = None) -> Preflight | None:
    """Ask the guards of all clients side by side; None where all clients are in this process."""
    clients = remote_clients(run, task, transport)
    if clients is None:
        return None
    how = run.config.clients
    said = tuple(clients.check(min(PATIENCE, how.timeout)))
    ledger = run.refreshed().ledger if run.files.about.exists() else None
    return Preflight(said, how.least_answers, len(run.population), ledger.reserved if ledger else 0)


def write(folder: RunFolder, found: Preflight) -> None:
    write_safely(folder.preflight, dump(found.to_record()).encode())


def stopped(run: Run) -> str:
    """Return that too few clients were ready, or that some differed, when a run last asked; else nothing.

    Nothing is said of a run that is finished, or whose last preflight allowed it to go on.
    """
    if run.finished:
        return ""
    try:
        found = read(run.files)
        if found is not None:
            found.require()
    except PlanError as problem:
        return f"{run.files.preflight.name} cannot be read: {problem}."
    except (AnswersError, InputError):
        assert found is not None
        were = found.words.replace("clients are ready", "clients were ready")
        way = "go on" if found.charged else "begin"
        return f"When its guards were last asked, {were}, too few or not alike: the run did not {way}."
    return ""


def read(folder: RunFolder) -> Preflight | None:
    """Return the last preflight that was written; None where there is none."""
    if not folder.preflight.exists():
        return None
    record = parse(read_text(folder.preflight), _Preflight, folder.preflight.name)
    clients = (
        Readiness(each.client, each.answered, tuple(each.differs), each.turns) for each in record.clients
    )
    return Preflight(tuple(clients), record.least, record.planned, record.charged)
