"""Puts the report together as one HTML file that loads nothing and runs only its own script."""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path

from discretion.report import charts, officer, operator, researcher, sections
from discretion.report.fairness import Fairness
from discretion.report.groups import Group
from discretion.report.markup import panels_of, text

READERS = {"operator": "Operation", "officer": "Data protection", "researcher": "Research"}

NO_ICON = '<link rel="icon" href="data:,">\n'  # a server would be asked for one


def render(groups: Sequence[Group], title: str, out: Path, fairness: Mapping[str, Fairness]) -> str:
    """`out` is where the page will stand: its commands name the run folders from there."""
    styles = charts.styles(groups)
    readers = {
        "operator": (
            "For whoever runs it",
            "How training went, who takes part and pays, when budgets run out, where time went.",
            operator.sections(groups, styles),
        ),
        "officer": (
            "For data-protection officers",
            "What is promised to each client, by whom it is counted, what is not promised, how to verify it.",
            officer.sections(groups, styles, out),
        ),
        "researcher": (
            "For researchers",
            "What each method decided, how it treats strict and loose clients, every setting.",
            researcher.sections(groups, styles, fairness),
        ),
    }
    common = [sections.heading(groups, title), sections.methods(groups, styles)]
    body = "\n\n".join([*common, panels_of(readers)])
    secret = any(phase.turns is None for part in groups for phase in part.first.plan.phases)
    footer = "Who took part in which round is secret and stands nowhere in this report." if secret else ""
    return shell(title, READERS, body, footer, tabs=True)


def shell(
    title: str,
    navigation: Mapping[str, str],
    body: str,
    footer: str,
    tabs: bool = False,
    live: str = "",
    style: str = "",
) -> str:
    """A page around sections. `navigation` names each by its anchor, or with `tabs` the panels.

    `live` is one more script, which may ask the server that the page comes from; `style` goes with it.
    """
    scripts = [_asset("page.js"), *([live] if live else [])]
    if tabs:
        links = "".join(
            f'<a role="tab" id="tab-{anchor}" aria-controls="{anchor}" href="#{anchor}">{name}</a>'
            for anchor, name in navigation.items()
        )
        bar = f'<div class="nav" role="tablist" aria-label="For whom">{links}</div>'
    else:
        links = "".join(f'<a href="#{anchor}">{name}</a>' for anchor, name in navigation.items())
        bar = f'<nav class="nav" aria-label="Sections">{links}</nav>'
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{_policy(scripts, bool(live))}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>{text(title)} · Discretion</title>
{NO_ICON if live else ""}<style>
{_asset("page.css")}{style}</style>
</head>
<body>
<a class="skip" href="#contents">To the contents</a>
<header class="top">
<div class="bar"><span class="brand">Discretion</span>{bar}
<button type="button" id="theme" aria-label="Light or dark"><span aria-hidden="true"></span></button></div>
</header>
<main id="contents">
{body}
</main>
<footer>{text(footer)}</footer>
<div id="spoken" class="unseen" aria-live="polite"></div>
{"".join(f"<script>{script}</script>" for script in scripts)}
</body>
</html>
"""


def _asset(name: str) -> str:
    return resources.files(__package__).joinpath(name).read_text(encoding="utf-8")


def _policy(scripts: Sequence[str], live: bool) -> str:
    """Nothing may be loaded from anywhere else, and only these scripts may run."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    own = "; connect-src 'self'" if live else ""
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:{own}"
