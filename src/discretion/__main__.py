"""`python -m discretion` is the command `discretion`."""

from discretion.cli.main import main

main()
