"""A study: several methods and seeds under one setting, each a run of its own in one folder."""

import subprocess
import sys
import time
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from discretion.accounting import Certificate
from discretion.accounting.certify import Spending
from discretion.config import Config, make
from discretion.errors import ConfigError, DataError, DiscretionError
from discretion.methods import find
from discretion.runs import RunFolder, load_data, prepare, read_history

POLL_SECONDS = 0.2
Say = Callable[[str], None]


@dataclass(frozen=True)
class Study:
    title: str
    methods: tuple[str, ...]
    seeds: int
    setting: dict[str, Any]  # what config.toml holds, for every run

    def config(self, method: str, seed: int) -> Config:
        return make(self.setting, [f"plan.method={method}", f"seed={seed}"], self.title)


@dataclass(frozen=True)
class Running:
    """One run of a study, as its folder shows it."""

    name: str
    rounds: int  # done
    total: int
    accuracy: float | None
    spent: float  # the largest share of a budget that any client has spent


def read_study(text: str, overrides: list[str], say: Say) -> Study:
    """A study from TOML; where its data set cannot be had, its [fallback] settings are used."""
    record = tomllib.loads(text)
    about = record.pop("study")
    fallback = record.pop("fallback", None)
    study = Study(about["title"], tuple(about["methods"]), int(about["seeds"]), record)
    for method in study.methods:
        find(method)
    for override in overrides:
        if override.partition("=")[0].strip() in ("seed", "plan.method"):
            raise ConfigError(f"-c {override}: a study has methods and seeds of its own")
    config = make(record, overrides)
    try:
        load_data(config, say)
    except DataError as problem:
        if fallback is None:
            raise
        say(f"{problem}\n\nGoing on with the small data set inside scikit-learn instead.")
        title = fallback.pop("title")
        for section, settings in fallback.items():
            record.setdefault(section, {}).update(settings)
        study = Study(title, study.methods, study.seeds, record)
        config = make(record, overrides)
    return Study(study.title, study.methods, study.seeds, config.model_dump())


def demo_text() -> str:
    return resources.files(__name__).joinpath("demo.toml").read_text(encoding="utf-8")


def run_study(
    study: Study, out: Path, workers: int, on_progress: Callable[[list[Running]], None]
) -> list[RunFolder]:
    """Make what is not there yet, and do every run, `workers` at a time, each in its own process."""
    folders = []
    for seed in range(study.seeds):
        dataset = None
        for method in study.methods:
            folder = RunFolder(out / f"{method}-{seed}")
            config = study.config(method, seed)
            if not folder.about.exists():
                dataset = dataset or load_data(config)
                prepare(config, folder, dataset)
            elif folder.config.read_text(encoding="utf-8") != config.anchored().to_toml():
                raise ConfigError(f"{folder.path} was made with other settings: give another --out")
            folders.append(folder)
    _run_all([folder for folder in folders if not folder.model.exists()], folders, workers, on_progress)
    return folders


def _run_all(
    waiting: list[RunFolder],
    folders: list[RunFolder],
    workers: int,
    on_progress: Callable[[list[Running]], None],
) -> None:
    spending = {
        folder: Certificate.from_json(folder.certificate.read_text(encoding="utf-8")).spending
        for folder in folders
    }
    running: dict[RunFolder, subprocess.Popen[bytes]] = {}
    try:
        while waiting or running:
            while waiting and len(running) < workers:
                folder = waiting.pop(0)
                running[folder] = _start(folder)
            for folder, process in list(running.items()):
                if process.poll() is not None:
                    del running[folder]
                    if process.returncode != 0:
                        problem = _errors(folder).read_text(encoding="utf-8").strip()
                        raise DiscretionError(f"{folder.path.name}: {problem}")
                    _errors(folder).unlink()
            on_progress([_look(folder, spending[folder]) for folder in folders])
            time.sleep(POLL_SECONDS)
    finally:
        for process in running.values():
            process.kill()
            process.wait()


def _errors(folder: RunFolder) -> Path:
    return folder.path / "errors.txt"


def _start(folder: RunFolder) -> "subprocess.Popen[bytes]":
    command = [sys.executable, "-m", "discretion", "run", str(folder.path)]
    command += ["--resume", "--no-report", "--json"]
    with _errors(folder).open("wb") as errors:
        return subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)


def _look(folder: RunFolder, spending: Spending) -> Running:
    history = read_history(folder)
    accuracies = [line["accuracy"] for line in history if "accuracy" in line]
    return Running(
        folder.path.name,
        len(history),
        spending.rounds[-1],
        accuracies[-1] if accuracies else None,
        spending.share(len(history)),
    )
