"""A run is a folder: made whole from its settings, executed round by round, resumed after any crash."""

import fcntl
import hashlib
import json
import math
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

from discretion import __version__, budgets, journal
from discretion.accounting import Certificate, certify
from discretion.clients.remote import RemoteClients
from discretion.clients.training import LocalTraining, Schedule
from discretion.clients.transport import Sockets, Transport, read_addresses
from discretion.config import Config, read
from discretion.errors import ConfigError, DataError, InputError
from discretion.files import sync, write_safely
from discretion.ledger import Ledger
from discretion.messages import read_key
from discretion.methods import find, make_plan
from discretion.plan import Plan
from discretion.population import Population
from discretion.profile import Profile
from discretion.server import Server, Vector
from discretion.streams import Purpose, stream
from discretion.tasks import datasets, partitions
from discretion.tasks.datasets import Dataset
from discretion.tasks.partitions import Partition
from discretion.train import State, train

if TYPE_CHECKING:
    from discretion.clients.local import LocalClients

Report = Callable[[str], None]

GRID_BITS = 20  # of the smallest clip


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


def load_data(config: Config, report: Report | None = None) -> Dataset:
    path = Path(config.data.path) if config.data.path else None
    return datasets.load(config.data.name, path=path, report=report)


def divide(
    config: Config, dataset: Dataset, population: Population | None = None
) -> tuple[Population, Partition]:
    """Who takes part, and who holds which records; the same for every method under one seed.

    `population` is that of a run that was made before; otherwise it comes from CSV or a budget mix.
    """
    data, wanted = config.data, config.population
    if population is None and wanted.csv:
        population = Population.from_csv(wanted.csv)
    elsewhere = config.clients.where in ("guards", "flower")
    if elsewhere and wanted.csv and population is not None:  # and so are their records
        return population, Partition(np.zeros(0, np.int64), np.zeros(len(population) + 1, np.int64))
    if data.partition == "natural":
        names, partition = _by_owner(dataset, population, data.records)
    else:
        names, partition = None, _by_size(config, dataset, population)
    if population is None:
        epsilon = budgets.draw(wanted.budgets, partition.clients, stream(config.seed, Purpose.BUDGETS))
        population = Population.of(epsilon, wanted.delta, partition.sizes)
        population = replace(population, client=names or population.client)
    if (population.size != partition.sizes).any():
        odd = int(np.flatnonzero(population.size != partition.sizes)[0])
        raise DataError(
            f"client {population.client[odd]} declares {population.size[odd]} records, but holds "
            f"{partition.sizes[odd]} for training in {dataset.name}: declare what is there"
        )
    return population, partition


def _by_size(config: Config, dataset: Dataset, declared: Population | None) -> Partition:
    data, clients, labels = config.data, config.population.clients, dataset.train.labels
    if declared is not None:
        sizes = declared.size
    elif data.sizes == "varied":
        records = min(data.records * clients or len(labels), len(labels))
        sizes = partitions.varied_sizes(records, clients, stream(config.seed, Purpose.SIZES))
    else:
        sizes = partitions.even_sizes(len(labels), clients, data.records or None)
    return partitions.partition(
        data.partition,
        labels,
        sizes,
        stream(config.seed, Purpose.PARTITION),
        alpha=data.alpha,
        shards_per_client=data.shards_per_client,
        iid_percent=data.iid_percent,
    )


def _by_owner(dataset: Dataset, declared: Population | None, least: int) -> tuple[tuple[str, ...], Partition]:
    """One client for each owner in the data that has so many records, in the order of the population if there
    is one."""
    owner = dataset.owner
    least, count = max(1, least), np.bincount(np.zeros(0, np.int64) if owner is None else owner)
    names = tuple(dataset.owners[i] for i in np.flatnonzero(count >= least))
    if owner is not None and declared is not None:
        if set(declared.client) != set(names):
            odd = sorted(set(declared.client) ^ set(names))
            raise DataError(
                f"the population and the data set name different clients, such as {', '.join(odd[:5])}; "
                f"the population has {len(declared)}, {dataset.name} has records of {len(names)}"
            )
        number = {name: i for i, name in enumerate(declared.client)}
        owner = np.array(  # those left out come last, and have too few records
            [number.get(name, len(declared) + i) for i, name in enumerate(dataset.owners)]
        )[owner]
        names = declared.client
    return names, partitions.partition(
        "natural", dataset.train.labels, None, np.random.default_rng(), owner=owner, minimum=least
    )


def plan_of(config: Config, population: Population) -> Plan:
    """The plan of the configured method; shared settings that it does not take are left out."""
    taken = find(config.plan.method).parameters
    shared = {"rounds": config.plan.rounds, "rate": config.plan.rate, "clip": config.plan.clip}
    parameters = {name: value for name, value in shared.items() if name in taken}
    part = replace(population, epsilon=population.epsilon * config.plan.share)
    plan = make_plan(config.plan.method, part, {**parameters, **config.plan.options})
    return replace(plan, randomness=config.train.randomness)


def fitted(plan: Plan, config: Config, layers: tuple[int, ...]) -> Plan:
    """The plan for a model with so many parameters in each layer, clipped and rounded as configured."""
    if config.plan.clipping == "per_layer":
        plan = replace(plan, clipping=replace(plan.clipping, layers=layers))
    if config.plan.integers:
        least = min(float(np.min(p.clip, where=p.clip > 0, initial=np.inf)) for p in plan.phases)
        if not np.isfinite(least):
            raise ConfigError("plan.integers needs updates that are clipped; this plan clips none")
        plan = plan.on_grid(2.0 ** (math.floor(math.log2(least)) - GRID_BITS), sum(layers))
    return plan


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


def local_clients(config: Config, dataset: Dataset, partition: Partition) -> "LocalClients":
    try:
        import torch
    except ModuleNotFoundError:
        raise InputError("training needs PyTorch: pip install 'discretion[torch]'") from None

    from discretion.clients.devices import cores
    from discretion.clients.local import LocalClients
    from discretion.tasks import models

    how = config.train
    torch.set_num_threads(how.threads or cores())
    weights = int(stream(config.seed, Purpose.WEIGHTS).integers(2**31))
    model = models.build(config.model.name, dataset, weights)
    local = local_training(config)
    return LocalClients(dataset, partition, model, local, device=how.device, workers=how.workers)


def local_training(config: Config) -> LocalTraining:
    how = config.train
    rates = (how.learning_rate, how.momentum, how.weight_decay)
    return LocalTraining(
        how.epochs, how.batch_size, *rates, Schedule.parse(how.schedule), how.steps, how.order
    )


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
