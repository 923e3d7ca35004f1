"""Commands `methods` and `data`: methods in a list or one in full, and data sets."""

import inspect
import re
from collections.abc import Sequence
from typing import Annotated, Any

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Column, Table
from rich.text import Text
from typer import Argument

from discretion.audit import statements
from discretion.cli import Json, output
from discretion.methods import METHODS, Method, find
from discretion.tasks import catalogue, datasets, fetch

MODES = {
    "tight": "the least noise that keeps every budget, counted exactly; the default",
    "paper": "the paper's own formula; its true cost is counted and shown, and may pass budgets",
}


def protection(method: Method) -> str:
    """Return the sentence on whom the method protects from whom, with its condition."""
    if method.unit == "undeclared":
        return "Not declared: the certificate of each plan says who is protected."
    return statements.method_protection(method.unit, method.noise_at, method.promise, method.reads_raw)


def methods_list(methods: Sequence[Method]) -> RenderableType:
    """Return a list of the methods, in which those of one paper stand together."""
    parts: list[RenderableType] = []
    width = max(len(method.name) for method in methods)
    for paper in dict.fromkeys(method.paper for method in methods):
        grid = Table.grid(Column(width=width), "", padding=(0, 2))
        for method in (method for method in methods if method.paper == paper):
            facts = f"{protection(method)} Decides by {method.reads}."
            grid.add_row(f"[bold]{method.name}[/]", f"{escape(method.idea)}\n[dim]{escape(facts)}[/]")
        parts += [Text(paper, style="underline"), Padding(grid, (0, 0, 1, 2))]
    more = "More on one: discretion methods NAME. A plan by it: discretion plan NAME population.csv"
    return Group(*parts, Text(more, style="dim"))


def method_text(method: Method) -> RenderableType:
    """Return facts, the module's docstring, each parameter with default and bounds, and both modes."""
    facts, parameters, modes = (Table.grid(padding=(0, 2)) for _ in range(3))
    facts.add_row("[dim]paper[/]", escape(method.paper))
    facts.add_row("[dim]unit[/]", escape(method.unit))
    facts.add_row("[dim]protection[/]", escape(protection(method)))
    facts.add_row("[dim]decides by[/]", escape(method.reads))
    for name, parameter in method.parameters.items():
        value = parameter.default
        default = "" if parameter.required else f"{value:.4g}" if isinstance(value, float) else f"{value}"
        meaning = f"{escape(parameter.meaning)}; [dim]{escape(parameter.expected)}[/]"
        parameters.add_row(name, f"[dim]{default}[/]", meaning)
    for name, meaning in MODES.items():
        modes.add_row(f"--accounting {name}", meaning)
    parts: list[RenderableType] = [
        Text.assemble((method.title, "bold"), f"  ({method.name})"),
        Text(method.idea),
        Padding(facts, (1, 0, 1, 2)),
        *(Padding(Text(paragraph), (0, 0, 1, 0)) for paragraph in about(method)[1:]),
        Text("Parameters (-p NAME=VALUE), with their defaults", style="bold"),
        Padding(parameters, (0, 0, 1, 2)),
    ]
    if note := method.note:
        parts.append(Padding(Text(note), (0, 0, 1, 2)))
    if "accounting" in method.parameters:
        parts += [Text("Modes", style="bold"), Padding(modes, (0, 0, 0, 2))]
    return Group(*parts)


def about(method: Method) -> list[str]:
    """Return the paragraphs of the docstring of the method's module: idea, source, departures from it."""
    found = inspect.getdoc(inspect.getmodule(method.plan)) or ""
    text = re.sub(r"\n(?=Departs from|In paper mode)", "\n\n", found)
    return [" ".join(part.split()) for part in text.split("\n\n")]


def method_record(method: Method) -> dict[str, Any]:
    parameters = {
        name: {
            "default": None if parameter.required else parameter.default,
            "expected": parameter.expected,
            "meaning": parameter.meaning,
        }
        for name, parameter in method.parameters.items()
    }
    fields = ("name", "title", "paper", "idea", "unit", "noise_at", "promise", "reads_raw", "reads", "note")
    return {
        **{name: getattr(method, name) for name in fields},
        "protects": protection(method),
        "about": about(method),
        "parameters": parameters,
        "modes": list(MODES) if "accounting" in parameters else ["tight"],
    }


def methods(
    name: Annotated[
        str | None, Argument(help="Explain this one, or your own package.module:function.")
    ] = None,
    json_: Json = False,
) -> None:
    """List the methods, or explain one.

    Examples: `discretion methods`, `discretion methods NAME --json`
    """
    chosen = [find(name)] if name else list(METHODS.values())
    shown = method_text(chosen[0]) if name else methods_list(chosen)
    output.answer(json_, {"methods": [method_record(method) for method in chosen]}, shown)


def data(
    name: Annotated[str | None, Argument(help="Get this one now.")] = None,
    json_: Json = False,
) -> None:
    """List the data sets, or get one and check it.

    Examples: `discretion data`, `discretion data fashion-mnist`. Your own table is a CSV file with the
    columns label, perhaps client, and numbers: `-c data.name=csv -c data.path=table.csv`. Your own
    reader is a Python function: `-c data.name=package.module:function`
    """
    if name is None:
        return _list_data(json_)
    found = datasets.load(name, report=output.say)
    sizes = {"train": len(found.train.labels), "test": len(found.test.labels)}
    output.answer(
        json_,
        {"name": name, "source": found.source, "classes": found.classes, **sizes},
        f"{name}: {sizes['train']:,} training and {sizes['test']:,} test records, {found.classes} classes, "
        f"from {found.source}",
    )


def _list_data(as_json: bool) -> None:
    entries = catalogue.ENTRIES.values()
    table = Table(*output.folded("name", "records", "download", "licence", "what"))
    for entry in entries:
        records = "" if entry.records is None else f"{entry.records:,}"
        size = f"{entry.download / 1e6:.0f} MB" if entry.download else ""
        table.add_row(entry.name, records, size, entry.licence, entry.about)
    note = f"Kept in {fetch.cache_folder()}. Get one with: discretion data NAME"
    output.answer(as_json, {"data": [vars(entry) for entry in entries]}, table, note=note)
