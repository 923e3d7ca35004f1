"""Reads run folders, as they are on disk, into plain data; writes nothing into them."""

import json
import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from discretion import config as settings
from discretion import journal, on_record
from discretion.accounting import Certificate, Pld
from discretion.accounting.certify import worst_of
from discretion.config import Config
from discretion.errors import InputError
from discretion.files import read_text
from discretion.on_record import OnRecord
from discretion.plan import Plan
from discretion.population import Floats, Ints, Population
from discretion.runs import RunFolder
from discretion.treatment import Treatment, treatment

NUMBER = re.compile(r"\d[\d.,]*(?<![.,])")


@dataclass(frozen=True)
class About:
    """run.json"""

    id: str
    created: str
    version: str
    data: str
    source: str
    randomness: str


@dataclass(frozen=True)
class History:
    """history.jsonl, without who took part: that is on record nowhere."""

    done: int  # rounds
    lines: tuple[int, ...]  # the round of each line
    rounds: Ints  # (E,) those with an evaluation
    accuracy: Floats  # (E,)
    loss: Floats  # (E,) infinite where training diverged


@dataclass(frozen=True)
class Timed:
    """profile.json: where the time of a run went."""

    rounds: int
    seconds: dict[str, float]  # by part


@dataclass(frozen=True)
class Run:
    folder: Path
    config: Config
    about: About
    population: Population
    plan: Plan
    certificate: Certificate
    history: History
    finished: bool
    ledger: OnRecord | None  # None where there is no ledger yet, or none that can be read
    refusals: dict[str, tuple[int, str]]  # by client: the first round that its guard refused, and why
    profile: Timed | None

    @property
    def name(self) -> str:
        return self.folder.resolve().name

    @property
    def simulated(self) -> bool:
        """Whether coins and noise come from a seed: by the plan, whose digest is certified."""
        return self.plan.randomness == "seeded"

    @property
    def model(self) -> str:
        """Its name, without the folders of the file that it is in."""
        return str(settings.unplaced(self.config.model.name))

    @property
    def secret(self) -> bool:
        """Whether it must not be told who took part in which round, nor what tells of it, such as time."""
        return not (self.simulated or self.treatment.public)

    def why_refused(self, reasons: Iterable[str]) -> list[tuple[str, int]]:
        """How many clients' guards gave each reason, the most frequent first.

        Guarantees:
            Where coins are secret no number in a reason is told: it may be that of a round.
        """
        told = (NUMBER.sub("…", reason) if self.secret else reason for reason in reasons)
        return sorted(Counter(told).items(), key=lambda item: (-item[1], item[0]))

    @cached_property
    def settings(self) -> dict[str, Any]:
        """Every setting by its dotted name, such as plan.rounds."""
        return dict(_flat(self.config.model_dump()))

    @cached_property
    def shown(self) -> dict[str, Any]:
        """Those settings that may be shown to anybody."""
        return dict(_flat(self.config.public()))

    @cached_property
    def classes(self) -> tuple[tuple[str, ...], Ints]:
        """Names of the budget classes, and (N,) each client's class."""
        names, member = self.population.classes()
        plain = (name.replace("ε inf", "public data").replace("inf", "∞") for name in names)
        return tuple(plain), member

    @cached_property
    def treatment(self) -> Treatment:
        return treatment(self.plan)

    @cached_property
    def worst(self) -> Ints:
        """(C,) in each budget class, the client that spends the largest share of its budget."""
        return worst_of(self.classes[1], self.certificate.share)

    @cached_property
    def spent(self) -> Floats:
        """(C,) by that client of each class: of the whole plan, or of the rounds on record so far."""
        if self.finished:
            return self.certificate.spent[self.worst]
        rounds = self.ledger.reserved if self.ledger else self.history.done
        return Pld().epsilon(self.plan.steps(rounds).of(self.worst), self.population.delta[self.worst])

    @cached_property
    def broken(self) -> str:
        """Why the certificate proves nothing about this run; empty where it fits."""
        if self.certificate.plan != self.plan.digest():
            return "the certificate is of another plan"
        if self.certificate.population != self.population.digest():
            return "the certificate is of another population"
        return ""


def read_runs(folders: Sequence[Path]) -> list[Run]:
    """The runs in these folders; a folder that is named twice counts once."""
    if not folders:
        raise InputError("there is nothing to report on: name at least one run folder")
    distinct = {folder.resolve(): folder for folder in folders}
    return [read_run(folder) for folder in distinct.values()]


def read_run(path: Path) -> Run:
    folder = RunFolder(path)
    folder.require()
    config = settings.read(folder.config)
    about, population = _about(folder), Population.from_csv(folder.population)
    known = on_record.nothing(len(population))
    run = Run(
        folder=path,
        config=config,
        about=about,
        population=population,
        plan=Plan.from_json(read_text(folder.plan)),
        certificate=Certificate.from_json(read_text(folder.certificate)),
        history=_history(folder),
        finished=folder.model.exists(),
        ledger=on_record.read_on(folder.ledger(config), about.id, known),
        refusals=_refusals(folder),
        profile=_profile(folder),
    )
    if not (run.population.client == run.plan.clients == run.certificate.clients):
        raise InputError(
            f"{path}: population, plan and certificate name different clients. "
            "They are not of one run: restore the folder as it was made."
        )
    return run


def _about(folder: RunFolder) -> About:
    try:
        record = json.loads(read_text(folder.about))
        fields = ("id", "created", "discretion", "data", "source", "randomness")
        return About(*(str(record[name]) for name in fields))
    except (json.JSONDecodeError, KeyError, TypeError) as problem:
        raise InputError(f"{folder.about} is not of a run of Discretion: {problem!r}") from None


def _history(folder: RunFolder) -> History:
    try:
        lines = journal.read(folder.history)
        by_round = {int(line["round"]): line for line in lines}
        evaluated = [line for line in by_round.values() if line.get("accuracy") is not None]
        return History(
            done=max(by_round, default=0),
            lines=tuple(int(line["round"]) for line in lines),
            rounds=np.array([int(line["round"]) for line in evaluated], dtype=np.int64),
            accuracy=np.array([float(line["accuracy"]) for line in evaluated]),
            loss=np.array([journal.loss_in(line) for line in evaluated]),
        )
    except (json.JSONDecodeError, UnicodeDecodeError, KeyError, TypeError, ValueError) as problem:
        raise InputError(f"{folder.history} cannot be read: {problem!r}") from None


def _refusals(folder: RunFolder) -> dict[str, tuple[int, str]]:
    found: dict[str, tuple[int, str]] = {}
    try:
        for heard in journal.read(folder.answers):
            for client, reason in heard["refused"].items():
                found.setdefault(str(client), (int(heard["round"]), str(reason)))
    except (OSError, KeyError, TypeError, ValueError, AttributeError) as problem:
        raise InputError(f"{folder.answers} cannot be read: {problem!r}") from None
    return found


def _profile(folder: RunFolder) -> Timed | None:
    if not folder.profile.exists():
        return None
    try:
        record = json.loads(read_text(folder.profile))
        seconds = {str(part): float(took) for part, took in record["seconds"].items()}
        return Timed(int(record["rounds"]), seconds)
    except (json.JSONDecodeError, KeyError, TypeError, ValueError, AttributeError) as problem:
        raise InputError(f"{folder.profile} cannot be read: {problem!r}") from None


def _flat(section: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    found: list[tuple[str, Any]] = []
    for name, value in section.items():
        key = f"{prefix}{name}"
        found += _flat(value, f"{key}.") if isinstance(value, dict) else [(key, value)]
    return found
