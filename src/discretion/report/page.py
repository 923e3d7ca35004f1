"""Puts the report together as one HTML file that loads nothing and runs only its own scripts."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from plotly.offline import get_plotlyjs

from discretion.report import charts, figures, promises, sections
from discretion.report.groups import Group
from discretion.report.markup import text

NAVIGATION = {
    "result": "Result",
    "methods": "Methods",
    "accuracy": "Accuracy",
    "spending": "Spending",
    "protection": "Protection",
    "classes": "Classes",
    "limits": "Limits",
    "verify": "Verify",
}


def render(groups: Sequence[Group], title: str, out: Path) -> str:
    """`out` is where the page will stand: its commands name the run folders from there."""
    styles = charts.styles(groups)
    body = "\n\n".join(
        [
            sections.heading(groups, title),
            sections.methods(groups, styles),
            figures.accuracy(groups, styles),
            figures.spending(groups, styles),
            promises.protection(groups, styles),
            promises.treatment(groups, styles),
            promises.limits(groups),
            promises.verify(groups, out),
        ]
    )
    secret = any(phase.turns is None for part in groups for phase in part.first.plan.phases)
    footer = "Who took part in which round is secret and stands nowhere in this report." if secret else ""
    return shell(title, NAVIGATION, body, footer)


def shell(title: str, navigation: Mapping[str, str], body: str, footer: str) -> str:
    """A page around sections; `navigation` names each by its anchor, the first is the top."""
    scripts = [get_plotlyjs(), _asset("page.js")]
    links = "".join(f'<a href="#{anchor}">{name}</a>' for anchor, name in navigation.items())
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(scripts)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{text(title)} · Discretion</title>
<style>
{_asset("page.css")}</style>
</head>
<body>
<a class="skip" href="#{next(iter(navigation))}">To the contents</a>
<header class="top">
<div class="bar"><span class="brand">Discretion</span><nav aria-label="Sections">{links}</nav>
<button type="button" id="theme" aria-label="Light or dark"><span aria-hidden="true"></span></button></div>
</header>
<main>
<noscript><p class="note">Figures need JavaScript; the tables beneath them hold the same.</p></noscript>
{body}
</main>
<footer>{text(footer)}</footer>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str]) -> str:
    """Nothing may be loaded from anywhere, and only these scripts may run."""
    hashes = (hashlib.sha256(script.encode()).digest() for script in scripts)
    allowed = " ".join(f"'sha256-{base64.b64encode(digest).decode()}'" for digest in hashes)
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:"
