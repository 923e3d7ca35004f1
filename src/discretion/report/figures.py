"""The sections with figures: accuracy over rounds, and spending over rounds in each budget class."""

from collections.abc import Sequence

from discretion.report import charts, numbers, wording
from discretion.report.charts import Panel, Style
from discretion.report.comparing import comparable
from discretion.report.groups import Group
from discretion.report.markup import figure, fold, legend, section, table, text

BUDGET = ("budget", Style("--ink", "", "dot"))


def accuracy(groups: Sequence[Group], styles: dict[str, Style]) -> str:
    heading = "Accuracy over rounds"
    chosen = [part for part in comparable(groups) if len(part.curve.rounds)]
    if not chosen:
        return section("accuracy", heading, "No run has been evaluated yet.")
    intro = "The line is the mean over seeds, the band one standard deviation to each side."
    if all(part.curve.runs == 1 for part in chosen):
        intro = "One seed only, so there is no band."
    if len(chosen) < len(groups):
        intro += " Rows of the table that cannot be compared, or have no figures yet, are not drawn."
    ends = (f"{part.label} ends at {wording.score(part.accuracy)}" for part in chosen if part.accuracy)
    drawing = figure(
        "figure-accuracy",
        charts.accuracy(chosen, styles),
        text(f"Accuracy on the test records over rounds. {'; '.join(ends)}."),
    )
    key = legend([(part.label, styles[part.label]) for part in chosen])
    body = f'<figure class="panel">{key}{drawing}</figure>'
    return section("accuracy", heading, intro, body, _accuracy_table(chosen))


def _accuracy_table(groups: Sequence[Group]) -> str:
    rounds = sorted({int(at) for part in groups for at in part.curve.rounds})
    columns = []
    for part in groups:
        curve = part.curve
        pairs = zip(curve.mean, curve.std, strict=True)
        cells = [f"{100 * m:.2f}" + (f" ± {100 * s:.2f}" if curve.runs > 1 else "") for m, s in pairs]
        columns.append(dict(zip(curve.rounds.tolist(), cells, strict=True)))
    rows = [[f"{at}", *(column.get(at, "–") for column in columns)] for at in rounds]
    head = ["Round", *(text(part.label) for part in groups)]
    return fold("As a table, in per cent", table(head, rows, "data", "Accuracy in per cent over rounds"))


def spending(groups: Sequence[Group], styles: dict[str, Style]) -> str:
    heading, chosen = "Who spends what", comparable(groups)
    panels = charts.panels(chosen)
    if not panels:
        return section("spending", heading, "No method here has a finite epsilon that could be drawn.")
    private = list({part.label: part for panel in panels for part, _ in panel.parts}.values())
    as_share = charts.shares_needed(chosen)
    intro = " ".join(filter(None, (wording.use_of_budgets(part) for part in private)))
    if as_share:
        intro += " Drawn as shares, because clients of one class have different budgets."
    if any(mine.spent > charts.MOST_SHOWN * mine.budget for panel in panels for _, mine in panel.parts):
        intro += " Lines that pass twice the budget leave the figure; the table beneath has them whole."
    figures = "".join(_panel(k, panel, styles, as_share) for k, panel in enumerate(panels))
    return section(
        "spending",
        heading,
        text(intro),
        legend([*((part.label, styles[part.label]) for part in private), BUDGET]),
        f'<div class="panels">{figures}</div>',
        fold("As a table, epsilon rounded up", "".join(_spending_table(panel) for panel in panels)),
    )


def _panel(number: int, panel: Panel, styles: dict[str, Style], as_share: bool) -> str:
    ends = []
    for part, mine in panel.parts:
        used, allowed = numbers.spent_of(mine.spent, mine.budget)
        ends.append(f"{part.label} ends at {used} of {allowed}")
    description = f"Epsilon spent over rounds in budget class {panel.name}. {'; '.join(ends)}."
    drawing = charts.spending(panel, styles, as_share)
    return (
        f'<figure class="panel"><figcaption><b>{text(panel.name)}</b> '
        f"{numbers.count(panel.clients, 'client')}</figcaption>"
        f"{figure(f'figure-spending-{number}', drawing, text(description))}</figure>"
    )


def _spending_table(panel: Panel) -> str:
    columns = [
        {at: numbers.spent(float(value)) for at, value in zip(mine.rounds, mine.curve, strict=True)}
        for _, mine in panel.parts
    ]
    rounds = sorted({at for column in columns for at in column})
    rows = [[f"{at}", *(column.get(at, "–") for column in columns)] for at in rounds]
    head = ["Round", *(text(part.label) for part, _ in panel.parts)]
    name = text(f"Budget class {panel.name}")
    return f"<h3>{name}</h3>{table(head, rows, 'data', name)}"
