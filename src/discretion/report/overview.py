"""First half of the report: what was trained, which method did best, and what it cost whom."""

from collections.abc import Sequence

from discretion.accounting import Certificate
from discretion.audit import statements
from discretion.report import html, numbers, wording
from discretion.report.run_group import Group, Verdict, class_names, comparable, differing

VERDICTS = {
    "within": html.Badge("good", "within budget"),
    "over": html.Badge("bad", "over budget"),
    "none": html.Badge("warn", "no privacy"),
    "broken": html.Badge("bad", "not certified"),
}


def verdict(certificate: Certificate) -> Verdict:
    if certificate.promises_nothing:
        return "none"
    return "over" if len(certificate.overspent) else "within"


def marks(groups: Sequence[Group]) -> list[html.Badge]:
    runs = [run for part in groups for run in part.runs]
    found = [html.Badge("plain", "simulation")] if any(run.simulated for run in runs) else []
    if unfinished := sum(not run.finished for run in runs):
        found.append(html.Badge("warn", f"{unfinished} of {numbers.count(len(runs), 'run')} unfinished"))
    if any(part.verdict in ("over", "broken") for part in groups):
        found.append(html.Badge("bad", "a promise does not hold: see the table"))
    return found


def setting(groups: Sequence[Group]) -> html.FactGrid:
    """What was trained; of the runs that are compared."""
    chosen = comparable(groups)
    runs = [run for part in chosen for run in part.runs]
    first = chosen[0].first
    config, classes = first.config, class_names(chosen)
    sources = dict.fromkeys(run.about.source for run in runs)
    deltas = sorted(
        {float(d) for run in runs for d in (run.certificate.delta.min(), run.certificate.delta.max())}
    )
    shown = [numbers.power(delta) for delta in dict.fromkeys((deltas[0], deltas[-1]))]
    sizes = [
        (html.bold(name), f" {numbers.count(mine.clients, 'client')}")
        for name, mine in zip(classes, chosen[0].classes, strict=True)
    ]
    cohort = numbers.span(run.plan.cohort for run in runs)
    asked = "asked or expected" if any(run.plan.reading for run in runs) else "expected"
    versions = dict.fromkeys(run.about.discretion for run in runs)
    seeds = sorted({run.config.seed for run in runs})
    methods = numbers.count(len({part.method for part in chosen}), "method")
    shape = f"{methods}, {'seeds' if seeds[1:] else 'seed'} {_seeds(seeds)}"
    return html.FactGrid(
        [
            ("Data", (first.about.data, html.small(f"from {'; '.join(sources)}"))),
            ("Divided", (config.data.partition, html.small(f"{_sizes(chosen)} for each client"))),
            ("Model", first.model),
            ("Rounds", (f"{first.plan.rounds:,}", html.small(f"{cohort} clients {asked} in each"))),
            ("Clients", (f"{len(first.population):,}", html.small(f"delta {' to '.join(shown)}"))),
            ("Budgets", html.Bullets("classes", sizes)),
            ("Runs", (f"{len(runs)}", html.small(shape))),
            ("Made", (wording.when(chosen), html.small(f"Discretion {', '.join(versions)}"))),
        ]
    )


def _seeds(seeds: Sequence[int]) -> str:
    consecutive = len(seeds) > 2 and seeds[-1] - seeds[0] == len(seeds) - 1
    return f"{seeds[0]} to {seeds[-1]}" if consecutive else numbers.listing(map(str, seeds))


def _sizes(groups: Sequence[Group]) -> str:
    sizes = [run.population.size for part in groups for run in part.runs]
    low, high = min(int(size.min()) for size in sizes), max(int(size.max()) for size in sizes)
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
