"""The settings of a run (config.toml): default, meaning and role of each."""

import copy
import re
import tomllib
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, Self, cast

import tomli_w
from pydantic import BaseModel, Field, ValidationError, ValidationInfo, field_validator, model_validator
from pydantic_core import PydanticCustomError

from discretion.clients.training import RecordOrder, Schedule
from discretion.clients.turnout import MAJORITY
from discretion.errors import ConfigError, InputError, nearest
from discretion.files import read_toml
from discretion.jsonfile import coerced
from discretion.methods import DEFAULT, DEFAULTS
from discretion.plan.phase import LARGEST, MOST_ROUNDS, SMALLEST
from discretion.plan.plan import Parameter
from discretion.tasks.datasets import HOLD_OUT

MOST_THREADS = 1024  # or workers: each has buffers of its own, and a slip of the key must not take all memory

HELD_OUT = "held-out"  # what data.test says besides the name of a file
# How a table is read: a run's name depends on the records that were read.
READING = ("hold_out", "label_column", "client_column", "encoding", "decimal")

# What a setting is for. "decides": the run's numbers follow from it. "means": how and where it is executed.
# "place": a path, address or key, which may name people, machines or passwords, and is shown to nobody.
# "told": words for readers, shown as they are.
Role = Literal["decides", "means", "place", "told"]


Share = Annotated[float, Field(gt=0, le=1)]
Decay = Annotated[float, Field(ge=0, lt=1)]
Threads = Annotated[int, Field(ge=0, le=MOST_THREADS)]


class ConfigSection(BaseModel, extra="forbid", frozen=True, allow_inf_nan=False):
    @classmethod
    def validated(cls, record: dict[str, Any], known: Sequence[str], source: str) -> Self:
        """Validate a nested dictionary; the error names every problem and the nearest `known` key."""
        try:
            found = cls.model_validate(record)
        except ValidationError as problem:
            lines = "\n  ".join(_explain(dict(error), known) for error in problem.errors())
            raise ConfigError(f"{source}: invalid settings\n  {lines}") from None
        if odd := list(coerced(record, found.model_dump())):
            raise ConfigError("\n  ".join([f"{source}: invalid settings", *odd]))
        return found


def setting(default: Any, description: str, role: Role = "decides", **bounds: Any) -> Any:
    return Field(default, description=description, json_schema_extra={"role": role}, **bounds)


means = partial(setting, role="means")
place = partial(setting, "", role="place")
told = partial(setting, "", role="told", max_length=300)


def roles(section: type[ConfigSection], prefix: str = "") -> dict[str, Role]:
    """Return the role of every setting, by its dotted name."""
    found: dict[str, Role] = {}
    for name, field in section.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, ConfigSection):
            found |= roles(field.annotation, f"{prefix}{name}.")
        else:
            found[prefix + name] = cast(dict[str, Role], field.json_schema_extra)["role"]
    return found


class PopulationConfig(ConfigSection):
    csv: str = place(
        "CSV with client,epsilon,delta,size; empty: a budget mix. Sizes are counted if left out and records "
        "have owners"
    )
    clients: int = setting(600, "number of clients, with a budget mix; a natural partition has its own", ge=1)
    budgets: str = setting(
        "0.5-1.5-3",
        "each client's epsilon: 10-20-30, 0.5-1.5-3, uniform:0.1,1, pareto:2,0.5, small-and-dispersed, "
        "groups:1@50,8@50 …",
    )
    delta: float = setting(1e-5, "each client's delta (with a budget mix)", gt=0, lt=1)


class DataConfig(ConfigSection):
    name: str = setting(
        "fashion-mnist", "a data set of `discretion data`, csv, or your own package.module:function"
    )
    path: str = place('your own table, with name = "csv"')
    test: str = place(
        "csv: a table of test records, or held-out: a share of each client's records, which are no longer "
        "private then; empty: the data set's own test records, and of a csv held-out"
    )
    hold_out: float = setting(
        HOLD_OUT, "csv: share of each client's records that is held out of training, for testing", ge=0, lt=1
    )
    label_column: str = setting("label", "csv: name of the column of labels", min_length=1)
    client_column: str = setting("client", "csv: name of the column of clients", min_length=1)
    encoding: str = setting("", "csv: such as cp1252; empty: UTF-8, or as a byte order mark says")
    decimal: Literal["", ",", "."] = setting("", "csv: decimal sign; empty: as the table tells")
    labels: tuple[str, ...] = setting(
        (), "csv: all labels, in the order of every GUARD.toml; empty: those of the table, sorted"
    )
    scales: dict[str, float] = setting({}, "csv: public numbers by which columns are divided; empty: none")
    partition: str = setting(
        "iid", "iid, dirichlet, shards, mostly_sorted, or natural (a client for each owner in the data)"
    )
    alpha: float = setting(0.5, "dirichlet: concentration; small values give each client few labels", gt=0)
    shards_per_client: int = setting(2, "shards: label-sorted shards for each client", ge=1)
    iid_percent: Annotated[float, Field(ge=0, le=100)] = setting(
        50.0, "mostly_sorted: per cent of the records that are iid; the rest are sorted by label"
    )
    sizes: Literal["even", "varied"] = setting(
        "even", "clients' sizes: even, or varied (proportional to U(0.5, 1.5))"
    )
    records: int = setting(
        0, "records of each client; 0: divide all; natural: clients with fewer are left out", ge=0
    )

    @property
    def test_file(self) -> str:
        return "" if self.test == HELD_OUT else self.test


class ModelConfig(ConfigSection):
    name: str = setting(
        "mlp", "linear, mlp, cnn_small, cnn, cnn_norm, lstm, or your own package.module:factory"
    )


class PlanConfig(ConfigSection):
    method: str = setting(
        DEFAULT,
        "a method of `discretion methods`, or your own package.module:function; it decides what is "
        f"protected: a whole client ({DEFAULTS['client']}, …), or each record ({DEFAULTS['record']}, …)",
    )
    rounds: int = setting(30, "rounds of training", ge=1, le=MOST_ROUNDS)
    rate: Share = setting(0.1, "sampling rate: a client's chance to take part in a round (mean over clients)")
    clip: float = setting(0.5, "clipping norm: bound on an update's L2 norm (mean over clients)", gt=0)
    clipping: Literal["flat", "per_layer"] = setting(
        "flat", "clip an update as a whole (flat), or each of its L layers to clip / sqrt(L)"
    )
    integers: bool = setting(False, "round updates to a fine grid and draw the noise exactly on it")
    share: Share = setting(1.0, "share of each epsilon to plan for; the rest is left to later runs")
    options: dict[str, Parameter] = setting(
        {}, "further parameters of the method; see `discretion methods NAME`"
    )


class TrainConfig(ConfigSection):
    epochs: int = setting(
        1, "local epochs: passes over its records that a client makes in a round; 0: use steps", ge=0
    )
    steps: int = setting(0, "local steps of a client in a round; 0: use epochs", ge=0, validate_default=True)
    batch_size: int = setting(10, "records in one local step", ge=1)
    order: RecordOrder = setting(
        "shuffled", "order of a client's records: shuffled in every epoch, or sequential"
    )
    learning_rate: float = setting(0.1, "clients' learning rate", gt=0)
    momentum: Decay = setting(0.0, "clients' momentum; starts at 0 in every round")
    weight_decay: float = setting(0.0, "clients' weight decay", ge=0)
    schedule: str = setting(
        "constant",
        "clients' learning rate over the rounds: constant, decay:0.99 (times 0.99 a round) or "
        "cosine (down to 0)",
    )
    server_learning_rate: float = setting(1.0, "server's learning rate", ge=SMALLEST, le=LARGEST)
    server_momentum: Decay = setting(0.0, "server's momentum; costs no privacy")
    server_adaptive: Decay = setting(
        0.0,
        "Adam-style second-moment decay, e.g. 0.99; 0 = off. The server's learning rate is then "
        "how far a parameter moves in a round; costs no privacy",
    )
    server_average: Decay = setting(
        0.0,
        "exponential moving average of the models, e.g. 0.9: the weight of each relative to the "
        "next; 0: the last model, unless the method averages; costs no privacy",
    )
    evaluate_every: int = setting(5, "rounds between evaluations on the test records", ge=1)
    device: str = means(
        "auto", "cpu, cuda, cuda:1 …; auto: the first GPU, but the CPU for models that are compiled"
    )
    threads: Threads = means(
        0, "threads of compiled code, and of torch in this process; 0: one for each core"
    )
    workers: Threads = means(
        0,
        "processes for models that only torch can train, on the CPU; 0: one for each core, 1: "
        "this process only",
    )
    randomness: Literal["seeded", "cryptographic"] = setting(
        "seeded", "source of coins and noise: seeded (simulation) or cryptographic (not repeatable)"
    )
    accept_no_privacy: bool = setting(
        False, "run a plan that protects nobody: only for data that may be published"
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
            said = (
                "expected one of train.epochs and train.steps, and 0 for the other: train.epochs is {epochs}"
            )
            raise PydanticCustomError("one_of_both", said, {"epochs": epochs})
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
    least_answers: Share = means(
        MAJORITY,
        "least share of the clients that a round may ask that must answer when asked; below it the run "
        "stops before the model moves, and can be resumed",
    )
    missing: Literal["top_up", "discard"] = setting(
        "top_up",
        "if shares of a secure sum's noise are missing and the server is trusted, it adds noise (top_up), or "
        "the round is charged and changes nothing (discard); a secure sum always discards",
    )

    @property
    def elsewhere(self) -> bool:
        """Return whether clients alone have their records."""
        return self.where in ("guards", "flower")


class SecureSumConfig(ConfigSection):
    """Secure sums of clients behind guards, by which the server sees no client's answer alone."""

    roster: str = place(
        "guards, flower: the clients' keys, as `discretion roster` writes them; empty: plans for a secure "
        "sum promise nothing against the server"
    )


class TrackConfig(ConfigSection):
    """Another tool that gets the history while a run is executed."""

    to: Literal["", "tensorboard", "mlflow"] = means(
        "", "tensorboard or mlflow; empty: none. `discretion export` does the same afterwards"
    )
    out: str = place(
        "tensorboard: a folder, else one in the run folder; mlflow: a server's address or a folder, "
        "else as MLFLOW_TRACKING_URI says"
    )


class AboutConfig(ConfigSection):
    """Who does this and why, printed on every page of the report; empty: the report says "not stated"."""

    project: str = told("what this is part of, such as Heart attacks, second study")
    purpose: str = told("what the model is for")
    operator: str = told("who runs this and answers for it")
    contact: str = told("where clients and officers may ask")


class Config(ConfigSection):
    seed: int = setting(
        0, "seed of clients, weights and batches, and of seeded coins and noise", ge=0, lt=2**128
    )
    ledger: str = place("a ledger shared with other runs; empty: one of its own")
    rule: Literal["planned", "adaptive"] = setting(
        "planned",
        "rule of the ledger: planned (a plan is admitted whole, or not) or adaptive (each client "
        "refuses, round by round, what would exceed its budget; needed if plans depend on earlier releases)",
    )
    after: str = place("folder of a run whose last model this run starts from; see `discretion replan`")
    population: PopulationConfig = PopulationConfig()
    data: DataConfig = DataConfig()
    model: ModelConfig = ModelConfig()
    plan: PlanConfig = PlanConfig()
    train: TrainConfig = TrainConfig()
    clients: ClientsConfig = ClientsConfig()
    secure_sum: SecureSumConfig = SecureSumConfig()
    track: TrackConfig = TrackConfig()
    about: AboutConfig = AboutConfig()

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
            reaches = known.get(key) == "place" and key.startswith(("clients.", "secure_sum.", "track."))
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
        del kept["about"], kept["clients"], kept["secure_sum"], kept["track"]
        kept["data"] = {name: value for name, value in kept["data"].items() if name not in READING}
        for name in ("labels", "scales"):  # a run without them is the one that it was before they existed
            if not kept["data"][name]:
                del kept["data"][name]
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


def without_credentials(text: str) -> str:
    """Return the text without users and passwords of addresses, as in http://user:password@host."""
    return re.sub(r"(?<=://)[^/\s?#]*@", "", text)


def _absolute(path: str) -> str:
    return str(Path(path).absolute()) if path and path != HELD_OUT and "://" not in path else path


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
        try:
            target[name] = tomllib.loads(f"value = {value.strip()}")["value"]
        except (ValueError, RecursionError):  # anything else is a string
            target[name] = value.strip()
    return Config.validated(record, list(roles(Config)), source)


def _explain(error: dict[str, Any], known: Sequence[str]) -> str:
    path = [str(part) for part in error["loc"]]
    name = ".".join(path)
    if error["type"] != "extra_forbidden":
        return f"{name}: {error['msg'].lower()}, found {error['input']!r}"
    same = [key for key in known if key.split(".")[-1] == path[-1]]
    hint = f" Did you mean {same[0]!r}?" if same else nearest(name, known)
    return f"{name}: unknown setting.{hint or ' Known are ' + ', '.join(known)}"


def template(unit: str = "client") -> str:
    """Return a config.toml with every setting at its default for this unit, and a comment on each."""
    plan = PlanConfig(method=DEFAULTS[unit])
    return "# Settings of a run of Discretion.\n" + _commented(Config(plan=plan), "\n")


def _commented(section: ConfigSection, text: str) -> str:
    for name, field in type(section).model_fields.items():
        value = getattr(section, name)
        if isinstance(value, ConfigSection):
            text += _commented(value, f"\n[{name}]\n")
        else:
            line = tomli_w.dumps({name: value}).strip() if value != {} else f"{name} = {{}}"
            text += f"# {field.description}\n{line}\n"
    return text
