"""Terminal view of a run: a line, a table of budgets, and two charts; fits 60 columns."""

import math
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from discretion.accounting.certificate import share_of
from discretion.audit import statements, verdicts
from discretion.report import numbers
from discretion.report.run_group import title
from discretion.runs.read import Run
from discretion.watch.braille import Trace, sketch
from discretion.watch.follow import Seen, Status
from discretion.watch.state import Class, classes, lead, missing, warnings

STYLES = ("magenta", "blue", "cyan", "green", "yellow", "red")
STATUS: dict[Status, str] = {
    "waiting": "[yellow]waiting[/]",
    "ready": "[yellow]not begun[/]",
    "running": "[green]running[/]",
    "stopped": "[bold yellow]stopped[/]",
    "finished": "[green]finished[/]",
}
WIDEST = 100  # columns of a chart
HEIGHT = 9  # rows


def show(out: Console, seen: Seen, plots: bool = True) -> None:
    run = seen.run
    if run is None:
        out.print(f"{STATUS[seen.status]} {escape(seen.problem)}")
        return
    out.print(
        f"[bold]{escape(title(run.plan.method))}[/] on {escape(run.about.data)} · {STATUS[seen.status]}"
    )
    out.print(escape(lead(seen)))
    for caution in warnings(seen):
        out.print(f"[bold yellow]Warning:[/] {escape(caution.words)}")
    rows = classes(seen)
    if rows:
        out.print(_table(rows))
    if doubted := verdicts.contradicted(run):
        out.print(f"[bold red]{escape(doubted)}.[/]")
    out.print(f"[dim]{escape(run.broken or statements.protection(run.certificate))}[/]")
    for sentence in missing(seen, rows):
        out.print(f"[yellow]{escape(sentence)}[/]")
    for said in run.refusal_lines(why for _, why in seen.answers.refused.values()):
        out.print(f"[yellow]{escape(said)}[/]")
    if plots:
        width = min(out.width, WIDEST)
        if seen.rounds:
            out.print(f"\n[bold]accuracy[/] on {statements.tested([run])}")
            line = Trace(f"{seen.accuracy[-1]:.1%}", seen.rounds, seen.accuracy, "cyan")
            out.print(sketch([line], run.plan.rounds, width, HEIGHT))
        if lines := _spending(run, seen, rows):
            out.print("\n[bold]spent of the budget, by budget class[/]")
            out.print(sketch(lines, run.plan.rounds, width, HEIGHT, top=1.0))


def _table(rows: Sequence[Class]) -> Table:
    table = Table(caption="spent is rounded up, left is rounded down")
    for heading in ("budget", "clients", "spent", "left", "of budget"):
        table.add_column(heading, justify="left" if heading == "budget" else "right")
    refused = any(row.refusals or row.declined for row in rows)
    if refused:
        table.add_column("refusing", justify="right")
    for row in rows:
        over = row.spent > row.budget
        spent = numbers.epsilon(row.spent)
        share = "–" if math.isinf(row.budget) else "∞" if math.isinf(row.spent) else f"{row.share:.1%}"
        table.add_row(
            escape(row.name),
            f"{row.clients:,}",
            f"[bold red]{spent}[/]" if over else spent,
            "no limit" if math.isinf(row.left) else numbers.rounded_down(row.left),
            share,
            *([f"{row.refusing + (row.declined or 0)}"] if refused else []),
        )
    return table


def _spending(run: Run, seen: Seen, rows: Sequence[Class]) -> list[Trace]:
    """Return spending up to the charged rounds, of classes with a finite budget and a finite epsilon."""
    curve = run.certificate.spending
    known = [k for k, at in enumerate(curve.rounds) if at <= seen.counted]
    lines = []
    for k, row in enumerate(rows):
        if row.finite:
            share = share_of(curve.epsilon[k, known], curve.budget[k])
            x, y = [curve.rounds[i] for i in known], share.tolist()
            if x[-1] < seen.counted:
                x, y = [*x, seen.counted], [*y, row.share]
            lines.append(Trace(row.name, x, y, STYLES[k % len(STYLES)], stairs=True))
    return lines
