"""Certificates: the epsilon that a plan spends for each client, against each adversary."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from discretion.accounting import fixed_size
from discretion.accounting.accountant import TIGHT, Accountant
from discretion.arrays import Floats, Ints, distinct
from discretion.errors import BudgetError, PlanError
from discretion.jsonfile import dump, parse, record_of
from discretion.plan.html_table import html_table, one_line, span
from discretion.plan.phase import Phase
from discretion.plan.plan import ADVERSARIES, Accounting, Adversary, NoiseAt, Plan, Randomness
from discretion.plan.population import Population
from discretion.plan.steps import Adjacency, Unit

Format = Literal["discretion-certificate/3"]
FORMAT: Format = "discretion-certificate/3"
MOST_POINTS = 25  # on a spending curve

ALSO_FIXED_SIZE = ", or Rényi for a fixed number (Wang, Balle and Kasiviswanathan 2019) where that is less"


@dataclass(frozen=True)
class Spending:
    """Epsilon over rounds for one client of each budget class: the client that spends most of its budget."""

    rounds: tuple[int, ...]
    classes: tuple[str, ...]
    budget: Floats  # (C,)
    epsilon: Floats  # (C, len(rounds))

    def after(self, done: int) -> Floats:
        """Return (C,) an upper bound on epsilon after `done` rounds: the value at the next point."""
        return self.epsilon[:, min(int(np.searchsorted(self.rounds, done)), len(self.rounds) - 1)]

    def share(self, done: int) -> float:
        """Return the largest share of a budget that any client has spent after `done` rounds."""
        return float(share_of(self.after(done), self.budget).max())


@dataclass(frozen=True)
class Certificate:
    plan: str  # digest
    population: str  # digest
    method: str
    unit: Unit
    adjacency: Adjacency
    noise_at: NoiseAt
    promise: Adversary  # the budget holds against this adversary and those before it
    colluding: int
    dropout: float  # share of a pool's clients that may fail to add their shares of the noise
    randomness: Randomness  # seeded: a simulation
    grid: bool  # whether updates and noise are whole steps of a grid, and the noise is drawn exactly
    accounting: Accounting  # paper: noise by a paper's own formula, which need not give what budgets ask
    reads: str  # what of the clients' data decides who trains
    rounds: int
    accountant: str
    clients: tuple[str, ...]
    budget: Floats  # (N,) epsilon allowed
    delta: Floats  # (N,)
    spent: Floats  # (N,) epsilon charged: no less than against any adversary that is promised
    epsilon: Mapping[Adversary, Floats]  # (N,) against each adversary, promised or not
    spending: Spending

    def __repr__(self) -> str:
        return one_line(f"Certificate {self.method}:", self._facts())

    def _repr_html_(self) -> str:
        who = {f"epsilon, {name}": span(e.min(), e.max()) for name, e in self.epsilon.items()}
        more = {"adjacency": self.adjacency, "noise at": self.noise_at, "accountant": self.accountant}
        return html_table(f"Certificate: {self.method}", self._facts() | who | more)

    def _facts(self) -> dict[str, object]:
        worst = int(np.argmax(self.share))
        return {
            "rounds": self.rounds,
            "clients": len(self.clients),
            "unit": self.unit,
            "promise": self.promise,
            "worst spending": f"{self.spent[worst]:.4g} of {self.budget[worst]:.4g}",
        }

    @property
    def share(self) -> Floats:
        """(N,) share of its budget that each client spends; 0 of an infinite budget."""
        return share_of(self.spent, self.budget)

    @property
    def promises_nothing(self) -> bool:
        return bool(np.isinf(self.spent).all())

    @property
    def overspent(self) -> np.ndarray:
        """Numbers of the clients whose budgets the plan would exceed."""
        return np.flatnonzero(~(self.spent <= self.budget))

    def require(self, plan: Plan, accept_no_privacy: bool = False) -> None:
        """Raise unless this certificate is of exactly this plan and every client stays within budget.

        A plan with an infinite epsilon for every client, or one in paper mode that overspends, passes only
        with `accept_no_privacy`.
        """
        if plan.digest() != self.plan:
            raise PlanError(
                f"found a certificate of plan {self.plan[:12]}…, expected one of plan {plan.digest()[:12]}…: "
                "the plan was changed after it was certified. Plan again, or restore the plan."
            )
        over = self.overspent
        accepted = accept_no_privacy and (self.promises_nothing or plan.accounting == "paper")
        if len(over) == 0 or accepted:
            return
        if self.promises_nothing:
            raise BudgetError(
                f"{self.method} gives no privacy: epsilon is infinite for every client. "
                "To run it all the same, on data that may be published, set accept_no_privacy to true "
                "(train.accept_no_privacy in the settings)."
            )
        worst = over[int(np.argmax(self.spent[over] - self.budget[over]))]
        named = ", ".join(self.clients[i] for i in over[:5]) + (" …" if len(over) > 5 else "")
        raise BudgetError(
            f"{self.method}: {len(over)} of {len(self.clients)} clients would overspend ({named}); worst is "
            f"client {self.clients[worst]}: epsilon {self.spent[worst]:.4g} > budget "
            f"{self.budget[worst]:.4g} at delta {self.delta[worst]:g}. Lower rounds or rate, raise the "
            "noise, or raise its budget."
        )

    def to_json(self) -> str:
        """Return the certificate as JSON text."""
        record = {"format": FORMAT} | vars(self) | {"spending": vars(self.spending)}
        if not self.dropout:
            del record["dropout"]
        return dump(record)

    @classmethod
    def from_json(cls, text: str) -> "Certificate":
        """Read a certificate from JSON text; raise `PlanError` for text that is not exactly one."""
        record = dict(parse(text, CertificateRecord, "certificate"))
        clients, epsilon, curve = record["clients"], record["epsilon"], dict(record["spending"])
        columns = [record["budget"], record["delta"], record["spent"], *epsilon.values()]
        lengths = {len(column) for column in columns}
        if lengths != {len(clients)} or set(epsilon) != set(ADVERSARIES):
            raise PlanError(
                f"not a Discretion certificate: found columns of {sorted(lengths)} entries against "
                f"{', '.join(epsilon)}; expected {len(clients)} entries each, one for each client, "
                f"against {', '.join(ADVERSARIES)}"
            )
        tall = {len(curve[name]) for name in ("classes", "budget", "epsilon")}
        wide = {len(row) for row in (curve["rounds"], *curve["epsilon"])}
        if len(tall) != 1 or len(wide) != 1:
            raise PlanError(
                "not a Discretion certificate: its spending must have one row for each budget class, with "
                "one entry for each of its rounds in every row"
            )
        del record["format"]
        record["epsilon"] = _arrays({name: epsilon[name] for name in ADVERSARIES})
        record["spending"] = Spending(**_arrays(curve))
        made = cls(**_arrays(record))
        made._require_sound()
        return made

    def _require_sound(self) -> None:
        """Refuse numbers that no certificate can have."""
        curve = self.spending
        positive = np.concatenate([self.budget, curve.budget, self.delta, [self.rounds, len(self.clients)]])
        costs = [self.spent, curve.epsilon.ravel(), *self.epsilon.values()]
        costs += [np.array([self.colluding, self.dropout])]
        rounds = [-1, *curve.rounds]
        if (
            not ((positive > 0).all() and (self.delta < 1).all() and (np.concatenate(costs) >= 0).all())
            or rounds != sorted(set(rounds))
            or len(rounds) == 1
        ):
            raise PlanError(
                "not a Discretion certificate: found a number out of range; expected clients, rounds, budgets"
                " and deltas above 0, deltas below 1, no epsilon below 0, and rounds of the spending in order"
            )


def _arrays(record: dict[str, Any]) -> dict[str, Any]:
    return {name: np.array(value) if isinstance(value, list) else value for name, value in record.items()}


CertificateRecord = record_of(
    Certificate,
    format=(Format, ...),
    dropout=(float, 0.0),
    epsilon=(dict[Adversary, list[float]], ...),
    spending=(record_of(Spending, epsilon=(list[list[float]], ...)), ...),
)


def certify(plan: Plan, population: Population, accountant: Accountant = TIGHT) -> Certificate:
    """Return the certificate of a plan: what it spends for each client, within budget or not.

    Guarantees:
        Every epsilon is an upper bound at the client's own delta, for the sampling rates, clips and noise in
        the plan, by what each adversary sees (`Plan.view`). Where the server draws the noise, the server sees
        the updates, so against the server epsilon is infinite.
    """
    if type(plan) is not Plan or any(type(phase) is not Phase for phase in plan.phases):
        raise PlanError(
            f"expected a Plan of Phases, found {type(plan).__name__} of "
            f"{', '.join(sorted({type(phase).__name__ for phase in plan.phases}))}: what a subclass says of "
            "itself is not certified"
        )
    if plan.clients != population.client:
        raise PlanError(
            "plan and population must name the same clients in the same order; found different clients, "
            f"{len(plan.clients)} in the plan, {len(population)} in the population: plan again"
        )
    as_charged = plan.steps()
    charged = accountant.epsilon(as_charged, population.delta)
    epsilon = {}
    for name in ADVERSARIES:
        seen = plan.steps(against=name)  # often what is charged, which is computed already
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
        randomness=plan.randomness,
        grid=plan.grid is not None,
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
    """Return (N,) the largest epsilon of `_fixed_size` against any promised adversary."""
    promised = ADVERSARIES[: ADVERSARIES.index(plan.promise) + 1]
    return np.asarray(np.maximum.reduce([_fixed_size(plan, delta, name, rounds) for name in promised]))


def _fixed_size(plan: Plan, delta: Floats, against: Adversary, rounds: int) -> Floats:
    """Return (N,) epsilon of `rounds` equal rounds under fixed-size sampling; see `accounting.fixed_size`.

    An adversary that knows some clients to be left out knows that the others have a higher sampling rate.
    """
    found = np.full(len(delta), np.inf)
    sees_who_is_drawn = plan.noise_at == "clients" and against == "server"
    if len(plan.phases) > 1 or sees_who_is_drawn:
        return found
    (phase,) = plan.phases
    members = np.bincount(phase.pool, minlength=len(phase.noise))
    known = 0 if against == "public" else np.minimum(plan.colluding, members - 1)
    chance = phase.drawn / np.maximum(members - known, 1)
    rate = np.minimum(chance, 1.0)[phase.pool]
    multiplier = 2 * plan.view(phase, against)[1]  # noise over one clip: `view` divides by two clips
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
    curve = []
    for t in points.tolist():
        curve.append(accountant.epsilon(plan.steps(t).of(worst), population.delta[worst]))
        if plan.sampling == "fixed_size":
            curve[-1] = np.minimum(curve[-1], _fixed_size_charged(plan, population.delta, t)[worst])
    # an upper bound on a later epsilon is one on every earlier epsilon
    curve = list(np.minimum(np.maximum.accumulate(curve), epsilon[worst]))
    return Spending(
        rounds=(0, *points.tolist()),
        classes=names,
        budget=population.epsilon[worst],
        epsilon=np.stack([np.zeros(len(names)), *curve], axis=1),
    )


def worst_of(member: Ints, share: Floats) -> Ints:
    """Return (C,) the client of each class that spends most of its budget; (N,) `member` has the classes."""
    return np.array([np.flatnonzero(member == k)[np.argmax(share[member == k])] for k in np.unique(member)])


def share_of(spent: Floats, budget: Floats) -> Floats:
    """Return spent over budget, and 0 where the budget is infinite."""
    finite = np.isfinite(budget)
    with np.errstate(over="ignore"):  # of a tiny budget the share is infinite
        return np.where(finite, spent / np.where(finite, budget, 1.0), 0.0)
