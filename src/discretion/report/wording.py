"""Words on what was trained and on results: accuracy reached, use of budgets, spread over seeds."""

import math
from collections.abc import Sequence
from datetime import datetime

import numpy as np

from discretion.audit import statements
from discretion.clients.turnout import Turnout
from discretion.report import numbers
from discretion.report.run_group import Estimate, Group, comparable, differing
from discretion.runs.read import Run

FEW = 3  # methods that are named in the title
MOST_NAMED = 4  # methods in the first sentence
ALL_USED = 0.95  # of a budget
ASIDES = {
    "none": " without any privacy",
    "over": " but overspends",
    "contradicted": " but attacks contradict its certificate",
    "broken": " but is not certified",
}


def title(groups: Sequence[Group]) -> str:
    titles = list(dict.fromkeys(part.title for part in comparable(groups)))
    named = numbers.listing(titles) if len(titles) <= FEW else f"{len(titles)} methods"
    return f"{named} on {groups[0].first.about.data}"


def marks(groups: Sequence[Group]) -> list[tuple[str, str]]:
    runs = [run for part in groups for run in part.runs]
    found = [turnout_mark(turnout, run.nobody_trained) for run in runs if (turnout := run.turnout)]
    found = sorted(dict.fromkeys(found))[:MOST_NAMED]  # bad ones first
    if any(part.verdict == "contradicted" for part in groups):
        found.insert(0, ("bad", "contradicted by attacks"))
    found += [("plain", "simulation")] if any(run.simulated for run in runs) else []
    if unfinished := sum(not run.finished for run in runs):
        found.append(("warn", f"{unfinished} of {numbers.count(len(runs), 'run')} unfinished"))
    if any(part.verdict in ("over", "broken") for part in groups):
        found.append(("bad", "a promise does not hold: see the table"))
    return found


def turnout_mark(turnout: Turnout, nobody_trained: bool) -> tuple[str, str]:
    """Return kind and words of a mark on how many clients were there, or that nobody trained."""
    if nobody_trained:
        return "bad", "nobody trained"
    all_there = turnout.there == turnout.expected
    return "plain" if all_there else "warn" if turnout.enough else "bad", turnout.words


def answered(runs: Sequence[Run]) -> str:
    """Return who was there and trained, of the run that says worst of it; nothing where there is none."""
    told = [run for run in runs if run.answered]
    worst = min(told, key=lambda run: (not run.nobody_trained, _there(run), run.name), default=None)
    if worst is None:
        return ""
    return f"{worst.name}: {worst.answered}" if len(runs) > 1 else worst.answered


def _there(run: Run) -> float:
    return run.turnout.share if run.turnout else 1.0


def deltas(runs: Sequence[Run]) -> str:
    everyone = np.concatenate([run.certificate.delta for run in runs])
    ends = dict.fromkeys((float(everyone.min()), float(everyone.max())))
    return " to ".join(map(numbers.power, ends))


def seeds(runs: Sequence[Run]) -> str:
    found = sorted({run.config.seed for run in runs})
    if len(found) == 1:
        return f"seed {found[0]}"
    consecutive = len(found) > 2 and found[-1] - found[0] == len(found) - 1
    return "seeds " + (f"{found[0]} to {found[-1]}" if consecutive else numbers.listing(map(str, found)))


def sizes(runs: Sequence[Run]) -> str:
    everyone = np.concatenate([run.population.size for run in runs])
    low, high = int(everyone.min()), int(everyone.max())
    return numbers.count(high, "record") if low == high else f"{low:,} to {high:,} records"


def score(accuracy: Estimate, decimals: int = 1) -> str:
    spread = "" if accuracy.std is None else f" ± {100 * accuracy.std:.{decimals}f}"
    return f"{100 * accuracy.mean:.{decimals}f}{spread}{numbers.SPACE}%"


def loss(part: Group) -> str:
    if part.loss is None:
        return "–"
    if not math.isfinite(part.loss.mean):
        return "diverged"
    return f"{part.loss.mean:.3f}" + (f" ± {part.loss.std:.3f}" if part.loss.std is not None else "")


def result(groups: Sequence[Group]) -> str:
    """Return who answered, then one or two sentences, the best method that kept every budget first."""
    told = answered([run for part in groups for run in part.runs])
    return " ".join(filter(None, (told, _result(groups))))


def _result(groups: Sequence[Group]) -> str:
    scored = [part for part in groups if not part.apart and part.accuracy]
    done = [part for part in scored if part.finished]
    if not scored:
        return "No run has been evaluated yet."
    if not done:
        return "No run is finished yet. So far: " + "; ".join(_reached(p) for p in scored) + "."
    kept = [part for part in done if part.verdict == "within"]
    others = [part for part in done if part.verdict != "within"]
    first = [f"{_reached(kept[0])} with every client within its own budget"] if kept else []
    named = first + [_reached(part) + _aside(part) for part in [*kept[1:], *others]]
    more = len(named) - MOST_NAMED
    sentence = "; ".join(named[:MOST_NAMED]) + (f"; {more} more in the table." if more > 0 else ".")
    return sentence + _caution(kept)


def _reached(part: Group) -> str:
    value = numbers.percent(part.accuracy.mean) if part.accuracy else "nothing yet"
    return f"{part.label} reached {value}"


def _aside(part: Group) -> str:
    strictest = ", with everyone held to the strictest budget" if part.held_to_strictest else ""
    return ASIDES.get(part.verdict, strictest)


def _caution(kept: Sequence[Group]) -> str:
    """Return a caution where the first method's lead over the second may be chance."""
    if len(kept) < 2 or not (kept[0].accuracy and kept[1].accuracy):
        return ""
    best, second = kept[0].accuracy, kept[1].accuracy
    if best.std is None or second.std is None:
        return " With one seed each, how much of the difference is chance is not known."
    if best.mean - second.mean < best.std + second.std:
        return " The first two differ by no more than their spread over seeds."
    return ""


def averaging(groups: Sequence[Group]) -> str:
    counts = sorted({len(part.counted) for part in groups if part.counted})
    if not counts or counts == [1]:
        return "One seed only, so no spread is known."
    seeds = f"{counts[0]}" if len(counts) == 1 else f"{counts[0]} to {counts[-1]}"
    return f"Mean ± sample standard deviation over {seeds} seeds."


def notes(groups: Sequence[Group]) -> list[str]:
    """Return sentences on the table of methods."""
    found = [
        averaging(groups),
        f"Accuracy and loss on {statements.tested([part.first for part in groups])}.",
        "Spent is rounded up; in each class it is that of the client that uses most of its budget.",
    ]
    if len(comparable(groups)) > 1:
        same = "Apart from the method, all settings are the same."
        keys = differing(groups)
        found.append(f"The methods also differ in {numbers.listing(keys)}." if keys else same)
    return found


def use_of_budgets(part: Group) -> str:
    """Return one sentence on which budget classes use their budgets under this method."""
    shares = {mine.name: mine.spent / mine.budget for mine in part.classes if mine.finite}
    if not shares:
        return ""
    least, most = (end(shares, key=shares.__getitem__) for end in (min, max))
    low, high = shares[least], shares[most]
    if part.verdict == "over":
        return f"{part.label} overspends: in class {most} up to {at_most(high)} of the budget."
    if part.held_to_strictest:
        rest = f"class {least} uses {at_most(low)} of what it allows"
        return f"{part.label} holds everyone to the strictest budget: {rest}."
    if low >= ALL_USED:
        return f"{part.label} lets every class use its own budget: {at_least(low)} of it or more."
    return f"{part.label} uses from {at_least(low)} to {at_most(high)} of the classes’ budgets."


def at_most(share: float) -> str:
    return f"{math.ceil(1000 * share) / 10:g}{numbers.SPACE}%"


def at_least(share: float) -> str:
    return f"{math.floor(1000 * share) / 10:g}{numbers.SPACE}%"


def when(groups: Sequence[Group]) -> str:
    moments = sorted(run.about.created for part in groups for run in part.runs)
    days = [_day(moment) for moment in (moments[0], moments[-1])]
    return days[0] if days[0] == days[1] else f"{days[0]} to {days[1]}"


def _day(moment: str) -> str:
    try:
        found = datetime.fromisoformat(moment)
    except ValueError:
        return moment
    return f"{found.day} {found:%B %Y}"
