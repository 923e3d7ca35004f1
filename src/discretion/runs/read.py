"""One run as its folder holds it, and the only reader of run folders; nothing is written."""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discretion.accounting import Certificate, Pld
from discretion.accounting.certificate import worst_of
from discretion.accounting.cross_check import CrossCheck
from discretion.arrays import Floats, Ints
from discretion.clients.remote import Heard
from discretion.clients.turnout import (
    Orders,
    Turnout,
    asks_everyone,
    clauses,
    fewest,
    nobody,
    nobody_trained,
    sentence,
)
from discretion.errors import AnswersError, InputError, LedgerError, PlanError
from discretion.files import AnyPath, read_text
from discretion.jsonfile import AnyRecord, Record, parse
from discretion.ledger.reader import DAMAGED, LedgerReader, OnRecord, nothing, read_on
from discretion.plan.html_table import html_table
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.plan.summary import Treatment, treatment
from discretion.runs import config as settings
from discretion.runs.config import Config
from discretion.runs.folder import RunFolder
from discretion.runs.history import History, read_answers, read_history
from discretion.runs.manifest import audit_of, compare

if TYPE_CHECKING:
    from discretion.runs.prepare import Task

NUMBER = re.compile(r"\d[\d.,]*(?<![.,])")
MOST_REASONS, LONGEST_REASON = 3, 300  # in one text; characters, which guards chose


class RunAbout(Record):
    """run.json"""

    id: str
    created: str
    discretion: str  # version that made the folder
    python: str = ""
    data: str
    source: str
    device: str = ""
    randomness: str
    cross_check: CrossCheck | None = None
    classes: int = 0  # labels that a record can have; 0: not on record
    majority: float | None = None  # share of the test records with the most frequent label


class Timed(Record):
    """profile.json: where the time of a run went."""

    rounds: int
    seconds: dict[str, float]  # by part


@dataclass(frozen=True, eq=False)
class Run:
    """One run: what was decided before training, read once, and what its folder says of the rounds so far.

    History, ledger, answers and times are read when they are first asked for, and kept;
    `refreshed` gives a run that reads them anew.
    """

    folder: Path
    config: Config
    about: RunAbout
    population: Population
    plan: Plan
    certificate: Certificate
    task: "Task | None" = None  # clients and model, where this process has built them

    def __repr__(self) -> str:
        state = "finished" if self.finished else f"{self.history.done} of {self.plan.rounds} rounds"
        return f"<Run {self.name}: {self.plan.method}, {len(self.population)} clients, {state}>"

    def _repr_html_(self) -> str:
        rows = {
            "method": self.plan.method,
            "data": self.about.data,
            "clients": f"{len(self.population):,}",
            "rounds": f"{self.history.done} of {self.plan.rounds}",
            "accuracy": f"{self.history.accuracy[-1]:.1%}" if len(self.history.rounds) else "–",
            "largest share of a budget": f"{float(self.certificate.share.max()):.1%}",
        }
        return html_table(f"Run: {self.name}", rows)

    @property
    def files(self) -> RunFolder:
        return RunFolder(self.folder)

    def refreshed(self) -> "Run":
        """Return the same run, to be read as its folder is now."""
        return replace(self)

    @property
    def finished(self) -> bool:
        return self.files.model.exists()

    @cached_property
    def history(self) -> History:
        try:
            return read_history(self.files.history)
        except (OSError, ValueError) as problem:
            raise InputError(f"cannot read {self.files.history}: {problem}") from None

    @cached_property
    def ledger(self) -> OnRecord | None:
        """What the ledger has of this run; None where there is no ledger yet, or none that can be read."""
        known = nothing(len(self.population))
        return read_on(self.files.ledger(self.config), self.about.id, known)

    @cached_property
    def answers(self) -> list[Heard]:
        """What came of the orders of each round; nothing where clients are in this process."""
        try:
            return read_answers(self.files.answers)
        except (OSError, ValueError) as problem:
            raise InputError(f"cannot read {self.files.answers}: {problem}") from None

    @property
    def certificate_text(self) -> str:
        """The certificate as its file has it."""
        return read_text(self.files.certificate)

    @cached_property
    def audit_text(self) -> str | None:
        """The audit as its file has it; None where the run was not audited."""
        return audit_of(self.files)

    @cached_property
    def refusals(self) -> dict[str, tuple[int, str]]:
        """By client: the first round that its guard refused, and why."""
        found: dict[str, tuple[int, str]] = {}
        for heard in self.answers:
            for client, reason in heard.refused.items():
                found.setdefault(client, (heard.round, reason))
        return found

    @cached_property
    def turnout(self) -> Turnout | None:
        """Of the round in which fewest clients were there; None where that is not on record."""
        return fewest(heard.turnout for heard in self.answers)

    @property
    def tells_orders(self) -> bool:
        """Whether it may be told how many orders were sent and answered: no secret coin decides it."""
        return not self.secret or asks_everyone(self.plan)

    @cached_property
    def orders(self) -> Orders:
        """All orders of rounds on record. Secret, unless the run `tells_orders`."""
        heard = self.answers
        sent, answered = sum(each.asked for each in heard), sum(each.answered for each in heard)
        return Orders(sent, answered, heard[-1].round if heard else 0, len(self.refusals))

    @property
    def heard_of(self) -> list[str]:
        """Clauses, for anybody, on who was there and who trained; none where clients are in this process."""
        return clauses(self.plan, self.turnout, self.orders, self.tells_orders) if self.answers else []

    @property
    def nobody_trained(self) -> bool:
        """Whether all orders came to nothing; False where that may not be told, as coins are secret."""
        return self.tells_orders and self.orders.nobody

    @property
    def answered(self) -> str:
        """Sentences on who was there and trained, where clients are elsewhere, and on rounds without any."""
        rest = nobody(self.plan, self.ledger.idle if self.ledger else 0)
        told = sentence(self.heard_of) if self.turnout else ""
        return " ".join(filter(None, (told, rest)))

    def require_trained(self) -> None:
        """Raise `AnswersError` where orders were sent and none was answered; for the operator alone.

        A finished run keeps its model, manifest and report either way: where coins are secret, whether a run
        is finished may not depend on whether one of them came up. The operator's server flips these coins, so
        that its exit code and its terminal may tell.
        """
        if not self.orders.nobody:
            return
        reasons = (why for heard in self.answers for why in heard.refused.values())
        quiet = "" if self.tells_orders else " Coins are secret: do not pass this on."
        raise AnswersError(
            f"{nobody_trained(self.orders.sent, reasons)}. The model of {self.folder} is noise alone, and "
            "its rounds are charged. Settle with the guards’ owners why orders fail, then start a new "
            f"run.{quiet}"
        )

    def require_answers(self) -> None:
        """Raise `AnswersError` where the run stopped because too few clients were there, or none trained."""
        if self.turnout and not self.turnout.enough:
            again = f"discretion run {self.folder} --resume"
            raise AnswersError(f"{self.answered} Go on with `{again}` once enough of them do.")

    @cached_property
    def profile(self) -> Timed | None:
        """Where the time went; None where that is not on record, as of deployed runs."""
        path = self.files.profile
        return _parsed(path, Timed) if path.exists() else None

    @property
    def took(self) -> float | None:
        """Seconds from the first round to the last, of simulations only: time tells who took part."""
        known = self.ledger
        if not (self.simulated and known and known.since and known.until):
            return None
        return (datetime.fromisoformat(known.until) - datetime.fromisoformat(known.since)).total_seconds()

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def simulated(self) -> bool:
        """Whether coins and noise come from a seed: by the plan, whose digest is certified."""
        return self.plan.randomness == "seeded"

    @property
    def alone(self) -> bool:
        """Whether the ledger is this run's own: what other runs spend from the budgets is not on it."""
        return not self.config.ledger and not (self.ledger and self.ledger.other_runs)

    @property
    def model(self) -> str:
        """The model's name, without the folders of the file that defines it."""
        return str(settings.unplaced(self.config.model.name))

    @property
    def secret(self) -> bool:
        """Whether who took part in which round must stay secret, and all that tells it, such as timing."""
        return not (self.simulated or self.treatment.public)

    def why_refused(self, reasons: Iterable[str]) -> list[tuple[str, int]]:
        """Count the clients whose guards gave each reason, the most frequent reason first.

        Guarantees:
            Where participation is secret, numbers in a reason are left out: one may name a round.
        """
        told = (NUMBER.sub("…", reason) if self.secret else reason for reason in reasons)
        return sorted(Counter(told).items(), key=lambda item: (-item[1], item[0]))

    def refusal_lines(self, reasons: Iterable[str]) -> list[str]:
        """Return a line of printable characters for each of the most frequent reasons of guards to refuse."""
        lines = []
        for why, count in self.why_refused(reasons)[:MOST_REASONS]:
            words = "".join(sign if sign.isprintable() else "?" for sign in why[:LONGEST_REASON])
            lines.append(f"Clients whose guards refused: {count:,}. Why: {words}")
        return lines

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every setting by its dotted name, such as plan.rounds."""
        return _flat(self.config.model_dump())

    @cached_property
    def shown(self) -> dict[str, Any]:
        """The settings that may be shown to anybody, by dotted name."""
        return _flat(self.config.public())

    @cached_property
    def classes(self) -> tuple[tuple[str, ...], Ints]:
        """Return the budget classes' names, and (N,) each client's class."""
        names, member = self.population.classes()
        plain = (name.replace("ε inf", "public data").replace("inf", "∞") for name in names)
        return tuple(plain), member

    @cached_property
    def treatment(self) -> Treatment:
        return treatment(self.plan)

    @cached_property
    def worst(self) -> Ints:
        """(C,) number of the client that spends the largest share of its budget, in each budget class."""
        return worst_of(self.classes[1], self.certificate.share)

    @cached_property
    def spent(self) -> Floats:
        """(C,) epsilon spent by the `worst` client of each class: by the whole plan, or so far."""
        if self.finished:
            return self.certificate.spent[self.worst]
        rounds = self.ledger.reserved if self.ledger else self.history.done
        return Pld().epsilon(self.plan.steps(rounds).of(self.worst), self.population.delta[self.worst])

    def reading(self) -> LedgerReader | None:
        """Open the ledger, if it has this run's clients, for reading."""
        return LedgerReader(self.files.ledger(self.config)) if self.ledger else None

    @cached_property
    def life(self) -> "Life | None":
        """Every client's account over all runs of the ledger; None where only this run spends from budgets.

        So it is, too, where a ledger is missing or damaged, and where budgets are still as they came.
        """
        try:
            if (reader := self.reading()) is None:
                return None
            with reader as ledger:
                budget = budgets_now(ledger, self.population)
                alone = not (self.ledger and self.ledger.other_runs)
                if alone and np.array_equal(budget, self.population.epsilon):
                    return None
                steps = ledger.accounts(self.population.client).steps()
        except (LedgerError, PlanError, *DAMAGED):
            return None
        return Life(budget, Pld().epsilon(steps, self.population.delta))

    @cached_property
    def left(self) -> Floats:
        """(C,) epsilon left of budgets as they are now, over all runs of the ledger: the least of a class."""
        if self.life is not None:
            return self.life.least(self.classes[1])
        rest = np.maximum(self.population.epsilon[self.worst] - self.spent, 0.0)
        return np.where(np.isinf(self.spent), 0.0, rest)

    @cached_property
    def broken(self) -> str:
        """Why the certificate proves nothing about this run; empty where it fits."""
        if self.certificate.plan != self.plan.digest():
            return "the certificate is of another plan"
        if self.certificate.population != self.population.digest():
            return "the certificate is of another population"
        return ""


@dataclass(frozen=True, eq=False)
class Life:
    """(N,) epsilon that each client allows now, and has spent in all runs of a ledger."""

    budget: Floats
    spent: Floats

    def least(self, member: Ints) -> Floats:
        """Return (C,) the least that a client of each class has left, given (N,) each client's class."""
        with np.errstate(invalid="ignore"):
            left = np.where(np.isinf(self.spent), 0.0, np.maximum(self.budget - self.spent, 0.0))
        found = np.full(int(member.max()) + 1, np.inf)
        np.minimum.at(found, member, left)
        return found


def budgets_now(ledger: LedgerReader, population: Population) -> Floats:
    """Return (N,) epsilon that each client allows now; one that is not on record has its own."""
    known, by = ledger.budgets(), defaultdict[str, float](float)
    for change in ledger.changes():
        by[change.client] += change.by
    pairs = zip(population.client, population.epsilon.tolist(), strict=True)
    return np.array([max(known.get(name, (mine,))[0] + by[name], 0.0) for name, mine in pairs])


AnyRun = Run | AnyPath  # read already, or its folder


def read_runs(runs: Sequence[AnyRun]) -> list[Run]:
    """Read run folders; a folder that is named twice counts once, and a run that is read already is kept."""
    if not runs:
        raise InputError("no run given: name at least one run folder")
    paths = {Path(run.folder if isinstance(run, Run) else run).resolve(): run for run in runs}
    return [run if isinstance(run, Run) else read_run(run) for run in paths.values()]


def read_run(path: AnyPath, audited: bool = True) -> Run:
    """Read a run folder, after comparing its files with the manifest; nothing in it is written.

    Its audit is compared, too, unless `audited` is false: then it may be made anew.
    """
    folder = RunFolder(Path(path))
    folder.require()
    compare(folder, audited)
    run = Run(
        folder=folder.path,
        config=settings.read(folder.config),
        about=_parsed(folder.about, RunAbout),
        population=Population.from_csv(folder.population),
        plan=Plan.from_json(read_text(folder.plan)),
        certificate=Certificate.from_json(read_text(folder.certificate)),
    )
    if not (run.population.client == run.plan.clients == run.certificate.clients):
        raise InputError(
            f"{path}: population, plan and certificate name different clients. "
            "They are not of one run: restore the folder as it was made."
        )
    return run


def _parsed(path: Path, kind: type[AnyRecord]) -> AnyRecord:
    try:
        return parse(read_text(path), kind, path.name)
    except PlanError as problem:
        raise InputError(f"cannot read {path}: {problem}") from None


def _flat(section: dict[str, Any], prefix: str = "") -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, value in section.items():
        found |= _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else {prefix + name: value}
    return found
