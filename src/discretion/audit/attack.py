"""The empirical audit: attacks on what a plan releases, and the epsilon that they show, by budget class."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
from scipy import stats
from scipy.special import ndtri

from discretion.accounting import Certificate
from discretion.arrays import Floats
from discretion.audit import lower_bound
from discretion.audit.canaries import Bools, Canaries, Game, Trials
from discretion.audit.lower_bound import Tally
from discretion.audit.record_canaries import RecordGame
from discretion.plan.plan import ADVERSARIES, Adversary, Plan
from discretion.plan.population import Population
from discretion.plan.steps import Steps
from discretion.training.server_update import PLAIN, Server

CHANCE = 0.01  # that an audit contradicts a certificate that is true
TESTS = 6  # of one class and adversary: two attacks in two directions, noise, coins
LEARN = 0.4  # share of the games that the attacks learn from; only the others count
THRESHOLDS = np.linspace(0.02, 0.98, 60)  # quantiles of the scores that are compared as thresholds
RIDGE = 1e-9  # keeps the learned attack defined where what was seen has linear relations


@dataclass(frozen=True)
class Shown:
    """What the attacks showed of one budget class, against one adversary."""

    name: str  # of the class
    adversary: Adversary
    canaries: int
    trials: int
    certified: float  # largest epsilon of the class's canaries
    at_least: float  # epsilon of the plan with the most noise that fits what the attacks achieved
    any_mechanism: float  # epsilon of any mechanism that fits
    attack: str  # that showed the most
    noise: float  # measured standard deviation, as a share of the planned one
    coins: float | None  # measured rate of taking part, as a share of the planned one; None: not seen
    contradictions: tuple[str, ...]  # what cannot be true of the certificate

    @property
    def contradicted(self) -> bool:
        return bool(self.contradictions)


@dataclass(frozen=True)
class Audit:
    """Lower bounds from attacks, beside what is certified."""

    shown: tuple[Shown, ...]
    games: int
    chance: float = CHANCE

    @property
    def contradicted(self) -> bool:
        return any(each.contradicted for each in self.shown)


def playable(certificate: Certificate) -> tuple[Adversary, ...]:
    """Return the adversaries whose epsilon is finite for some client: against others nothing is claimed."""
    return tuple(who for who in ADVERSARIES if np.isfinite(certificate.epsilon[who]).any())


def audit(
    plan: Plan,
    population: Population,
    certificate: Certificate,
    *,
    games: int = 400,
    seed: int = 0,
    server: Server = PLAIN,
    against: Sequence[Adversary] = (),
    tick: Callable[[], None] = lambda: None,
) -> Audit:
    """Attack a plan, and return what the attacks show of each budget class.

    An adversary that sees the same as one before it is not played again.

    Guarantees:
        If every client's privacy is as certified, the chance that anything is contradicted is at most
        `CHANCE`: attacks and thresholds are fixed on games of their own, and the other games are looked at
        once for each class, adversary and test, which share `CHANCE` among them.
    """
    names, member = population.classes()
    shown: dict[Adversary, list[Shown]] = {}
    for who in against or playable(certificate):
        same = next((other for other in shown if _sees_the_same(plan, who, other)), None)
        if same is not None:
            shown[who] = [replace(each, adversary=who) for each in shown[same]]
            continue
        game: Game | RecordGame
        if plan.unit == "record":
            game = RecordGame.of(plan, certificate, member)
        else:
            game = Game(plan, Canaries.of(plan, certificate, member), who, server)
        found = Trials.together(_ticked(game.play(games, seed), tick))
        learning = np.arange(len(found.inside)) < LEARN * len(found.inside)
        shown[who] = []
        for k, kinds in enumerate(game.kinds):
            mine = found.group == k
            if not mine.any():
                continue
            claims = [plan.steps(against=who).of(np.array([client])) for client in kinds]
            chance = CHANCE / (TESTS * len(game.kinds) * len(ADVERSARIES))
            attacks = _attacked(found, mine, learning, claims, float(population.delta[kinds].max()), chance)
            noise, coins, odd = _measured(found, mine, plan.adjacency == "replace", chance)
            shown[who].append(
                Shown(
                    name=names[k],
                    adversary=who,
                    canaries=int(mine.sum()) // games,
                    trials=int((mine & ~learning).sum()),
                    certified=float(certificate.epsilon[who][kinds].max()),
                    at_least=attacks.at_least,
                    any_mechanism=attacks.any_mechanism,
                    attack=attacks.name,
                    noise=noise,
                    coins=coins,
                    contradictions=(*attacks.contradictions, *odd),
                )
            )
    return Audit(tuple(each for found in shown.values() for each in found), games)


def _sees_the_same(plan: Plan, one: Adversary, other: Adversary) -> bool:
    views = ((plan.view(phase, one), plan.view(phase, other)) for phase in plan.phases)
    return all(np.array_equal(a, b) for pair in views for a, b in zip(*pair, strict=True))


def _ticked(games: Iterator[Trials], tick: Callable[[], None]) -> Iterator[Trials]:
    for each in games:
        yield each
        tick()


@dataclass(frozen=True)
class _Attacks:
    at_least: float
    any_mechanism: float
    name: str
    contradictions: tuple[str, ...]


def _attacked(
    found: Trials, mine: Bools, learning: Bools, claims: Sequence[Steps], delta: float, chance: float
) -> _Attacks:
    """Return the highest bounds of all attacks on one class."""
    scores = {"likelihood": found.likelihood, "learned": _learned(found, mine & learning)}
    best = _Attacks(0.0, 0.0, "none", ())
    for name, score in scores.items():
        for turned in (False, True):
            threshold = _threshold(score, found.inside, mine & learning, turned, chance)
            tally = _tally(score, found.inside, mine & ~learning, threshold, turned)
            bound = lower_bound.planned_kind(tally, claims, delta, chance)
            odd = best.contradictions
            if lower_bound.contradicts(tally, claims, chance):
                odd += (f"the {name} attack finds canaries more often than the certificate allows",)
            best = _Attacks(
                max(best.at_least, bound),
                max(best.any_mechanism, lower_bound.any_mechanism(tally, delta, chance)),
                name if bound > best.at_least else best.name,
                odd,
            )
    return best


def _learned(found: Trials, known: Bools) -> Floats:
    """Return (n,) scores of the linear attack on everything seen that fits the `known` trials best."""
    middle, spread = found.seen[known].mean(axis=0), found.seen[known].std(axis=0)
    scaled = (found.seen - middle) / np.where(spread > 0, spread, 1.0)
    square = scaled[known].T @ scaled[known] + RIDGE * known.sum() * np.eye(scaled.shape[1])
    return np.asarray(scaled @ np.linalg.solve(square, scaled[known].T @ (found.inside[known] - 0.5)))


def _threshold(score: Floats, inside: Bools, known: Bools, turned: bool, chance: float) -> float:
    """Return the threshold by which the known trials are told apart best, as if scores were Gaussian."""

    def apart(threshold: float) -> float:
        least, most = _tally(score, inside, known, threshold, turned).bounds(chance)
        return float(ndtri(np.clip(least, 1e-12, 1 - 1e-12)) - ndtri(np.clip(most, 1e-12, 1 - 1e-12)))

    return max(np.quantile(score[known], THRESHOLDS).tolist(), key=apart)


def _tally(score: Floats, inside: Bools, who: Bools, threshold: float, turned: bool) -> Tally:
    said, there = score[who] >= threshold, inside[who]
    hits, alarms = int((said & there).sum()), int((said & ~there).sum())
    tally = Tally(hits, int(there.sum()), alarms, int((~there).sum()))
    return tally.turned if turned else tally


def _measured(
    found: Trials, mine: Bools, replaced: bool, chance: float
) -> tuple[float, float | None, list[str]]:
    """Return noise and rate of one class as shares of the planned ones, and what cannot be true of them."""
    odd = []
    out = mine & (~found.inside | replaced)
    releases, squares = int(found.releases[out].sum()), float(found.squares[out].sum())
    if stats.chi2.cdf(squares, max(releases, 1)) < chance:
        odd.append("there is less noise than planned")
    expected, asked = float(found.expected[mine].sum()), int(found.asked[mine].sum())
    flips = int(found.releases[mine].sum())
    if expected and stats.binom.sf(asked - 1, flips, min(expected / flips, 1.0)) < chance:
        odd.append("canaries take part more often than planned")
    coins = asked / expected if expected else None
    return float(np.sqrt(squares / max(releases, 1))), coins, odd
