"""Which runs belong together, which of them can be compared, and how they are told apart."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from discretion.config import ClientsConfig, TrackConfig, unplaced
from discretion.errors import InputError
from discretion.report.groups import Group, class_name, title
from discretion.report.reading import Run

# runs of one experiment may differ in these: they change nothing that the setting says
PLACES = {f"clients.{name}" for name in ClientsConfig.model_fields}
PLACES |= {f"track.{name}" for name in TrackConfig.model_fields}
ASIDE = frozenset({"seed", "ledger", "train.device", "train.threads", "train.workers"} | PLACES)
OPTIONS = "plan.options."
SECTIONS = ("data", "population", "model")


def setting(run: Run) -> dict[str, Any]:
    """What two runs must share to be compared."""
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
    """What an epsilon of the run means; two runs must share this, too, unless one promises nothing."""
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
    """Equal for runs that differ only in the seed."""
    kept = {key: value for key, value in run.settings.items() if key not in ASIDE}
    return repr((kept, run.plan.method, setting(run)))


def group(runs: Sequence[Run]) -> list[Group]:
    """Groups of runs, best accuracy first; then what is not finished, then what is not comparable."""
    together: dict[str, list[Run]] = {}
    for run in runs:
        together.setdefault(_same(run), []).append(run)
    for members in together.values():
        _refuse_repeats(members)
    usual = _most([setting(run) for run in runs])
    promise = _most([promised(run) for run in runs if promised(run) and setting(run) == usual])
    labels = _labels([members[0] for members in together.values()])
    groups = [
        Group(label, tuple(members), _apart(members[0], usual, promise))
        for label, members in zip(labels, together.values(), strict=True)
    ]
    return sorted(groups, key=_rank)


def _refuse_repeats(runs: Sequence[Run]) -> None:
    seen: dict[int, Run] = {}
    for run in runs:
        other = seen.setdefault(run.config.seed, run)
        if other is not run:
            raise InputError(
                f"{other.folder} and {run.folder} have the same settings and the same seed "
                f"{run.config.seed}: counting both would make the spread over seeds look smaller "
                "than it is. Leave one of them out."
            )


def _rank(part: Group) -> tuple[bool, bool, float]:
    accuracy = part.accuracy.mean if part.accuracy else -1.0
    return bool(part.apart), not part.finished, -accuracy


def _most(records: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """What most of them are; the first of these."""
    if not records:
        return {}
    common = Counter(map(repr, records)).most_common(1)[0][0]
    return next(record for record in records if repr(record) == common)


def _apart(run: Run, usual: Mapping[str, Any], promise: Mapping[str, Any]) -> tuple[str, ...]:
    mine = promised(run)
    return _differences(setting(run), usual) + (_differences(mine, promise) if mine else ())


def _differences(mine: Mapping[str, Any], usual: Mapping[str, Any]) -> tuple[str, ...]:
    differing = [key for key in usual if mine[key] != usual[key]]
    shown = [(key, unplaced(mine[key]), unplaced(usual[key])) for key in differing]
    return tuple(
        f"{key} is {this}, not {that}" if this != that else f"{key} differs" for key, this, that in shown
    )


def _labels(firsts: Sequence[Run]) -> list[str]:
    """A method's title, and where it comes more than once the settings that tell which is which."""
    labels = []
    for run in firsts:
        method = run.plan.method
        alike = [other.settings for other in firsts if other.plan.method == method]
        keys = [
            key
            for key in dict.fromkeys(key for settings in alike for key in settings)
            if key not in ASIDE and len({repr(settings.get(key)) for settings in alike}) > 1
        ]
        told = [
            f"{key.removeprefix(OPTIONS)} {unplaced(run.settings[key])}"
            for key in keys
            if key in run.settings
        ]
        labels.append(", ".join([title(method), *told]))
    return [
        label if labels.count(label) == 1 else f"{label} ({run.name})"
        for label, run in zip(labels, firsts, strict=True)
    ]


def comparable(groups: Sequence[Group]) -> list[Group]:
    return [part for part in groups if not part.apart]


def class_names(groups: Sequence[Group]) -> list[str]:
    """A name for each budget class of comparable groups: over all of them where they differ."""
    names = []
    for parts in zip(*(part.classes for part in groups), strict=True):
        low = min(mine.budgets[0] for mine in parts)
        high = max(mine.budgets[1] for mine in parts)
        same = len({mine.name for mine in parts}) == 1
        names.append(parts[0].name if same else class_name(low, high))
    return names


def differing(groups: Sequence[Group]) -> tuple[str, ...]:
    """Settings, other than the method, in which comparable groups differ."""
    settings = [part.first.settings for part in comparable(groups)]
    keys = dict.fromkeys(key for record in settings for key in record)
    aside = ASIDE | {"plan.method", "train.accept_no_privacy"}
    return tuple(
        key for key in keys if key not in aside and len({repr(record.get(key)) for record in settings}) > 1
    )
