"""What the documents say is what happens: examples are executed, tables are complete, messages are real."""

import re
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest

from discretion import accounting, methods
from discretion.audit import cautions
from discretion.errors import DiscretionError
from discretion.methods import METHODS, parts
from discretion.methods.papers import comparison
from discretion.plan.phase import Phase
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.plan.selection_rules import Reading

DOCS = Path(__file__).parents[2] / "docs"
GUIDE = (DOCS / "adding-a-method.md").read_text(encoding="utf-8")
PAPERS = (DOCS / "papers.md").read_text(encoding="utf-8")
OURS = (DOCS / "method.md").read_text(encoding="utf-8")
SETTINGS = {"rounds": 6, "rate": 0.2, "clip": 0.8}
PEOPLE = Population.of([1.0, 1.0, 3.0, 6.0, 6.0], 1e-4, 10)


def test_every_field_is_explained() -> None:
    for part, kind in (("Phase", Phase), ("Plan", Plan)):
        section = re.search(rf"\| field of `{part}` .*?\n\n", GUIDE, re.S)
        assert section
        named = {
            name
            for row in section[0].strip().splitlines()[2:]
            for name in re.findall(r"`(\w+)`", row.split("|")[1])
        }
        assert named == {field.name for field in fields(kind)}


def test_every_solver_exists() -> None:
    section = re.search(r"## Solvers.*?\n\n`methods.parts` has.*?`finite`", GUIDE, re.S)
    assert section
    for name in re.findall(r"^\| `(\w+)\(", section[0], re.M):
        assert callable(getattr(accounting, name))
    for name in ("schedule_scale", "whole_gaussian", "draw", "shares", "cohort_of", "finite", "ACCOUNTANTS"):
        assert f"`{name}" in GUIDE and hasattr(parts, name)


ONE = np.ones(2)
OWN: dict[str, Any] = {"noise": ONE, "pool": np.arange(2), "weight": ONE}
SHARED = {"noise": ONE[:1], "pool": np.zeros(2, dtype=np.int64), "weight": ONE[:1]}


def phase(rate: float = 1.0, **more: object) -> Phase:
    return Phase(rounds=3, rate=rate * ONE, clip=ONE, **{**SHARED, **more})  # type: ignore[arg-type]


def plan(of: Phase, **more: object) -> Plan:
    return Plan("test", ("a", "b"), (of,), **more)  # type: ignore[arg-type]


REFUSED: list[Callable[[], object]] = [
    lambda: plan(phase(0.5), sampling="fixed_size"),
    lambda: phase(0.5, turns=ONE.astype(np.int64)),
    lambda: phase(turns=2 * ONE.astype(np.int64)),
    lambda: phase(batch=0.1 * ONE),
    lambda: plan(phase(**OWN), noise_at="steps"),
    lambda: plan(phase(**OWN, batch=0.1 * ONE), noise_at="steps", reading=Reading("norm", 1, 1.0)),
    lambda: plan(phase(0.5), adjacency="replace").steps(),
    lambda: methods.make_plan("dp_fedavg", PEOPLE, {**SETTINGS, "clipp": 1.0}),
]


def test_what_is_refused_is_refused_in_these_words() -> None:
    section = re.search(r"## What is refused.*?\n\n(.*?)\n\n", GUIDE, re.S)
    assert section
    rows = [line.split("|")[2].strip() for line in section[1].splitlines()[2:]]
    assert len(rows) == len(REFUSED)
    for message, wrong in zip(rows, REFUSED, strict=True):
        with pytest.raises(DiscretionError, match=re.escape(message)):
            wrong()


def test_every_method_is_in_the_document_on_papers_or_on_our_own() -> None:
    written = {path.stem for path in (DOCS / "methods").glob("*.md")}
    assert len(written) > 20
    for name, method in METHODS.items():
        assert name not in written or f"`{name}`" in (OURS if "docs/method.md" in method.paper else PAPERS)
    root = DOCS.parent
    for path in set(re.findall(r"`((?:src|tests|benchmarks)/[\w/.]+\.py)`", PAPERS + GUIDE + OURS)):
        assert (root / path).exists(), path


def test_what_an_onlooker_may_believe_follows_from_epsilon() -> None:
    """From even odds: e^epsilon to 1 at most."""
    rows = re.findall(
        r"^\| (\S+) \| 50 % \| (\S+) % \|$", (DOCS / "privacy.md").read_text(encoding="utf-8"), re.M
    )
    assert len(rows) == 6
    for epsilon, after in rows:
        digits = len(after.partition(".")[2])
        assert f"{100 / (1 + np.exp(-float(epsilon))):.{digits}f}" == after


def test_every_warning_is_in_the_document_with_its_threshold() -> None:
    text = (DOCS / "privacy.md").read_text(encoding="utf-8")
    section = text.partition("## Settings that promise or teach nothing")[2].partition("\n## ")[0]
    rows = dict(re.findall(r"^\| ([a-z ]+) \| (.+) \|$", section, re.M))
    del rows["warning"]
    marks = re.findall(r'Caution\(\s+"\w+",\s+"([^"]+)"', Path(cautions.__file__).read_text(encoding="utf-8"))
    assert set(rows) == set(marks) and len(marks) == len(get_args(cautions.Kind))
    for mark, told in {
        "delta too large": f"above {cautions.MOST_DELTA:g}",
        "epsilon hardly protects": f"epsilon {cautions.MOST_EPSILON:g}:",
        "protects whole clients": f"{cautions.FEWEST_CLIENTS} clients, and they hold {cautions.MANY_RECORDS}",
        "too much noise": f"is {cautions.MOST_NOISE:g} or more",
        "diverged": f"above {cautions.FIRST_LOSS:g} times",
        "no better than chance": f"than {100 * cautions.LEARNED:g} % of the way",
    }.items():
        assert told in rows[mark]


def test_costs_of_the_papers_are_what_is_computed() -> None:
    """Each row of `discretion check --accounting paper`, in the order in which it is printed."""
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in PAPERS.splitlines()
        if re.search(r"\| (kept|broken|unproven) \|", line)
    ]
    found = comparison()
    assert len(rows) == len(found)
    for row, said in zip(found, rows, strict=True):
        source, setting, run, promised, renyi, pld, verdict, noise, needed = said
        assert (source, setting, run, verdict) == (row.source, row.setting, row.run, row.verdict)
        shown = [float(cell.lstrip("≤≥ ")) for cell in (promised, renyi, pld, noise, needed)]
        computed = [row.epsilon, row.epsilon_renyi, row.epsilon_pld, row.multiplier, row.needed_pld]
        assert shown == pytest.approx(computed, rel=6e-3)
