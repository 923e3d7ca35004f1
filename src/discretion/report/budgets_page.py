"""HTML pages on lifetime budgets: one for the operator with every account, one for others without names."""

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass

from discretion.ledger.lifetime import Lifetime
from discretion.report import budget_tables as tables
from discretion.report import numbers, page, public_budgets
from discretion.report.budget_tables import Account, ClassRow, RunRow, Source
from discretion.report.chart import Chart, Series, Style, categories, linear

MOST_ROWS = 50  # clients that are on the page before anything is asked for
MOST_RUNS = 20  # in a table or a chart, the last ones
MOST_LINKS = 4  # to ledgers, in the navigation
TENTHS = 10
SPENT, PROMISED = Style("--method-2", "", "solid"), Style("--method-1", "", "solid")
ROOM_BADGES = {"whole": "good", "part": "warn", "none": "bad", "not in it": "plain"}


@dataclass(frozen=True)
class LedgerPart:
    """What a page shows of one ledger."""

    anchor: str
    source: Source
    accounts: Sequence[Account]
    classes: Sequence[ClassRow]
    runs: Sequence[RunRow]  # the last ones
    again: str

    @property
    def charts(self) -> list[tuple[str, str, Chart]]:
        """Name, description and chart: by client of many, by run of a single one."""
        if len(self.accounts) > 1:
            found = [("clients", "Clients by the share of the budget that is spent", _spread(self.accounts))]
            if finite := [row for row in self.classes if math.isfinite(row.share)]:
                found.append(("classes", "Largest share of a budget spent, by class", _of_classes(finite)))
            return found
        drawn = [row for row in reversed(self.runs) if math.isfinite(row.planned)]
        return [("runs", "Epsilon of each run, as if it were the only one", _of_runs(drawn))] if drawn else []


def render(sources: Sequence[Source], threshold: float = tables.NEAR) -> str:
    """Return the operator's page on these ledgers: it names every client."""
    parts = [_part(number, source, threshold) for number, source in enumerate(sources, 1)]
    everybody = tables.urgent(each for part in parts for each in part.accounts)
    near = tables.alerts(everybody, threshold)
    links = {part.anchor: part.source.name for part in parts}
    if len(links) > MOST_LINKS:
        links = {parts[0].anchor: f"{len(parts)} ledgers"}
    return page.render(
        "budgets.html",
        "Privacy budgets",
        {"budgets": "Budgets", **links, "clients": "Clients"},
        style=page.asset(__package__, "budgets.css"),
        script=page.asset(__package__, "budgets.js"),
        anchor="budgets",
        marks=_marks(everybody, near, threshold),
        heading="Privacy budgets",
        lead=_lead(parts, everybody, near, threshold),
        parts=parts,
        everybody=everybody,
        near=near,
        threshold=tables.share(threshold),
        shown=[(each, _by_run(sources, each)) for each in everybody[:MOST_ROWS]],
        record=_record(sources, everybody, threshold),
        tables=tables,
        badges=ROOM_BADGES,
        lines=lambda chart: [(series.name, series.look) for series in chart.series],
    )


def render_public(lifetime: Lifetime, least: int = public_budgets.LEAST) -> str:
    """Return the page for others: no names, and no number of fewer than `least` clients."""
    found = public_budgets.cells(lifetime, least)
    total = sum(cell.clients for cell in found)
    lead = (
        f"How {numbers.count(total, 'client')} have used their privacy budgets so far."
        if found
        else f"Fewer than {least} clients have a budget here, so nothing is shown."
    )
    largest = max((cell.clients for cell in found), default=1)
    return page.render(
        "budgets_public.html",
        "Privacy budgets",
        {"budgets": "Budgets"},
        anchor="budgets",
        marks=[("plain", "for the public")],
        heading="Privacy budgets",
        lead=lead,
        cells=[(cell, cell.clients / largest) for cell in found],
        least=least,
        total=total,
        runs=len(lifetime.runs),
        public=public_budgets,
    )


def _part(number: int, source: Source, threshold: float) -> LedgerPart:
    found = tables.accounts(source)
    rows, last = tables.classes(source, threshold), tables.runs(source)[:MOST_RUNS]
    return LedgerPart(f"ledger-{number}", source, found, rows, last, tables.again(source))


def _marks(everybody: Sequence[Account], near: Sequence[Account], threshold: float) -> list[tuple[str, str]]:
    over = sum(each.spent > each.budget for each in everybody)
    marks = [("bad", f"{over} spent more than is allowed now")] if over else []
    marks += [("warn", f"{len(near)} at {tables.share(threshold)} or more")] if near else []
    return marks or [("good", f"nobody at {tables.share(threshold)}")]


def _lead(
    parts: Sequence[LedgerPart], everybody: Sequence[Account], near: Sequence[Account], threshold: float
) -> str:
    noun = "account" if len(parts) > 1 else "client"
    have = "has" if len(near) <= 1 else "have"
    said = f"Of {numbers.count(len(everybody), noun)}, {len(near) or 'none'} {have} spent "
    said += f"{tables.share(threshold)} of the budget or more."
    if len(parts) == 1 and parts[0].again:
        return f"{said} {parts[0].again}"
    return said


def _by_run(sources: Sequence[Source], each: Account) -> list[str]:
    """Return what each run costs a client alone, in words."""
    source = next(source for source in sources if source.name == each.ledger)
    return [_run_words(*row) for row in tables.by_run(source, each.client)]


def _run_words(run: str, spent: float, planned: float | None) -> str:
    used = numbers.spent(spent)
    return f"{run}: {used}" if planned is None else f"{run}: {used} of {numbers.spent(planned)}, open"


def _record(sources: Sequence[Source], everybody: Sequence[Account], threshold: float) -> str:
    """Return all rows as JSON, for the page's search; equal lists of runs are kept once."""
    kinds: dict[tuple[str, ...], int] = {}
    rows = [
        [
            each.ledger,
            each.client,
            each.budget_class,
            numbers.budget(each.budget),
            numbers.spent(each.spent),
            numbers.spent(each.promised),
            numbers.budget(each.left),
            tables.share(each.share),
            round(min(each.share, 10.0), 6),
            each.runs,
            each.room,
            kinds.setdefault(tuple(_by_run(sources, each)), len(kinds)),
        ]
        for each in everybody
    ]
    record = {
        "rows": rows,
        "kinds": [list(kind) for kind in kinds],
        "near": threshold,
        "several": len(sources) > 1,
        "most": MOST_ROWS,
        "rooms": {name: [ROOM_BADGES[name], words] for name, words in tables.ROOM.items()},
    }
    return json.dumps(record, ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _spread(found: Sequence[Account]) -> Chart:
    """Return how many clients have spent which tenth of their budgets."""
    names = [f"{10 * k} %" for k in range(TENTHS)]
    counts = [0] * TENTHS
    for each in found:
        counts[min(int(TENTHS * min(each.share, 1.0)), TENTHS - 1)] += 1
    bars = Series("clients", list(range(TENTHS)), counts, SPENT, "bars", [f"{count:,}" for count in counts])
    y = linear("Clients", 0.0, 1.05 * max(counts), 5)
    return Chart((bars,), categories("Share of the budget that is spent, from", names), y, 250)


def _of_classes(rows: Sequence[ClassRow]) -> Chart:
    """Return the largest share spent of each class, with the threshold of a whole budget dotted."""
    values = [row.share for row in rows]
    shown = [tables.share(value) for value in values]
    bars = Series("spent", list(range(len(rows))), values, SPENT, "bars", shown)
    y = linear("Share of the budget", 0.0, 1.12 * max(1.0, *values), 5, percent=True)
    x = categories("Budget class", [row.name for row in rows])
    return Chart((bars,), x, y, 250, levels=((1.0, "--ink"),))


def _of_runs(rows: Sequence[RunRow]) -> Chart:
    """Return, for each run, epsilon of its rounds on record and of its whole plan."""
    places = list(range(len(rows)))
    series = (
        Series("spent", places, [row.spent for row in rows], SPENT, "bars"),
        Series("whole plan", places, [row.planned for row in rows], PROMISED, "bars"),
    )
    highest = max(max(row.spent, row.planned) for row in rows)
    x = categories("Run", [row.run for row in rows])
    return Chart(series, x, linear("Epsilon", 0.0, 1.12 * highest, 5), 250)
