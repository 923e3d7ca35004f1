"""GUARD.toml: what a client allows, to whom; whatever it does not name is refused."""

import re
import tomllib
from datetime import datetime, time
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from discretion.errors import ConfigError
from discretion.pick import Rule
from discretion.plan import Adversary
from discretion.steps import Adjacency, Unit

PublicKey = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(Section):
    """The client's own records."""

    name: str = Field("csv", description="csv: a table of its own; or a data set, see `discretion data`")
    path: str = Field("", description="of the table")
    labels: tuple[str, ...] = Field((), description="all labels that are agreed on, in order, with a table")
    records: str = Field(
        "", description="file of record numbers, one a line: which of a data set are its own"
    )


class Ceilings(Section):
    """What a plan may ask for at most, whatever it costs."""

    rounds: int = Field(10_000, ge=1, description="of a run")
    rate: float = Field(1.0, gt=0, le=1, description="chance of taking part in a round")
    turns: int = Field(1, ge=1, description="in a round")
    epochs: int = Field(10, ge=1, description="of local training in a turn")
    steps: int = Field(1_000, ge=1, description="of local training in a turn, noisy or not")
    parameters: int = Field(10_000_000, ge=1, description="of a model")


class Policy(Section):
    client: str = Field(min_length=1, description="its name, as plans have it")
    epsilon: float = Field(gt=0, description="its budget, for life; inf: its data is public")
    delta: float = Field(gt=0, lt=1)
    unit: Unit = Field("client", description="what its budget protects: all of its data, or each record")
    adjacency: Adjacency = Field(
        "add_remove", description="add_remove: from who is left out; replace: from who has other data, too"
    )
    against: Adversary = Field(
        "server", description="the adversary that its budget must hold against: public, clients or server"
    )
    colluding: int = Field(
        1, ge=0, description="other clients that may tell what they know; a plan must hold against as many"
    )
    trust_server: bool = Field(
        False, description="whether a server may get more than its budget would allow against it"
    )
    secure_sum: bool = Field(
        False,
        description="whether what it hands out only ever reaches the server in a sum with that of others, by "
        "means that its owner sees to: no part of Discretion does",
    )
    size: int | None = Field(
        None, ge=1, description="records that it says it has: plans for another number are refused"
    )
    operators: dict[str, PublicKey] = Field(description="who may ask: a name and a public key each")
    models: dict[str, str] = Field(
        description="which models may be trained, each with the digest of its parameters' shapes, or '' for "
        "what this installation builds; your own factory as package.module:factory"
    )
    statistics: tuple[Rule, ...] = Field((), description="what else may be handed out, with noise")
    rule: Literal["planned", "adaptive"] = Field("planned", description="of its ledger")
    hours: str = Field("", description="when it may be asked, such as 08:00-18:00; empty: at any time")
    folder: str = Field("guard", description="of its ledger and what it handed out")
    socket: str = Field("", description="empty: guard.sock in the folder")
    group: str = Field("", description="a group that may use the socket; empty: only its own user")
    test_seed: int | None = Field(
        None, ge=0, description="FOR TESTS ONLY: noise that can be taken off again, and so NO PRIVACY"
    )
    data: Data
    ceilings: Ceilings = Ceilings()

    @field_validator("hours")
    @classmethod
    def _readable(cls, hours: str) -> str:
        if hours and not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d", hours):
            raise ValueError("expected hours such as 08:00-18:00")
        return hours

    def open_at(self, now: datetime) -> bool:
        """Whether it may be asked at this moment; hours may go over midnight."""
        if not self.hours:
            return True
        first, last = (time.fromisoformat(part) for part in self.hours.split("-"))
        at = now.time()
        return first <= at < last if first <= last else at >= first or at < last

    @property
    def socket_path(self) -> Path:
        return Path(self.socket) if self.socket else Path(self.folder) / "guard.sock"


def read(path: Path) -> Policy:
    """The policy in a TOML file; paths in it are relative to the file."""
    try:
        record = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as problem:
        raise ConfigError(f"cannot read {path}: {problem.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as problem:
        raise ConfigError(f"{path} is not valid TOML: {problem}") from None
    try:
        policy = Policy.model_validate(record)
    except ValidationError as problem:
        lines = "\n  ".join(
            f"{'.'.join(map(str, error['loc']))}: {error['msg'].lower()}" for error in problem.errors()
        )
        raise ConfigError(f"{path}: this policy cannot be used\n  {lines}") from None
    here = path.absolute().parent

    def anchored(name: str) -> str:
        return str(here / name) if name else ""

    data = {"path": anchored(policy.data.path), "records": anchored(policy.data.records)}
    return policy.model_copy(
        update={
            "folder": anchored(policy.folder),
            "socket": anchored(policy.socket),
            "data": policy.data.model_copy(update=data),
        }
    )
