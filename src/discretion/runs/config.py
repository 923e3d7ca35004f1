"""config.toml: every setting of a run, with its default and what it means."""

import copy
import re
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import tomli_w
from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from discretion.clients.training import RecordOrder, Schedule
from discretion.errors import ConfigError, InputError, nearest
from discretion.methods import DEFAULT
from discretion.plan import Parameter

MOST_THREADS = 1024  # or workers: each has buffers of its own, and a slip of the key must not take all memory


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


class PopulationConfig(Section):
    csv: str = Field("", description="file with client,epsilon,delta,size; empty: use a budget mix")
    clients: int = Field(
        600, ge=1, description="how many clients, with a budget mix; a natural partition has its own"
    )
    budgets: str = Field(
        "0.5-1.5-3",
        description="who gets which epsilon: 10-20-30, 0.5-1.5-3, uniform:0.1,1, pareto:2,0.5, "
        "small-and-dispersed, groups:1@50,8@50 …",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="each client's delta (with a budget mix)")


class DataConfig(Section):
    name: str = Field("fashion-mnist", description="see `discretion data`")
    path: str = Field("", description='your own table, with name = "csv"')
    partition: str = Field(
        "iid",
        description="iid, dirichlet, shards, mostly_sorted or natural (by role or client column)",
    )
    alpha: float = Field(0.5, gt=0, description="dirichlet: small values give few labels to each client")
    shards_per_client: int = Field(2, ge=1, description="shards: how many runs of sorted records each")
    iid_percent: float = Field(
        50.0, ge=0, le=100, description="mostly_sorted: this share is iid, the rest sorted by label"
    )
    sizes: Literal["even", "varied"] = Field(
        "even", description="even, or varied: proportional to U(0.5, 1.5)"
    )
    records: int = Field(
        0,
        ge=0,
        description="records for each client; 0: divide all of them; natural: who has fewer is left out",
    )


class ModelConfig(Section):
    name: str = Field(
        "mlp",
        description="linear, mlp, cnn_small, cnn, cnn_norm, lstm, or your own package.module:factory",
    )


class PlanConfig(Section):
    method: str = Field(DEFAULT, description="see `discretion methods`")
    rounds: int = Field(30, ge=1, description="rounds of training")
    rate: float = Field(
        0.1,
        gt=0,
        le=1,
        description="chance of a client to take part in a round (mean over clients)",
    )
    clip: float = Field(0.5, gt=0, description="bound on the norm of an update (mean over clients)")
    clipping: Literal["flat", "per_layer"] = Field(
        "flat", description="clip an update as a whole, or each of L layers at clip / sqrt(L)"
    )
    integers: bool = Field(
        False, description="sums in whole numbers, on a fine grid, with noise that is drawn exactly"
    )
    share: float = Field(
        1.0, gt=0, le=1, description="of each epsilon: keep some for later runs on the same ledger"
    )
    options: dict[str, Parameter] = Field(
        default_factory=dict, description="further parameters of the method"
    )


class TrainConfig(Section):
    epochs: int = Field(
        1, ge=0, description="passes over its records that a client makes in a round; 0: by steps"
    )
    steps: int = Field(
        0, ge=0, validate_default=True, description="steps of a client in a round; 0: by epochs"
    )
    batch_size: int = Field(10, ge=1, description="records in one step of a client")
    order: RecordOrder = Field(
        "shuffled", description="of a client's records: shuffled in every epoch, or sequential"
    )
    learning_rate: float = Field(0.1, gt=0, description="of the clients")
    momentum: float = Field(0.0, ge=0, lt=1, description="of the clients; starts anew in every round")
    weight_decay: float = Field(0.0, ge=0, description="of the clients: pulls weights towards 0")
    schedule: str = Field(
        "constant",
        description="the clients' learning rate over the rounds: constant, decay:0.99 (times that each time) "
        "or cosine (down to 0)",
    )
    server_learning_rate: float = Field(1.0, gt=0, description="of the server")
    server_momentum: float = Field(0.0, ge=0, lt=1, description="of the server; costs no privacy")
    server_adaptive: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="memory of the squares of steps, by whose root they are divided (0.99): the server's "
        "learning rate then is how far a parameter moves in a round; 0: steps as they are; costs no privacy",
    )
    server_average: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="the result is a mean of the models after each round, in which each counts so much less "
        "than the next; 0: the last one, unless the method averages; costs no privacy",
    )
    evaluate_every: int = Field(5, ge=1, description="rounds between evaluations on the test records")
    device: str = Field(
        "auto",
        description="cpu, cuda, cuda:1 …; auto: the first GPU, but the CPU for models that are compiled",
    )
    threads: int = Field(
        0,
        ge=0,
        le=MOST_THREADS,
        description="of compiled code, and of torch in this process; 0: as many as there are cores",
    )
    workers: int = Field(
        0,
        ge=0,
        le=MOST_THREADS,
        description="processes that train models that only torch can, on the CPU; 0: as many as there are "
        "cores, 1: none but this one",
    )
    randomness: Literal["seeded", "cryptographic"] = Field(
        "seeded", description="of coins and noise: seeded (simulation) or cryptographic (not repeatable)"
    )
    accept_no_privacy: bool = Field(
        False, description="run a plan that protects nobody, on data that may be published"
    )

    @model_validator(mode="before")
    @classmethod
    def _steps_instead(cls, record: Any) -> Any:
        """Who gives steps and says nothing of epochs wants none."""
        if isinstance(record, dict) and record.get("steps") and "epochs" not in record:
            return {**record, "epochs": 0}
        return record

    @field_validator("steps")
    @classmethod
    def _one_of_both(cls, steps: int, info: ValidationInfo) -> int:
        epochs = info.data.get("epochs")
        if epochs is not None and bool(epochs) == bool(steps):
            message = (
                "expected one of train.epochs and train.steps, and 0 for the other: train.epochs is {epochs}"
            )
            raise PydanticCustomError("one_of_both", message, {"epochs": epochs})
        return steps

    @field_validator("schedule")
    @classmethod
    def _known_schedule(cls, text: str) -> str:
        try:
            Schedule.parse(text)
        except InputError as problem:
            raise PydanticCustomError("schedule", "{problem}", {"problem": str(problem)}) from None
        return text


class ClientsConfig(Section):
    """Where clients are; of what a run is, no more than whether there is a secure sum."""

    where: Literal["here", "guards", "flower", "flower-sim"] = Field(
        "here",
        description="here: in this process; guards: each behind its own guard on this machine; flower: each "
        "behind its own guard, reached by Flower; flower-sim: guards of all in Flower's simulation, on Ray",
    )
    addresses: str = Field("", description="guards: a TOML file with the socket of each client's guard")
    key: str = Field("", description="the operator's key, as `discretion key` writes it")
    connection: str = Field("here", description="flower: the SuperLink, by its name in Flower's config.toml")
    home: str = Field("", description="flower: the folder of Flower's config.toml; empty: as FLWR_HOME says")
    timeout: float = Field(600.0, gt=0, description="seconds to wait for answers in a round")
    missing: Literal["top_up", "discard"] = Field(
        "top_up",
        description="where too few shares of the noise of a secure sum come: the server adds what is missing "
        "(top_up), or the round counts and moves nothing (discard)",
    )
    secure_sum: bool = Field(
        False,
        description="guards, flower: whether answers reach the server in sums only, by your own means; else "
        "plans for a secure sum promise nothing against the server",
    )

    @property
    def answers_seen(self) -> bool:
        return self.where in ("guards", "flower") and not self.secure_sum


class TrackConfig(Section):
    """Where the history goes, too, while it is made; not part of what a run is."""

    to: Literal["", "tensorboard", "mlflow"] = Field(
        "", description="tensorboard or mlflow; empty: nowhere. `discretion export` does the same afterwards"
    )
    out: str = Field(
        "",
        description="tensorboard: a folder, else one in that of the run; mlflow: a server's address, or a "
        "folder, else as MLFLOW_TRACKING_URI says",
    )


class Config(Section):
    seed: int = Field(
        0, ge=0, lt=2**128, description="of clients, weights and batches, and of seeded coins and noise"
    )
    ledger: str = Field("", description="a ledger shared with other runs; empty: one of its own")
    rule: Literal["planned", "adaptive"] = Field(
        "planned",
        description="of the ledger: planned (a plan is admitted whole, or not) or adaptive (each client "
        "refuses what would pass its budget; for plans that were chosen by what earlier runs released)",
    )
    after: str = Field(
        "", description="the folder of a run from whose model this one starts; see `discretion replan`"
    )
    population: PopulationConfig = PopulationConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    plan: PlanConfig = PlanConfig()
    train: TrainConfig = TrainConfig()
    clients: ClientsConfig = ClientsConfig()
    track: TrackConfig = TrackConfig()

    def anchored(self) -> "Config":
        """With absolute paths, so that a run finds its ledger and data wherever it is resumed from."""
        population = self.population.model_copy(update={"csv": _absolute(self.population.csv)})
        data = self.data.model_copy(update={"path": _absolute(self.data.path)})
        files = {"addresses": _absolute(self.clients.addresses), "key": _absolute(self.clients.key)}
        files["home"] = _absolute(self.clients.home)
        clients = self.clients.model_copy(update=files)
        if without_credentials(self.track.out) != self.track.out:
            raise ConfigError(
                "track.out holds a user or password, which would be saved with the run: take it out, and set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment"
            )
        out = self.track.out if "://" in self.track.out else _absolute(self.track.out)
        track = self.track.model_copy(update={"out": out})
        changed = {"population": population, "data": data, "clients": clients, "track": track}
        places = {"ledger": _absolute(self.ledger), "after": _absolute(self.after)}
        return self.model_copy(update=changed | places)

    def deciding(self) -> "Config":
        """Without what says where and how fast it is done: from the rest a run's numbers follow, up to what
        rounding is like on its device."""
        where = {"device": "", "threads": 0, "workers": 0}
        return self.model_copy(update={"train": self.train.model_copy(update=where)})

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump())

    def public(self) -> dict[str, Any]:
        """What may be shown to anybody: without places; of a path that is left, its last part."""
        return {name: unplaced(value) for name, value in self.model_dump(exclude=PLACES).items()}

    def identity(self) -> str:
        """What tells one run from another, but for the population, data and model that it starts from: what
        decides its numbers, and not where its files, clients or earlier runs are, or where its history
        goes."""
        places: dict[str, Any] = {"clients": True, "after": True, "ledger": True, "track": True}
        places |= {"population": {"csv"}, "data": {"path"}}
        return tomli_w.dumps(self.deciding().model_dump(exclude=places))


# where things are: no part of what a report may show, as some name people, machines, keys or passwords
PLACES: dict[str, Any] = {
    "after": True,
    "ledger": True,
    "population": {"csv"},
    "data": {"path"},
    "clients": {"addresses", "key", "home"},
    "track": {"out"},
}
CREDENTIALS = re.compile(r"(?<=://)[^/\s?#]*@")


def without_credentials(text: str) -> str:
    """Text without the user and password of addresses in it, as in http://user:password@host."""
    return CREDENTIALS.sub("", text)


def _absolute(path: str) -> str:
    return str(Path(path).absolute()) if path else ""


def unplaced(value: Any) -> Any:
    """A setting as it may be shown: of an absolute path its last part, no user or password."""
    if isinstance(value, dict):
        return {name: unplaced(inner) for name, inner in value.items()}
    if isinstance(value, str):
        return Path(value).name if value.startswith("/") else without_credentials(value)
    return value


def read(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """The settings in a TOML file, changed by `key=value` overrides such as plan.rounds=50."""
    return make(read_toml(Path(path)), overrides, str(path))


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise ConfigError(f"cannot read {path}: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path} is not valid TOML: {problem}") from None


def make(record: dict[str, Any], overrides: Sequence[str] = (), source: str = "settings") -> Config:
    """Settings from a nested dictionary; every problem is reported at once."""
    record = copy.deepcopy(record)
    for override in overrides:
        key, equals, value = override.partition("=")
        if not equals:
            raise ConfigError(f"-c {override}: expected key=value, such as plan.rounds=50")
        *sections, name = key.strip().split(".")
        target = record
        for section in sections:
            target = target.setdefault(section, {})
            if not isinstance(target, dict):
                raise ConfigError(f"-c {override}: {section} is a value, not a section")
        target[name] = _value(value.strip())
    return validated(Config, record, _keys(Config), source)


AnySection = TypeVar("AnySection", bound=Section)


def validated(
    kind: type[AnySection], record: dict[str, Any], known: Sequence[str], source: str
) -> AnySection:
    """What a nested dictionary says, or an error that names every problem and the nearest `known` key."""
    try:
        return kind.model_validate(record)
    except ValidationError as problem:
        lines = "\n  ".join(_explain(dict(error), known) for error in problem.errors())
        raise ConfigError(f"{source}: these settings cannot be used\n  {lines}") from None


def _value(text: str) -> Any:
    """As TOML reads it; what it cannot read is a string."""
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except tomllib.TOMLDecodeError:
        return text


def _explain(error: dict[str, Any], known: Sequence[str]) -> str:
    path = [str(part) for part in error["loc"]]
    name = ".".join(path)
    if error["type"] != "extra_forbidden":
        return f"{name}: {error['msg'].lower()}, found {error['input']!r}"
    same = [key for key in known if key.split(".")[-1] == path[-1]]
    hint = f" Did you mean {same[0]!r}?" if same else nearest(name, known)
    return f"{name}: unknown setting.{hint or ' Known are ' + ', '.join(known)}"


def _keys(section: type[Section], prefix: str = "") -> list[str]:
    keys = []
    for name, field in section.model_fields.items():
        kind = field.annotation
        if isinstance(kind, type) and issubclass(kind, Section):
            keys += _keys(kind, f"{prefix}{name}.")
        else:
            keys.append(prefix + name)
    return keys


def template() -> str:
    """A config.toml with every setting at its default and a comment on each."""
    return "# Settings of a run of Discretion.\n" + _commented(Config(), "")


def _commented(section: Section, heading: str) -> str:
    lines: list[str] = []
    inner: list[str] = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, Section):
            inner.append(_commented(value, f"{heading}.{name}" if heading else name))
        else:
            lines.append(f"# {field.description}")
            lines.append(tomli_w.dumps({name: value}).strip() if value != {} else f"{name} = {{}}")
    title = f"\n[{heading}]\n" if heading else "\n"
    return title + "\n".join(lines) + "\n" + "".join(inner)
