"""`python -m discretion` is the command `discretion`."""

from discretion.cli import main

main()
