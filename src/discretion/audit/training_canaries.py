"""The audit of whole training runs with canaries among their clients (Steinke, Nasr, Jagielski 2023).

A canary sends a random direction of its own in place of what it would learn, if its fair coin says that it is
in, and zeros otherwise. All other clients train as usual, and the attacker knows what they send. From the
released sums of all rounds it guesses which canaries were in: of all by a threshold, and once more of those
of which it is most sure.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from scipy.special import ndtri

from discretion.accounting import Certificate
from discretion.arrays import Floats, Ints
from discretion.audit import lower_bound, one_run
from discretion.audit.attack import CHANCE, Claimed
from discretion.audit.canaries import FAR, Bools, CanaryRelease, sign_of
from discretion.audit.lower_bound import Tally
from discretion.audit.one_run import Guesses
from discretion.errors import PlanError
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.plan.selection_rules import Reading
from discretion.randomness.sources import Source
from discretion.randomness.streams import Purpose, stream
from discretion.training.clip import layers_of
from discretion.training.loop import State, next_state
from discretion.training.orders import Clients, Order, Statistics, Updates
from discretion.training.release import clipped_sums
from discretion.training.server_update import Server, Vector

SHARE = 2  # every second client of a class is a canary
MOST = 1024  # canaries of a class
MOST_NUMBERS = 2**26  # in all of their directions
STATISTICS = 2  # of a class: hits and false alarms of all canaries, and correct guesses
REHEARSALS = 16  # imagined runs, by the plan alone, in which the attack is chosen
SHARES = (0.0, 1 / 16, 1 / 8, 1 / 4, 3 / 8, 1 / 2)  # of canaries that may be guessed to be in, and to be out
QUANTILES = (0.5, 0.6, 0.7, 0.8, 0.9, 0.95)  # of the scores, that may be the threshold
GAME = 2**32 - 1  # number of the streams of coins and directions, which no other game has


@dataclass(frozen=True)
class Guessed:
    """What the attacker guessed of one budget class, against whoever sees the models."""

    name: str  # of the class
    canaries: int  # in all runs
    guesses: int
    correct: int
    certified: float  # largest epsilon of the canaries
    at_least: float  # epsilon of the planned steps with the least noise that is refuted
    interfering: float  # the same, however canaries interfere
    any_mechanism: float  # epsilon of any mechanism that fits, however canaries interfere
    contradicted: bool  # whether the certificate cannot be true


def audit_training(
    plan: Plan,
    population: Population,
    certificate: Certificate,
    clients: Clients,
    state: State,
    *,
    run: str,
    seed: int,
    server: Server,
    runs: int = 1,
    progress: Callable[[float], None] = lambda done: None,
) -> list[Guessed]:
    """Train `runs` times, with canaries, and return lower bounds on epsilon for each budget class.

    Guarantees:
        If each run executes its plan as certified, the chance that any bound exceeds its epsilon, or anything
        is contradicted, is at most `CHANCE`: threshold and numbers of guesses are fixed before training, and
        the classes and the two statistics of each share `CHANCE`.
        The last two bounds hold however canaries and other clients interfere. For `at_least`, canaries are
        independent: their directions are orthogonal, and what the other clients send is taken away.
    """
    if plan.unit != "client":
        raise PlanError(
            "found a plan that protects records; a training run is audited only where clients are protected: "
            "attack its plan instead"
        )
    (names, member), size = population.classes(), len(state.model)
    canary = _canaries(plan, certificate.epsilon["public"], member, size)
    classes = np.unique(member[canary])
    game = _Game(plan, canary, _directions(plan, len(canary), size, seed))
    chance, group = CHANCE / len(classes) / STATISTICS, member[canary]
    coins, scores = game.rehearsed(seed)
    attacks = {}
    for k in classes:
        claimed, mine = Claimed.of(plan, certificate, "public", canary[group == k]), group == k
        attacks[k] = _Attack.chosen(claimed, coins[:, mine], scores[:, mine], runs, chance)
    inside = stream(seed, Purpose.AUDIT, GAME, 0).random((runs, len(canary))) < 0.5
    score = np.zeros(inside.shape)
    for i in range(runs):
        played = game.played(clients, state, inside[i], f"{run} {i}", seed, server)
        for round_, ratio in enumerate(played, start=1):
            score[i] += ratio
            progress((i + round_ / plan.rounds) / runs)
    return [
        attacks[k].guessed(names[k], inside[:, group == k], score[:, group == k], chance) for k in classes
    ]


def _canaries(plan: Plan, epsilon: Floats, member: Ints, size: int) -> Ints:
    """Return (C,) the clients that play canaries, of each class of (N,) `member` with a finite epsilon."""
    fine = np.flatnonzero(np.isfinite(epsilon) & (epsilon > 0))
    classes = np.unique(member[fine])
    room = min(max(plan.clipping.layers, default=size), MOST_NUMBERS // size)  # for orthogonal directions
    if not 0 < len(classes) <= room:
        raise PlanError(
            f"found {len(classes)} budget classes with an epsilon that is finite and above 0, expected 1 to "
            f"{room}, for which a model of {size} parameters has room: attack the plan instead"
        )
    most = min(MOST, room // len(classes))
    return np.sort(np.concatenate([fine[member[fine] == k][::SHARE][:most] for k in classes]))


class _AmongOthers:
    """Clients of which some are canaries; what the others send is known to the attacker."""

    def __init__(self, clients: Clients, canary: Ints, sent: Floats, direction: Vector) -> None:
        self._clients, self._canary, self._sent, self._direction = clients, canary, sent, direction
        self.length = 0.0  # of a canary's update, with the sign of this round
        self.known: list[Updates] = []  # of this round
        self.asked = np.zeros(len(canary), dtype=np.int64)  # how often in this round

    def updates(self, order: Order) -> Iterator[Updates]:
        ours = np.isin(order.clients, self._canary)
        others = replace(order, clients=order.clients[~ours], turn=order.turn[~ours])
        self.known = []
        for part in self._clients.updates(others):
            self.known.append(part)
            yield part
        place = np.searchsorted(self._canary, order.clients[ours])
        self.asked = np.bincount(place, minlength=len(self._canary))
        sent = self.length * self._sent[place, None] * self._direction[place]
        yield Updates(order.clients[ours], sent.astype(np.float32))

    def statistics(self, order: Order, reading: Reading) -> Statistics:
        raise AssertionError("plans that protect clients read no statistics")


@dataclass(frozen=True)
class _Game:
    """A plan, the clients that are canaries, and their directions."""

    plan: Plan
    canary: Ints  # (C,)
    direction: Vector  # (C, d), orthogonal

    @cached_property
    def length(self) -> float:
        """Length of a clipped direction, in clips."""
        return float(np.linalg.norm(self.direction[0]))

    @property
    def exchanged(self) -> bool:
        """Whether a canary that is out is another one in its place, with the opposite update."""
        return self.plan.adjacency == "replace"

    @cached_property
    def _releases(self) -> list[tuple[CanaryRelease, Floats, Floats]]:
        """By phase: what is released, (C,) how far an update moves it, and (C,) the noise in such lengths."""
        found = []
        for phase in self.plan.phases:
            release = CanaryRelease.of(self.plan, phase, self.canary, "public")
            reach = np.where(release.std > 0, release.reach * self.length, 1.0)
            spread = release.std / np.abs(reach)
            found.append((release, reach, np.where(release.std > 0, spread, 1.0)))
        return found

    def _sent(self, inside: Bools) -> Floats:
        return np.where(inside, 1.0, -1.0 if self.exchanged else 0.0)

    def rehearsed(self, seed: int) -> tuple[Bools, Floats]:
        """Return (REHEARSALS, C) coins and scores of runs that are imagined by the plan alone."""
        draw = stream(seed, Purpose.AUDIT, GAME, 1)
        inside = draw.random((REHEARSALS, len(self.canary))) < 0.5
        sent, score = self._sent(inside), np.zeros(inside.shape)
        for round_ in range(1, self.plan.rounds + 1):
            release, _, spread = self._releases[self.plan.phase_of(round_)]
            asked = release.turns + (draw.random(inside.shape) < release.rate)
            value = sent * asked + spread * ndtri(draw.random(inside.shape))
            score += release.log_ratio(value, asked, spread, self.exchanged) * (release.std > 0)
        return inside, score

    def played(
        self, clients: Clients, state: State, inside: Bools, run: str, seed: int, server: Server
    ) -> Iterator[Floats]:
        """Train once, and yield (C,) log-likelihood ratios of what each round released."""
        among = _AmongOthers(clients, self.canary, self._sent(inside), self.direction)
        longest = float(max(phase.clip[self.canary].max() for phase in self.plan.phases))
        released: list[Floats] = []
        for round_ in range(1, self.plan.rounds + 1):
            number, scale, sign = self.plan.phase_of(round_), state.scale, sign_of(round_)
            among.length = sign * FAR * longest * scale
            state = next_state(
                self.plan, among, state, run=run, seed=seed, server=server, observe=released.append
            )
            known = _known(self.plan, self.plan.phases[number], scale, among.known, len(state.model))
            left = (released.pop() - known).astype(np.float32)
            along = sign / scale / self.length * (left @ self.direction.T).astype(np.float64)
            release, reach, spread = self._releases[number]
            value = along[release.row, np.arange(len(inside))] / reach
            yield release.log_ratio(value, among.asked, spread, self.exchanged) * (release.std > 0)


def _directions(plan: Plan, canaries: int, size: int, seed: int) -> Vector:
    """Return (C, d) orthogonal directions, random and of the same length in each layer that has room for all.

    The length is that which is left of the clip, as a share of it.
    """
    draw, layers = stream(seed, Purpose.AUDIT, GAME), layers_of(plan.clipping.layers, size)
    found = np.zeros((canaries, size), np.float32)
    for layer in layers:
        if layer.stop - layer.start >= canaries:
            numbers = draw.random((layer.stop - layer.start, canaries), dtype=np.float32) - 0.5
            found[:, layer] = np.linalg.qr(numbers)[0].T / np.sqrt(len(layers))
    return found


def _known(plan: Plan, phase: Phase, scale: float, parts: Sequence[Updates], size: int) -> Floats:
    """Return what the sums of a round would be without canaries and noise."""
    plain = replace(plan, noise_at="server", dropout=0.0, grid=None)
    asked = np.concatenate([part.clients for part in parts]) if parts else np.zeros(0, dtype=np.int64)

    def nobody(client: int, turn: int) -> Source:
        raise AssertionError("here no client adds noise")

    return clipped_sums(plain, phase, scale, iter(parts), asked, size, nobody)[0]


@dataclass(frozen=True)
class _Attack:
    """How guesses about one budget class are made: fixed before training."""

    claimed: Claimed
    threshold: float  # score from which a canary is taken to be in
    ins: int  # canaries of the highest scores that are guessed to be in, in each run
    outs: int  # canaries of the lowest scores that are guessed to be out

    @classmethod
    def chosen(cls, claimed: Claimed, inside: Bools, score: Floats, runs: int, chance: float) -> "_Attack":
        """Return the attack that would show the most, by (REHEARSALS, C) rehearsals."""

        def of_all(attack: _Attack) -> tuple[float, int]:
            tally = attack.tally(inside, score)
            counts = (int(x * runs / REHEARSALS) for x in vars(tally).values())
            return attack.shown(Tally(*counts), chance), tally.hits - tally.false_alarms

        def of_the_surest(attack: _Attack) -> tuple[float, float]:
            guesses = attack.guesses(inside, score)
            right, made, canaries = (int(x * runs / REHEARSALS) for x in vars(guesses).values())
            bound = max(attack.shown_interfering(Guesses(right, made, canaries), chance))
            return bound, (guesses.correct - guesses.made / 2) / guesses.made**0.5

        thresholds = np.quantile(score, QUANTILES).tolist()
        best = max((cls(claimed, threshold, 0, 0) for threshold in thresholds), key=of_all)
        counts = sorted({int(share * inside.shape[1]) for share in SHARES})
        pairs = [replace(best, ins=ins, outs=outs) for ins in counts for outs in counts if ins + outs]
        return max(pairs, key=of_the_surest, default=best)

    def tally(self, inside: Bools, score: Floats) -> Tally:
        """Return what guesses about all (…, C) canaries give."""
        return Tally.of(score >= self.threshold, inside)

    def guesses(self, inside: Bools, score: Floats) -> Guesses:
        """Return what guesses about the surest of (R, C) canaries give, in each run."""
        ordered = np.take_along_axis(inside, np.argsort(score, axis=1, kind="stable"), axis=1)
        last = inside.shape[1] - self.ins
        correct = (~ordered[:, : self.outs]).sum() + ordered[:, last:].sum()
        return Guesses(int(correct), len(inside) * (self.ins + self.outs), inside.size)

    def shown(self, tally: Tally, chance: float) -> float:
        """Return a lower bound of the planned kind from independent canaries."""
        if self.claimed.curve is None:
            return 0.0
        return lower_bound.planned_kind(tally, self.claimed.curve, self.claimed.delta, chance)

    def shown_interfering(self, guesses: Guesses, chance: float) -> tuple[float, float]:
        """Return lower bounds of the planned kind and of any mechanism, however canaries interfere."""
        anyway = one_run.any_mechanism(guesses, self.claimed.delta, chance)
        if self.claimed.curve is None:
            return anyway, anyway
        bound = one_run.planned_kind(guesses, self.claimed.curve, self.claimed.delta, chance)
        return max(bound, anyway), anyway

    def guessed(self, name: str, inside: Bools, score: Floats, chance: float) -> Guessed:
        """Return what (R, C) canaries of R runs show."""
        tally, guesses, curve = self.tally(inside, score), self.guesses(inside, score), self.claimed.curve
        interfering, anyway = self.shown_interfering(guesses, chance)
        bound = max(self.shown(tally, chance), interfering)
        refuted = curve is not None and (
            lower_bound.contradicts(tally, curve, chance) or one_run.contradicts(guesses, curve, chance)
        )
        return Guessed(
            name=name,
            canaries=guesses.canaries,
            guesses=guesses.made,
            correct=guesses.correct,
            certified=self.claimed.epsilon,
            at_least=bound,
            interfering=interfering,
            any_mechanism=anyway,
            contradicted=refuted or bound > self.claimed.epsilon,
        )
