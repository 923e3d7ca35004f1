"""A run is a folder: made whole from its settings, executed round by round, resumed after any crash."""

import fcntl
import hashlib
import json
import os
import platform
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import safetensors.numpy

from discretion import __version__, journal
from discretion.accounting import Certificate, certify
from discretion.clients.remote import RemoteClients
from discretion.clients.transport import Sockets, Transport, read_addresses
from discretion.config import Config, read
from discretion.errors import ConfigError, InputError
from discretion.files import sync, write_safely
from discretion.ledger import Ledger
from discretion.materials import divide, fitted, load_data, local_clients, local_training, plan_of
from discretion.messages import read_key
from discretion.plan import Plan
from discretion.population import Population
from discretion.profile import Profile
from discretion.server import Server, Vector
from discretion.tasks.datasets import Dataset
from discretion.train import State, train

if TYPE_CHECKING:
    from discretion.clients.local import LocalClients


@dataclass(frozen=True)
class Progress:
    """What is known after a round: nothing in it depends on who took part."""

    round: int
    rounds: int
    accuracy: float | None
    spent: float  # the largest share of a budget that any client has spent


@dataclass(frozen=True)
class RunFolder:
    """Where the parts of a run are kept."""

    path: Path

    @property
    def config(self) -> Path:
        return self.path / "config.toml"

    @property
    def population(self) -> Path:
        return self.path / "population.csv"

    @property
    def plan(self) -> Path:
        return self.path / "plan.json"

    @property
    def certificate(self) -> Path:
        return self.path / "certificate.json"

    @property
    def key(self) -> Path:
        return self.path / ".key"

    @property
    def about(self) -> Path:
        return self.path / "run.json"

    @property
    def history(self) -> Path:
        return self.path / "history.jsonl"

    @property
    def checkpoint(self) -> Path:
        return self.path / "checkpoint.safetensors"

    @property
    def model(self) -> Path:
        return self.path / "model.safetensors"

    @property
    def report(self) -> Path:
        return self.path / "report.html"

    @property
    def profile(self) -> Path:
        return self.path / "profile.json"

    @property
    def answers(self) -> Path:
        return self.path / "answers.jsonl"

    def ledger(self, config: Config) -> Path:
        return Path(config.ledger) if config.ledger else self.path / "ledger.sqlite"

    def require(self) -> None:
        if not self.about.is_file():
            raise InputError(f"there is no run in {self.path}: expected {self.about.name} there")


@dataclass(frozen=True)
class Task:
    """All that decides what is released, besides the plan."""

    population: Population
    clients: "LocalClients"
    name: str  # of the run: equal tasks under equal settings have the same, and the same noise


def set_up(config: Config, dataset: Dataset, population: Population | None = None, key: bytes = b"") -> Task:
    """`key` is a secret of the run: with it, its name tells nothing of the data."""
    population, partition = divide(config, dataset, population)
    clients = local_clients(config, dataset, partition)
    said = config.identity() + str(clients.device) + population.to_csv()
    content = hashlib.blake2b(said.encode(), key=key)
    start = start_of(config, clients)
    arrays = (partition.index, partition.start, dataset.train.inputs, dataset.train.labels, start)
    for array in arrays:
        content.update(np.ascontiguousarray(array).data)
    return Task(population, clients, content.hexdigest()[:16])


def start_of(config: Config, clients: "LocalClients") -> Vector:
    """The model that training starts from: a new one, or the last of an earlier run."""
    if not config.after:
        return clients.initial()
    state = read_checkpoint(RunFolder(Path(config.after)))
    if state is None:
        raise InputError(f"there is no model in {config.after}, from which this run starts")
    return state.model


def require_new(folder: RunFolder) -> None:
    if folder.path.exists() and any(folder.path.iterdir()):
        raise ConfigError(
            f"{folder.path} exists already. Give another --out, or --resume to go on with a run in it."
        )


def prepare(
    config: Config,
    folder: RunFolder,
    dataset: Dataset,
    population: Population | None = None,
    plan: Plan | None = None,
) -> Task:
    """Plan, certify and write a new run folder: all of it or nothing.

    `population` and `plan` are those that were made already, if they were.
    """
    require_new(folder)
    config = config.anchored()
    key = b"" if config.train.randomness == "seeded" else secrets.token_bytes(32)
    task = set_up(config, dataset, population, key)
    plan = plan or fitted(plan_of(config, task.population), config, task.clients.layers)
    certificate = certify(plan, task.population)
    certificate.require(plan, config.train.accept_no_privacy)
    if config.ledger:
        with Ledger(config.ledger, task.population, config.rule) as ledger:
            ledger.consider(plan, config.train.accept_no_privacy)
    about = {
        "id": task.name,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "discretion": __version__,
        "python": platform.python_version(),
        "data": dataset.name,
        "source": dataset.source,
        "device": str(task.clients.device),
        "randomness": certificate.noise,
    }
    folder.path.parent.mkdir(parents=True, exist_ok=True)
    draft = Path(tempfile.mkdtemp(prefix=f".{folder.path.name}-", dir=folder.path.parent))
    draft.chmod(0o755)
    try:
        half = RunFolder(draft)
        write_safely(half.config, config.to_toml().encode())
        write_safely(half.population, task.population.to_csv().encode())
        write_safely(half.plan, plan.to_json().encode())
        write_safely(half.certificate, certificate.to_json().encode())
        if key:
            write_safely(half.key, key)
            half.key.chmod(0o600)
        write_safely(half.about, (json.dumps(about, indent=1) + "\n").encode())
        if folder.path.exists():
            folder.path.rmdir()
        draft.rename(folder.path)
        sync(folder.path.parent)
    except BaseException:
        shutil.rmtree(draft, ignore_errors=True)
        raise
    return task


@contextmanager
def alone(folder: RunFolder) -> Iterator[None]:
    """Only one process may execute a run; the lock goes with the process, however it ends."""
    with (folder.path / ".lock").open("a") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(f"{folder.path} is being run by another process") from None
        lock.truncate(0)
        lock.write(seen_from())
        lock.flush()
        yield


def seen_from() -> str:
    """From where the locks of this process are seen: the running machine, and the part of its processes that
    one container sees; empty where that is not known."""
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
        return f"{boot} {os.readlink('/proc/self/ns/pid')}"
    except OSError:
        return ""


def execute(
    folder: RunFolder,
    task: Task | None = None,
    on_round: Callable[[Progress], None] | None = None,
    profile: Profile | None = None,
    transport: Transport | None = None,
    overrides: Sequence[str] = (),
) -> None:
    """Do the rounds that are left of a prepared run. Resuming is nothing else than doing this again.

    A run keeps its settings; `overrides` are for those that say where and how fast it is done.

    The order of writing is history, model, ledger: after a crash at any point the model on disk says
    which rounds are done, later lines of history are dropped and earlier reservations committed.
    """
    folder.require()
    with alone(folder):
        if folder.model.exists():
            return
        config = read(folder.config, overrides)
        plan = Plan.from_json(folder.plan.read_text(encoding="utf-8"))
        certificate = Certificate.from_json(folder.certificate.read_text(encoding="utf-8"))
        population = Population.from_csv(folder.population)
        key = folder.key.read_bytes() if folder.key.exists() else b""
        task = task or set_up(config, load_data(config), population, key)
        if task.name != name_of(folder):
            raise InputError(
                f"{folder.path} was made from other settings, clients, data, device or model code than are "
                "there now, and a run keeps its own: put them back, or start a new run"
            )
        profile = profile or Profile()
        try:
            with Ledger(folder.ledger(config), population, config.rule) as ledger:
                _execute(folder, config, plan, certificate, ledger, task, on_round, profile, transport)
        finally:
            if config.train.randomness == "seeded":  # else it is secret: time tells of who took part
                _add_profile(folder, profile)


def _execute(
    folder: RunFolder,
    config: Config,
    plan: Plan,
    certificate: Certificate,
    ledger: Ledger,
    task: Task,
    on_round: Callable[[Progress], None] | None,
    profile: Profile,
    transport: Transport | None,
) -> None:
    state = read_checkpoint(folder) or State.start(start_of(config, task.clients))
    for path in (folder.history, folder.answers):
        journal.cut(path, state.round)
    elsewhere = far_clients(config, plan, task, transport)
    if elsewhere:
        folder.answers.touch(mode=0o600)  # it tells whose coins came up
        _end_before(config, ledger, task, transport)
        elsewhere.join()
    how = config.train
    rounds = train(
        plan,
        certificate,
        elsewhere or task.clients,
        ledger,
        state,
        run=task.name,
        seed=config.seed if config.train.randomness == "seeded" else None,
        server=Server(how.server_learning_rate, how.server_momentum, how.server_adaptive, how.server_average),
        accept_no_privacy=config.train.accept_no_privacy,
        profile=profile,
        shares=config.clients.missing if elsewhere else "here",
    )
    with profile("other"):
        for state in rounds:
            record: dict[str, Any] = {"round": state.round}
            if state.round == plan.rounds or state.round % config.train.evaluate_every == 0:
                with profile("evaluate"):
                    quality = task.clients.evaluate(state.result)
                record |= {"accuracy": quality.accuracy, "loss": quality.loss}
            with profile("write"):
                journal.add(folder.history, [record])
                if elsewhere:
                    journal.add(folder.answers, elsewhere.taken())
                _write_checkpoint(folder, state)
            profile.rounds += 1
            if on_round:
                spent = certificate.spending.share(state.round)
                on_round(Progress(state.round, plan.rounds, record.get("accuracy"), spent))
    if elsewhere:
        elsewhere.finish(plan.rounds)
    write_safely(folder.model, safetensors.numpy.save(task.clients.named(state.result)))
    folder.checkpoint.unlink(missing_ok=True)


def _end_before(config: Config, ledger: Ledger, task: Task, transport: Transport | None) -> None:
    """Tell guards that the runs are over that this one goes on from: what they did not use is free again."""
    while config.after:
        folder = RunFolder(Path(config.after))
        config = read(folder.config)
        plan = Plan.from_json(folder.plan.read_text(encoding="utf-8"))
        before = replace(task, population=Population.from_csv(folder.population), name=name_of(folder))
        if (clients := far_clients(config, plan, before, transport)) is not None:
            clients.join()
            clients.finish(len(ledger.states(before.name)))


def name_of(folder: RunFolder) -> str:
    name: str = json.loads(folder.about.read_text(encoding="utf-8"))["id"]
    return name


def far_clients(
    config: Config, plan: Plan, task: Task, transport: Transport | None = None
) -> RemoteClients | None:
    """The clients of a run, if they are elsewhere: by this transport, else straight to guards' sockets."""
    if config.clients.where == "here":
        return None
    return RemoteClients(
        transport or Sockets(read_addresses(Path(config.clients.addresses))),
        read_key(Path(config.clients.key)),
        plan,
        task.population,
        task.name,
        model=config.model.name,
        shapes=task.clients.shapes,
        local=local_training(config),
        timeout=config.clients.timeout,
    )


def _write_checkpoint(folder: RunFolder, state: State) -> None:
    tensors = {"model": state.model, "velocity": state.velocity, "round": np.array([state.round])}
    tensors |= {"step": state.step, "memory": state.memory, "square": state.square, "mean": state.mean}
    tensors |= {"scale": np.array([state.scale])}
    write_safely(folder.checkpoint, safetensors.numpy.save(tensors))


def _add_profile(folder: RunFolder, profile: Profile) -> None:
    """Where the time went, of all times that the run was executed, but those that were killed."""
    record = profile.to_record()
    rounds, seconds = int(record["rounds"]), dict(record["seconds"])
    if folder.profile.exists():
        before = json.loads(folder.profile.read_text(encoding="utf-8"))
        rounds += before["rounds"]
        seconds = {part: took + before["seconds"].get(part, 0.0) for part, took in seconds.items()}
    write_safely(folder.profile, (json.dumps({"rounds": rounds, "seconds": seconds}) + "\n").encode())


def read_checkpoint(folder: RunFolder) -> State | None:
    if not folder.checkpoint.exists():
        return None
    tensors = safetensors.numpy.load_file(folder.checkpoint)
    done, scale = int(tensors.pop("round")[0]), float(tensors.pop("scale")[0])
    return State(round=done, scale=scale, **tensors)
