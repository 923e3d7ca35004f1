"""Options that several commands of the command line share."""

from typing import Annotated

import typer

Json = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Override = Annotated[
    list[str] | None,
    typer.Option("-c", "--set", metavar="KEY=VALUE", help="Change a setting: -c plan.rounds=50"),
]
