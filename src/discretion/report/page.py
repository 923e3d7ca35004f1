"""HTML pages by Jinja2 templates that escape all text; a page loads nothing and runs only its own script."""

import base64
import hashlib
import math
from collections.abc import Mapping, Sequence
from functools import cache
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup

from discretion.audit import statements
from discretion.errors import InputError
from discretion.report import numbers, svg

if TYPE_CHECKING:
    from jinja2 import Environment


def render(
    template: str,
    title: str,
    navigation: Mapping[str, str],
    *,
    style: str = "",
    script: str = "",
    live: str = "",
    **content: object,
) -> str:
    """Return a whole page by its template, which extends shell.html.

    `navigation` names each section by its anchor. `script` and `live` are further scripts; the latter may ask
    the server that the page comes from.
    """
    scripts = [asset(__package__, "page.js"), *filter(None, (script, live))]
    return fragment(
        template,
        title=title,
        navigation=navigation,
        style=Markup(asset(__package__, "page.css") + style),
        scripts=[Markup(script) for script in scripts],
        policy=_policy(scripts, bool(live)),
        **content,
    )


def write(text: str, out: Path, what: str) -> None:
    """Write a page to `out`, in a folder that is made where there is none."""
    try:
        out.parent.mkdir(parents=True, exist_ok=True)
        out.write_text(text, encoding="utf-8")
    except OSError as problem:
        raise InputError(f"cannot write the {what} to {out}: {problem.strerror}") from None


def fragment(template: str, **content: object) -> str:
    """Return what a template makes of its content alone."""
    return _environment().get_template(template).render(**content)


def macro(name: str, *content: object) -> Markup:
    """Return what a macro of content.html makes of its content."""
    return Markup(getattr(_environment().get_template("content.html").module, name)(*content))


def parts(template: str, **content: object) -> dict[str, Markup]:
    """Return the contents of elements that a template sets, each by its name."""
    module = _environment().get_template(template).make_module(content)
    return {name: value for name, value in vars(module).items() if isinstance(value, Markup)}


def asset(package: str, name: str) -> str:
    return resources.files(package).joinpath(name).read_text(encoding="utf-8")


@cache
def _environment() -> "Environment":
    """Loaded when the first page is made: most commands make none."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    made = Environment(
        loader=PackageLoader(__package__),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
    )
    made.globals |= {"svg": svg, "numbers": numbers, "statements": statements}
    made.filters["embedded"] = _embedded
    made.tests["finite"] = math.isfinite
    return made


def _embedded(record: str) -> Markup:
    """Return JSON for a script element, which nothing in it can end."""
    return Markup(record.replace("<", "\\u003c"))


def _policy(scripts: Sequence[str], live: bool) -> str:
    """Nothing may be loaded from anywhere else, and only these scripts may run."""
    digests = (base64.b64encode(hashlib.sha256(script.encode()).digest()).decode() for script in scripts)
    allowed = " ".join(f"'sha256-{digest}'" for digest in digests)
    own = "; connect-src 'self'" if live else ""
    return f"default-src 'none'; script-src {allowed}; style-src 'unsafe-inline'; img-src data:{own}"
