"""The command line: one thin module for each group of commands."""
