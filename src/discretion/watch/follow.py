"""State of a run, read from its folder again and again, whether it runs, was killed, or is yet to come."""

import math
import os
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from discretion.clients.remote import Heard
from discretion.clients.turnout import Turnout, fewest
from discretion.errors import DiscretionError
from discretion.ledger.reader import OnRecord, nothing, read_on
from discretion.runs.folder import RunFolder, lock_scope
from discretion.runs.history import RoundRecord, parse_answers
from discretion.runs.read import Run, read_run

Status = Literal["waiting", "ready", "running", "stopped", "finished"]

PACE_OVER = 60.0  # seconds that the pace is a mean of
QUIET = 60.0  # seconds without a round after which a run counts as stopped, where locks cannot be seen
LEDGER_EVERY = 1.0  # seconds between two looks at the ledger
OVERLAP = 256  # bytes before the end of the last read; where they differ, the file was replaced


class Tail:
    def __init__(self, path: Path) -> None:
        self._path = path
        self._read = 0  # bytes, up to the end of a line
        self._last = b""

    def lines(self) -> tuple[bool, list[str]]:
        """Return whether all lines returned before are void, and the new whole lines.

        Guarantees:
            The lines returned since the last void are those of the file, in order, without a line that is
            being written.
            The file is opened for reading only, and no lock is asked for.
        """
        try:
            with self._path.open("rb") as file:
                file.seek(self._read - len(self._last))
                anew = file.read(len(self._last)) != self._last
                if anew:
                    file.seek(0)
                content = file.read()
        except FileNotFoundError:
            anew, content = self._read > 0, b""
        if anew:
            self._read, self._last = 0, b""
        whole = content[: content.rfind(b"\n") + 1]
        self._read += len(whole)
        self._last = (self._last + whole)[-OVERLAP:]
        return anew, whole.decode("utf-8", errors="replace").splitlines()


@dataclass(frozen=True)
class Answers:
    """Outcome of the orders to remote clients, over all rounds."""

    asked: int = 0
    answered: int = 0
    lost: int = 0  # nothing came, or nothing that could be read
    last: tuple[int, int, int] | None = None  # the last round: its number, asked, answered
    turnout: Turnout | None = None  # of the round in which fewest clients were there
    refused: dict[str, tuple[int, str]] = field(default_factory=dict)  # by client: the first time, and why


@dataclass(frozen=True)
class Seen:
    """State of a run at one moment."""

    folder: Path
    status: Status
    problem: str = ""  # why the folder, or a line in it, cannot be read
    run: Run | None = None  # as it was made; its history is the one below
    done: int = 0  # rounds
    rounds: tuple[int, ...] = ()  # those with an evaluation
    accuracy: tuple[float, ...] = ()
    loss: tuple[float, ...] = ()  # infinite where training diverged
    record: OnRecord | None = None
    answers: Answers = Answers()
    pace: float | None = None  # seconds a round; None where that is not known, or tells who took part
    left: float | None = None  # seconds until the last round

    @property
    def counted(self) -> int:
        """Rounds that are charged: one more than are done where the last was interrupted."""
        return max(self.done, self.record.reserved if self.record else 0)


class Follow:
    """Follows the run in a folder; `look` returns its state.

    Guarantees:
        Nothing is written, and no lock of the run is asked for: a run that starts or ends is not disturbed.
        Lines that were read are not read again, unless the file was cut or replaced.
        A folder that comes later, goes, or holds another run is followed as it is then.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self._folder = RunFolder(path)
        self._clock = clock
        self._made: tuple[int, int] | None = None  # which run.json was read
        self._forget()

    def _forget(self) -> None:
        self._run: Run | None = None
        self._problem = ""
        self._history, self._answers = Tail(self._folder.history), Tail(self._folder.answers)
        self._evaluated: dict[int, tuple[float, float]] = {}
        self._done = 0
        self._heard = Answers()
        self._record: OnRecord | None = None
        self._ledger_at = -math.inf
        self._paces: deque[tuple[float, int]] = deque()

    def look(self) -> Seen:
        made = _identity(self._folder.about)
        if made != self._made:
            self._forget()
            self._made = made
        if made is None:
            return Seen(self._folder.path, "waiting")
        if self._run is None:
            try:
                self._run = read_run(self._folder.path)
            except (DiscretionError, OSError) as problem:
                return Seen(self._folder.path, "waiting", str(problem))
        self._read_history(self._run.plan.rounds)
        self._read_answers()
        return self._seen(self._run)

    def _seen(self, run: Run) -> Seen:
        finished, alive = self._folder.model.exists(), self._alive()
        self._read_ledger(run, finished and alive)
        pace, left = self._pace(run.plan.rounds, alive and not finished and not run.secret)
        rounds = sorted(self._evaluated)
        begun = self._done > 0 or (self._record and self._record.reserved)
        status: Status = "running" if alive else "stopped" if begun else "ready"
        return Seen(
            folder=self._folder.path,
            status="finished" if finished else status,
            problem=self._problem,
            run=run,
            done=self._done,
            rounds=tuple(rounds),
            accuracy=tuple(self._evaluated[at][0] for at in rounds),
            loss=tuple(self._evaluated[at][1] for at in rounds),
            record=self._record,
            answers=self._heard,
            pace=pace,
            left=left,
        )

    def _read_history(self, rounds: int) -> None:
        anew, lines = self._history.lines()
        if anew:
            self._evaluated, self._done, self._problem = {}, 0, ""
        for line in lines:
            with self._tolerant():
                record = RoundRecord.parse(line)
                if not 0 < record.round <= rounds:
                    raise ValueError(f"round {record.round} of {rounds}")
                if record.accuracy is not None:
                    self._evaluated[record.round] = record.accuracy, record.loss
                self._done = record.round

    def _read_answers(self) -> None:
        anew, lines = self._answers.lines()
        if anew:
            self._heard = Answers()
        for line in lines:
            with self._tolerant():
                self._heard = _with(self._heard, parse_answers(line))

    @contextmanager
    def _tolerant(self) -> Iterator[None]:
        """Take note of a line that cannot be read, and go on with the next."""
        try:
            yield
        except ValueError as problem:
            self._problem = f"a line of {self._folder.path} cannot be read: {problem}"

    def _read_ledger(self, run: Run, ending: bool) -> None:
        """Not while a run ends: it makes one file of its ledger then, which a reader would hinder."""
        now = self._clock()
        if ending or now - self._ledger_at < LEDGER_EVERY:
            return
        self._ledger_at = now
        known = self._record or nothing(len(run.population))
        found = read_on(self._folder.ledger(run.config), run.about.id, known, wait=0.0)
        self._record = found or self._record

    def _alive(self) -> bool:
        held = is_locked(self._folder.lock)
        if held is not None:
            return held
        changed = _identity(self._folder.history)
        return changed is not None and time.time() - changed[1] / 1e9 < QUIET

    def _pace(self, rounds: int, running: bool) -> tuple[float | None, float | None]:
        """Return seconds for each round and until the last, from the rounds seen to be done."""
        now, seen = self._clock(), self._paces
        if not running or (seen and self._done < seen[-1][1]):
            seen.clear()
        if running and (not seen or self._done > seen[-1][1]):
            seen.append((now, self._done))
        while len(seen) > 2 and now - seen[0][0] > PACE_OVER:
            seen.popleft()
        if len(seen) < 2:
            return None, None
        (first, before), (last, after) = seen[0], seen[-1]
        pace = (last - first) / (after - before)
        return pace, max(pace * (rounds - self._done) - (now - last), 0.0)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        about = path.stat()
    except OSError:
        return None
    return about.st_ino, about.st_mtime_ns


def _with(heard: Answers, more: Heard) -> Answers:
    """Add what came of one more round's orders."""
    return Answers(
        asked=heard.asked + more.asked,
        answered=heard.answered + more.answered,
        lost=heard.lost + more.lost,
        last=(more.round, more.asked, more.answered),
        turnout=fewest((heard.turnout, more.turnout)),
        refused={client: (more.round, why) for client, why in more.refused.items()} | heard.refused,
    )


def is_locked(path: Path) -> bool | None:
    """Return whether a process holds the lock on this file, without asking for the lock.

    None where that cannot be seen, as from outside the container of the process that last held it.
    """
    try:
        about = path.stat()
    except OSError:
        return False
    try:
        locks = Path("/proc/locks").read_text(encoding="ascii")
        last = path.read_text(encoding="ascii", errors="replace")
    except OSError:
        return None
    device = f"{os.major(about.st_dev):02x}:{os.minor(about.st_dev):02x}"
    name = f"{device}:{about.st_ino}"
    held = any("FLOCK" in words and name in words for words in map(str.split, locks.splitlines()))
    return held or (False if last in ("", lock_scope()) else None)
