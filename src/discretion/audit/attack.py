"""The empirical audit: attacks on what a plan releases, and the epsilon that they show, by budget class."""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal, TypeAlias

import numpy as np
from scipy.special import expit, gammainc, ndtr, ndtri

from discretion.accounting import Certificate
from discretion.arrays import Floats, Ints, distinct
from discretion.audit import lower_bound
from discretion.audit.canaries import Bools, Canaries, ClientGame, Trials
from discretion.audit.chance_checks import BELOW, Noise
from discretion.audit.lower_bound import Claim, Tally, or_more
from discretion.errors import FolderError, PlanError
from discretion.jsonfile import dump, parse, record_of
from discretion.plan.plan import ADVERSARIES, Adversary, Plan
from discretion.plan.population import Population
from discretion.runs.read import Run
from discretion.training.server_update import PLAIN, Server

if TYPE_CHECKING:
    from discretion.audit.record_canaries import RecordGame

Format = Literal["discretion-audit/1"]
FORMAT: Format = "discretion-audit/1"
CHANCE = 0.01  # that an audit contradicts a plan that is executed as written
TESTS = 6  # of one class and adversary: two attacks, noise, clips, coins, coins of several rounds
COMMON_TESTS = 3  # of all classes together: numbers of clients, noise by direction and by size
LEARN = 4  # attacks learn from every fourth game; only the others count
LIKELY = 0.65  # quantile of the likelihoods above which a canary is taken to be in: the best for most plans
THRESHOLDS = expit(np.linspace(-6, 6, 49))  # quantiles of the learned scores that are compared as thresholds
RIDGE = 1e-9  # keeps the learned attack defined where what was seen has linear relations
FOUND = "canaries are found more often than the certificate allows"
LEAST_GAMES, MOST_GAMES, MOST_ROUNDS = 100, 4_000, 200_000  # where neither games nor seconds are given
FEWEST = 10  # games, however few seconds there are

AnyGame: TypeAlias = "ClientGame | RecordGame"
Progress = Callable[[float], None]  # told the share that is done


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
    noise: float | None  # measured standard deviation, as a share of the planned one; None: nothing was seen
    coins: float | None  # measured rate of taking part, as a share of the planned one; None: no secret coins
    contradictions: tuple[str, ...]  # what cannot be true of the certificate


ShownRecord = record_of(Shown)


@dataclass(frozen=True)
class Audit:
    """Lower bounds from attacks, beside what is certified."""

    plan: str  # digest
    made: str  # when, in UTC
    discretion: str  # version that played
    seed: int
    asked_games: int | None  # with the next: how long to play; both None: as many games as usually suffice
    asked_seconds: float | None
    shown: tuple[Shown, ...]
    games: int  # fewest against an adversary
    chance: float  # that anything is contradicted, if the plan is executed as written
    contradictions: tuple[str, ...]  # all that were found, each once

    @property
    def contradicted(self) -> bool:
        return bool(self.contradictions)

    def against(self, name: str) -> tuple[str, ...]:
        """Return what cannot be true of clients of the budget class `name`, or of any."""
        mine = {said for each in self.shown if each.name == name for said in each.contradictions}
        some = {said for each in self.shown for said in each.contradictions}
        return tuple(said for said in self.contradictions if said in mine or said not in some)


AuditRecord = record_of(Audit, format=(Format, ...), shown=(list[ShownRecord], ...))  # type: ignore[valid-type]


def to_json(found: Audit) -> str:
    """Return an audit as JSON text, for audit.json."""
    return dump({"format": FORMAT, **vars(found), "shown": [vars(each) for each in found.shown]})


def read_audit(run: Run) -> Audit | None:
    """Return the audit in a run's folder; None where there is none.

    Guarantees:
        An audit of another plan is refused, and so is one that says what no audit of the run's certificate
        says, such as a lower bound above what is certified without a contradiction.
    """
    text = run.audit_text
    if text is None:
        return None
    try:
        record = dict(parse(text, AuditRecord, "audit"))
        del record["format"]
        found = Audit(**record | {"shown": tuple(Shown(**dict(each)) for each in record["shown"])})
        problems = list(_problems(found, run))
    except PlanError as problem:
        problems = [str(problem)]
    if problems:
        raise FolderError(
            f"{run.files.audit} is damaged or was changed: {problems[0]}. "
            f"Restore it from a copy, or audit the run again: discretion audit {run.folder}"
        )
    return found


def contradictions(run: Run) -> dict[int, tuple[str, ...]]:
    """Return what an audit found that cannot be true, by the numbers of the budget classes concerned."""
    found = read_audit(run)
    if found is None or not found.contradicted:
        return {}
    odd = {k: found.against(name) for k, name in enumerate(run.population.classes()[0])}
    return {k: said for k, said in odd.items() if said}


def _problems(found: Audit, run: Run) -> Iterator[str]:
    """Yield what cannot stand in an audit of a run."""
    if found.plan != run.plan.digest():
        yield "it is of another plan than the run's"
    if not (found.games >= 1 and found.seed >= 0 and found.chance == CHANCE and _is_moment(found.made)):
        yield f"found games {found.games}, seed {found.seed}, chance {found.chance:g}, made {found.made!r}"
    if missing := {said for each in found.shown for said in each.contradictions} - {*found.contradictions}:
        yield f"its list of contradictions leaves out {', '.join(sorted(missing))}"
    names, member = run.population.classes()
    for each in found.shown:
        if each.name not in names:
            yield f"the run has no budget class {each.name!r}"
        elif each.certified not in run.certificate.epsilon[each.adversary][member == names.index(each.name)]:
            yield f"epsilon {each.certified:g} is certified of no client of {each.name}"
        elif not each.contradictions and max(each.at_least, each.any_mechanism) > each.certified:
            yield (
                f"found at least {max(each.at_least, each.any_mechanism):g} and at most {each.certified:g} "
                f"of {each.name}, and no contradiction"
            )
        elif min(each.at_least, each.any_mechanism, each.canaries, each.trials) < 0:
            yield f"found a negative number of {each.name}"


def _is_moment(text: str) -> bool:
    try:
        return datetime.fromisoformat(text).utcoffset() is not None
    except ValueError:
        return False


def playable(certificate: Certificate) -> tuple[Adversary, ...]:
    """Return the adversaries against whom some client has an epsilon that is finite and not 0."""
    found = {who: certificate.epsilon[who] for who in ADVERSARIES}
    return tuple(who for who, epsilon in found.items() if (np.isfinite(epsilon) & (epsilon > 0)).any())


def audit(
    plan: Plan,
    population: Population,
    certificate: Certificate,
    *,
    games: int | None = None,
    seconds: float | None = None,
    seed: int = 0,
    server: Server = PLAIN,
    against: Sequence[Adversary] = (),
    progress: Progress = lambda done: None,
) -> Audit:
    """Attack a plan, and return what the attacks show of each budget class, against each adversary.

    Play this number of `games`, or for so many `seconds`, or as many games as usually suffice.

    Guarantees:
        If the plan is executed as written, the chance that anything is contradicted is at most `CHANCE`:
        attacks and thresholds are fixed on games of their own, and judged by the others; noise, clips and
        coins are compared with the plan alone; all tests of all classes and adversaries share `CHANCE`; and
        the number of games does not depend on what was seen.
    """
    names, member = population.classes()
    views = _views(plan, against or playable(certificate))
    shown, odd, played = [], [], []
    for number, alike in enumerate(views):
        game = _game(plan, certificate.epsilon[alike[0]], member, alike[0], server, seed)
        learned, counted = Noise(game.size), Noise(game.size)
        limit = None if seconds is None else seconds / len(views)
        heard = partial(_part, progress, number, len(views))
        played_games = _play(game, seed, games or _enough(game), limit, heard, learned, counted)
        found = Trials.together(played_games)
        classes = np.unique(game.group)
        chance = CHANCE / len(views) / (TESTS * len(classes) + COMMON_TESTS)
        odd += _crowds(found, chance) + _noise(learned, counted, chance)
        for k in classes:
            who, mine = game.client[game.group == k], found.of(int(k))
            claim = Claimed.of(plan, certificate, alike[0], who)
            one = _shown(names[k], alike[0], len(who) * game.each, claim, mine, chance)
            shown += [replace(one, adversary=other) for other in alike]
        played.append(len(found.crowds))
    odd += [said for one in shown for said in one.contradictions]
    shown.sort(key=lambda one: ADVERSARIES.index(one.adversary))  # stable: classes stay in order
    return Audit(
        plan=plan.digest(),
        made=datetime.now(UTC).isoformat(timespec="seconds"),
        discretion=version("discretion"),
        seed=seed,
        asked_games=games,
        asked_seconds=seconds,
        shown=tuple(shown),
        games=min(played, default=0),
        chance=CHANCE,
        contradictions=tuple(dict.fromkeys(odd)),
    )


def _part(progress: Progress, number: int, parts: int, done: float) -> None:
    progress((number + done) / parts)


def _views(plan: Plan, adversaries: Sequence[Adversary]) -> list[list[Adversary]]:
    """Return the adversaries, those that see the same of a plan together."""
    found: list[list[Adversary]] = []
    for who in adversaries:
        same = next((alike for alike in found if _sees_the_same(plan, who, alike[0])), [])
        if not same:
            found.append(same)
        same.append(who)
    return found


def _sees_the_same(plan: Plan, one: Adversary, other: Adversary) -> bool:
    views = ((plan.view(phase, one), plan.view(phase, other)) for phase in plan.phases)
    return all(np.array_equal(a, b) for pair in views for a, b in zip(*pair, strict=True))


def _game(plan: Plan, epsilon: Floats, member: Ints, who: Adversary, server: Server, seed: int) -> AnyGame:
    if plan.unit == "client":
        return ClientGame(plan, Canaries.of(plan, epsilon, member, seed), who, server)
    from discretion.audit.record_canaries import RecordGame  # which needs torch

    return RecordGame.of(plan, epsilon, member, seed)


def _enough(game: AnyGame) -> int:
    """Return a number of games in which every class has enough trials, if that does not take too long."""
    fewest = int(np.unique(game.group, return_counts=True)[1].min()) * game.each
    most = min(MOST_GAMES, MOST_ROUNDS // game.plan.rounds)
    return max(min(-(-game.enough // fewest), most), LEAST_GAMES)


def _play(
    game: AnyGame,
    seed: int,
    games: int,
    seconds: float | None,
    progress: Progress,
    learned: Noise,
    counted: Noise,
) -> Iterator[Trials]:
    """Play this number of games or, where `seconds` are given, that long; yield what was seen of each.

    The noise of games to learn from is added to `learned`, that of the others to `counted`.
    """
    number, start, done = 0, time.monotonic(), 0.0
    while done < 1:
        yield game.play(number, seed, counted if number % LEARN else learned)
        number += 1
        done = number / games
        if seconds is not None:
            done = min((time.monotonic() - start) / max(seconds, 1e-9), number / FEWEST)
        progress(min(done, 1.0))


@dataclass(frozen=True)
class Claimed:
    """What is claimed of the canaries of one class, against one adversary."""

    epsilon: float
    delta: float
    curve: Claim | None  # None: the claim is no composition of Gaussian steps

    @classmethod
    def of(cls, plan: Plan, certificate: Certificate, adversary: Adversary, who: Ints) -> "Claimed":
        steps = plan.steps(against=adversary).of(who)
        kinds = distinct(np.concatenate([steps.rate, steps.multiplier, steps.count]))[1]
        first = np.unique(kinds, return_index=True)[1]
        curve = Claim(steps.of(first)) if plan.sampling == "poisson" else None
        epsilon, delta = certificate.epsilon[adversary][who].max(), certificate.delta[who].max()
        return cls(float(epsilon), float(delta), curve)

    def bounds(self, tally: Tally, chance: float) -> tuple[float, float, bool]:
        """Return lower bounds of the planned kind and of any mechanism, and whether the claim is refuted.

        Guarantees:
            The claim is refuted wherever a bound exceeds the certified epsilon. All three follow from the
            same two rates, so together they have one `chance` to be wrong.
        """
        bound = anyway = lower_bound.any_mechanism(tally, self.delta, chance)
        odd = False
        if self.curve is not None:
            bound = lower_bound.planned_kind(tally, self.curve, self.delta, chance)
            odd = lower_bound.contradicts(tally, self.curve, chance)
        return bound, anyway, odd or max(bound, anyway) > self.epsilon


def _shown(
    name: str, adversary: Adversary, canaries: int, claimed: Claimed, found: Trials, chance: float
) -> Shown:
    """Return what the trials of one class show."""
    learning = found.game % LEARN == 0
    noise, coins, odd = _measured(found, chance)
    at_least, any_mechanism, best = 0.0, 0.0, "none"
    learned = _learned(found, learning)
    usual = float(np.quantile(found.likelihood[learning], LIKELY))
    attacks = {
        "likelihood": (found.likelihood, usual, False),
        "learned": (learned, *_threshold(learned, found.inside, learning, chance)),
    }
    for attack, (score, threshold, turned) in attacks.items():
        tally = _tally(score, found.inside, ~learning, threshold, turned)
        bound, anyway, refuted = claimed.bounds(tally, chance)
        at_least, best = (bound, attack) if bound > at_least else (at_least, best)
        any_mechanism = max(any_mechanism, anyway)
        odd += [FOUND] if refuted else []
    return Shown(
        name=name,
        adversary=adversary,
        canaries=canaries,
        trials=int((~learning).sum()),
        certified=claimed.epsilon,
        at_least=at_least,
        any_mechanism=any_mechanism,
        attack=best,
        noise=noise,
        coins=coins,
        contradictions=tuple(dict.fromkeys(odd)),
    )


def _learned(found: Trials, known: Bools) -> Floats:
    """Return (n,) scores of the linear attack on everything seen that fits the `known` trials best."""
    middle, spread = found.seen[known].mean(axis=0), found.seen[known].std(axis=0)
    scaled = (found.seen - middle) / np.where(spread > 0, spread, 1.0)
    square = scaled[known].T @ scaled[known] + RIDGE * known.sum() * np.eye(scaled.shape[1])
    return np.asarray(scaled @ np.linalg.solve(square, scaled[known].T @ (found.inside[known] - 0.5)))


def _threshold(score: Floats, inside: Bools, known: Bools, chance: float) -> tuple[float, bool]:
    """Return the threshold, and whether to say no above it, by which the known trials are told apart best."""

    def apart(attack: tuple[float, bool]) -> float:
        bounds = _tally(score, inside, known, *attack).bounds(chance)
        least, most = ndtri(np.clip(bounds, 1e-12, 1 - 1e-12)).tolist()  # as if scores were Gaussian
        return float(least - most)

    candidates = np.quantile(score[known], THRESHOLDS).tolist()
    return max(((threshold, turned) for threshold in candidates for turned in (False, True)), key=apart)


def _tally(score: Floats, inside: Bools, who: Bools, threshold: float, turned: bool) -> Tally:
    tally = Tally.of(score[who] >= threshold, inside[who])
    return tally.turned if turned else tally


def _measured(found: Trials, chance: float) -> tuple[float | None, float | None, list[str]]:
    """Return noise and rate of one class as shares of the planned ones, and what cannot be true of them."""
    odd = []
    quiet, squares = int(found.quiet.sum()), float(found.squares.sum())
    if quiet and gammainc(quiet / 2, squares / 2) < chance:
        odd.append("there is less noise than planned")
    if max(int(found.releases.sum()), 1) * ndtr(-found.loudest.max()) < chance:
        odd.append("a sum moves by more than a canary's clip")
    asked, flips, expected = int(found.asked.sum()), int(found.flips.sum()), float(found.expected.sum())
    if or_more(asked, flips, expected / max(flips, 1)) < chance:
        odd.append("canaries take part more often than planned")
    if _unusual(found.turns, found.turns_planned, found.game % LEARN == 0, chance):
        odd.append("a canary's number of turns does not vary as that of independent coins")
    noise = float(np.sqrt(squares / quiet)) if quiet else None
    return noise, asked / expected if flips else None, odd


def _crowds(found: Trials, chance: float) -> list[str]:
    """Return what cannot be true of the numbers of clients asked, if coins are independent."""
    learning = np.arange(len(found.crowds)) % LEARN == 0
    if _unusual(found.crowds, found.crowds_planned, learning, chance):
        return ["the number of clients in a round does not vary as that of independent coins"]
    return []


def _unusual(seen: Floats, planned: Floats, learning: Bools, chance: float) -> bool:
    """Return whether (k, CELLS) numbers of heads are too often in cells in which the learning rows saw more.

    Guarantees:
        Which cells are looked at does not depend on the rows that count. There, if coins are independent,
        each number is in these cells with its planned chance, so the answer is yes with at most `chance`.
    """
    more = seen[learning].sum(axis=0) > planned[learning].sum(axis=0)
    trials, hits = int(seen[~learning].sum()), int(seen[~learning][:, more].sum())
    rate = float(planned[~learning][:, more].sum()) / max(trials, 1)
    return or_more(hits, trials, min(rate, 1.0)) < chance


def _noise(learned: Noise, counted: Noise, chance: float) -> list[str]:
    """Return what cannot be true of Gaussian noise that is independent in all directions.

    Guarantees:
        If it is, its squares along any direction that does not depend on it have a chi-squared distribution,
        and the direction in which there was the least noise in other games is one. No more numbers are below
        a limit than of planned noise, even if there is more noise than planned. Each test has its `chance`.
    """
    odd, limit = [], learned.crowded()
    if counted.vectors and gammainc(counted.vectors / 2, counted.along(learned.quietest()) / 2) < chance:
        odd.append("along some directions there is less noise than planned")
    if or_more(int(counted.below[limit]), counted.numbers, float(BELOW[limit])) < chance:
        odd.append("small noise is more frequent than planned")
    return odd
