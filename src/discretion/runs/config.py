"""The settings of a run (config.toml): default, meaning and role of each."""

import copy
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar, cast

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
from discretion.files import read_toml
from discretion.methods import DEFAULT
from discretion.plan.plan import Parameter

MOST_THREADS = 1024  # or workers: each has buffers of its own, and a slip of the key must not take all memory

# What a setting is for. "decides": the run's numbers follow from it. "means": how and where it is executed.
# "place": a path, address or key, which may name people, machines or passwords, and is shown to nobody.
Role = Literal["decides", "means", "place"]


class ConfigSection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)


def means(default: Any, description: str, **bounds: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"role": "means"}, **bounds)


def place(description: str) -> Any:
    return Field("", description=description, json_schema_extra={"role": "place"})


def roles(section: type[ConfigSection], prefix: str = "") -> dict[str, Role]:
    """Return the role of every setting, by its dotted name."""
    found: dict[str, Role] = {}
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, ConfigSection):
            found |= roles(field.annotation, f"{prefix}{name}.")
        else:
            extra = field.json_schema_extra
            found[prefix + name] = cast(Role, extra["role"]) if isinstance(extra, dict) else "decides"
    return found


class PopulationConfig(ConfigSection):
    csv: str = place("CSV with client,epsilon,delta,size; empty: a budget mix")
    clients: int = Field(
        600, ge=1, description="number of clients, with a budget mix; a natural partition has its own"
    )
    budgets: str = Field(
        "0.5-1.5-3",
        description="each client's epsilon: 10-20-30, 0.5-1.5-3, uniform:0.1,1, pareto:2,0.5, "
        "small-and-dispersed, groups:1@50,8@50 …",
    )
    delta: float = Field(1e-5, gt=0, lt=1, description="each client's delta (with a budget mix)")


class DataConfig(ConfigSection):
    name: str = Field(
        "fashion-mnist",
        description="a data set of `discretion data`, csv, or your own package.module:function",
    )
    path: str = place('your own table, with name = "csv"')
    partition: str = Field(
        "iid",
        description="iid, dirichlet, shards, mostly_sorted, or natural (a client for each owner in the data)",
    )
    alpha: float = Field(
        0.5, gt=0, description="dirichlet: concentration; small values give each client few labels"
    )
    shards_per_client: int = Field(2, ge=1, description="shards: label-sorted shards for each client")
    iid_percent: float = Field(
        50.0,
        ge=0,
        le=100,
        description="mostly_sorted: per cent of the records that are iid; the rest are sorted by label",
    )
    sizes: Literal["even", "varied"] = Field(
        "even", description="clients' sizes: even, or varied (proportional to U(0.5, 1.5))"
    )
    records: int = Field(
        0,
        ge=0,
        description="records of each client; 0: divide all; natural: clients with fewer are left out",
    )


class ModelConfig(ConfigSection):
    name: str = Field(
        "mlp",
        description="linear, mlp, cnn_small, cnn, cnn_norm, lstm, or your own package.module:factory",
    )


class PlanConfig(ConfigSection):
    method: str = Field(
        DEFAULT, description="a method of `discretion methods`, or your own package.module:function"
    )
    rounds: int = Field(30, ge=1, description="rounds of training")
    rate: float = Field(
        0.1,
        gt=0,
        le=1,
        description="sampling rate: a client's chance to take part in a round (mean over clients)",
    )
    clip: float = Field(
        0.5, gt=0, description="clipping norm: bound on an update's L2 norm (mean over clients)"
    )
    clipping: Literal["flat", "per_layer"] = Field(
        "flat", description="clip an update as a whole (flat), or each of its L layers to clip / sqrt(L)"
    )
    integers: bool = Field(False, description="round updates to a fine grid and draw the noise exactly on it")
    share: float = Field(
        1.0, gt=0, le=1, description="share of each epsilon to plan for; the rest is left to later runs"
    )
    options: dict[str, Parameter] = Field(
        default_factory=dict, description="further parameters of the method; see `discretion methods NAME`"
    )


class TrainConfig(ConfigSection):
    epochs: int = Field(
        1,
        ge=0,
        description="local epochs: passes over its records that a client makes in a round; 0: use steps",
    )
    steps: int = Field(
        0, ge=0, validate_default=True, description="local steps of a client in a round; 0: use epochs"
    )
    batch_size: int = Field(10, ge=1, description="records in one local step")
    order: RecordOrder = Field(
        "shuffled", description="order of a client's records: shuffled in every epoch, or sequential"
    )
    learning_rate: float = Field(0.1, gt=0, description="clients' learning rate")
    momentum: float = Field(0.0, ge=0, lt=1, description="clients' momentum; starts at 0 in every round")
    weight_decay: float = Field(0.0, ge=0, description="clients' weight decay")
    schedule: str = Field(
        "constant",
        description="clients' learning rate over the rounds: constant, decay:0.99 (times 0.99 a round) or "
        "cosine (down to 0)",
    )
    server_learning_rate: float = Field(1.0, gt=0, description="server's learning rate")
    server_momentum: float = Field(0.0, ge=0, lt=1, description="server's momentum; costs no privacy")
    server_adaptive: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="Adam-style second-moment decay, e.g. 0.99; 0 = off. The server's learning rate is then "
        "how far a parameter moves in a round; costs no privacy",
    )
    server_average: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="exponential moving average of the models, e.g. 0.9: the weight of each relative to the "
        "next; 0: the last model, unless the method averages; costs no privacy",
    )
    evaluate_every: int = Field(5, ge=1, description="rounds between evaluations on the test records")
    device: str = means(
        "auto", "cpu, cuda, cuda:1 …; auto: the first GPU, but the CPU for models that are compiled"
    )
    threads: int = means(
        0,
        "threads of compiled code, and of torch in this process; 0: one for each core",
        ge=0,
        le=MOST_THREADS,
    )
    workers: int = means(
        0,
        "processes for models that only torch can train, on the CPU; 0: one for each core, 1: "
        "this process only",
        ge=0,
        le=MOST_THREADS,
    )
    randomness: Literal["seeded", "cryptographic"] = Field(
        "seeded",
        description="source of coins and noise: seeded (simulation) or cryptographic (not repeatable)",
    )
    accept_no_privacy: bool = Field(
        False, description="run a plan that protects nobody: only for data that may be published"
    )

    @model_validator(mode="before")
    @classmethod
    def _steps_instead(cls, record: Any) -> Any:
        """Take steps without epochs as epochs = 0."""
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


class ClientsConfig(ConfigSection):
    """Where clients are, and how they are reached."""

    where: Literal["here", "guards", "flower", "flower-sim"] = means(
        "here",
        "here: in this process; guards: each behind its own guard on this machine; flower: each "
        "behind its own guard, reached by Flower; flower-sim: all guards in Flower's simulation, on Ray",
    )
    addresses: str = place("guards: TOML file with the socket of each client's guard")
    key: str = place("the operator's key file, as `discretion key` writes it")
    connection: str = means("here", "flower: the SuperLink, by its name in Flower's config.toml")
    home: str = place("flower: the folder of Flower's config.toml; empty: as FLWR_HOME says")
    timeout: float = means(600.0, "seconds to wait for answers in a round", gt=0)
    missing: Literal["top_up", "discard"] = Field(
        "top_up",
        description="if shares of a secure sum's noise are missing, the server adds noise (top_up), or the "
        "round is charged and changes nothing (discard)",
    )
    secure_sum: bool = Field(
        False,
        description="guards, flower: true if your own secure aggregation lets the server see sums only; else "
        "plans for a secure sum promise nothing against the server",
    )

    @property
    def answers_seen(self) -> bool:
        return self.where in ("guards", "flower") and not self.secure_sum


class TrackConfig(ConfigSection):
    """Another tool that gets the history while a run is executed."""

    to: Literal["", "tensorboard", "mlflow"] = means(
        "", "tensorboard or mlflow; empty: none. `discretion export` does the same afterwards"
    )
    out: str = place(
        "tensorboard: a folder, else one in the run folder; mlflow: a server's address or a folder, "
        "else as MLFLOW_TRACKING_URI says"
    )


class Config(ConfigSection):
    seed: int = Field(
        0, ge=0, lt=2**128, description="seed of clients, weights and batches, and of seeded coins and noise"
    )
    ledger: str = place("a ledger shared with other runs; empty: one of its own")
    rule: Literal["planned", "adaptive"] = Field(
        "planned",
        description="rule of the ledger: planned (a plan is admitted whole, or not) or adaptive (each client "
        "refuses, round by round, what would exceed its budget; needed if plans depend on earlier releases)",
    )
    after: str = place("folder of a run whose last model this run starts from; see `discretion replan`")
    population: PopulationConfig = PopulationConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    plan: PlanConfig = PlanConfig()
    train: TrainConfig = TrainConfig()
    clients: ClientsConfig = ClientsConfig()
    track: TrackConfig = TrackConfig()

    def anchored(self) -> "Config":
        """Return the settings with absolute paths, so that a run is resumed from any folder."""
        if without_credentials(self.track.out) != self.track.out:
            raise ConfigError(
                "track.out holds a user or password, which would be saved with the run: take it out, and set "
                "MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD in the environment"
            )
        return Config.model_validate(_by_role(self, {"place": _absolute}))

    def deciding(self) -> "Config":
        """Return the settings with device, threads and workers blank: rounding aside, they decide nothing."""
        blank = {"device": "", "threads": 0, "workers": 0}
        return self.model_copy(update={"train": self.train.model_copy(update=blank)})

    def to_toml(self) -> str:
        return tomli_w.dumps(self.model_dump())

    def public(self) -> dict[str, Any]:
        """Return what may be shown to anybody: no places, and no path in other settings but its last part."""
        return _by_role(self, {"place": None, "means": unplaced, "decides": unplaced})

    def executed_with(self, overrides: Sequence[str], source: str) -> "Config":
        """Return the settings of a run as it is executed with overrides, which may change only its means."""
        known = roles(Config)
        for key in (override.partition("=")[0].strip() for override in overrides):
            reaches = known.get(key) == "place" and key.startswith(("clients.", "track."))
            if not (reaches or known.get(key) == "means"):
                raise ConfigError(
                    f"{key} cannot be changed for a run that was made from other settings: a run keeps its "
                    "own. Start a new run; device, threads, workers and how clients are reached may change."
                )
        return make(self.model_dump(), overrides, source)

    def identity(self) -> str:
        """Return the settings that the run's numbers follow from, as TOML.

        The run's name is a hash of this text, the population, the data and the first model.
        """
        kept = _by_role(self.deciding(), {"place": None})
        del kept["clients"], kept["track"]
        usual = ClientsConfig()
        deciding = _by_role(self.clients, {"place": None, "means": None}).items()
        if special := {name: value for name, value in deciding if value != getattr(usual, name)}:
            kept["clients"] = special
        return tomli_w.dumps(kept)


def _by_role(section: ConfigSection, change: Mapping[Role, Callable[[Any], Any] | None]) -> dict[str, Any]:
    """Return the settings as a nested dictionary, those of a role changed by its function, or left out."""
    known, kept = roles(type(section)), {}
    for name in type(section).model_fields:
        value = getattr(section, name)
        if isinstance(value, ConfigSection):
            kept[name] = _by_role(value, change)
        elif known[name] not in change:
            kept[name] = value
        elif (changed := change[known[name]]) is not None:
            kept[name] = changed(value)
    return kept


CREDENTIALS = re.compile(r"(?<=://)[^/\s?#]*@")


def without_credentials(text: str) -> str:
    """Return the text without users and passwords of addresses, as in http://user:password@host."""
    return CREDENTIALS.sub("", text)


def _absolute(path: str) -> str:
    return str(Path(path).absolute()) if path and "://" not in path else path


def unplaced(value: Any) -> Any:
    """Return a setting as it may be shown: of an absolute path the last part, no user or password."""
    if isinstance(value, dict):
        return {name: unplaced(inner) for name, inner in value.items()}
    if isinstance(value, str):
        return Path(value).name if value.startswith("/") else without_credentials(value)
    return value


def read(path: Path | str, overrides: Sequence[str] = ()) -> Config:
    """Read settings from a TOML file, changed by `key=value` overrides such as plan.rounds=50."""
    return make(read_toml(Path(path)), overrides, str(path))


def make(record: dict[str, Any], overrides: Sequence[str] = (), source: str = "settings") -> Config:
    """Build settings from a nested dictionary; every problem is reported at once."""
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
    return validated(Config, record, list(roles(Config)), source)


AnySection = TypeVar("AnySection", bound=ConfigSection)


def validated(
    kind: type[AnySection], record: dict[str, Any], known: Sequence[str], source: str
) -> AnySection:
    """Validate a nested dictionary; the error names every problem and the nearest `known` key."""
    try:
        return kind.model_validate(record)
    except ValidationError as problem:
        lines = "\n  ".join(_explain(dict(error), known) for error in problem.errors())
        raise ConfigError(f"{source}: invalid settings\n  {lines}") from None


def _value(text: str) -> Any:
    """Parse a value as TOML does; anything else is a string."""
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


def template() -> str:
    """Return a config.toml with every setting at its default and a comment on each."""
    return "# Settings of a run of Discretion.\n" + _commented(Config(), "")


def _commented(section: ConfigSection, heading: str) -> str:
    lines: list[str] = []
    inner: list[str] = []
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, ConfigSection):
            inner.append(_commented(value, f"{heading}.{name}" if heading else name))
        else:
            lines.append(f"# {field.description}")
            lines.append(tomli_w.dumps({name: value}).strip() if value != {} else f"{name} = {{}}")
    title = f"\n[{heading}]\n" if heading else "\n"
    return title + "\n".join(lines) + "\n" + "".join(inner)
