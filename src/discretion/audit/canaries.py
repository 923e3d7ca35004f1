"""The canary game: play a plan with clients whose updates an attacker knows, and write down what it sees.

A canary is a client of the plan that sends nothing but its own direction, much longer than its clip. Whether
it is in the game is decided by a fair coin; a canary that is out sends zeros, which is the same to every sum
as not being there. The plan is executed by the real loop, with the real sampler, clipping and noise, on a
model that has just enough parameters; no data is needed.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, fields, replace
from functools import cached_property
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtri

from discretion.arrays import Floats, Ints
from discretion.plan.grid import Grid
from discretion.plan.phase import Phase
from discretion.plan.plan import Adversary, Plan
from discretion.plan.selection_rules import Reading
from discretion.randomness.streams import Purpose, stream
from discretion.training.loop import State, next_state
from discretion.training.orders import Order, Statistics, Updates
from discretion.training.release import merged
from discretion.training.server_update import PLAIN, Server

FAR = 100.0  # length of a canary's update, in clips
MOST_CANARIES = 64  # of a budget class
MOST_KINDS = 8  # clients of a class that a plan treats differently
BLOCKS = 24  # stretches of rounds that an attacker sums up
POOLS = 3  # sums that an attacker looks at, those of the canary's own pool included
MOST_RATES = 512  # different rates of clients for which the number of clients asked is looked at
MIDDLE = (0.25, 0.75)  # quantiles of that number between which it is usual
FEATURES = POOLS + 2  # numbers that an attacker learns from, for each stretch
Bools = NDArray[np.bool_]


@dataclass(frozen=True)
class Canaries:
    """The clients of a plan that play canaries. The direction of each is one coordinate of every layer."""

    client: Ints  # (C,) numbers in the plan
    group: Ints  # (C,) budget class
    layers: int  # L

    @classmethod
    def of(cls, plan: Plan, epsilon: Floats, member: Ints) -> "Canaries":
        """Choose canaries in each class of (N,) `member`, those of the largest (N,) `epsilon` first."""
        chosen = []
        for k in np.unique(member):
            mine = np.flatnonzero((member == k) & np.isfinite(epsilon) & (epsilon > 0))
            mine = mine[np.argsort(-epsilon[mine], kind="stable")]
            kind = plan.classes[mine]
            first = np.sort(np.unique(kind, return_index=True)[1])[:MOST_KINDS]
            chosen.append(mine[np.isin(kind, kind[first])][:MOST_CANARIES])
        client = np.concatenate(chosen)
        return cls(client, member[client], max(len(plan.clipping.layers), 1))

    @property
    def size(self) -> int:
        """Number of parameters of the model."""
        return self.layers * len(self.client)

    def along(self, vectors: Floats) -> Floats:
        """Return (…, C) the components of (…, size) vectors along the canaries' directions."""
        by_layer = vectors.reshape(*vectors.shape[:-1], self.layers, len(self.client))
        return np.asarray(by_layer.sum(axis=-2) / np.sqrt(self.layers))

    def played(self, plan: Plan) -> Plan:
        """Return the plan for a model of `size` parameters, which changes neither rates, clips nor noise."""
        layers = (len(self.client),) * len(plan.clipping.layers)
        grid = Grid(plan.grid.step, self.size) if plan.grid else None
        return replace(plan, clipping=replace(plan.clipping, layers=layers), grid=grid)


class _CanaryClients:
    """The clients of one game: canaries send their directions, the others zeros."""

    def __init__(self, canaries: Canaries, clients: int, inside: Bools, exchanged: bool) -> None:
        self._canaries = canaries
        self._number = np.full(clients, -1)
        self._number[canaries.client] = np.arange(len(canaries.client))
        # under replace adjacency a canary that is out is another one in its place, with the opposite update
        self.sent = np.where(inside, 1.0, -1.0 if exchanged else 0.0)
        self.length = 0.0  # of an update, with the sign of this round
        self.asked = np.zeros(0, dtype=np.int64)

    def updates(self, order: Order) -> Iterator[Updates]:
        self.asked = order.clients
        number = self._number[order.clients]
        row = np.flatnonzero(number >= 0)
        layers = self._canaries.layers
        change = np.zeros((len(number), layers, len(self._canaries.client)), np.float32)
        change[row, :, number[row]] = (self.length * layers**-0.5 * self.sent[number[row]])[:, None]
        yield Updates(order.clients, change.reshape(len(number), self._canaries.size))

    def statistics(self, order: Order, reading: Reading) -> Statistics:
        raise AssertionError("a game of canaries has no data to be read")


@dataclass(frozen=True)
class Trials:
    """What was seen of canaries, with a row for each canary and game (n) or for each game (g)."""

    game: Ints  # (n,)
    group: Ints  # (n,) the canary's budget class
    inside: Bools  # (n,) whether the canary was in the game
    likelihood: Floats  # (n,) log-likelihood ratio of what was released, if all is as planned
    seen: Floats  # (n, F) everything else that may tell, by stretches of rounds
    releases: Ints  # (n,) number of releases that had noise
    quiet: Ints  # (n,) number of those that had nothing but noise
    squares: Floats  # (n,) squares of that noise over its planned variance, summed up
    loudest: (
        Floats  # (n,) most that a sum moved beyond the canary's clip, in standard deviations of the noise
    )
    asked: Ints  # (n,) how often the canary was asked, beyond its public turns
    flips: Ints  # (n,) number of secret coins that decided it
    expected: Floats  # (n,) how often by the plan
    usual: Ints  # (g,) rounds in which the number of clients asked was in its usual range
    coins: Ints  # (g,) rounds with secret coins
    planned: Floats  # (g,) how many of those would be usual by the plan

    @classmethod
    def together(cls, games: Iterable["Trials"]) -> "Trials":
        found = list(games)
        return cls(*(np.concatenate([getattr(each, f.name) for each in found]) for f in fields(cls)))

    def of(self, group: int) -> "Trials":
        """Return the rows of one budget class."""
        mine = self.group == group
        rows = {f.name: getattr(self, f.name) for f in fields(self)}
        return Trials(**{name: x[mine] if len(x) == len(mine) else x for name, x in rows.items()})


@dataclass(frozen=True)
class _Release:
    """What a round of one phase releases about each of the C canaries, by the plan and at scale 1."""

    row: Ints  # (C,) the sum that has the canary's updates
    reach: Floats  # (C,) how far one update moves that sum
    std: Floats  # (C,) of the noise of that sum; 0: nothing is released
    known: Floats  # (C,) share of the noise's variance that the adversary knows
    turns: Ints  # (C,) public turns
    rate: Floats  # (C,) of a secret coin; 0 where turns are public
    surprise: Bools  # (C,) whether the adversary does not know whom the coins chose
    others: Ints  # (POOLS - 1, C) other sums to look at
    usual: tuple[int, int]  # least and largest usual number of clients asked
    chance: float  # of a usual number; 0: there are no secret coins

    @classmethod
    def of(cls, plan: Plan, phase: Phase, who: Ints, adversary: Adversary) -> "_Release":
        one = merged(plan, phase)
        row = np.zeros_like(who) if one else phase.pool[who]
        noise = phase.noise * np.sqrt(phase.pool_releases)
        std = np.full(len(who), np.linalg.norm(phase.weight * noise)) if one else noise[row]
        reach = phase.clip[who] * (phase.weight[phase.pool[who]] if one else 1.0)
        plain = replace(plan, clipping=replace(plan.clipping, quantile=None))
        rate, multiplier = (column[who] for column in plain.view(phase, adversary))
        with np.errstate(divide="ignore", invalid="ignore"):
            secret = (multiplier * plain.sensitivity(phase)[who] / phase.noise[phase.pool[who]]) ** 2
        moves = (reach != 0) & (std > 0) & (phase.expected[who] > 0)
        known = np.where(moves, np.clip(1 - np.where(moves, secret, 0.0), 0.0, 1.0), 0.0)
        coins = phase.rate if phase.turns is None else np.zeros(len(phase.rate))
        low, high, chance = _usual(coins) if plan.sampling == "poisson" else (0, 0, 0.0)
        sums = 1 if one else len(phase.noise)
        return cls(
            row=row,
            reach=reach,
            std=np.where(moves, std, 0.0),
            known=known,
            turns=(np.zeros_like(phase.pool) if phase.turns is None else phase.turns)[who],
            rate=coins[who],
            surprise=(rate < 1) | (plan.sampling == "fixed_size"),
            others=(row + np.arange(1, POOLS)[:, None]) % sums,
            usual=(low, high),
            chance=chance,
        )

    def log_ratio(self, value: Floats, asked: Ints, spread: Floats, exchanged: bool) -> Floats:
        """Return (C,) log-likelihood ratios of (C,) values with noise of (C,) `spread`: in against out."""
        if exchanged:
            return 2 * asked * value / spread**2
        known = asked * (value - asked / 2) / spread**2
        with np.errstate(divide="ignore"):
            coin = np.logaddexp(np.log1p(-self.rate), np.log(self.rate) + (value - 0.5) / spread**2)
        return np.where(self.surprise & (self.rate > 0) & (self.rate < 1), coin, known)


def _usual(rate: Floats) -> tuple[int, int, float]:
    """Return the middle range of the number of heads of coins with (N,) rates, and the range's chance."""
    different, count = np.unique(rate, return_counts=True)
    if not ((rate > 0) & (rate < 1)).any() or len(different) > MOST_RATES:
        return 0, 0, 0.0
    turn = np.exp(-2j * np.pi * np.arange(len(rate) + 1) / (len(rate) + 1))
    spectrum = np.ones_like(turn)
    for value, times in zip(different, count.tolist(), strict=True):
        spectrum *= (1 + value * (turn - 1)) ** times
    chance = np.maximum(np.fft.ifft(spectrum).real, 0.0)
    low, high = np.searchsorted(np.cumsum(chance), MIDDLE).tolist()
    return low, high, float(min(chance[low : high + 1].sum(), 1.0))


@dataclass(frozen=True)
class ClientGame:
    """A plan, its canaries, and the adversary that looks."""

    plan: Plan
    canaries: Canaries
    adversary: Adversary
    server: Server = PLAIN
    each: ClassVar[int] = 1  # trials of each client that plays
    enough: ClassVar[int] = 30_000  # trials of a class that usually suffice

    @property
    def client(self) -> Ints:
        return self.canaries.client

    @property
    def group(self) -> Ints:
        return self.canaries.group

    def play(self, number: int, seed: int) -> Trials:
        """Play the plan once, and return what was seen."""
        plan, canaries = self._played, self.canaries
        coins = stream(seed, Purpose.AUDIT, number)
        inside = coins.random(len(canaries.client)) < 0.5
        clients = _CanaryClients(canaries, len(plan.clients), inside, plan.adjacency == "replace")
        state, tape = State.start(np.zeros(canaries.size, np.float32)), _Tape(len(inside), plan.rounds)
        released: list[Floats] = []
        run, own_seed = f"audit {number}", seed if plan.randomness == "seeded" else None
        for round_ in range(1, plan.rounds + 1):
            before, phase = state, plan.phase_of(round_)
            sign = (-1.0) ** round_.bit_count()  # if two rounds had the same noise, it would cancel out
            clients.length = sign * FAR * self._longest * before.scale
            state = next_state(
                plan, clients, before, run=run, seed=own_seed, server=self.server, observe=released.append
            )
            sums = sign / before.scale * canaries.along(released.pop())
            moved = (
                sign * canaries.along((state.model - before.model).astype(np.float64)) * self._each_by_itself
            )
            self._look(tape, self._releases[phase], clients, sums, moved, coins.random(len(inside)))
        return tape.trials(number, canaries.group, inside, plan.adjacency == "replace")

    @cached_property
    def _played(self) -> Plan:
        return self.canaries.played(self.plan)

    @cached_property
    def _releases(self) -> list[_Release]:
        return [_Release.of(self._played, p, self.canaries.client, self.adversary) for p in self.plan.phases]

    @cached_property
    def _longest(self) -> float:
        return float(max(phase.clip[self.canaries.client].max() for phase in self.plan.phases))

    @property
    def _each_by_itself(self) -> bool:
        """Whether each coordinate of the model moves by itself: otherwise canaries are not independent."""
        plain = self.plan.combine.rule == "sum" and self.plan.clipping.quantile is None
        return plain and self.server.adaptive == 0

    def _look(
        self,
        tape: "_Tape",
        release: _Release,
        clients: _CanaryClients,
        sums: Floats,
        moved: Floats,
        luck: Floats,
    ) -> None:
        """Write down one round: (P, C) sums and (C,) moves of the model along the canaries' directions."""
        every, shown = np.arange(len(luck)), release.std > 0
        reach, std = np.where(shown, release.reach, 1.0), np.where(shown, release.std, 1.0)
        asked = np.bincount(clients.asked, minlength=len(self.plan.clients))[self.canaries.client]
        value = sums[release.row, every] / reach
        noise = (value - clients.sent * asked) * reach / std
        # what the adversary knows of the noise, drawn given all of it, is taken away
        known = release.known
        value -= (known * noise + np.sqrt(known * (1 - known)) * ndtri(luck)) * std / reach
        spread = std / np.abs(reach) * np.sqrt(1 - known)
        ratio = release.log_ratio(value, asked, spread, self.plan.adjacency == "replace")
        others = sums[release.others, every] / reach
        tape.write(release, np.stack([value, ratio, *others, moved], axis=1), noise, asked)
        tape.loudest = np.maximum(tape.loudest, noise * clients.sent * np.sign(reach) * shown)
        tape.usual += release.usual[0] <= len(clients.asked) <= release.usual[1] and release.chance > 0


class _Tape:
    """What was seen of one game so far, added up."""

    def __init__(self, canaries: int, rounds: int) -> None:
        self._round, self._rounds, self._blocks = 0, rounds, min(BLOCKS, rounds)
        self.seen = np.zeros((canaries, self._blocks, FEATURES))
        self.likelihood, self.squares, self.expected = (np.zeros(canaries) for _ in range(3))
        self.releases, self.asked, self.flips = (np.zeros(canaries, dtype=np.int64) for _ in range(3))
        self.loudest = np.zeros(canaries)
        self.usual, self.coins, self.planned = 0, 0, 0.0

    def write(self, release: _Release, columns: Floats, noise: Floats, asked: Ints) -> None:
        """Add a round: (C, FEATURES) numbers to learn from, (C,) noise, and (C,) how often who was asked."""
        shown, by_coin = release.std > 0, (release.rate > 0) & (release.rate < 1)
        self.seen[:, self._round * self._blocks // self._rounds] += columns * shown[:, None]
        self.likelihood += columns[:, 1] * shown
        self.squares += np.square(noise) * shown
        self.releases += shown
        self.asked += asked - release.turns - (release.rate == 1)
        self.flips += by_coin
        self.expected += release.rate * by_coin
        self.coins += release.chance > 0
        self.planned += release.chance
        self._round += 1

    def trials(self, game: int, group: Ints, inside: Bools, exchanged: bool) -> Trials:
        alone = (
            ~inside | exchanged
        )  # of a canary that sends nothing, what is seen is noise, whatever is wrong
        return Trials(
            game=np.full(len(inside), game),
            group=group,
            inside=inside,
            likelihood=self.likelihood,
            seen=self.seen.reshape(len(inside), -1),
            releases=self.releases,
            quiet=self.releases * alone,
            squares=self.squares * alone,
            loudest=self.loudest,
            asked=self.asked,
            flips=self.flips,
            expected=self.expected,
            usual=np.array([self.usual]),
            coins=np.array([self.coins]),
            planned=np.array([self.planned]),
        )
