"""Five clients with guards of their own, on the digits; for tests of guards and of clients elsewhere."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import tomli_w
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discretion.accounting import certify, filter, renyi
from discretion.clients.local_clients import LocalClients
from discretion.clients.messages import public_bytes
from discretion.clients.remote import RemoteClients
from discretion.clients.training import LocalTraining
from discretion.clients.transport import Sockets, Transport
from discretion.guard import policy
from discretion.guard.guard import Guard
from discretion.ledger.ledger import Ledger
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.plan.steps import Steps
from discretion.tasks import datasets, models
from discretion.tasks.partitions import even_sizes, iid
from discretion.tasks.schema import schema_of
from discretion.training.loop import State, train
from discretion.training.orders import Clients, Shares

SEED = 7
KEY = Ed25519PrivateKey.from_private_bytes(bytes(range(32)))
STRANGER = Ed25519PrivateKey.from_private_bytes(bytes(range(1, 33)))
LOCAL = LocalTraining(epochs=1, batch_size=20, learning_rate=0.1)
DATA = datasets.load("digits")
HOLDINGS = iid(DATA.train.labels, even_sizes(200, 5), np.random.default_rng(0))
MODEL = models.build("linear", DATA, seed=1)
SHAPES = models.shapes_digest(MODEL)
RECORDS = schema_of(DATA)
PEOPLE = Population.of([2.0, 4.0, 8.0, 8.0, 8.0], 1e-5, HOLDINGS.sizes)


def own_pools(rounds: int, noise: float = 4.0, rate: float = 1.0, **more: Any) -> Phase:
    """Each client's update is released on its own, with clips by budgets."""
    clip = 0.5 * PEOPLE.epsilon / PEOPLE.epsilon.max()
    each = np.ones(5)
    return Phase(rounds, rate * each, clip, noise * each, np.arange(5), each / 5, **more)


def one_pool(rounds: int, noise: float = 20.0, rate: float = 0.5) -> Phase:
    clip = 0.5 * PEOPLE.epsilon / PEOPLE.epsilon.max()
    return Phase.one_pool(rounds, np.full(5, rate), clip, noise)


def plan_of(*phases: Phase, **more: Any) -> Plan:
    settings: dict[str, Any] = {"noise_at": "clients", "promise": "server", "randomness": "seeded"}
    return Plan("test", PEOPLE.client, phases, **(settings | more))


def policy_of(folder: Path, client: int, **more: Any) -> Path:
    """Write GUARD.toml of a client."""
    home = folder / f"c{client}"
    home.mkdir(exist_ok=True)
    (home / "records.txt").write_text("\n".join(map(str, HOLDINGS.of(client).tolist())))
    record: dict[str, Any] = {
        "client": f"c{client}",
        "epsilon": float(PEOPLE.epsilon[client]),
        "delta": float(PEOPLE.delta[client]),
        "operators": {"us": public_bytes(KEY).hex()},
        "models": {"linear": ""},
        "test_seed": SEED,
        "data": {"name": "digits", "records": "records.txt"},
    }
    record |= more
    (home / "GUARD.toml").write_text(
        tomli_w.dumps({name: value for name, value in record.items() if value is not None})
    )
    return home / "GUARD.toml"


def guard_of(folder: Path, client: int, **more: Any) -> Guard:
    return Guard(policy.read(policy_of(folder, client, **more)))


def ledger_of(folder: Path, client: int) -> Ledger:
    return Ledger.existing(folder / f"c{client}" / "guard" / "ledger.sqlite")


def spent_of(folder: Path, client: int) -> float:
    with ledger_of(folder, client) as ledger:
        return float(ledger.spent()[0])


def charged(plan: Plan, client: int, rounds: int | None = None) -> float:
    """Epsilon of the first rounds of a client's first plan, as a guard's ledger counts it by its filters."""
    epsilon, delta, one = PEOPLE.epsilon[[client]], PEOPLE.delta[[client]], np.array([client])
    none = filter.Taken(Steps.none(1), np.zeros((0, 1), np.int64))
    taken = none.then(plan.steps(rounds).of(one), plan.steps().of(one))
    share = filter.shares(taken, epsilon, delta)
    rest = (1 - share) * delta
    by_renyi = filter.renyi_mixture(renyi.divergence(taken.steps), rest, filter.ladder(epsilon, rest))
    return float(np.minimum(filter.tight(taken, share * delta), by_renyi)[0])


@dataclass
class Direct:
    """Guards in this process; some answers are lost, as told, and all orders are kept."""

    guards: dict[str, Guard]
    lose: float = 0.0
    rng: np.random.Generator = field(default_factory=lambda: np.random.default_rng(3))
    sent: list[tuple[str, bytes]] = field(default_factory=list)

    def exchange(self, orders: Sequence[tuple[str, bytes]], timeout: float) -> Iterator[tuple[int, bytes]]:
        for number, (client, order) in reversed(list(enumerate(orders))):
            self.sent.append((client, order))
            if client in self.guards:
                answer = self.guards[client].answer(order)
                if self.rng.random() >= self.lose:
                    yield number, answer


def remote(
    transport: Transport, plan: Plan, run: str = "r", timeout: float = 60.0, least_answers: float = 0.0
) -> RemoteClients:
    """All five clients; unless told otherwise, a run goes on however few answer."""
    return RemoteClients(
        transport,
        KEY,
        plan,
        PEOPLE,
        run,
        model="linear",
        shapes=SHAPES,
        records=RECORDS,
        local=LOCAL,
        timeout=timeout,
        least_answers=least_answers,
    )


def in_process() -> LocalClients:
    return LocalClients(DATA, HOLDINGS, models.build("linear", DATA, seed=1), LOCAL)


def trained(
    plan: Plan,
    clients: Clients,
    folder: Path,
    run: str = "r",
    seed: int | None = SEED,
    shares: Shares = "here",
) -> State:
    """The state after all rounds, with a server's ledger in this folder."""
    folder.mkdir(exist_ok=True)
    with Ledger(folder / "server.sqlite", PEOPLE) as ledger:
        start = State.start(models.flatten(MODEL))
        certificate = certify(plan, PEOPLE)
        *_, end = train(plan, certificate, clients, ledger, start, run=run, seed=seed, shares=shares)
    return end


def sockets(folder: Path) -> Sockets:
    return Sockets({f"c{i}": folder / f"c{i}" / "guard" / "guard.sock" for i in range(5)})


def cryptographic(plan: Plan) -> Plan:
    return replace(plan, randomness="cryptographic")
