"""What there is, as the command line shows it: methods in a list or in full, and data sets."""

import inspect
import re
from collections.abc import Sequence
from typing import Annotated, Any

import typer
from rich.console import Group, RenderableType
from rich.markup import escape
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from discretion import terminal
from discretion.methods import METHODS, Method, find
from discretion.options import Json

MODES = {
    "tight": "the least noise that keeps every budget, counted exactly; the default",
    "paper": "the paper's own formula; what it truly costs is counted and shown, and may pass budgets",
}


def methods_list(methods: Sequence[Method]) -> RenderableType:
    """Methods of one paper stand together."""
    parts: list[RenderableType] = []
    width = max(len(method.name) for method in methods)
    for paper in dict.fromkeys(method.paper for method in methods):
        grid = Table.grid(padding=(0, 2))
        grid.add_column(width=width)
        grid.add_column()
        for method in (method for method in methods if method.paper == paper):
            facts = f"{_protects(method)}; decides by {method.reads}"
            grid.add_row(f"[bold]{method.name}[/]", f"{escape(method.idea)}\n[dim]{escape(facts)}[/]")
        parts += [Text(paper, style="underline"), Padding(grid, (0, 0, 1, 2))]
    more = "More on one: discretion methods NAME. A plan by it: discretion plan NAME population.csv"
    return Group(*parts, Text(more, style="dim"))


def _protects(method: Method) -> str:
    """Unit and adversary in a few words."""
    if method.protects.startswith("nobody"):
        return f"protects {method.protects.split(':')[0]}"
    unit = {"client": "a client's whole data", "record": "each record"}[method.unit]
    return f"protects {unit} from {re.split('[,;]', method.protects)[0]}"


def method_text(method: Method) -> RenderableType:
    """What the module's docstring says, each parameter with its default, and both modes."""
    facts = Table.grid(padding=(0, 2))
    for label, text in (
        ("paper", method.paper),
        ("unit", method.unit),
        ("protects from", method.protects),
        ("decides by", method.reads),
    ):
        facts.add_row(f"[dim]{label}[/]", escape(text))
    parameters = Table.grid(padding=(0, 2))
    for name, parameter in method.parameters.items():
        needed = parameter.default is inspect.Parameter.empty
        default = "" if needed else f"{_plain(parameter.default)}"
        parameters.add_row(name, f"[dim]{default}[/]", escape(method.meanings[name]))
    modes = Table.grid(padding=(0, 2))
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


def _plain(value: object) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def about(method: Method) -> list[str]:
    """Paragraphs of the docstring of the method's module: idea, source, and where it departs from it."""
    found = inspect.getdoc(inspect.getmodule(method.plan)) or ""
    text = re.sub(r"\n(?=Departs from|In paper mode)", "\n\n", found)
    return [" ".join(part.split()) for part in text.split("\n\n")]


def method_record(method: Method) -> dict[str, Any]:
    parameters = {
        name: {
            "default": None if parameter.default is parameter.empty else parameter.default,
            "meaning": method.meanings[name],
        }
        for name, parameter in method.parameters.items()
    }
    fields = ("name", "title", "paper", "idea", "unit", "protects", "reads", "note")
    modes = list(MODES) if "accounting" in parameters else list(MODES)[:1]
    return {
        **{name: getattr(method, name) for name in fields},
        "about": about(method),
        "parameters": parameters,
        "modes": modes,
    }


def methods(
    name: Annotated[str | None, typer.Argument(help="Explain this one.")] = None,
    json_: Json = False,
) -> None:
    """List the methods, or explain one.

    Examples: `discretion methods`, `discretion methods NAME --json`
    """
    chosen = [find(name)] if name else list(METHODS.values())
    if json_:
        terminal.print_json({"methods": [method_record(method) for method in chosen]})
    elif name:
        terminal.out.print(method_text(chosen[0]))
    else:
        terminal.out.print(methods_list(chosen))


def data(
    name: Annotated[str | None, typer.Argument(help="Get this one now.")] = None,
    json_: Json = False,
) -> None:
    """List the data sets, or get one and check it.

    Examples: `discretion data`, `discretion data fashion-mnist`. Your own table is a CSV file with the
    columns label, perhaps client, and numbers: `-c data.name=csv -c data.path=table.csv`
    """
    from discretion.tasks import datasets, fetch

    if name is None:
        entries = datasets.names()
        if json_:
            terminal.print_json({"data": [vars(entry) for entry in entries]})
        else:
            terminal.out.print(terminal.data_table(entries))
            terminal.say(f"Kept in {fetch.cache_folder()}. Get one with: discretion data NAME")
        return
    found = datasets.load(name, report=terminal.say)
    sizes = {"train": len(found.train.labels), "test": len(found.test.labels)}
    if json_:
        terminal.print_json({"name": name, "source": found.source, "classes": found.classes, **sizes})
    else:
        terminal.out.print(
            f"{name}: {sizes['train']:,} training and {sizes['test']:,} test records, "
            f"{found.classes} classes, from {found.source}"
        )
