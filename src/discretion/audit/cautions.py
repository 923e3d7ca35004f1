"""Sole author of warnings: settings and results that nobody can want, each with what to change.

Everything here follows from plan, population, certificate and evaluations, which a run shows already.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np

from discretion.accounting import Certificate
from discretion.arrays import Bools
from discretion.audit import statements
from discretion.clients.turnout import asks_nobody
from discretion.methods import DEFAULTS
from discretion.plan.advice import noise_to_signal
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.plan.summary import treatment
from discretion.runs.read import Run

Kind = Literal["delta", "epsilon", "unit", "noise", "never", "empty", "ledger", "diverged", "chance"]

MOST_DELTA = 1e-2  # what publishes everything once in a hundred times keeps such a promise
USUAL_DELTA = 1e-5  # the default
MOST_EPSILON = 20.0  # e^-20: an observer errs twice in a billion guesses
MOST_READABLE = 30.0  # epsilon whose exponential is worth writing down
FEWEST_CLIENTS = 100  # below, one client's noise is a noticeable share of the mean of all
MANY_RECORDS = 20  # a client that holds this many is hardly one person
MOST_NOISE = 0.1  # over signal, of a run in one coordinate: there digits stay near chance (tests/audit)
MOST_EMPTY = 0.1  # share of rounds that ask nobody
ENOUGH = 3  # clients expected in a round: one in e^3, about 20, asks nobody
FIRST_LOSS = 1.25  # times that of equal chances: no model starts with more
LEARNED = 0.05  # of what the most frequent label leaves to be gained: less is chance

ADVISE = "discretion plan METHOD POPULATION --advise compares rates and rounds"


@dataclass(frozen=True)
class Caution:
    """One warning."""

    kind: Kind
    mark: str  # in two or three words
    found: str
    why: str
    change: str
    of: str = ""  # the method or run, where there are several

    @property
    def words(self) -> str:
        return f"{f'{self.of}: ' if self.of else ''}{self.found}: {self.why}. {self.change}"

    @property
    def trained(self) -> bool:
        """Whether the warning is of a result, not of a plan."""
        return self.kind in ("diverged", "chance")

    def to_record(self) -> dict[str, Any]:
        return asdict(self)


def of_plan(plan: Plan, population: Population, certificate: Certificate) -> tuple[Caution, ...]:
    """Return what is wrong with a plan, whatever the data are."""
    checks: Sequence[Callable[[Plan, Population], Iterator[Caution]]] = (_noise, _never, _empty)
    found = [caution for check in checks for caution in check(plan, population)]
    if certificate.promises_nothing:  # which is said elsewhere, and has to be accepted
        return tuple(found)
    return (*_delta(certificate, population), *_epsilon(certificate), *_unit(certificate, population), *found)


def of_run(run: Run) -> tuple[Caution, ...]:
    """Return what is wrong with the results of a run so far, and with its plan."""
    last = run.history.evaluated[-1:]
    results = [of_result(run, line.round, line.accuracy or 0.0, line.loss, run.finished) for line in last]
    found = of_plan(run.plan, run.population, run.certificate)
    return (*(results[0] if results else ()), *found, *of_ledger(run))


def of_ledger(run: Run) -> tuple[Caution, ...]:
    """Return whether a deployment counts its budgets in a ledger that the next run will not see."""
    if run.simulated or run.certificate.promises_nothing or not run.alone:
        return ()
    return (
        Caution(
            "ledger",
            "budgets of one run",
            'The ledger is this run’s own (ledger = "")',
            "the next run begins with all of every budget again, so that several runs together spend more "
            "than a client allows, and each of them says that budgets are kept",
            'Set ledger = "ledger.sqlite", one file that all runs on these clients share.',
        ),
    )


def of_result(run: Run, round_: int, accuracy: float, loss: float, finished: bool) -> tuple[Caution, ...]:
    """Return what is wrong with an evaluation; no better than chance is a run only at its end."""
    return (*_diverged(run, round_, loss), *(_chance(run, accuracy) if finished else ()))


def _diverged(run: Run, round_: int, loss: float) -> Iterator[Caution]:
    guess = math.log(run.about.classes) if run.about.classes else math.inf
    if loss <= FIRST_LOSS * guess and math.isfinite(loss):
        return
    value = "not finite" if math.isinf(loss) else f"{loss:,.0f}" if loss >= 100 else f"{loss:.3g}"
    start = (
        f"; to give all {run.about.classes} labels equal chances has {guess:.3g}" if run.about.classes else ""
    )
    yield Caution(
        "diverged",
        "diverged",
        f"The loss {_aside(run)}is {value} after round {round_:,}",
        f"training diverges, or drowns in noise{start}",
        "Lower train.server_learning_rate or train.learning_rate, to a tenth at first; if there is a warning "
        "on noise, see to that.",
    )


def _chance(run: Run, accuracy: float) -> Iterator[Caution]:
    majority = run.about.majority
    if majority is None or accuracy - majority >= LEARNED * (1 - majority):
        return
    yield Caution(
        "chance",
        "no better than chance",
        f"The accuracy {_aside(run)}is {accuracy:.1%} at the end",
        f"to say the most frequent label every time gives {majority:.1%}, so next to nothing was learned",
        "Do not use this model. Try the settings of [train] on public data without privacy first; if they "
        f"learn there, less noise is needed: {ADVISE}.",
    )


def _aside(run: Run) -> str:
    return f"on {statements.OWN_RECORDS}, not private, " if statements.not_private(run) else ""


def _delta(certificate: Certificate, population: Population) -> Iterator[Caution]:
    record = certificate.unit == "record"
    units = population.size if record else np.full(len(population), len(population))
    delta = np.where(_private(certificate), certificate.delta, 0.0)
    chance = delta * units  # expected number of units whose data may be published
    bad = (chance >= 1) | (delta > MOST_DELTA)
    if not bad.any():
        return
    worst = int(np.argmax(np.where(bad, chance, 0.0)))
    of = f"{units[worst]:,} {'records of a client' if record else 'clients'}"
    lax = f"to publish one of {of} at random, and whole, would keep such a promise"
    yield Caution(
        "delta",
        "delta too large",
        f"Delta is {delta[worst]:g} for {_of(bad)}",
        lax if chance[worst] >= 1 else f"to publish all with a chance of {delta[worst]:.1%} would keep it",
        f"Set it to {min(USUAL_DELTA, 0.1 / int(units.max())):.0e}, far below 1 in {units[worst]:,}: "
        "population.delta, or the column delta.",
    )


def _epsilon(certificate: Certificate) -> Iterator[Caution]:
    spent = np.where(_private(certificate), certificate.spent, 0.0)
    bad = (spent > MOST_EPSILON) & np.isfinite(spent)
    if not bad.any():
        return
    most = float(spent[bad].max())
    yield Caution(
        "epsilon",
        "epsilon hardly protects",
        f"Epsilon is above {MOST_EPSILON:g}, up to {most:.4g}, for {_of(bad)}",
        f"whoever looks may become all but certain whether {statements.question([certificate])}, "
        f"wrong once in {math.exp(min(most, MOST_READABLE)):.0e} guesses or less",
        "Set budgets of 10 or less, or inf where data are public.",
    )


def _unit(certificate: Certificate, population: Population) -> Iterator[Caution]:
    typical = int(np.median(population.size))
    if certificate.unit != "client" or len(population) >= FEWEST_CLIENTS or typical < MANY_RECORDS:
        return
    yield Caution(
        "unit",
        "protects whole clients",
        f"Each of {len(population):,} clients is protected as a whole, with about {typical:,} records",
        "that hides whether a hospital took part at all, and costs far more noise than to hide one patient",
        f"If each record is meant, take a method for records, such as {DEFAULTS['record']}; "
        "discretion methods lists them.",
    )


def _noise(plan: Plan, population: Population) -> Iterator[Caution]:
    ratio = noise_to_signal(plan, population)[1]
    if not MOST_NOISE <= ratio < math.inf:
        return
    records = "a method for records (if they are meant), " if plan.unit == "client" else ""
    yield Caution(
        "noise",
        "too much noise",
        f"Over the run, the noise in each parameter is {ratio:.2g} times the farthest that all clients "
        "together can move the model",
        "models of thousands of parameters stay near chance",
        f"Take more clients, larger budgets, a higher rate, {records}or fewer parameters: {ADVISE}.",
    )


def _never(plan: Plan, population: Population) -> Iterator[Caution]:
    never = treatment(plan).turns == 0
    if never.any():
        yield Caution(
            "never",
            "clients never asked",
            f"{_of(never)} never take part",
            "nothing is learned from their data",
            "Raise plan.rate, plan.rounds or their budgets, or leave them out of the population.",
        )


def _empty(plan: Plan, population: Population) -> Iterator[Caution]:
    share = sum(phase.rounds * asks_nobody(plan, phase) for phase in plan.phases) / plan.rounds
    if share < MOST_EMPTY:
        return
    rate = min(1.0, ENOUGH / len(population))
    yield Caution(
        "empty",
        "empty rounds",
        f"About {share * plan.rounds:,.0f} of {plan.rounds:,} rounds ask nobody",
        "such a round costs budget and teaches nothing",
        f"Raise plan.rate to {rate:.2g} or more, where {ENOUGH} clients are expected in a round.",
    )


def _private(certificate: Certificate) -> Bools:
    """Return (N,) whose data are not public."""
    return np.isfinite(certificate.budget)


def _of(who: Bools) -> str:
    return f"{int(who.sum()):,} of {len(who):,} clients"
