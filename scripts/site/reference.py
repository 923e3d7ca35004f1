"""Reference pages generated from the code: commands with their options, settings with defaults and bounds."""

import inspect
import re
from collections.abc import Iterator
from typing import Any, cast, get_args

import tomli_w
import typer.main
from pydantic.fields import FieldInfo

from discretion.cli import main
from discretion.runs import config

SETTINGS = """# Settings

A run is described by one file, config.toml. `discretion init` writes it with all of these settings and a
comment on each. Settings that the file leaves out have their defaults. On the command line,
`-c plan.rounds=50` changes a setting. A setting that does not exist is refused, and the message names the
nearest one that does.
"""
COMMANDS = """# Commands

`discretion COMMAND --help` prints the same. Most commands have `--json`, for programs.

| exit code | meaning |
|---|---|
| 0 | done |
| 1 | any other error |
| 2 | bad input: the message says what to change |
| 3 | a budget would be overspent; nothing was spent |
| 4 | a ledger or a guard refused |
| 130 | interrupted by Ctrl-C; finished rounds are kept |
"""
KINDS = {bool: "true or false", str: "text", int: "whole number", float: "number"}


def settings() -> str:
    """Return the page on all settings of config.toml."""
    return "\n".join([SETTINGS, *_section(config.Config(), "")])


def _section(section: config.ConfigSection, name: str) -> Iterator[str]:
    yield f"## `[{name}]`\n" if name else "## At the top\n"
    if said := vars(type(section)).get("__doc__"):
        yield f"{said}\n"
    yield "| setting and default | meaning |\n|---|---|"
    values = {key: getattr(section, key) for key in type(section).model_fields}
    for key, field in type(section).model_fields.items():
        if not isinstance(values[key], config.ConfigSection):
            default = (
                tomli_w.dumps({"x": values[key]}).removeprefix("x = ").strip() if values[key] != {} else "{}"
            )
            meaning = _cell(field.description or "")
            yield f"| `{key} = {default}` | {meaning}<br>*{_allowed(field)}* |"
    yield ""
    for key, value in values.items():
        if isinstance(value, config.ConfigSection):
            yield from _section(value, key)


def _allowed(field: FieldInfo) -> str:
    choices = [choice for choice in get_args(field.annotation) if isinstance(choice, str)]
    if choices:
        return ", ".join(f"`{choice}`" for choice in choices)
    signs = {"ge": "≥", "gt": ">", "le": "≤", "lt": "<"}
    limits = [(signs[key], value) for limit in field.metadata for key, value in _bounds(limit).items()]
    kind = KINDS.get(cast(type, field.annotation), "table")
    return ", ".join([kind, *(f"{sign} {_number(value)}" for sign, value in limits)])


def _bounds(limit: Any) -> dict[str, float]:
    return {
        key: getattr(limit, key) for key in ("ge", "gt", "le", "lt") if getattr(limit, key, None) is not None
    }


def _number(value: float) -> str:
    return f"2^{int(value).bit_length() - 1}" if value > 1e9 else f"{value}"


def commands() -> str:
    """Return the page on all commands, as --help explains them."""
    group = typer.main.get_command(main.app)
    return "\n".join([COMMANDS, *_commands("discretion", group)])


def _commands(name: str, command: Any) -> Iterator[str]:
    depth = name.count(" ") + 1
    if depth > 1:
        yield f"{'#' * depth} `{name}`\n\n{_prose(command.help or '')}\n"
    if hasattr(command, "commands"):
        for inner in sorted(command.commands):
            yield from _commands(f"{name} {inner}", command.commands[inner])
        return
    yield "| argument or option | default | meaning |\n|---|---|---|"
    for parameter in command.params:
        yield f"| {_shown(parameter)} | {_default(parameter)} | {_cell(parameter.help or '')} |"
    yield ""


def _shown(parameter: Any) -> str:
    if parameter.param_type_name == "argument":
        name = parameter.metavar or parameter.name.upper()
        return f"`{name}`" if parameter.required else f"`[{name}]`"
    return ", ".join(f"`{word}`" for word in [*parameter.opts, *parameter.secondary_opts])


def _default(parameter: Any) -> str:
    given = parameter.default
    if given is None or given == "" or callable(given) or (given is False and parameter.is_bool_flag):
        return ""
    return f"`{str(given).lower() if isinstance(given, bool) else given}`"


def _prose(text: str) -> str:
    """Return help text as paragraphs, with examples in a paragraph of their own."""
    return re.sub(r"\s*\b(Examples?):\s", r"\n\n*\1:* ", inspect.cleandoc(text))


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
