"""The canary game for plans that protect records: canaries are records, trained by the real engine.

The features of each record are a direction of its own, orthogonal to all others and so long that its gradient
is clipped. The learning rate is so small that the model, and with it the direction of each gradient, hardly
changes. What a client sends then has a component for each record: the number of batches that the record was
in, and noise. Labels change with the round, and with them the sign of every gradient: if two rounds had the
same noise, it would cancel out.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from typing import ClassVar, cast

import numpy as np
from scipy import stats
from scipy.special import logsumexp
from torch import nn

from discretion.accounting.certificate import worst_of
from discretion.arrays import Floats, Ints
from discretion.audit.canaries import BLOCKS, FAR, SPARE, Bools, Trials, directions, sign_of
from discretion.audit.chance_checks import CELLS, NOTHING, Heads, Noise
from discretion.clients.local_clients import LocalClients
from discretion.clients.training import LocalTraining
from discretion.plan.phase import FLAT, Phase
from discretion.plan.plan import Plan
from discretion.plan.selection_rules import Reading
from discretion.randomness.sources import Source
from discretion.randomness.streams import Purpose, Words, stream
from discretion.tasks.datasets import Dataset, Split
from discretion.tasks.partitions import Partition
from discretion.training.loop import State, next_state
from discretion.training.orders import Order, Statistics, Updates

RECORDS = 128  # canaries of a client
FEATURES = RECORDS + SPARE
STILL = 1e-4  # largest change of a record's score by all of the training


class _Heard:
    """A source whose noise is added up as it is drawn."""

    def __init__(self, source: Source) -> None:
        self._source = source
        self.noise = np.zeros(2 * FEATURES)

    def words(self, count: int) -> Words:
        return self._source.words(count)

    def uniform(self, size: int) -> Floats:
        return self._source.uniform(size)

    def gaussian(self, size: int, std: float) -> Floats:
        drawn = self._source.gaussian(size, std)
        self.noise += drawn
        return drawn


class _Watched:
    """Clients whose answers are looked at as they leave; the label of their records is that of the round."""

    def __init__(self, clients: dict[float, LocalClients]) -> None:
        self._clients = clients  # by the sign of a round
        self.left: list[tuple[int, Floats, Floats]] = []  # client, update, and sum of the noise of its steps

    def updates(self, order: Order) -> Iterator[Updates]:
        assert order.noisy is not None
        heard = [_Heard(order.noisy.source(i)) for i in range(len(order.clients))]
        noisy = replace(order.noisy, source=lambda i: cast(Source, heard[i]))
        for part in self._clients[sign_of(order.round)].updates(replace(order, noisy=noisy)):
            for client, change in zip(part.clients.tolist(), part.change.astype(np.float64), strict=True):
                self.left.append((client, change, heard[len(self.left)].noise))
            yield part

    def statistics(self, order: Order, reading: Reading) -> Statistics:
        return self._clients[sign_of(order.round)].statistics(order, reading)


@dataclass(frozen=True)
class _Turn:
    """What a client sent in one turn, in clips."""

    value: Floats  # (RECORDS,) along each record
    batches: Ints  # (RECORDS,) number of steps whose batch had the record: what is left without the noise
    ratio: Floats  # (RECORDS,) log-likelihood ratios
    std: float  # of the noise, by the plan
    quiet: Floats  # (FEATURES,) where no record is: noise only


@dataclass(frozen=True)
class RecordGame:
    """A plan and the clients whose records are canaries: in each budget class, the one that spends most."""

    plan: Plan
    client: Ints  # (C,)
    group: Ints  # (C,) budget class
    direction: Floats  # (RECORDS, FEATURES) orthogonal, of length 1
    each: ClassVar[int] = RECORDS  # trials of each client that plays
    enough: ClassVar[int] = 60_000  # trials of a class that usually suffice: only sums of steps are seen

    @classmethod
    def of(cls, plan: Plan, epsilon: Floats, member: Ints, seed: int) -> "RecordGame":
        """Choose a client of each class of (N,) `member`: that of the largest (N,) `epsilon`, if finite."""
        worst = worst_of(member, np.where(np.isfinite(epsilon), epsilon, -1.0))
        fine = np.isfinite(epsilon[worst]) & (epsilon[worst] > 0)
        plan = replace(plan, clipping=FLAT)  # the model of the game has one layer
        return cls(plan, worst[fine], member[worst[fine]], directions(RECORDS, 1, seed))

    @property
    def size(self) -> int:
        return FEATURES

    @cached_property
    def _longest(self) -> float:
        return float(max(phase.clip[self.client].max() for phase in self.plan.phases))

    @cached_property
    def _datasets(self) -> dict[float, Dataset]:
        """The records of all clients, by the sign of a round."""
        each = (2 * FAR * self._longest * self.direction).astype(np.float32)
        inputs, found = np.tile(each, (len(self.client), 1)), {}
        for sign, label in ((1.0, 0), (-1.0, 1)):
            split = Split(inputs, np.full(len(inputs), label))
            test = Split(inputs[:1], split.labels[:1])
            found[sign] = Dataset("canaries", split, test, 2, "tabular", "made up")
        return found

    @cached_property
    def _learning_rate(self) -> float:
        """A learning rate by which no score changes by more than `STILL`, even if steps always add up."""
        most = 0.0
        for phase in self.plan.phases:
            assert phase.batch is not None
            for i in self.client:
                step = (phase.clip[i] + 5 * phase.noise[phase.pool[i]]) / (phase.batch[i] * RECORDS / 4)
                most = max(most, phase.rounds * float(phase.releases[i]) * step)
        return STILL / (2 * FAR * self._longest * most * len(self.plan.phases))

    def play(self, number: int, seed: int, noise: Noise) -> Trials:
        """Play the plan once, and return what was seen; add noise of all features to `noise`."""
        plan, coins = self.plan, stream(seed, Purpose.AUDIT, number)
        inside = coins.random((len(self.client), RECORDS)) < 0.5
        clients, tape = _Watched(self._clients(inside)), _RecordTape(inside, plan)
        state = State.start(np.zeros(2 * FEATURES, np.float32))
        own_seed = seed if plan.randomness == "seeded" else None
        for round_ in range(1, plan.rounds + 1):
            phase = plan.phases[plan.phase_of(round_)]
            assert phase.batch is not None
            state = next_state(plan, clients, state, run=f"audit {number}", seed=own_seed)
            for who, change, heard in clients.left:
                for c in np.flatnonzero(self.client == who):
                    records, sign = int(inside[c].sum()), sign_of(round_)
                    turn = self._look(phase, who, records, sign * change, sign * heard)
                    tape.write(int(c), round_, phase, float(phase.batch[who]), turn)
                    noise.add(turn.quiet[None])
            clients.left.clear()
        return tape.trials(number, self.group)

    def _clients(self, inside: Bools) -> dict[float, LocalClients]:
        start = np.zeros(len(self.plan.clients) + 1, dtype=np.int64)
        start[self.client + 1] = inside.sum(axis=1)
        order = np.argsort(self.client)
        index = np.concatenate([np.flatnonzero(inside[c]) + c * RECORDS for c in order])
        local = LocalTraining(learning_rate=self._learning_rate)
        held = Partition(index, np.cumsum(start))
        return {
            sign: LocalClients(
                data, held, nn.Sequential(nn.Linear(FEATURES, 2, bias=False)), local, device="cpu", workers=1
            )
            for sign, data in self._datasets.items()
        }

    def _look(self, phase: Phase, who: int, records: int, change: Floats, heard: Floats) -> _Turn:
        """Return what a client with so many records sent in a turn, given the noise that was drawn for it."""
        assert phase.batch is not None
        batch, clip, steps = float(phase.batch[who]), float(phase.clip[who]), phase.steps
        right, other = -change.reshape(2, FEATURES) * batch * records / self._learning_rate / clip
        noise_right, noise_other = heard.reshape(2, FEATURES) / clip
        value = (other - right) / np.sqrt(2) @ self.direction.T
        noise = (noise_other - noise_right) / np.sqrt(2) @ self.direction.T
        std = float(phase.noise[phase.pool[who]] / clip * np.sqrt(steps))
        times = np.arange(steps + 1)[:, None]
        grown = stats.binom.logpmf(times, steps, batch) + (value * times - times**2 / 2) / std**2
        return _Turn(
            value=value,
            batches=np.rint(value - noise).astype(np.int64),
            ratio=logsumexp(grown, axis=0),
            std=std,
            quiet=(right + other) / np.sqrt(2) / std,
        )


class _RecordTape:
    """What was seen of one game so far, added up."""

    def __init__(self, inside: Bools, plan: Plan) -> None:
        self._inside, self._plan, self._blocks = inside, plan, min(BLOCKS, plan.rounds)
        self._seen = np.zeros((*inside.shape, self._blocks, 2))
        self._loudest, self._squares, self._expected = (np.zeros(inside.shape) for _ in range(3))
        self._turns, self._asked, self._flips = (np.zeros(inside.shape, dtype=np.int64) for _ in range(3))
        self._steps: list[list[tuple[float, int]]] = [[] for _ in inside]  # rate and number, by turn

    def write(self, c: int, round_: int, phase: Phase, rate: float, turn: _Turn) -> None:
        """Add one turn of the c-th client, whose batches were drawn at a `rate`."""
        inside, block = self._inside[c], (round_ - 1) * self._blocks // self._plan.rounds
        self._seen[c, :, block] += np.stack([turn.value, turn.ratio], axis=1)
        self._squares[c] += (turn.value / turn.std) ** 2
        self._loudest[c] = np.maximum(self._loudest[c], inside * (turn.value - phase.steps) / turn.std)
        self._turns[c] += 1
        if 0 < rate < 1:  # else there are no coins
            self._asked[c] += turn.batches * inside
            self._flips[c] += phase.steps * inside
            self._expected[c] += rate * phase.steps * inside
            self._steps[c].append((rate, phase.steps))

    def trials(self, game: int, group: Ints) -> Trials:
        """Return all that was seen."""
        inside, no_rounds = self._inside, np.zeros((1, CELLS))
        heads = [_batches(tuple(sorted(each))) for each in self._steps]
        turns = np.stack([each.cells(n) for each, n in zip(heads, self._asked, strict=True)])
        planned = np.stack([np.tile(each.chance, (RECORDS, 1)) for each in heads])
        return Trials(
            game=np.full(inside.size, game),
            group=np.repeat(group, RECORDS),
            inside=inside.ravel(),
            likelihood=self._seen[..., 1].sum(axis=-1).ravel(),
            seen=self._seen.reshape(inside.size, -1),
            releases=self._turns.ravel(),
            quiet=(self._turns * ~inside).ravel(),
            squares=(self._squares * ~inside).ravel(),
            loudest=self._loudest.ravel(),
            asked=self._asked.ravel(),
            flips=self._flips.ravel(),
            expected=self._expected.ravel(),
            turns=(turns * inside[..., None]).reshape(inside.size, CELLS),
            turns_planned=(planned * inside[..., None]).reshape(inside.size, CELLS),
            crowds=no_rounds,
            crowds_planned=no_rounds,
        )


@lru_cache(maxsize=1024)
def _batches(steps: tuple[tuple[float, int], ...]) -> Heads:
    """Return the number of batches of a record in turns of such rates and numbers of steps."""
    rates = [np.full(count, rate) for rate, count in steps]
    return Heads.of(np.concatenate(rates)) if rates else NOTHING
