"""A certificate: for each client, how much a plan spends, in which unit, against whom, by whom counted."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np

from discretion.accounting.spent import TIGHT, Accountant
from discretion.errors import BudgetError, PlanError
from discretion.kinds import distinct
from discretion.plan import ADVERSARIES, NOISE_AT, Adversary, NoiseAt, Plan, Randomness
from discretion.population import Floats, Ints, Population
from discretion.records import Record, dump, parse

Format = Literal["discretion-certificate/2"]
FORMAT: Format = "discretion-certificate/2"
MOST_POINTS = 25  # of a spending curve

NOISE_FROM: dict[Randomness, str] = {
    "seeded": "simulation: coins and noise from a seed; whoever knows the seed can take the noise off",
    "cryptographic": "deployment: ChaCha20, keyed anew by the operating system for each block, and not kept",
}
ALSO_FIXED_SIZE = ", or Rényi for a fixed number (Wang, Balle and Kasiviswanathan 2019) where that is less"
NO_SECURE_SUM = (
    "the server, to which nothing is promised: without a secure sum it sees each client's answer, with that "
    "client's own share of the noise, and not whether it took part"
)
ONE_PROCESS = ". In one process that plays every party, what clients draw is drawn for them"
ON_A_GRID = "Gaussian rounded to a grid, drawn exactly; every accountant of the Gaussian holds"
FLOATING = "Gaussian in floating point; what last bits of noise and sums tell (Mironov 2012) is not proved"


def who(
    adversary: Adversary,
    noise_at: NoiseAt,
    colluding: int,
    dropout: float = 0.0,
    promise: Adversary = "server",
) -> str:
    """In words: who the adversary is, what it knows, and what the promise rests on."""
    if noise_at == "secure_sum" and adversary == "server" and promise != "server":
        return NO_SECURE_SUM
    if noise_at == "secure_sum":
        failing = f"at most {dropout:.0%} of a pool's clients fail" if dropout else "no client fails"
        rests = f"where {failing} to add their shares of the noise"
        if adversary != "server":
            rests += ", or the server adds what is missing, or releases nothing"
        return f"{_who(adversary, noise_at, colluding)}; {rests}"
    return _who(adversary, noise_at, colluding)


def _who(adversary: Adversary, noise_at: NoiseAt, colluding: int) -> str:
    if adversary == "public" or (adversary == "clients" and colluding == 0):
        return "whoever sees every model that is released"
    if colluding == 0:
        return f"the server on its own; {NOISE_AT[noise_at]}"
    several = f"{colluding} other clients together" if colluding != 1 else "any other client"
    if adversary == "clients":
        return f"{several}: they see every model, and know their own updates and shares of the noise"
    return f"the server, with what {several} may tell it; {NOISE_AT[noise_at]}"


@dataclass(frozen=True)
class Spending:
    """Epsilon over rounds for one client of each budget class: the one that spends most of its budget."""

    rounds: tuple[int, ...]
    classes: tuple[str, ...]
    budget: Floats  # (C,)
    epsilon: Floats  # (C, len(rounds))

    def after(self, done: int) -> Floats:
        """(C,) epsilon after `done` rounds: at the next point, so never too small."""
        return self.epsilon[:, min(int(np.searchsorted(self.rounds, done)), len(self.rounds) - 1)]

    def share(self, done: int) -> float:
        """The largest share of a budget that any client has spent after `done` rounds."""
        return float(share_of(self.after(done), self.budget).max())


@dataclass(frozen=True)
class Certificate:
    plan: str  # digest
    population: str  # digest
    method: str
    unit: str
    adjacency: str
    noise_at: NoiseAt
    promise: Adversary  # the budget holds against this adversary and those before it
    colluding: int
    dropout: float  # share of a pool's clients that may fail to add their shares of the noise
    noise: str  # where the random numbers come from, and what is proved of them
    accounting: str  # paper: noise by a paper's own formula, which need not give what budgets ask
    reads: str  # what of the clients' data decides who trains
    rounds: int
    accountant: str
    clients: tuple[str, ...]
    budget: Floats  # (N,) epsilon allowed
    delta: Floats  # (N,)
    spent: Floats  # (N,) epsilon charged: no less than against any adversary that is promised
    epsilon: Mapping[Adversary, Floats]  # (N,) against each adversary, promised or not
    spending: Spending

    @property
    def against(self) -> dict[Adversary, str]:
        """Who the adversaries are, in words."""
        facts = self.noise_at, self.colluding, self.dropout, self.promise
        return {name: who(name, *facts) for name in ADVERSARIES}

    @property
    def share(self) -> Floats:
        """(N,) of its budget that each client spends; nothing of an infinite one."""
        return share_of(self.spent, self.budget)

    @property
    def promises_nothing(self) -> bool:
        return bool(np.isinf(self.spent).all())

    @property
    def overspent(self) -> np.ndarray:
        """The numbers of the clients whose budget the plan would pass."""
        return np.flatnonzero(~(self.spent <= self.budget))

    def require(self, plan: Plan, accept_no_privacy: bool = False) -> None:
        """Raise unless this certificate is of exactly this plan and every client stays in budget.

        A plan that promises nothing to anybody passes only where that is accepted aloud.
        """
        if plan.digest() != self.plan:
            raise PlanError(
                f"this certificate is of plan {self.plan[:12]}…, not of {plan.digest()[:12]}…: "
                "the plan was changed after it was certified. Plan again, or put it back."
            )
        over = self.overspent
        accepted = accept_no_privacy and (self.promises_nothing or plan.accounting == "paper")
        if len(over) == 0 or accepted:
            return
        if self.promises_nothing:
            raise BudgetError(
                f"{self.method} gives no privacy: epsilon is infinite for every client. "
                "To run it all the same, on data that may be published, set accept_no_privacy = true "
                "under [train]."
            )
        raise BudgetError(overspend_message(self))

    def to_json(self) -> str:
        return dump(
            {
                "format": FORMAT,
                "plan": self.plan,
                "population": self.population,
                "method": self.method,
                "unit": self.unit,
                "adjacency": self.adjacency,
                "noise_at": self.noise_at,
                "promise": self.promise,
                "colluding": self.colluding,
                **({"dropout": self.dropout} if self.dropout else {}),
                "noise": self.noise,
                "accounting": self.accounting,
                "reads": self.reads,
                "rounds": self.rounds,
                "accountant": self.accountant,
                "against": dict(self.against),
                "clients": list(self.clients),
                "budget": self.budget.tolist(),
                "delta": self.delta.tolist(),
                "spent": self.spent.tolist(),
                "epsilon": {name: values.tolist() for name, values in self.epsilon.items()},
                "spending": {
                    "rounds": list(self.spending.rounds),
                    "classes": list(self.spending.classes),
                    "budget": self.spending.budget.tolist(),
                    "epsilon": self.spending.epsilon.tolist(),
                },
            }
        )

    @classmethod
    def from_json(cls, text: str) -> "Certificate":
        record = parse(text, CertificateRecord, "certificate")
        columns = [record.budget, record.delta, record.spent, *record.epsilon.values()]
        lengths = {len(column) for column in columns}
        if lengths != {len(record.clients)} or set(record.epsilon) != set(ADVERSARIES):
            raise PlanError(
                "not a certificate of Discretion: it needs one entry for each client, against each of "
                f"{', '.join(ADVERSARIES)}"
            )
        curve = record.spending
        tall = {len(curve.classes), len(curve.budget), len(curve.epsilon)}
        wide = {len(curve.rounds), *(len(row) for row in curve.epsilon)}
        if len(tall) != 1 or len(wide) != 1:
            raise PlanError(
                "not a certificate of Discretion: its spending needs one row for each class of budgets, and "
                "in it one entry for each of the rounds"
            )
        return cls(
            plan=record.plan,
            population=record.population,
            method=record.method,
            unit=record.unit,
            adjacency=record.adjacency,
            noise_at=record.noise_at,
            promise=record.promise,
            colluding=record.colluding,
            dropout=record.dropout,
            noise=record.noise,
            accounting=record.accounting,
            reads=record.reads,
            rounds=record.rounds,
            accountant=record.accountant,
            clients=tuple(record.clients),
            budget=np.array(record.budget),
            delta=np.array(record.delta),
            spent=np.array(record.spent),
            epsilon={name: np.array(record.epsilon[name]) for name in ADVERSARIES},
            spending=Spending(
                tuple(curve.rounds), tuple(curve.classes), np.array(curve.budget), np.array(curve.epsilon)
            ),
        )


class SpendingRecord(Record):
    rounds: list[int]
    classes: list[str]
    budget: list[float]
    epsilon: list[list[float]]


class CertificateRecord(Record):
    format: Format
    plan: str
    population: str
    method: str
    unit: str
    adjacency: str
    noise_at: NoiseAt
    promise: Adversary
    colluding: int
    dropout: float = 0.0
    noise: str
    accounting: str
    reads: str
    rounds: int
    accountant: str
    against: dict[str, str]
    clients: list[str]
    budget: list[float]
    delta: list[float]
    spent: list[float]
    epsilon: dict[Adversary, list[float]]
    spending: SpendingRecord


def certify(plan: Plan, population: Population, accountant: Accountant = TIGHT) -> Certificate:
    """Compute what `plan` spends for each client of `population`; says so, and does not judge.

    Guarantees:
        Every epsilon is an upper bound at the client's own delta, for the coins, clips and noise in the
        plan, by what each adversary sees (`Plan.view`). Where the server draws the noise it sees the
        updates, so against it epsilon is infinite.
    """
    if plan.clients != population.client:
        raise PlanError(
            "the plan and the population name different clients, or in another order: "
            f"{len(plan.clients)} in the plan, {len(population)} in the population"
        )
    as_charged = plan.steps()
    charged = accountant.epsilon(as_charged, population.delta)
    epsilon = {}
    for name in ADVERSARIES:
        seen = plan.steps(against=name)  # most see what is charged for: that is known
        same = np.array_equal(seen.rate, as_charged.rate)
        same = same and np.array_equal(seen.multiplier, as_charged.multiplier)
        epsilon[name] = charged if same else accountant.epsilon(seen, population.delta)
    if plan.sampling == "fixed_size":
        rounds, delta = plan.rounds, population.delta
        epsilon = {k: np.minimum(e, _fixed_size(plan, delta, k, rounds)) for k, e in epsilon.items()}
        charged = np.minimum(charged, _fixed_size_charged(plan, delta, rounds))
    return Certificate(
        plan=plan.digest(),
        population=population.digest(),
        method=plan.method,
        unit=plan.unit,
        adjacency=plan.adjacency,
        noise_at=plan.noise_at,
        promise=plan.promise,
        colluding=plan.colluding,
        dropout=plan.dropout,
        noise=f"{NOISE_FROM[plan.randomness]}. {ON_A_GRID if plan.grid else FLOATING}"
        + ("" if plan.noise_at == "server" else ONE_PROCESS),
        accounting=plan.accounting,
        reads=plan.reads,
        rounds=plan.rounds,
        accountant=accountant.name + (ALSO_FIXED_SIZE if plan.sampling == "fixed_size" else ""),
        clients=plan.clients,
        budget=population.epsilon,
        delta=population.delta,
        spent=charged,
        epsilon=epsilon,
        spending=_spending(plan, population, charged, accountant),
    )


def _fixed_size_charged(plan: Plan, delta: Floats, rounds: int) -> Floats:
    """(N,) the largest of what `_fixed_size` says of the adversaries that are promised."""
    promised = ADVERSARIES[: ADVERSARIES.index(plan.promise) + 1]
    return np.asarray(np.maximum.reduce([_fixed_size(plan, delta, name, rounds) for name in promised]))


def _fixed_size(plan: Plan, delta: Floats, against: Adversary, rounds: int) -> Floats:
    """(N,) epsilon of `rounds` rounds that draw a fixed number, all alike; see `papers.fixed_size`.

    Whoever knows of some clients that they were left out knows that the others are drawn the more often.
    """
    from discretion.accounting.papers import fixed_size

    found = np.full(len(delta), np.inf)
    sees_who_is_drawn = plan.noise_at == "clients" and against == "server"
    if len(plan.phases) > 1 or sees_who_is_drawn:
        return found
    (phase,) = plan.phases
    members = np.bincount(phase.pool, minlength=len(phase.noise))
    known = 0 if against == "public" else np.minimum(plan.colluding, members - 1)
    chance = phase.drawn / np.maximum(members - known, 1)
    rate = np.minimum(chance, 1.0)[phase.pool]
    multiplier = 2 * plan.view(phase, against)[1]  # there the two clips are in
    found[rate == 0] = 0.0
    some = (rate > 0) & (multiplier > 0) & np.isfinite(multiplier)
    if some.any():
        columns, where = distinct(np.stack([rate, multiplier, delta])[:, some])
        found[some] = fixed_size.at_most(columns[0], columns[1], rounds, columns[2])[where]
    return found


def _spending(plan: Plan, population: Population, epsilon: Floats, accountant: Accountant) -> Spending:
    names, member = population.classes()
    worst = worst_of(member, share_of(epsilon, population.epsilon))
    points = np.unique(np.linspace(1, plan.rounds, min(plan.rounds, MOST_POINTS)).round()).astype(int)
    curve = [accountant.epsilon(plan.steps(int(t)).of(worst), population.delta[worst]) for t in points]
    if plan.sampling == "fixed_size":
        curve = [
            np.minimum(each, _fixed_size_charged(plan, population.delta, int(t))[worst])
            for each, t in zip(curve, points, strict=True)
        ]
    # an upper bound on later epsilons is one on earlier ones
    curve = list(np.minimum(np.maximum.accumulate(curve), epsilon[worst]))
    return Spending(
        rounds=(0, *points.tolist()),
        classes=names,
        budget=population.epsilon[worst],
        epsilon=np.stack([np.zeros(len(names)), *curve], axis=1),
    )


def worst_of(member: Ints, share: Floats) -> Ints:
    """(C,) in each class, by its number in (N,) `member`, the client that spends most of its budget."""
    return np.array([np.flatnonzero(member == k)[np.argmax(share[member == k])] for k in np.unique(member)])


def share_of(spent: Floats, budget: Floats) -> Floats:
    """Spent over budget, and 0 where the budget is infinite."""
    finite = np.isfinite(budget)
    return np.where(finite, spent / np.where(finite, budget, 1.0), 0.0)


def overspend_message(certificate: Certificate) -> str:
    over = certificate.overspent
    excess = certificate.spent[over] - certificate.budget[over]
    worst = over[int(np.argmax(excess))]
    named = ", ".join(certificate.clients[i] for i in over[:5]) + (" …" if len(over) > 5 else "")
    return (
        f"{certificate.method}: {len(over)} of {len(certificate.clients)} clients would overspend "
        f"({named}); worst is client {certificate.clients[worst]}: epsilon "
        f"{certificate.spent[worst]:.4g} > budget {certificate.budget[worst]:.4g} at delta "
        f"{certificate.delta[worst]:g}. Lower rounds or rate, raise the noise, or raise its budget."
    )
