"""Puts the figures of a plan on one page: what there is to see is decided by the plan, not by its method."""

import math
from collections.abc import Sequence

import numpy as np

from discretion.accounting import Certificate
from discretion.methods import Details, find
from discretion.plan import ADVERSARIES, Adversary, Plan
from discretion.plots import drawings
from discretion.population import Floats, Ints, Population
from discretion.report import numbers, statements, wording
from discretion.report.chart import SYMBOLS, Chart, Style
from discretion.report.charts import by_round, class_styles
from discretion.report.curves import over_time, varies
from discretion.report.markup import badge, facts, figure, grid, legend, note, section, table, text
from discretion.report.page import shell
from discretion.report.sections import VERDICTS
from discretion.treatment import Treatment, ends, treatment

HEADINGS = {
    "plan": "Plan",
    "drawn": "Who is drawn",
    "budgets": "By budget",
    "spending": "Spending",
    "rounds": "Over rounds",
    "details": "Behind it",
    "classes": "In numbers",
}
NOISE = {"tight": "As little as keeps every budget", "paper": "By the paper’s own formula"}
READERS: dict[Adversary, str] = {
    "public": "Whoever sees the models",
    "clients": "Other clients",
    "server": "The server",
}


def render(plan: Plan, population: Population, certificate: Certificate, details: Details) -> str:
    mine = treatment(plan)
    sections = {
        "plan": _heading(plan, population, certificate, mine),
        "drawn": _drawn(population, mine, details),
        "budgets": _by_budget(plan, population, mine),
        "spending": _spending(certificate, mine),
        "rounds": _over_rounds(plan, population, mine),
        "details": _details(details),
        "classes": _classes(population, certificate, mine),
    }
    shown = {name: body for name, body in sections.items() if body}
    links = {name: HEADINGS[name] for name in shown}
    name = find(plan.method).title
    secret = "" if mine.public else "Who takes part is secret, and stands nowhere in here."
    return shell(f"Plan by {name}", links, "\n\n".join(shown.values()), secret)


def _heading(plan: Plan, population: Population, certificate: Certificate, mine: Treatment) -> str:
    method = find(plan.method)
    nothing, over = certificate.promises_nothing, len(certificate.overspent) > 0
    marks = [VERDICTS["none" if nothing else "over" if over else "within"]]
    if certificate.accounting == "paper":
        marks.append(badge("warn", "paper mode"))
    sizes = [float(population.size.min()), float(population.size.max())]
    read = "" if nothing else _sentence(statements.reading(certificate))
    warning = ". ".join(filter(None, (read, statements.paper_mode(certificate))))
    warning = f'<p class="note remark">{text(warning)}</p>' if warning else ""
    said = f"{method.idea} {statements.protection(certificate)}"
    given = ", ".join(f"{name} {_plain(value)}" for name, value in plan.parameters.items())
    pairs = [
        ("Rounds", f"{plan.rounds:,}<small>{text(_cohort(plan))}</small>"),
        ("Clients", f"{len(population):,}<small>{numbers.span(sizes)} records each</small>"),
        ("Who takes part", f"{_sentence(mine.coming)}<small>{_turn(mine)}</small>"),
        ("Protected", "Nobody" if nothing else text(wording.promise(plan.unit, plan.adjacency))),
        ("Noise", "Protects nobody" if nothing else NOISE[plan.accounting]),
        ("Counted by", f"{text(certificate.accountant)}<small>over every round of the plan</small>"),
        ("Decided by", f"{text(method.reads)}<small>{text(method.paper)}</small>"),
        ("Given", f"<small>{text(given)}</small>"),
    ]
    return (
        f'<section id="plan" class="hero">\n<p class="marks">{" ".join(marks)}</p>\n'
        f"<h1>{text(method.title)}: {numbers.count(plan.rounds, 'round')} for "
        f"{numbers.count(len(population), 'client')}</h1>\n"
        f'<p class="lead">{text(said)}</p>\n{warning}'
        f"{facts(pairs)}\n</section>"
    )


def _sentence(words: str) -> str:
    return words[:1].upper() + words[1:]


def _plain(value: object) -> str:
    return numbers.plain(value) if isinstance(value, float) else str(value)


def _cohort(plan: Plan) -> str:
    if plan.reading:
        return f"{numbers.plain(plan.cohort)} clients asked in each, {plan.reading.choose} train"
    return f"{numbers.plain(plan.cohort)} clients expected in each"


def _turn(mine: Treatment) -> str:
    if mine.batch is None:
        return ""
    steps = "1 noisy step" if mine.steps == (1, 1) else f"{numbers.span(mine.steps)} noisy steps"
    batch = ends(mine.batch)
    return f"a turn: {steps}, a record in each with chance {numbers.span(batch)}" if batch else ""


def _drawn(population: Population, mine: Treatment, details: Details) -> str:
    """Chances of a draw over budget and size, where turns are public."""
    if not mine.public or not np.isfinite(population.epsilon).any():
        return ""
    planned = details.chance is not None
    chance = mine.turns / max(mine.turns.sum(), 1.0) if details.chance is None else details.chance
    title = "Chance in one draw" if planned else "Share of all turns"
    intro = (
        "The chance of each client to be the one that is drawn, which the method chose."
        if planned
        else "The share of all turns that each client was drawn for."
    )
    share = population.size / population.size.sum()
    panels = []
    if len(np.unique(population.size)) > 1:
        drawing = drawings.selection(population, chance, title)
        most = numbers.percent(float(chance.max()), 2)
        scale = f'<div class="scale">0 % <span></span> {most}</div>'
        panels.append(_panel("figure-selection", drawing, title, "by budget and number of records", scale))
    heading = f"{title}, over the share of the data"
    ratio = drawings.by_epsilon(population, chance / share, heading, level=1.0)
    aside = "1 (dotted): as often as a draw without bias"
    panels.append(_panel("figure-selection-ratio", ratio, heading, aside))
    return section("drawn", "Who is drawn", intro, grid(panels, " stacked"))


def _by_budget(plan: Plan, population: Population, mine: Treatment) -> str:
    """What differs from client to client, against budgets; the rest in a sentence."""
    often = "Turns in the whole plan" if mine.public else "Chance of taking part, mean over rounds"
    columns = {
        often: mine.turns if mine.public else mine.turns / plan.rounds,
        "Clip": mine.clip.mean(axis=0),
        "Noise multiplier": mine.multiplier.mean(axis=0),
    }
    pool, panels, same = drawings.group_of(plan), [], []
    private = np.isfinite(population.epsilon)
    for number, (title, column) in enumerate(columns.items()):
        finite = np.where(np.isfinite(column), column, np.nan)
        if private.any() and varies(finite[private]):
            drawing = drawings.by_epsilon(population, finite, title, pool)
            panels.append(_panel(f"figure-budget-{number}", drawing, title, ""))
        elif (found := ends(column)) is not None:
            value = "unbounded" if math.isinf(found[0]) else numbers.span(found)
            same.append(f"{title}: {value} for every client.")
    groups = []
    if pool is not None:
        looks = [
            Style(f"--method-{(k + 1) % 7 + 1}", SYMBOLS[k % len(SYMBOLS)], "none") for k in np.unique(pool)
        ]
        groups = [(drawings.group_name(k), look) for k, look in enumerate(looks)]
    intro = "A point is a client. Noise multiplier: noise over clip; larger protects more." if panels else ""
    return section(
        "budgets",
        "What budgets decide",
        intro,
        legend(groups) if groups and panels else "",
        grid(panels),
        note([text(words) for words in same]) if same else "",
    )


def _spending(certificate: Certificate, mine: Treatment) -> str:
    curve, styles = certificate.spending, class_styles(certificate.spending.classes)
    drawing = drawings.spending(certificate, styles, in_steps=mine.public)
    if drawing is None:
        return section("spending", "Who spends what, when", "Epsilon is infinite: there is nothing to draw.")
    key = legend(list(zip(curve.classes, _bare(styles), strict=True)))
    return section(
        "spending",
        "Who spends what, when",
        "Epsilon that is spent after each round, against whom the plan promises to protect; in each class of "
        "the client that uses most of its budget. Dotted: the budget.",
        figure("figure-spending", drawing, "Epsilon spent over rounds, by budget class", key=key),
    )


def _over_rounds(plan: Plan, population: Population, mine: Treatment) -> str:
    """What changes from round to round, by budget class."""
    names, member = population.classes()
    time, styles = over_time(plan, member), class_styles(names)
    changing: dict[str, Floats] = {}
    if not mine.public:
        changing["Chance of taking part"] = time.rate
    changing |= {"Clip": time.clip, "Noise multiplier": time.multiplier}
    panels = []
    for number, (title, values) in enumerate(changing.items()):
        if varies(values):
            drawing = by_round(time, values, names, styles, title)
            aside = "" if title.startswith("Chance") else "median client of each class"
            panels.append(_panel(f"figure-round-{number}", drawing, title, aside))
    key = legend(list(zip(names, _bare(styles), strict=True))) if panels else ""
    if varies(time.cohort):
        one = [Style("--ink", "", "solid")]
        title = "Turns in a round" if mine.public else "Clients expected in a round"
        drawing = by_round(time, time.cohort[:, None], [title], one, title)
        panels.append(_panel("figure-round-cohort", drawing, title, "all clients together"))
    if not panels:
        return ""
    return section("rounds", "What changes over rounds", "", key, grid(panels))


def _details(details: Details) -> str:
    if not (details.rounds or details.numbers):
        return ""
    panels = []
    for number, (title, curves) in enumerate(details.rounds.items()):
        dashes = ("solid", "dash", "dot", "dashdot")
        looks = [Style(f"--method-{k % 7 + 1}", "", dashes[k % 4]) for k in range(len(curves))]
        key = legend(list(zip(curves, looks, strict=True)))
        drawing = drawings.details(curves, looks, title)
        name, caption = f"figure-details-{number}", f"<b>{text(title)}</b>"
        panels.append(figure(name, drawing, text(title), caption, key))
    rows = [[text(name), numbers.plain(value)] for name, value in details.numbers.items()]
    found = table(["Found on the way", "Value"], rows, "data", "What the method found") if rows else ""
    return section("details", "What is behind it", "", grid(panels), f"<br>{found}")


def _classes(population: Population, certificate: Certificate, mine: Treatment) -> str:
    names, member = population.classes()
    often = "Turns" if mine.public else "Rate"
    head = ["Budget class", "Clients", often, "Clip", "Noise multiplier", "Epsilon spent", "Budgets"]
    rows = []
    for k, name in enumerate(_names(names)):
        who = member == k
        spent, budget = certificate.spent[who], certificate.budget[who]
        kept = badge("good", "kept") if (spent <= budget).all() else badge("bad", "broken")
        cells = (mine.turns[who] if mine.public else mine.rate[:, who], mine.clip[:, who])
        shown = [_span(column) for column in (*cells, mine.multiplier[:, who])]
        rows.append([text(name), f"{int(who.sum()):,}", *shown, numbers.spent(float(spent.max())), kept])
    return section(
        "classes",
        "In numbers",
        "",
        table(head, rows, "data", "What each budget class does, and what that costs"),
        "<h3>Epsilon, by who is looking</h3>",
        _against(names, member, certificate),
        note([f"{READERS[who]}: {text(words)}." for who, words in certificate.against.items()]),
    )


def _against(names: Sequence[str], member: Ints, certificate: Certificate) -> str:
    head = ["Budget class", *(READERS[who] for who in ADVERSARIES)]
    rows = []
    for k, name in enumerate(_names(names)):
        worst = (float(certificate.epsilon[who][member == k].max()) for who in ADVERSARIES)
        rows.append([text(name), *map(numbers.spent, worst)])
    promised, marks = ADVERSARIES.index(certificate.promise), []
    for place, who in enumerate(ADVERSARIES):
        within = bool((certificate.epsilon[who] <= certificate.budget).all())
        kind = ("good", "kept") if within else ("bad", "broken") if place <= promised else None
        marks.append(badge(*kind) if kind else badge("plain", "not promised"))
    rows.append(["all budgets", *marks])
    return table(head, rows, "data", "Epsilon against each adversary, by budget class")


def _span(column: Floats) -> str:
    found = ends(column)
    return "–" if found is None else numbers.span(found)


def _names(names: Sequence[str]) -> list[str]:
    return [name.replace("ε inf", "public data").replace("inf", "∞") for name in names]


def _bare(styles: Sequence[Style]) -> list[Style]:
    """Lines without marks."""
    return [Style(look.colour, "", look.dash) for look in styles]


def _panel(name: str, drawing: Chart, title: str, aside: str, key: str = "") -> str:
    described = text(f"{title} {aside}".strip())
    return figure(name, drawing, described, f"<b>{text(title)}</b> {text(aside)}", key)
