"""The canary game for plans that protect records: canaries are records, trained by the real engine.

Every record has a feature of its own, so large that its gradient is clipped. The learning rate is so small
that the model, and with it the direction of each gradient, hardly changes. What a client sends then has a
component for each record: the number of batches that the record was in, and noise.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from scipy import stats
from scipy.special import logsumexp
from torch import nn

from discretion.accounting.certificate import worst_of
from discretion.arrays import Floats, Ints
from discretion.audit.canaries import BLOCKS, FAR, Bools, Trials
from discretion.clients.local_clients import LocalClients
from discretion.clients.training import LocalTraining
from discretion.plan.phase import FLAT, Phase
from discretion.plan.plan import Plan
from discretion.plan.selection_rules import Reading
from discretion.randomness.streams import Purpose, stream
from discretion.tasks.datasets import Dataset, Split
from discretion.tasks.partitions import Partition
from discretion.training.loop import State, next_state
from discretion.training.orders import Clients, Order, Statistics, Updates

RECORDS = 128  # canaries of a client
STILL = 1e-4  # largest change of a record's score by all of the training


class _Watched:
    """Clients whose answers are looked at as they leave."""

    def __init__(self, clients: Clients) -> None:
        self._clients = clients
        self.left: list[tuple[int, Floats]] = []  # client and update

    def updates(self, order: Order) -> Iterator[Updates]:
        for part in self._clients.updates(order):
            self.left += zip(part.clients.tolist(), part.change.astype(np.float64), strict=True)
            yield part

    def statistics(self, order: Order, reading: Reading) -> Statistics:
        return self._clients.statistics(order, reading)


@dataclass(frozen=True)
class RecordGame:
    """A plan and the clients whose records are canaries: in each budget class, the one that spends most."""

    plan: Plan
    client: Ints  # (C,)
    group: Ints  # (C,) budget class
    each: ClassVar[int] = RECORDS  # trials of each client that plays
    enough: ClassVar[int] = 60_000  # trials of a class that usually suffice: only sums of steps are seen

    @classmethod
    def of(cls, plan: Plan, epsilon: Floats, member: Ints) -> "RecordGame":
        """Choose a client of each class of (N,) `member`: that of the largest (N,) `epsilon`, if finite."""
        worst = worst_of(member, np.where(np.isfinite(epsilon), epsilon, -1.0))
        fine = np.isfinite(epsilon[worst]) & (epsilon[worst] > 0)
        plan = replace(plan, clipping=FLAT)  # the model of the game has one layer
        return cls(plan, worst[fine], member[worst[fine]])

    @cached_property
    def _longest(self) -> float:
        return float(max(phase.clip[self.client].max() for phase in self.plan.phases))

    @cached_property
    def _dataset(self) -> Dataset:
        each = 2 * FAR * self._longest * np.eye(RECORDS, dtype=np.float32)
        inputs = np.tile(each, (len(self.client), 1))
        split = Split(inputs, np.zeros(len(inputs), dtype=np.int64))
        return Dataset("canaries", split, Split(inputs[:1], split.labels[:1]), 2, "tabular", "made up")

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

    def play(self, number: int, seed: int) -> Trials:
        """Play the plan once, and return what was seen."""
        plan, coins = self.plan, stream(seed, Purpose.AUDIT, number)
        inside = coins.random((len(self.client), RECORDS)) < 0.5
        clients = _Watched(self._clients(inside))
        state = State.start(np.zeros(2 * RECORDS, np.float32))
        blocks = min(BLOCKS, plan.rounds)
        seen = np.zeros((*inside.shape, blocks, 2))
        loudest = np.zeros(inside.shape)
        squares, turns = np.zeros(inside.shape), np.zeros(inside.shape, dtype=np.int64)
        own_seed = seed if plan.randomness == "seeded" else None
        for round_ in range(1, plan.rounds + 1):
            phase = plan.phases[plan.phase_of(round_)]
            state = next_state(plan, clients, state, run=f"audit {number}", seed=own_seed)
            for who, change in clients.left:
                for c in np.flatnonzero(self.client == who):
                    value, std, ratio = self._look(phase, int(who), int(inside[c].sum()), change)
                    seen[c, :, (round_ - 1) * blocks // plan.rounds] += np.stack([value, ratio], axis=1)
                    squares[c] += (value / std) ** 2
                    loudest[c] = np.maximum(loudest[c], inside[c] * (value - phase.steps) / std)
                    turns[c] += 1
            clients.left.clear()
        none, no_rounds = np.zeros(inside.size, dtype=np.int64), np.zeros(1, dtype=np.int64)
        return Trials(
            game=np.full(inside.size, number),
            group=np.repeat(self.group, RECORDS),
            inside=inside.ravel(),
            likelihood=seen[..., 1].sum(axis=-1).ravel(),
            seen=seen.reshape(inside.size, -1),
            releases=turns.ravel(),
            quiet=(turns * ~inside).ravel(),
            squares=(squares * ~inside).ravel(),
            loudest=loudest.ravel(),
            asked=none,  # coins choose batches, inside the client
            flips=none,
            expected=none.astype(np.float64),
            usual=no_rounds,
            coins=no_rounds,
            planned=no_rounds.astype(np.float64),
        )

    def _clients(self, inside: Bools) -> LocalClients:
        start = np.zeros(len(self.plan.clients) + 1, dtype=np.int64)
        start[self.client + 1] = inside.sum(axis=1)
        order = np.argsort(self.client)
        index = np.concatenate([np.flatnonzero(inside[c]) + c * RECORDS for c in order])
        local = LocalTraining(learning_rate=self._learning_rate)
        model = nn.Sequential(nn.Linear(RECORDS, 2, bias=False))
        held = Partition(index, np.cumsum(start))
        return LocalClients(self._dataset, held, model, local, device="cpu", workers=1)

    def _look(self, phase: Phase, who: int, records: int, change: Floats) -> tuple[Floats, float, Floats]:
        """Return what a client sent along each record, in clips, its noise, and (RECORDS,) log ratios."""
        assert phase.batch is not None
        batch, clip, steps = float(phase.batch[who]), float(phase.clip[who]), phase.steps
        other, right = -change.reshape(2, RECORDS)[[1, 0]] * batch * records / self._learning_rate
        value = (other - right) / np.sqrt(2) / clip
        std = float(phase.noise[phase.pool[who]] / clip * np.sqrt(steps))
        times = np.arange(steps + 1)[:, None]
        grown = stats.binom.logpmf(times, steps, batch) + (value * times - times**2 / 2) / std**2
        return value, std, logsumexp(grown, axis=0)
