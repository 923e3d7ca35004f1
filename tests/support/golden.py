"""Golden files: what commands print and write today, compared by tests/test_golden.py.

`python tests/support/golden.py` writes tests/golden anew; git shows what changed. Processors differ in the
last bits of a plan's numbers, so the test trains by the plans that are kept there.
"""

import contextlib
import hashlib
import io
import json
import os
import re
import shutil
import sqlite3
import sys
import tempfile
import tomllib
from collections.abc import Iterator
from importlib.metadata import entry_points, version
from pathlib import Path
from typing import Any

import numpy as np
import safetensors.numpy
import typer

import discretion as dn

GOLDEN = Path(__file__).parent.parent / "golden"
CONFIG = """
seed = 3
[population]
csv = "population.csv"
[data]
name = "digits"
records = 20
[model]
name = "mlp"
[plan]
rounds = 4
rate = 0.25
clip = 0.5
[train]
threads = 1
evaluate_every = 2
accept_no_privacy = true
"""
TABLES = {  # without the columns that hold times
    "about": "rule",
    "client": "*",
    "change": "number, client, epsilon, note",
    "run": "id, plan, noise, method, unit, adjacency, promise, rounds, unprotected, changes",
    "member": "*",
    "price": "*",
    "phase": "*",
    "round": "number, run, round, phase, state, refused, changes",
}


def command(*words: str, may_overspend: bool = False) -> str:
    """Run one command in this process; return what it printed."""
    (entry,) = entry_points(group="console_scripts", name="discretion")
    out, before = io.StringIO(), sys.argv
    sys.argv = ["discretion", *words]
    try:
        with contextlib.redirect_stdout(out), contextlib.redirect_stderr(io.StringIO()):
            entry.load()()
    except SystemExit as end:
        if end.code and not (may_overspend and end.code == dn.BudgetError.exit_code):
            raise RuntimeError(f"discretion {' '.join(words)} ended with {end.code}") from None
    finally:
        sys.argv = before
    return out.getvalue()


def help_texts() -> dict[str, str]:
    """Return every command's --help text by the command's name."""
    (entry,) = entry_points(group="console_scripts", name="discretion")
    module = sys.modules[entry.load().__module__]

    def walk(command: Any, words: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
        yield words
        for name, inner in sorted(getattr(command, "commands", {}).items()):
            yield from walk(inner, (*words, name))

    names = walk(typer.main.get_command(module.app), ())
    return {" ".join(("discretion", *words)): command(*words, "--help") for words in names}


def ledger_rows(path: Path) -> dict[str, list[Any]]:
    with contextlib.closing(sqlite3.connect(path)) as db:
        return {
            name: db.execute(f"SELECT {columns} FROM {name}").fetchall() for name, columns in TABLES.items()
        }


def of_method(name: str, modes: list[str], kept: Path | None) -> dict[str, Any]:
    """Plan, certificate, ledger rows, history and model of a short seeded run on the digits.

    The run goes by the plan in the file `kept`, or else by the one that is made here.
    """
    plans = {}
    for mode in modes:
        words = [] if mode == "tight" else ["--accounting", mode]
        shared = ("--rounds", "6", "--rate", "0.25", "--clip", "0.5")
        asked = ("plan", name, "population.csv", *shared, *words, "-o", "plan.json")
        text = command(*asked, may_overspend=True)
        plan = Path("plan.json").read_text(encoding="utf-8")
        plans[mode] = {
            "plan": json.loads(plan),
            "sha256": hashlib.sha256(plan.encode()).hexdigest(),
            "shown": text,
        }
    folder, config = Path("runs") / name, tomllib.loads(CONFIG)
    config["plan"]["method"] = name
    run = dn.prepare(config, folder)
    made = json.loads(run.plan.to_json())
    if kept is not None:
        before = json.loads(kept.read_text(encoding="utf-8"))["run_plan"]
        shutil.rmtree(folder)
        run = dn.prepare(config, folder, plan=dn.Plan.from_json(json.dumps(before)))
    dn.execute(run)
    model = safetensors.numpy.load_file(folder / "model.safetensors")
    content = b"".join(np.ascontiguousarray(model[key]).tobytes() for key in sorted(model))
    return {
        "plans": plans,
        "run_plan": made,
        "certificate": json.loads((folder / "certificate.json").read_text(encoding="utf-8")),
        "ledger": ledger_rows(folder / "ledger.sqlite"),
        "history": (folder / "history.jsonl").read_text(encoding="utf-8").splitlines(),
        "model": {
            "sha256": hashlib.sha256(content).hexdigest(),
            "norms": {key: float(np.linalg.norm(value)) for key, value in sorted(model.items())},
        },
    }


def reports(folder: Path) -> None:
    """Pages of the fixed runs that tests/golden keeps: a simulation, and a deployment in whole numbers."""
    for run in sorted((GOLDEN / "folders").iterdir()):
        shutil.copytree(run, run.name)
        command("report", run.name)
        page = Path(run.name, "report.html").read_text(encoding="utf-8")
        page = re.sub(r'(id="records">).*?(</script>)', r"\1RECORDS\2", page, flags=re.S)  # compressed
        (folder / f"report-{run.name}.html").write_text(
            page.replace(version("discretion"), "VERSION"), encoding="utf-8"
        )
        (folder / f"show-{run.name}.txt").write_text(command("show", run.name), encoding="utf-8")


def write(folder: Path) -> None:
    """Write all golden files into a folder; any other than `GOLDEN` is for comparing."""
    folder.mkdir(parents=True, exist_ok=True)
    before, columns = Path.cwd(), os.environ.get("COLUMNS")
    os.environ["COLUMNS"] = "100"
    try:
        with tempfile.TemporaryDirectory() as place:
            os.chdir(place)
            population = command("population", "groups:1,3,6", "--clients", "12", "--size", "20")
            Path("population.csv").write_text(population, encoding="utf-8")
            Path("config.toml").write_text(CONFIG, encoding="utf-8")
            texts = help_texts()
            (folder / "help.txt").write_text(
                "".join(f"$ {name} --help\n{text}\n" for name, text in texts.items()), encoding="utf-8"
            )
            methods = json.loads(command("methods", "--json"))["methods"]
            (folder / "methods").mkdir(exist_ok=True)
            for method in methods:
                path = folder / "methods" / f"{method['name']}.json"
                kept = GOLDEN / "methods" / path.name
                found = of_method(method["name"], method["modes"], kept if folder != GOLDEN else None)
                path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            reports(folder)
    finally:
        os.chdir(before)
        os.environ.pop("COLUMNS", None)
        if columns is not None:
            os.environ["COLUMNS"] = columns


if __name__ == "__main__":
    write(Path(sys.argv[1]) if len(sys.argv) > 1 else GOLDEN)
