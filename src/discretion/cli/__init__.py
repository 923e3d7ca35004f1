"""The command line: one thin module for each group of commands, and the options that they share."""

from typing import Annotated

from typer import Option

Json = Annotated[bool, Option("--json", help="Print JSON for machines.")]
Override = Annotated[
    list[str] | None, Option("-c", "--set", metavar="KEY=VALUE", help="Change a setting: -c plan.rounds=50")
]
