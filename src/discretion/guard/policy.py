"""The client's policy, GUARD.toml: who may ask for what. What the policy does not name is refused."""

import re
from datetime import datetime, time
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import tomli_w
from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationError,
    ValidationInfo,
    field_validator,
    model_validator,
)

from discretion.clients.prometheus import port_of
from discretion.errors import ConfigError, InputError
from discretion.files import read_toml
from discretion.jsonfile import coerced
from discretion.plan.names import allowed
from discretion.plan.plan import Adversary, Plan
from discretion.plan.population import Population
from discretion.plan.selection_rules import Rule
from discretion.plan.steps import Adjacency, Unit

PublicKey = Annotated[str, Field(pattern="^[0-9a-f]{64}$")]


class PolicySection(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Data(PolicySection):
    """Where the client's records are."""

    name: str = "csv"  # csv: the client's own table; or the name of a data set, see `discretion data`
    path: str = ""  # path of the table
    # labels of a table, in the order of data.labels in the operator's config.toml: another one is refused
    labels: tuple[str, ...] = ()
    # columns of a table, in the order of the operator's: another one is refused; empty: as the table has them
    features: tuple[str, ...] = ()
    scales: dict[str, float] = {}  # public numbers by which columns of a table are divided, as in config.toml
    encoding: str = ""  # of a table, such as cp1252; empty: UTF-8, or as a byte order mark says
    decimal: Literal["", ",", "."] = ""  # decimal sign of a table; empty: as the table tells
    records: str = ""  # file with the numbers of the client's records in a data set, one in each line


class Ceilings(PolicySection):
    """The most a plan may ask for, whatever its privacy cost."""

    rounds: int = Field(10_000, ge=1)  # rounds of a run
    rate: float = Field(1.0, gt=0, le=1)  # sampling rate: chance of taking part in a round
    turns: int = Field(1, ge=1)  # turns in a round
    epochs: int = Field(10, ge=1)  # epochs of local training in a turn
    steps: int = Field(1_000, ge=1)  # steps of local training in a turn, with or without noise
    parameters: int = Field(10_000_000, ge=1)  # trainable parameters of a model
    plan_bytes: int = Field(2**23, ge=1)  # length of a plan's JSON; reading it takes up to 40 times as much
    entries: int = Field(1_000_000, ge=1)  # clients × phases of a plan; each takes up to 200 bytes of memory


class SecureSum(PolicySection):
    """Secure sums, by which the server sees no answer of this client alone."""

    roster: str = "roster.json"  # file with the keys of all clients, as `discretion roster` writes it
    consortium: PublicKey | Literal[""] = ""  # key that signs the roster; empty: [secure_sum.owners] vouch
    owners: dict[str, PublicKey] = {}  # identity keys that other owners told this one, by client
    least: int = Field(0, ge=0)  # fewest clients whose sum may be revealed; plans for fewer are refused

    @model_validator(mode="after")
    def _vouched_for(self) -> Self:
        if not self.consortium and not self.owners:
            raise ValueError(
                "nobody vouches for the roster: name the key that signs it (consortium), or the clients' "
                "identity keys (owners)"
            )
        return self


class Policy(PolicySection):
    client: Annotated[str, AfterValidator(allowed)]  # the client's name in plans
    epsilon: float = Field(gt=0)  # the client's privacy budget, for life; inf: its data is public
    delta: float = Field(gt=0, lt=1)
    unit: Unit = "client"  # what the budget protects: all of the client's data, or each record
    adjacency: Adjacency = "add_remove"  # neighbouring data: one unit more or less, or one changed (replace)
    against: Adversary = "server"  # adversary that the budget must hold against: public, clients or server
    # other clients that may collude with the adversary; a plan must hold against as many
    colluding: int = Field(1, ge=0)
    trust_server: bool = False  # whether the server may see more than the budget would allow against it
    size: int | None = Field(None, ge=1)  # declared number of records: plans for another number are refused
    operators: dict[str, PublicKey]  # operators who may ask: name and public key of each
    # operators' keys that are no longer accepted: old public key, and the one that goes on with its runs
    replaced: dict[PublicKey, PublicKey] = {}
    # models that may be trained: name, or package.module:factory of your own, and digest of the parameters'
    # shapes; '' for those of the model that this installation builds
    models: dict[str, str]
    statistics: tuple[Rule, ...] = ()  # statistics that may be released with noise, besides updates
    # whether statements to an operator say what was spent over all runs, those of other operators included
    tell_life: bool = False
    # rule of the client's ledger; planned is a proof only if no plan is chosen by what earlier ones released,
    # which a guard cannot check
    rule: Literal["planned", "adaptive"] = "adaptive"
    hours: str = ""  # when orders are accepted, such as 08:00-18:00; empty: always
    folder: str = "guard"  # folder of the ledger and of released answers
    socket: str = ""  # path of the Unix socket; empty: guard.sock in the folder
    group: str = ""  # group that may connect to the socket; empty: only the guard's user
    # address of metrics for Prometheus, such as 127.0.0.1:9464: on this machine only; empty: none
    metrics: str = ""
    # FOR TESTS ONLY: seeded noise, which can be computed and removed, so NO PRIVACY
    test_seed: int | None = Field(None, ge=0)
    data: Data
    ceilings: Ceilings = Ceilings()
    secure_sum: SecureSum | None = None

    @field_validator("hours")
    @classmethod
    def _readable(cls, hours: str) -> str:
        if hours and not re.fullmatch(r"([01]\d|2[0-3]):[0-5]\d-([01]\d|2[0-3]):[0-5]\d", hours):
            raise ValueError("expected hours such as 08:00-18:00")
        return hours

    @field_validator("metrics")
    @classmethod
    def _on_this_machine(cls, address: str) -> str:
        if address:
            try:
                port_of(address)
            except InputError as problem:
                raise ValueError(str(problem)) from None
        return address

    @field_validator("replaced")
    @classmethod
    def _leads_to_an_operator(cls, replaced: dict[str, str], info: ValidationInfo) -> dict[str, str]:
        operators = info.data.get("operators", {}).values()
        if both := sorted(set(replaced) & set(operators)):
            raise ValueError(f"{both[0][:8]}… is in [operators], too: delete it there")
        for old in replaced:
            if _successor(replaced, old) not in operators:
                raise ValueError(f"{old[:8]}… is replaced by a key that is not in [operators]: add it there")
        return replaced

    def key_now(self, key: str) -> str:
        """Return the key that goes on with the runs of an operator's key: itself, unless it was replaced."""
        return _successor(self.replaced, key)

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


def _successor(replaced: dict[str, str], key: str) -> str:
    """Return the last key that replaced this one; raise if they lead in a circle."""
    for _ in range(len(replaced) + 1):
        if key not in replaced:
            return key
        key = replaced[key]
    raise ValueError(f"{key[:8]}… is replaced by itself")


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
    if odd := list(coerced(record, policy.model_dump())):
        raise ConfigError("\n  ".join([f"{path}: invalid policy", *odd]))
    here = path.absolute().parent

    def anchored(name: str) -> str:
        return str(here / name) if name else ""

    data = {"path": anchored(policy.data.path), "records": anchored(policy.data.records)}
    sums = policy.secure_sum
    return policy.model_copy(
        update={
            "secure_sum": sums and sums.model_copy(update={"roster": anchored(sums.roster)}),
            "folder": anchored(policy.folder),
            "socket": anchored(policy.socket),
            "data": policy.data.model_copy(update=data),
        }
    )


def new_policy(
    plan: Plan,
    population: Population,
    client: int,
    *,
    operator: str,
    model: tuple[str, str],
    data: Data,
    epochs: int,
    steps: int,
    seed: int | None,
    sums: SecureSum | None = None,
) -> str:
    """Return the TOML text of a policy for trying out a run on one machine.

    `operator` is a public key in hex; `model` a name and the digest of its parameters' shapes; `data` where
    the client's own records are; `epochs` and `steps` those of local training; `seed` the run's, used if the
    plan is seeded; `sums` where its roster is. Without one, a plan for a secure sum trusts the server.
    """
    trusting = plan.promise != "server" or (plan.summed and sums is None)
    most = Ceilings()
    against = "clients" if plan.promise == "server" and trusting else plan.promise
    record: dict[str, Any] = {
        "client": population.client[client],
        "epsilon": float(population.epsilon[client]),
        "delta": float(population.delta[client]),
        "unit": plan.unit,
        "adjacency": plan.adjacency,
        "against": against,
        "colluding": plan.colluding,
        "trust_server": trusting,
        "size": int(population.size[client]),
        "operators": {"here": operator},
        "models": dict([model]),
        "statistics": [plan.reading.rule] if plan.reading else [],
        "rule": "adaptive",
        "data": data.model_dump(exclude_defaults=True),
        "ceilings": {
            "rounds": plan.rounds,
            "turns": max(1, *(1 if p.turns is None else int(p.turns[client]) for p in plan.phases)),
            "epochs": max(epochs, 1),
            "steps": max(steps, *(p.steps for p in plan.phases)),
            "plan_bytes": max(len(plan.to_json().encode()), most.plan_bytes),
            "entries": max(len(plan.clients) * len(plan.phases), most.entries),
        },
    }
    if plan.randomness == "seeded":
        record["test_seed"] = seed
    if sums is not None:
        record["secure_sum"] = sums.model_dump(exclude_defaults=True) | {"roster": sums.roster}
    return tomli_w.dumps(record)
