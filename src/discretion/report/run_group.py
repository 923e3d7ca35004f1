"""Groups of runs that differ only in the seed: mean and spread over seeds, and what can be compared."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, reduce
from itertools import cycle, product
from typing import Any, Literal

import numpy as np

from discretion.accounting import Certificate
from discretion.accounting.certificate import share_of
from discretion.arrays import Floats, Ints
from discretion.audit import cautions, statements, verdicts
from discretion.audit.attack import contradictions
from discretion.audit.cautions import Caution
from discretion.errors import InputError
from discretion.methods import METHODS
from discretion.plan.plan import ADVERSARIES, Adversary
from discretion.plan.summary import ends
from discretion.report.chart import SYMBOLS, Style
from discretion.runs.config import Config, roles, unplaced
from discretion.runs.read import Run

Verdict = Literal["within", "over", "contradicted", "none", "broken"]
VERDICTS: dict[Verdict, tuple[str, str]] = {  # kind and words of a mark
    "within": ("good", "within budget"),
    "over": ("bad", "over budget"),
    "contradicted": ("bad", "contradicted by attacks"),
    "none": ("warn", "no privacy"),
    "broken": ("bad", "not certified"),
}
COUNTED: tuple[Verdict, ...] = ("within", "over", "contradicted")  # there are epsilons to show
# runs of one group may differ in these settings; a run that continues another one is in a group of its own
ASIDE = {"seed", *(name for name, role in roles(Config).items() if role != "decides")} - {"after"}
OPTIONS = "plan.options."
COLOURS = 7  # --method-1 … in page.css
DASHES = ("solid", "dashdot", "longdash")  # of the first COLOURS methods, the next, and those after
SECTIONS = ("data", "population", "model")


@dataclass(frozen=True)
class Estimate:
    mean: float
    std: float | None  # sample standard deviation over seeds; None for a single one

    @classmethod
    def of(cls, values: Floats) -> "Estimate":
        spread = np.isfinite(values).all() and len(values) > 1
        return cls(float(np.mean(values)), float(np.std(values, ddof=1)) if spread else None)


@dataclass(frozen=True)
class MeanCurve:
    rounds: Ints  # (E,) evaluated in every run
    mean: Floats  # (E,)
    std: Floats  # (E,) zeros for a single run
    runs: int


@dataclass(frozen=True)
class BudgetClass:
    """Treatment and spending of a budget class; over seeds and members where they differ."""

    name: str
    clients: int
    budget: float  # of the client that spends the largest share of its budget
    spent: float  # by the same client, against whoever sees the released models
    left: float  # over all runs of their ledgers, of budgets as they are now
    against: Mapping[Adversary, float]  # largest epsilon of the class
    rounds: tuple[int, ...]
    curve: Floats  # (E,) epsilon spent after each of `rounds`, largest over seeds
    budgets: tuple[float, ...]  # smallest and largest
    rate: tuple[float, ...] | None  # of secret coins; None where turns are public
    clip: tuple[float, ...] | None  # None for clients that never take part, as the next two
    multiplier: tuple[float, ...] | None
    batch: tuple[float, ...] | None  # chance of a record to be in a step; None where updates are released
    turns: tuple[float, ...]  # rounds that a client is expected to take part in, or turns that it has
    updates: float  # expected of the whole class, in all rounds; mean over seeds
    contradicted: bool  # whether attacks contradict its epsilon

    @property
    def finite(self) -> bool:
        """Whether a share of the budget can be told."""
        return math.isfinite(self.spent) and math.isfinite(self.budget)


@dataclass(frozen=True)
class Group:
    """Runs that differ only in the seed."""

    label: str
    runs: tuple[Run, ...]
    apart: tuple[str, ...]  # why it cannot be compared with the others
    look: Style = Style("--method-none", "", "dash")  # in every chart and table

    @property
    def first(self) -> Run:
        return self.runs[0]

    @property
    def method(self) -> str:
        return self.first.plan.method

    @property
    def title(self) -> str:
        return title(self.method)

    @property
    def idea(self) -> str:
        return METHODS[self.method].idea if self.method in METHODS else ""

    @property
    def paper(self) -> str:
        return METHODS[self.method].paper if self.method in METHODS else ""

    @cached_property
    def counted(self) -> tuple[Run, ...]:
        """The runs in the mean: finished ones, or where there is none those that were evaluated so far."""
        finished = tuple(run for run in self.runs if run.finished)
        return finished or tuple(run for run in self.runs if len(run.history.rounds))

    @property
    def finished(self) -> bool:
        return any(run.finished for run in self.runs)

    @property
    def unfinished(self) -> tuple[Run, ...]:
        return tuple(run for run in self.runs if not run.finished)

    @cached_property
    def curve(self) -> MeanCurve:
        """Accuracy over the rounds that were evaluated in every counted run."""
        histories = [run.history for run in self.counted]
        if not histories:
            return MeanCurve(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0), 0)
        rounds = reduce(np.intersect1d, [history.rounds for history in histories])
        values = np.stack([h.accuracy[np.isin(h.rounds, rounds)] for h in histories])  # (runs, E)
        std = values.std(axis=0, ddof=1) if len(histories) > 1 else np.zeros(len(rounds))
        return MeanCurve(rounds, values.mean(axis=0), std, len(histories))

    @cached_property
    def accuracy(self) -> Estimate | None:
        """At the last round that was evaluated in every counted run."""
        last = [run.history.accuracy[run.history.rounds == self._last] for run in self.counted]
        return Estimate.of(np.concatenate(last)) if self._last else None

    @cached_property
    def loss(self) -> Estimate | None:
        last = [run.history.loss[run.history.rounds == self._last] for run in self.counted]
        return Estimate.of(np.concatenate(last)) if self._last else None

    @property
    def _last(self) -> int:
        return int(self.curve.rounds.max(initial=0))

    @cached_property
    def verdict(self) -> Verdict:
        return worst_verdict(self.runs)

    @cached_property
    def classes(self) -> tuple[BudgetClass, ...]:
        """Strictest first, each with a name of its own."""
        found: dict[str, BudgetClass] = {}
        for k in range(len(self.first.classes[0])):
            made = _budget_class(self.runs, k)
            name = f"{made.name} (class {k + 1})" if made.name in found else made.name
            found[name] = replace(made, name=name)
        return tuple(found.values())

    @cached_property
    def held_to_strictest(self) -> bool:
        """Whether every client is held to the strictest budget, although other clients allow more."""
        strictest = min(float(run.population.epsilon.min()) for run in self.runs)
        most = max(float(run.certificate.spent.max()) for run in self.runs)
        return most <= strictest < max(part.budget for part in self.classes)

    @cached_property
    def cautions(self) -> tuple[Caution, ...]:
        """Warnings, one of each kind, of the first run that has it."""
        found: dict[str, Caution] = {}
        for run in self.runs:
            for caution in cautions.of_run(run):
                found.setdefault(caution.kind, caution)
        return tuple(found.values())

    @cached_property
    def remarks(self) -> tuple[str, ...]:
        """Sentences that a reader must know before using the numbers."""
        found = [f"{run.name}: {run.answered}" for run in self.runs if run.answered]
        found += [f"{run.name}: {run.broken}" for run in self.runs if run.broken]
        found += [f"{run.name}: {said}" for run in self.runs if (said := verdicts.contradicted(run))]
        for words in (statements.paper_mode, statements.reading):
            found += dict.fromkeys(filter(None, (words(run.certificate) for run in self.runs)))
        if any(map(statements.not_private, self.runs)):
            found.append(f"accuracy and loss on {statements.tested(self.runs)}")
        if self.verdict in ("over", "contradicted"):
            found += [_overspending(r) for r in self.runs if len(r.certificate.overspent)]
        if self.unfinished:
            done = ", ".join(f"{r.name} ({r.history.done} of {r.plan.rounds})" for r in self.unfinished)
            used = "not in the mean" if self.finished else "the figures are of the rounds so far"
            found.append(f"unfinished: {done}; {used}")
        return tuple(found)


# of a method: small print beside its name, and the cells of rows, each after the budget class it is of
ClassRows = tuple[Group, str, Sequence[tuple[int | None, list[str]]]]


def verdict(certificates: Sequence[Certificate]) -> Verdict:
    if any(certificate.promises_nothing for certificate in certificates):
        return "none"
    return "over" if any(len(certificate.overspent) for certificate in certificates) else "within"


def worst_verdict(runs: Sequence[Run]) -> Verdict:
    """Return the verdict on runs that differ only in the seed: of the run that keeps least of its promise."""
    if any(run.broken for run in runs):
        return "broken"
    found = verdict([run.certificate for run in runs])
    return "contradicted" if found != "none" and any(map(verdicts.contradicted, runs)) else found


def title(method: str) -> str:
    return METHODS[method].title if method in METHODS else method


def _overspending(run: Run) -> str:
    certificate, over = run.certificate, run.certificate.overspent
    worst = over[int(np.argmax(certificate.spent[over] - certificate.budget[over]))]
    return (
        f"{run.name}: {len(over)} of {len(run.population)} clients over budget, "
        f"worst is client {certificate.clients[worst]}"
    )


def class_name(low: float, high: float) -> str:
    """Return the name of a class whose clients have different budgets."""
    return f"ε {low:.3g} to {high:.3g}".replace("inf", "∞")


def _budget_class(runs: Sequence[Run], k: int) -> BudgetClass:
    spent = np.array([run.spent[k] for run in runs])
    budget = np.array([run.certificate.budget[run.worst[k]] for run in runs])
    top = int(np.argmax(share_of(spent, budget)))
    mine = [run.classes[1] == k for run in runs]
    pairs = list(zip(runs, mine, strict=True))
    treated = [(run.treatment, who) for run, who in pairs]
    batches = [t.batch[:, who] for t, who in treated if t.batch is not None]
    budgets = _ends([run.population.epsilon[who] for run, who in pairs])
    names = {run.classes[0][k] for run in runs}
    return BudgetClass(
        name=names.pop() if len(names) == 1 else class_name(*budgets),
        clients=int(mine[0].sum()),
        budget=float(budget[top]),
        spent=float(spent[top]),
        left=min(float(run.left[k]) for run in runs),
        against={
            who: max(float(run.certificate.epsilon[who][part].max()) for run, part in pairs)
            for who in ADVERSARIES
        },
        rounds=runs[0].certificate.spending.rounds,
        curve=_spending(runs, k),
        budgets=budgets,
        rate=None if treated[0][0].public else ends(np.hstack([t.rate[:, who] for t, who in treated])),
        clip=ends(np.hstack([t.clip[:, who] for t, who in treated])),
        multiplier=ends(np.hstack([t.multiplier[:, who] for t, who in treated])),
        batch=ends(np.hstack(batches)) if batches else None,
        turns=_ends([t.turns[who] for t, who in treated]),
        updates=float(np.mean([t.turns[who].sum() for t, who in treated])),
        contradicted=any(k in contradictions(run) for run in runs),
    )


def _spending(runs: Sequence[Run], k: int) -> Floats:
    """Return the largest epsilon over runs; between two points of a curve the later one holds."""
    curves = [run.certificate.spending for run in runs]
    grid = curves[0].rounds
    if any(k >= len(curve.classes) for curve in curves):
        return np.full(len(grid), np.inf)  # not a certificate of this population: it proves nothing
    return np.asarray(np.max([[curve.after(at)[k] for at in grid] for curve in curves], axis=0))


def _ends(values: Sequence[Floats]) -> tuple[float, float]:
    return min(float(v.min()) for v in values), max(float(v.max()) for v in values)


def setting(run: Run) -> dict[str, Any]:
    """Return the settings that two runs must share to be compared."""
    keys = {key: value for key, value in run.settings.items() if key.split(".")[0] in SECTIONS}
    table = run.population.digest()[:12] if run.config.population.csv else "none"
    return {
        **keys,
        "population (file)": table,
        "population (clients)": len(run.population),
        "population (budget classes)": len(run.classes[0]),
        "plan.rounds": run.plan.rounds,
        "plan.share": run.config.plan.share,
    }


def promised(run: Run) -> dict[str, Any]:
    """Return what an epsilon of the run means: runs to be compared share it, unless one promises nothing."""
    certificate = run.certificate
    if certificate.promises_nothing:
        return {}
    return {
        "unit": certificate.unit,
        "adjacency": certificate.adjacency,
        "promise against": certificate.promise,
        "colluding clients": certificate.colluding,
    }


def _same(run: Run) -> str:
    """Return a key that is equal for runs that differ only in the seed."""
    kept = {key: value for key, value in run.settings.items() if key not in ASIDE}
    return repr((kept, run.plan.method, setting(run)))


def group(runs: Sequence[Run]) -> list[Group]:
    """Return groups of runs: best accuracy first, then unfinished, then incomparable ones."""
    together: dict[str, dict[int, Run]] = {}  # runs that differ only in the seed, by seed
    for run in runs:
        other = together.setdefault(_same(run), {}).setdefault(run.config.seed, run)
        if other is not run:
            raise InputError(
                f"{other.folder} and {run.folder} have the same settings and the same seed "
                f"{run.config.seed}: counting both would make the spread over seeds look smaller "
                "than it is. Leave one of them out."
            )
    members = [tuple(seeds.values()) for seeds in together.values()]
    usual = _most([setting(run) for run in runs])
    promise = _most([promised(run) for run in runs if promised(run) and setting(run) == usual])
    apart = [_differences(setting(first) | promised(first), usual | promise) for first, *_ in members]
    groups = list(map(Group, _labels([first for first, *_ in members]), members, apart))
    looks = _styles(groups)
    return sorted((replace(part, look=looks[part.label]) for part in groups), key=_rank)


def _styles(groups: Sequence[Group]) -> dict[str, Style]:
    """Return a style by label. Colours follow the catalogue of methods, not results; no privacy is grey."""
    order = {name: place for place, name in enumerate(METHODS)}
    ordered = sorted(groups, key=lambda part: (order.get(part.method, len(order)), part.label))
    private = cycle(product(DASHES, range(1, COLOURS + 1)))
    made = {}
    for part, symbol in zip(ordered, cycle(SYMBOLS), strict=False):
        dash, colour = ("dash", "none") if part.verdict == "none" else next(private)
        made[part.label] = Style(f"--method-{colour}", symbol, dash)
    return made


def _rank(part: Group) -> tuple[bool, bool, float]:
    accuracy = part.accuracy.mean if part.accuracy else -1.0
    return bool(part.apart), not part.finished, -accuracy


def _most(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return the most frequent record; the first of them where several are."""
    return max(records, key=records.count, default={})


def _differences(mine: Mapping[str, Any], usual: Mapping[str, Any]) -> tuple[str, ...]:
    """Return why a run is not comparable; what it does not promise is not compared."""
    differing = [key for key in usual if key in mine and mine[key] != usual[key]]
    shown = [(key, unplaced(mine[key]), unplaced(usual[key])) for key in differing]
    return tuple(
        f"{key} is {this}, not {that}" if this != that else f"{key} differs" for key, this, that in shown
    )


def _labels(firsts: Sequence[Run]) -> list[str]:
    """Return a label for each run: the method's title, with the settings in which its runs differ."""
    labels = []
    for run in firsts:
        alike = [other.settings for other in firsts if other.plan.method == run.plan.method]
        keys = [key for key in _varying(alike) if key in run.settings]
        told = [f"{key.removeprefix(OPTIONS)} {unplaced(run.settings[key])}" for key in keys]
        labels.append(", ".join([title(run.plan.method), *told]))
    return [
        label if labels.count(label) == 1 else f"{label} ({run.name})"
        for label, run in zip(labels, firsts, strict=True)
    ]


def comparable(groups: Sequence[Group]) -> list[Group]:
    return [part for part in groups if not part.apart]


def class_names(groups: Sequence[Group]) -> list[str]:
    """Return a name for each budget class of comparable groups: a span where their budgets differ."""
    names = []
    for parts in zip(*(part.classes for part in groups), strict=True):
        budgets = [budget for mine in parts for budget in mine.budgets]
        same = len({mine.name for mine in parts}) == 1
        names.append(parts[0].name if same else class_name(min(budgets), max(budgets)))
    return names


def differing(groups: Sequence[Group]) -> tuple[str, ...]:
    """Return the settings, other than the method, in which comparable groups differ."""
    found = _varying([part.first.settings for part in comparable(groups)])
    return tuple(key for key in found if key not in ("plan.method", "train.accept_no_privacy"))


def _varying(settings: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the settings that may not differ within a group, and are not the same in all of these."""
    keys = dict.fromkeys(key for record in settings for key in record if key not in ASIDE)
    return [key for key in keys if len({repr(record.get(key)) for record in settings}) > 1]
