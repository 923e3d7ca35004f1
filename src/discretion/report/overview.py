"""First half of the report: what was trained, which method did best, and what it cost whom."""

from collections.abc import Sequence

import numpy as np

from discretion.accounting import Certificate
from discretion.audit import statements
from discretion.report import numbers, wording
from discretion.report.run_group import Group, Verdict, comparable, differing
from discretion.runs.read import Run

VERDICTS = {
    "within": ("good", "within budget"),
    "over": ("bad", "over budget"),
    "none": ("warn", "no privacy"),
    "broken": ("bad", "not certified"),
}


def verdict(certificate: Certificate) -> Verdict:
    if certificate.promises_nothing:
        return "none"
    return "over" if len(certificate.overspent) else "within"


def marks(groups: Sequence[Group]) -> list[tuple[str, str]]:
    runs = [run for part in groups for run in part.runs]
    found = [("plain", "simulation")] if any(run.simulated for run in runs) else []
    if unfinished := sum(not run.finished for run in runs):
        found.append(("warn", f"{unfinished} of {numbers.count(len(runs), 'run')} unfinished"))
    if any(part.verdict in ("over", "broken") for part in groups):
        found.append(("bad", "a promise does not hold: see the table"))
    return found


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


def notes(groups: Sequence[Group]) -> list[str]:
    """Return sentences on the table of methods."""
    found = [
        wording.averaging(groups),
        f"Accuracy and loss on {statements.tested([part.first for part in groups])}.",
        "Spent is rounded up; in each class it is that of the client that uses most of its budget.",
    ]
    if len(comparable(groups)) > 1:
        same = "Apart from the method, all settings are the same."
        keys = differing(groups)
        found.append(f"The methods also differ in {numbers.listing(keys)}." if keys else same)
    return found
