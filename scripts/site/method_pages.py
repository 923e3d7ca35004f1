"""Pages on methods, made from the registry, docstrings and real plans, around a few sentences by hand.

mkdocs runs `on_config` (mkdocs.yml names this file), which puts all pages into the navigation.
"""

import re
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from console import Shell
from markdown.extensions.toc import slugify

from discretion.cli.methods import MODES, about, protection
from discretion.errors import BudgetError
from discretion.methods import METHODS, Method
from discretion.plan.advice import noise_to_signal
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.runs import config
from discretion.runs.build import plan_of

DOCS = Path(__file__).parent.parent.parent / "docs"
POPULATION = "discretion population groups:1,2,4 --clients 60 > population.csv"
SETTINGS = {"rounds": 20, "rate": 0.2}
STEPS = """Each client adds noise in every step of its own training, before anything leaves it. So nobody
has to be trusted, the server included. The unit is one record: that a client takes part, and what many of
its records have in common, is not hidden."""
READ = """As published, what is read of the data is read raw: epsilon is infinite, and nobody is
protected. With `read_share` above 0, what is read is noised and paid for, and then the following holds.

"""
SEEN = {
    "server": """The server adds the noise. It sees every clipped update and knows who took part: **it is
trusted**, and epsilon against it is infinite. Other clients, and whoever sees the released models, are
covered by the budgets.""",
    "clients": """Clients add shares of the noise, and the server adds those of who is not there. Budgets
hold against other clients, one of whom may know its own share, and against whoever sees the released
models. **The server is trusted**: it sees each update with a small share of the noise, and what that is
worth stands in the example.""",
    "secure_sum": """All clients of a sum add shares of the noise in every round, and budgets hold against
a server that sees **sums only**, even with one other client on its side. That takes a secure sum, which
Discretion does not have: [bring your own](../operating.md#plans-for-a-secure-sum). Without one nothing is
promised against the server, and all of it against other clients and whoever sees the released models.""",
}
NOISE = """Noise: of the whole example, over the signal, in one coordinate; smaller is better, and only
methods of one table that protect from the same adversary can be compared by it. It ranks noise, not
accuracy."""
HEADS = "| method | what it does | protection | decides by | noise |\n|---|---|---|---|---:|"


def sections() -> dict[str, list[str]]:
    """Return the names of the methods by what they protect."""
    found: dict[str, list[str]] = {"Whole clients": [], "Single records": [], "Nobody, or at a price": []}
    for name, method in METHODS.items():
        nobody = method.unit == "none" or method.reads_raw
        heading = list(found)[2 if nobody else 1 if method.unit == "record" else 0]
        found[heading].append(name)
    return found


def on_config(config: Any) -> None:
    """Fill the empty section Methods of the navigation: overview, and each method under what it protects."""
    pages = [
        {heading: [{METHODS[name].title: f"methods/{name}.md"} for name in names]}
        for heading, names in sections().items()
    ]
    for section in config.nav or ():
        if "Methods" in section:
            section["Methods"] = ["methods/index.md", *pages]


def overview() -> str:
    """Return a table of methods for each section."""
    parts = []
    for heading, names in sections().items():
        parts.append(f"\n## {heading}\n\n{HEADS}")
        for name in names:
            method = METHODS[name]
            title = f"[{method.title}]({name}.md)<br>`{name}`"
            _, noise = noise_to_signal(_plan(name), _population())
            facts = (title, method.idea, protection(method), method.reads, f"{noise:.3f}")
            parts.append(f"| {' | '.join(facts)} |")
    return "\n".join([*parts, "", NOISE, ""])


def page(name: str) -> str:
    """Return the page of a method, around what docs/methods has on it by hand."""
    method, (text, meta) = METHODS[name], _written(name)
    parts = [
        f"# {method.title}",
        method.idea,
        _facts(method),
        text.strip(),
        "## Who is protected from whom",
        _protection(name),
        "## Parameters",
        _parameters(method),
        "## An example",
        _examples(name, meta.get("options", [""])),
        "## Where it is from, and where it differs",
        *(re.sub(r"docs/(\S+\.md)", r"[\1](../\1)", paragraph) for paragraph in about(method)[1:]),
        _further(name),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _written(name: str) -> tuple[str, dict[str, Any]]:
    """Return text and settings, such as further options to show examples for; none where no file is."""
    path = DOCS / "methods" / f"{name}.md"
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if not text.startswith("---\n"):
        return text, {}
    _, meta, text = text.split("---\n", 2)
    return text, yaml.safe_load(meta)


def _protection(name: str) -> str:
    """By who draws the noise in a plan of it, which decides what the server sees."""
    if METHODS[name].unit == "none":
        return "Nobody is protected from anybody. Epsilon is infinite."
    plan = _plan(name)
    return READ + STEPS if plan.reading else {**SEEN, "steps": STEPS}[plan.noise_at]


def _facts(method: Method) -> str:
    rows = {
        "Name": f"`{method.name}`",
        "Protection": protection(method),
        "Decides by": method.reads,
        "Where from": method.paper if "docs/" not in method.paper else "our own",
    }
    return "| | |\n|---|---|\n" + "\n".join(f"| **{label}** | {text} |" for label, text in rows.items())


def _parameters(method: Method) -> str:
    rows = ["| name | default | meaning | expected |", "|---|---|---|---|"]
    for name, parameter in method.parameters.items():
        given = parameter.default
        shown = f"{given:.4g}" if isinstance(given, float) else f"{given}"
        default = "" if parameter.required else f"`{shown}`"
        rows.append(f"| `{name}` | {default} | {parameter.meaning} | {parameter.expected} |")
    said = "\n".join(rows)
    said += (
        "\n\nOn the command line `rounds`, `rate` and `clip` are options of their own; others are given by "
    )
    said += "`-p NAME=VALUE`, and in config.toml under `[plan.options]`."
    if method.note:
        said += f" {method.note}"
    if "accounting" in method.parameters:
        said += "\n\n" + "\n".join(f"- `--accounting {mode}`: {meaning}." for mode, meaning in MODES.items())
    return said


@cache
def _shell() -> tuple[Shell, TemporaryDirectory[str]]:
    folder = TemporaryDirectory()
    shell = Shell(Path(folder.name))
    done = shell.run(POPULATION)
    assert done.code == 0, done.said
    return shell, folder


@cache
def _population() -> Population:
    return Population.from_csv(_shell()[0].folder / "population.csv")


@cache
def _plan(name: str) -> Plan:
    """Of the example."""
    return plan_of(config.make({"plan": {"method": name, **SETTINGS}}), _population())


def _examples(name: str, options: list[str]) -> str:
    """Plans for the same 60 clients on every page, as the command line prints them."""
    settings = " ".join(f"--{key} {value}" for key, value in SETTINGS.items())
    shown = f"$ {POPULATION}\n"
    for more in options:
        command = f"discretion plan {name} population.csv {settings} {more}".strip()
        done = _shell()[0].run(command)
        assert done.code in (0, BudgetError.exit_code), f"{command}\n{done.said}"
        shown += "\n".join([f"$ {command}", *(line.rstrip() for line in done.said.splitlines())]) + "\n"
    return f"```console\n{shown}```"


def _further(name: str) -> str:
    """Return where the paper is discussed, with published numbers beside ours; nothing for other papers."""
    if "docs/" in METHODS[name].paper:
        return "[Concert](../method.md) has the reasons, formulas, results, and what did not help."
    papers = (DOCS / "papers.md").read_text(encoding="utf-8")
    for part in re.split(r"^## ", papers, flags=re.M)[1:]:
        if re.search(rf"^\|[^|]*`{name}`", part, re.M):
            heading = part.partition("\n")[0]
            return f"Published numbers beside ours: [{heading}](../papers.md#{slugify(heading, '-')})."
    return ""
