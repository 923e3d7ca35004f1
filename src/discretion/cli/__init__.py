"""The command line: one thin module for each group of commands, and the options that they share."""

from typing import Annotated

from typer import Option

Json = Annotated[bool, Option("--json", help="Print JSON for machines.")]
On = Annotated[
    str | None,
    Option("--on", help="Where clients run: here, guards, flower or flower-sim; see [clients]."),
]
Override = Annotated[
    list[str] | None, Option("-c", "--set", metavar="KEY=VALUE", help="Change a setting: -c plan.rounds=50")
]
