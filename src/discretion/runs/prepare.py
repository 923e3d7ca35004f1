"""A new run folder: planned, certified and written whole, or not at all."""

import hashlib
import json
import platform
import secrets
import shutil
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from discretion.accounting import certify
from discretion.accounting.cross_check import cross_check
from discretion.errors import InputError
from discretion.files import AnyPath, make_folder, sync, trying_to, write_private, write_safely
from discretion.ledger.ledger import Ledger
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.runs.build import divide, fitted, load_data, local_clients, plan_of
from discretion.runs.config import Config, make, read
from discretion.runs.folder import RunFolder, read_checkpoint
from discretion.runs.manifest import write_manifest
from discretion.runs.places import require_addresses
from discretion.runs.read import Run, RunAbout
from discretion.tasks.datasets import Dataset
from discretion.tasks.schema import Schema, schema_of
from discretion.training.server_update import Vector

if TYPE_CHECKING:
    from discretion.clients.local_clients import LocalClients


@dataclass(frozen=True)
class Task:
    """All that decides what is released, besides the plan."""

    population: Population
    clients: "LocalClients"
    records: Schema  # what records mean
    name: str  # of the run: equal tasks under equal settings have equal names, and equal seeded noise


def build_task(
    config: Config, dataset: Dataset, population: Population | None = None, key: bytes = b""
) -> Task:
    """Build clients and the run's name; keyed by a secret of the run, the name tells nothing of the data."""
    population, partition = divide(config, dataset, population)
    clients = local_clients(config, dataset, partition)
    said = config.identity() + str(clients.device) + population.to_csv()
    content = hashlib.blake2b(said.encode(), key=key)
    arrays = (partition.index, partition.start, dataset.train.inputs, dataset.train.labels)
    for array in (*arrays, first_model(config, clients)):
        content.update(np.ascontiguousarray(array).data)
    return Task(population, clients, schema_of(dataset), content.hexdigest()[:16])


def first_model(config: Config, clients: "LocalClients") -> Vector:
    """Return the model that training starts from: a new one, or the last of an earlier run."""
    if not config.after:
        return clients.initial()
    state = read_checkpoint(RunFolder(Path(config.after)))
    if state is None:
        raise InputError(
            f"no model in {config.after}, from which this run starts: finish a round of it first"
        )
    if state.model.shape != clients.initial().shape:
        raise InputError(
            f"the model in {config.after} has {state.model.size} parameters, that of this run "
            f"{clients.initial().size}: a run starts from a model of its own kind"
        )
    return state.model


def draft(
    config: Config,
    out: Path,
    dataset: Dataset | None = None,
    population: Population | None = None,
    plan: Plan | None = None,
) -> tuple[Run, bytes]:
    """Plan and certify a new run; return it, with the key of its name. Nothing is written.

    The certificate is counted again by dp-accounting (`cross_check`).
    """
    config = config.anchored()
    dataset = dataset or load_data(config)
    key = b"" if config.train.randomness == "seeded" else secrets.token_bytes(32)
    task = build_task(config, dataset, population, key)
    require_addresses(config, task.population)
    plan = plan or fitted(plan_of(config, task.population), config, task.clients.layers)
    certificate = certify(plan, task.population)
    certificate.require(plan, config.train.accept_no_privacy)
    about = RunAbout(
        id=task.name,
        created=datetime.now(UTC).isoformat(timespec="seconds"),
        discretion=version("discretion"),
        python=platform.python_version(),
        data=dataset.name,
        source=dataset.source,
        device=str(task.clients.device),
        randomness=certificate.randomness,
        cross_check=cross_check(plan, task.population, certificate),
        classes=dataset.classes,
        majority=float(np.bincount(dataset.test.labels).max() / len(dataset.test.labels)),
    )
    return Run(out, config, about, task.population, plan, certificate, task), key


def prepare(
    config: Config | Mapping[str, Any] | AnyPath,
    out: AnyPath,
    dataset: Dataset | None = None,
    population: Population | None = None,
    plan: Plan | None = None,
    preflight: Callable[[Run, Task], None] | None = None,
) -> Run:
    """Plan, certify and write a new run folder, all of it or nothing; return the run, ready to be executed.

    `config` is a Config, a nested dictionary of settings, or a config.toml. `population` and `plan` are
    those that were made already, if they were. `preflight` is called before anything is written: if it
    raises, nothing is.
    """
    folder = RunFolder(Path(out))
    folder.require_new()
    if not isinstance(config, Config):
        config = make(dict(config)) if isinstance(config, Mapping) else read(Path(config))
    run, key = draft(config, folder.path, dataset, population, plan)
    if preflight and run.task:
        preflight(run, run.task)
    if run.config.ledger:
        with Ledger(run.config.ledger, run.population, run.config.rule) as ledger:
            ledger.consider(run.plan, run.config.train.accept_no_privacy)
    write_run(run, key)
    return run


def write_run(run: Run, key: bytes) -> None:
    """Write the folder beside its place, then give it its name."""
    path = run.folder
    make_folder(path.parent)
    with trying_to("write", path):
        draft = Path(tempfile.mkdtemp(prefix=f".{path.name}-", dir=path.parent))
        draft.chmod(0o755)
    try:
        half = RunFolder(draft)
        write_safely(half.config, run.config.to_toml().encode())
        write_safely(half.population, run.population.to_csv().encode())
        write_safely(half.plan, run.plan.to_json().encode())
        write_safely(half.certificate, run.certificate.to_json().encode())
        if key:
            write_private(half.key, key)
        write_safely(half.about, (json.dumps(run.about.model_dump(), indent=1) + "\n").encode())
        write_manifest(half)
        with trying_to("write", path):
            draft.rename(path)  # in place of an empty folder, if there is one
            sync(path.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
