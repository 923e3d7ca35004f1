"""Run folders as `prepare` and `execute` leave them, for tests of what is read: made up, or trained."""

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

from discretion import jsonfile
from discretion.accounting import Renyi, certify
from discretion.methods import METHODS, make_plan
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.runs.config import make
from discretion.runs.execute import execute
from discretion.runs.folder import RunFolder
from discretion.runs.manifest import write_manifest
from discretion.runs.prepare import prepare

ROUNDS = 6
BARE, STRICT, OWN = list(METHODS)[:3]  # no privacy, the strictest for all, each its own
CURVE = (0.3, 0.5, 0.6)


def people(count: int = 12) -> Population:
    return Population.of(np.resize([1.0, 2.0, 4.0], count), delta=1e-5, size=7)


def planned(method: str, population: Population, rounds: int = ROUNDS, noise: float = 20.0) -> Plan:
    """With multipliers that keep each budget by a wide margin; exact budgets are not the report's affair."""
    everyone = np.ones(len(population))
    if method == BARE:
        phase = Phase.one_pool(rounds, 0.5 * everyone, math.inf * everyone, noise=0.0)
    elif method == STRICT:
        phase = Phase.one_pool(rounds, 0.5 * everyone, everyone, noise=noise)
    else:
        phase = Phase.one_pool(rounds, 0.5 * everyone, np.minimum(population.epsilon, 4.0), noise=noise)
    return Plan(method, population.client, (phase,))


KNOWN: dict[tuple[str, str, int, float], tuple[str, str]] = {}


def certified(method: str, population: Population, rounds: int, noise: float) -> tuple[str, str]:
    """Plan and certificate as JSON; most tests have the same ones."""
    key = (method, population.digest(), rounds, noise)
    if key not in KNOWN:
        plan = planned(method, population, rounds, noise)
        KNOWN[key] = plan.to_json(), certify(plan, population, Renyi()).to_json()
    return KNOWN[key]


def seal(path: Path) -> None:
    """Lists a folder's files in its manifest as they are now, as whoever changes one on purpose can do."""
    write_manifest(RunFolder(path))


def make_run(
    path: Path,
    method: str = STRICT,
    seed: int = 0,
    accuracy: Sequence[float] = CURVE,
    *,
    loss: float = 1.5,
    finished: bool = True,
    population: Population | None = None,
    settings: Mapping[str, Any] | None = None,
    noise: float = 20.0,
) -> Path:
    """A run folder as `prepare` and `execute` leave it; one accuracy for every second round."""
    overrides = {"seed": seed, "plan.method": method, "plan.rounds": ROUNDS, **(settings or {})}
    config = make({}, [f"{key}={value}" for key, value in overrides.items()])
    population = people() if population is None else population
    plan, certificate = certified(method, population, config.plan.rounds, noise)
    folder = RunFolder(path)
    path.mkdir(parents=True)
    folder.config.write_text(config.to_toml(), encoding="utf-8")
    folder.population.write_text(population.to_csv(), encoding="utf-8")
    folder.plan.write_text(plan, encoding="utf-8")
    folder.certificate.write_text(certificate, encoding="utf-8")
    about = {
        "id": f"run-{path.name}",
        "created": "2026-03-01T09:00:00+00:00",
        "discretion": "0.1.0",
        "python": "3.11",
        "data": "clouds",
        "source": "the sky",
        "randomness": "seeded",
    }
    folder.about.write_text(json.dumps(about), encoding="utf-8")
    lines = []
    for number in range(1, 2 * len(accuracy) + 1):
        line: dict[str, Any] = {"round": number}
        if number % 2 == 0:
            line |= {"accuracy": accuracy[number // 2 - 1], "loss": loss}
        lines.append(jsonfile.line(line))
    folder.history.write_text("".join(lines), encoding="utf-8")
    if finished:
        folder.model.write_bytes(b"")
    seal(path)
    return path


def keep_secret(path: Path) -> Path:
    """Turns the run into one whose coins and noise come from nobody's seed; run.json says what it said."""
    folder = RunFolder(path)
    plan = replace(Plan.from_json(folder.plan.read_text(encoding="utf-8")), randomness="cryptographic")
    folder.plan.write_text(plan.to_json(), encoding="utf-8")
    certificate = certify(plan, Population.from_csv(folder.population), Renyi())
    folder.certificate.write_text(certificate.to_json(), encoding="utf-8")
    seal(path)
    return path


def run_of(path: Path, method: str, **options: float | str) -> Path:
    """A run folder with a plan that the method itself made."""
    plan = make_plan(method, people(), {"rounds": ROUNDS, "rate": 0.25, "clip": 0.5, **options})
    folder = RunFolder(make_run(path, method))
    folder.plan.write_text(plan.to_json(), encoding="utf-8")
    folder.certificate.write_text(certify(plan, people()).to_json(), encoding="utf-8")
    seal(path)
    return path


SMALL = {
    "population": {"clients": 12, "budgets": "groups:4,8,16"},
    "data": {"name": "digits"},
    "plan": {"rounds": 4, "rate": 0.5, "clip": 0.5},
    "train": {"threads": 1},
}


def trained(path: Path, *overrides: str) -> Path:
    """A run of a few rounds on the digits, with all its records."""
    wanted = make(SMALL, overrides)
    execute(prepare(wanted, RunFolder(path)))
    return path
