"""How plans, populations, certificates and runs are shown: in one line, or as a table in a notebook."""

from collections.abc import Mapping
from html import escape


def one_line(what: str, facts: Mapping[str, object]) -> str:
    """Return a short `repr`: the facts, one after the other."""
    return f"<{what} {', '.join(f'{name} {value}' for name, value in facts.items())}>"


def html_table(caption: str, rows: Mapping[str, object]) -> str:
    """Return a table with one row for each fact: its name, and its value as text."""
    body = "".join(f"<tr><th>{escape(k)}</th><td>{escape(str(v))}</td></tr>" for k, v in rows.items())
    return f"<table><caption>{escape(caption)}</caption>{body}</table>"


def span(least: float, most: float) -> str:
    """Return a range of numbers in few digits, or the one number where all are equal."""
    return f"{least:.4g}" if least == most else f"{least:.4g} to {most:.4g}"
