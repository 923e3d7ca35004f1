"""Records of runs that a report holds, so that it can be verified without the run folders.

They stand in a script element as JSON. Each run is JSON, compressed (LZMA) and written in base64. `sha256` is
the digest of the whole page with 64 zeros in the digest's place: it shows damage and changes by hand, and
proves nothing against somebody who writes the digest anew. A page is rendered from what it holds, so that it
can be rendered again and compared (`report.page_check`).
"""

import base64
import hashlib
import lzma
import math
import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

import numpy as np

from discretion.accounting import Certificate
from discretion.arrays import Floats
from discretion.audit import verdicts
from discretion.clients.remote import Heard
from discretion.clients.turnout import Turnout
from discretion.errors import DiscretionError, FolderError, InputError, UnverifiedError
from discretion.files import sha256
from discretion.jsonfile import Record, dump, parse
from discretion.ledger.excerpt import Excerpt, excerpt, reopen
from discretion.ledger.reader import DAMAGED, LedgerReader, OnRecord
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.runs.config import HELD_OUT, Config, roles, unplaced
from discretion.runs.history import History, RoundRecord
from discretion.runs.read import Run, RunAbout, Timed

Format = Literal["discretion-records/2"]
FORMAT: Format = "discretion-records/2"
HELD = re.compile(rb'<script type="application/json" id="records">(.*?)</script>', re.S)
FORM = re.compile(rb'"format": "(discretion-records/[0-9]+)"')
UNSEALED = "0" * 64
MOST = 2_000_000  # characters of records in one page: about 70,000 clients, each with a budget of its own
MOST_BYTES = 500_000_000  # of a run's records when they are unpacked
TOO_LARGE = f"they would take more than {MOST:,} characters"
NOT_WANTED = "it was written without them"
# settings that are paths and that a page depends on, each with what stands in its place
STAND_INS = {
    "data.path": "table",
    "data.test": "table",
    "population.csv": "population.csv",
    "after": "run",
    "ledger": "shared",
}
HAS_PATH = "a parameter of the method looks like a path of the machine that made the plan"


class AnswersTold(Record):
    """What a page says of clients' answers; who answered in which round is not in it.

    Guarantees:
        Where coins are secret, who refused is not in it, nor in which round, nor a number in a reason.
    """

    turnout: Turnout | None
    answered: str  # sentences
    clause: str  # of the sentence that decides
    refusals: dict[
        str, tuple[int, str]
    ]  # as `Run.refusals`; numbers in place of names where coins are secret


class EnclosedRecords(Record):
    """What a page holds of one run.

    Guarantees:
        No setting that is a path, an address or a key, no answer of a client, no time of a round. Where runs
        of a page differ in a path, the page names the path's last part, and so does the record.
    """

    name: str
    place: str  # of the folder, from the page's: as the page says it
    settings: dict[str, Any]
    files: dict[str, str]  # their text, by file name
    manifest: dict[str, str]  # SHA-256 of the run's files, by file name
    history: list[tuple[int, float | None, float | None]]  # round, accuracy and loss, in its order
    finished: bool
    ledger: Excerpt | None
    left: list[float]  # by budget class
    told: AnswersTold
    took: float | None  # seconds, of simulations only, as the next
    profile: Timed | None


class PageRecords(Record):
    format: Format
    discretion: str  # version that wrote the page
    sha256: str
    page: str  # its file name
    title: str  # empty: as its methods and data say
    measured: dict[
        str, list[tuple[float, float | None]]
    ]  # mean and spread of accuracies, by method and class
    runs: list[str]
    why_none: str  # why there are no runs; empty where there are

    @property
    def text(self) -> str:
        """The records as a page holds them."""
        return dump(self.model_dump())


@dataclass(frozen=True, eq=False)
class EnclosedRun(Run):
    """One run as a page holds it."""

    enclosed: EnclosedRecords = field(kw_only=True)

    @property
    def finished(self) -> bool:
        return self.enclosed.finished

    @property
    def certificate_text(self) -> str:
        return self.enclosed.files["certificate.json"]

    @cached_property
    def audit_text(self) -> str | None:
        return self.enclosed.files.get("audit.json")

    @cached_property
    def history(self) -> History:
        lines = (
            (n, accuracy, math.inf if loss is None else loss) for n, accuracy, loss in self.enclosed.history
        )
        return History(tuple(RoundRecord(*line) for line in lines))

    @property
    def name(self) -> str:
        return self.enclosed.name

    @cached_property
    def answers(self) -> list[Heard]:
        return []  # they tell whose coins came up: no page holds them

    @cached_property
    def turnout(self) -> Turnout | None:
        return self.enclosed.told.turnout

    @property
    def answered(self) -> str:
        return self.enclosed.told.answered

    @cached_property
    def refusals(self) -> dict[str, tuple[int, str]]:
        return self.enclosed.told.refusals

    def reading(self) -> LedgerReader | None:
        known = self.enclosed.ledger
        return None if known is None else reopen(known, self.about.id, self.plan)

    @cached_property
    def left(self) -> Floats:
        if self.ledger and self.ledger.other_runs:  # which no page holds
            return np.array(self.enclosed.left)
        return super().left

    @property
    def took(self) -> float | None:
        return self.enclosed.took

    @cached_property
    def profile(self) -> Timed | None:
        return self.enclosed.profile

    @cached_property
    def ledger(self) -> OnRecord | None:
        known = self.enclosed.ledger
        if known is None:
            return None
        refusals = np.zeros(len(self.population), dtype=np.int64)
        for row in known.rounds:
            refusals[[place for place in row.refused if 0 <= place < len(refusals)]] += 1
        last = known.rounds[-1].refused if known.rounds else []
        committed = sum(row.state == "committed" for row in known.rounds)
        refusing = np.array(last, dtype=np.int64)
        idle = sum(len(set(row.refused)) == len(refusals) for row in known.rounds)
        return OnRecord(len(known.rounds), committed, known.other_runs, refusals, refusing, "", "", idle)

    @cached_property
    def damaged(self) -> list[str]:
        """The enclosed files that are not those of the manifest."""
        return [
            name
            for name, text in self.enclosed.files.items()
            if hashlib.sha256(text.encode()).hexdigest() != self.enclosed.manifest.get(name)
        ]


def enclose(
    runs: Sequence[Run],
    page: Path,
    title: str = "",
    measured: Mapping[str, Sequence[tuple[float, float | None]]] | None = None,
    wanted: bool = True,
) -> PageRecords:
    """Return the records of runs for a page, not yet sealed; where there can be none, why."""
    why = "" if wanted else NOT_WANTED
    if any(unplaced(value) != value for run in runs for value in run.plan.parameters.values()):
        why = why or HAS_PATH
    places = [place_of(run, page) for run in runs]
    packed = [] if why else list(map(_pack, runs, places, _settings(runs)))
    if sum(map(len, packed)) > MOST:
        packed, why = [], TOO_LARGE
    return PageRecords(
        format=FORMAT,
        discretion=version("discretion"),
        sha256=UNSEALED,
        page=page.name,
        title=title,
        measured={name: list(values) for name, values in (measured or {}).items()},
        runs=packed,
        why_none=why,
    )


def place_of(run: Run, page: Path) -> str:
    """Return the place of a run's folder, from the folder of a page."""
    if isinstance(run, EnclosedRun):
        return run.enclosed.place
    return Path(os.path.relpath(run.folder.resolve(), page.resolve().parent)).as_posix()


def _settings(runs: Sequence[Run]) -> list[dict[str, Any]]:
    """Return what may be shown of each run's settings, and in which paths runs differ, but not the paths."""
    found = [run.config.public() for run in runs]
    for name, usual in STAND_INS.items():
        values = [run.settings[name] for run in runs]
        order = list(dict.fromkeys(values))
        for settings, value in zip(found, values, strict=True):
            shown = f"/{order.index(value)}/{Path(value).name}" if len(order) > 1 else usual
            *section, last = name.split(".")
            shown = HELD_OUT if value == HELD_OUT else shown  # which is no path
            if value:
                (settings[section[0]] if section else settings)[last] = shown
    return found


def _told(run: Run) -> AnswersTold:
    refusals = run.refusals
    if run.secret:
        reasons = run.why_refused(why for _, why in refusals.values())
        each = [why for why, count in reasons for _ in range(count)]
        refusals = {f"{number}": (0, why) for number, why in enumerate(each, 1)}
    return AnswersTold(turnout=run.turnout, answered=run.answered, clause=answering([run]), refusals=refusals)


def answering(runs: Sequence[Run]) -> str:
    """Return a clause on who answered, as a page tells it."""
    each = [
        run.enclosed.told.clause if isinstance(run, EnclosedRun) else verdicts.answering([run])
        for run in runs
    ]
    if len(set(each)) == 1:
        return each[0]
    return ", ".join(f"in {run.name} {clause}" for run, clause in zip(runs, each, strict=True))


def _pack(run: Run, place: str, settings: dict[str, Any]) -> str:
    files = run.files
    held = (files.population, files.plan, files.certificate, files.about)
    audit = {files.audit.name: run.audit_text} if run.audit_text is not None else {}
    record = EnclosedRecords(
        name=run.name,
        place=place,
        settings=settings,
        files={path.name: path.read_bytes().decode() for path in held} | audit,
        manifest={path.name: sha256(path) for path in (files.config, *held)}
        | {name: hashlib.sha256(text.encode()).hexdigest() for name, text in audit.items()},
        history=[(line.round, line.accuracy, _finite(line.loss)) for line in run.history.lines],
        finished=run.finished,
        ledger=_excerpt(run),
        left=run.left.tolist(),
        told=_told(run),
        took=run.took,
        profile=run.profile if run.simulated else None,
    )
    return base64.b64encode(lzma.compress(dump(record.model_dump()).encode())).decode()


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def _excerpt(run: Run) -> Excerpt | None:
    """Return the ledger's rows of a run; None where no ledger can be read."""
    if run.ledger is None:
        return None
    try:
        with LedgerReader(run.files.ledger(run.config)) as ledger:
            return excerpt(ledger, run.about.id, run.population.client, run.ledger.other_runs)
    except DAMAGED:
        return None


def seal(page: str) -> str:
    """Return a page with its own digest in its records."""
    digest = hashlib.sha256(page.encode()).hexdigest()
    return page.replace(f'"sha256": "{UNSEALED}"', f'"sha256": "{digest}"', 1)


@dataclass(frozen=True)
class Page:
    """A report as it was read, with the runs in it."""

    text: str
    records: PageRecords
    runs: tuple[EnclosedRun, ...]

    @property
    def sealed(self) -> bool:
        """Whether its digest is that of its text."""
        digest = self.records.sha256
        written = self.text.replace(f'"sha256": "{digest}"', f'"sha256": "{UNSEALED}"', 1)
        return hashlib.sha256(written.encode()).hexdigest() == digest


def read_page(path: Path) -> Page:
    """Read a report and the runs in it; raise where it holds none, or what no report holds."""
    try:
        content = path.read_bytes()
    except OSError as problem:
        raise InputError(f"cannot read {path}: {problem.strerror}") from None
    held = HELD.findall(content)
    if len(held) != 1:
        raise InputError(
            f"{path} is no report of Discretion: expected one element of records, found {len(held)}"
        )
    if (form := FORM.search(held[0])) and form[1].decode() != FORMAT:
        raise UnverifiedError(
            f"{path} holds records as another version of Discretion writes them ({form[1].decode()}, not "
            f"{FORMAT}): verify it with that version, or verify the run folder"
        )
    try:
        records = parse(held[0].decode(), PageRecords, "report")
        runs = opened(records)
        text = content.decode()
    except (DiscretionError, ValueError, EOFError, lzma.LZMAError, MemoryError) as problem:
        raise FolderError(f"the records in {path} cannot be read: they were changed. {problem}") from None
    if not runs:
        raise InputError(f"{path} holds no records: {records.why_none}. Verify the run folder instead.")
    return Page(text, records, runs)


def opened(records: PageRecords) -> tuple[EnclosedRun, ...]:
    """Return the runs that records hold; raise where they hold none of a run."""
    return tuple(map(_unpacked, records.runs))


def _unpacked(text: str) -> EnclosedRun:
    unpack = lzma.LZMADecompressor()
    content = unpack.decompress(base64.b64decode(text, validate=True), MOST_BYTES)
    if not unpack.eof:
        raise ValueError(f"found records that are cut short, or of more than {MOST_BYTES:,} bytes")
    record = parse(content.decode(), EnclosedRecords, "record of a run")
    files = record.files
    if odd := {"population.csv", "plan.json", "certificate.json", "run.json"} ^ (set(files) - {"audit.json"}):
        raise ValueError(f"found files missing or too many: {', '.join(sorted(odd))}")
    run = EnclosedRun(
        folder=Path(record.name),
        config=Config.validated(record.settings, list(roles(Config)), "settings"),
        about=parse(files["run.json"], RunAbout, "run.json"),
        population=Population.from_text(files["population.csv"], "population.csv"),
        plan=Plan.from_json(files["plan.json"]),
        certificate=Certificate.from_json(files["certificate.json"]),
        enclosed=record,
    )
    if not (run.population.client == run.plan.clients == run.certificate.clients):
        raise ValueError("population, plan and certificate name different clients")
    return run
