"""The client's policy, GUARD.toml: who may ask for what. What the policy does not name is refused."""

import re
from datetime import datetime, time
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from discretion.errors import ConfigError
from discretion.files import read_toml
from discretion.plan.plan import Adversary
from discretion.plan.selection_rules import Rule
from discretion.plan.steps import Adjacency, Unit

PublicKey = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class PolicySection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(PolicySection):
    """Where the client's records are."""

    name: str = Field(
        "csv", description="csv: the client's own table; or the name of a data set, see `discretion data`"
    )
    path: str = Field("", description="path of the table")
    labels: tuple[str, ...] = Field(
        (), description="labels of a table, in the order that all clients agreed on"
    )
    records: str = Field(
        "", description="file with the numbers of the client's records in a data set, one in each line"
    )


class Ceilings(PolicySection):
    """The most a plan may ask for, whatever its privacy cost."""

    rounds: int = Field(10_000, ge=1, description="rounds of a run")
    rate: float = Field(1.0, gt=0, le=1, description="sampling rate: chance of taking part in a round")
    turns: int = Field(1, ge=1, description="turns in a round")
    epochs: int = Field(10, ge=1, description="epochs of local training in a turn")
    steps: int = Field(1_000, ge=1, description="steps of local training in a turn, with or without noise")
    parameters: int = Field(10_000_000, ge=1, description="trainable parameters of a model")


class Policy(PolicySection):
    client: str = Field(min_length=1, description="the client's name in plans")
    epsilon: float = Field(gt=0, description="the client's privacy budget, for life; inf: its data is public")
    delta: float = Field(gt=0, lt=1)
    unit: Unit = Field(
        "client", description="what the budget protects: all of the client's data, or each record"
    )
    adjacency: Adjacency = Field(
        "add_remove",
        description="neighbouring data sets: add_remove (one unit more or less), or replace (a unit changed)",
    )
    against: Adversary = Field(
        "server", description="adversary that the budget must hold against: public, clients or server"
    )
    colluding: int = Field(
        1,
        ge=0,
        description="other clients that may collude with the adversary; a plan must hold against as many",
    )
    trust_server: bool = Field(
        False, description="whether the server may see more than the budget would allow against it"
    )
    secure_sum: bool = Field(
        False,
        description="whether the server only sees sums of several clients' answers (secure aggregation). The "
        "client's owner has to provide that: no part of Discretion does",
    )
    size: int | None = Field(
        None, ge=1, description="declared number of records: plans for another number are refused"
    )
    operators: dict[str, PublicKey] = Field(description="operators who may ask: name and public key of each")
    models: dict[str, str] = Field(
        description="models that may be trained: name, or package.module:factory of your own, and digest "
        "of the parameters' shapes; '' for those of the model that this installation builds"
    )
    statistics: tuple[Rule, ...] = Field(
        (), description="statistics that may be released with noise, besides updates"
    )
    rule: Literal["planned", "adaptive"] = Field("planned", description="rule of the client's ledger")
    hours: str = Field("", description="when orders are accepted, such as 08:00-18:00; empty: always")
    folder: str = Field("guard", description="folder of the ledger and of released answers")
    socket: str = Field("", description="path of the Unix socket; empty: guard.sock in the folder")
    group: str = Field("", description="group that may connect to the socket; empty: only the guard's user")
    test_seed: int | None = Field(
        None,
        ge=0,
        description="FOR TESTS ONLY: seeded noise, which can be computed and removed, so NO PRIVACY",
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
        """Return whether orders are accepted at this moment; hours may pass midnight."""
        if not self.hours:
            return True
        first, last = (time.fromisoformat(part) for part in self.hours.split("-"))
        at = now.time()
        return first <= at < last if first <= last else at >= first or at < last

    @property
    def socket_path(self) -> Path:
        return Path(self.socket) if self.socket else Path(self.folder) / "guard.sock"


def read(path: Path) -> Policy:
    """Read a policy from a TOML file; return it with paths made absolute, relative to that file."""
    record = read_toml(path)
    try:
        policy = Policy.model_validate(record)
    except ValidationError as problem:
        lines = "\n  ".join(
            f"{'.'.join(map(str, error['loc']))}: {error['msg'].lower()}" for error in problem.errors()
        )
        raise ConfigError(f"{path}: invalid policy\n  {lines}") from None
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
