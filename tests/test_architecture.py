"""The layout keeps its promises: imports point one way, names mean one thing, no torch in the core."""

import ast
import importlib
import pkgutil
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import discretion
from discretion.methods import METHODS

SOURCE = Path(__file__).parent.parent / "src" / "discretion"

# A folder or leaf imports itself and what stands in lines above its own, never its line or below
LEAVES = ["errors", "arrays", "files _native outside spreadsheet timing", "jsonfile"]
ORDER = [
    *LEAVES,
    "randomness",
    "plan tasks",
    "secure_sum",
    "accounting",
    "methods ledger",
    "training",
    "engine",
    "clients",
    "guard",
    "testing",
    "runs",
    "audit",
    "report",
    "watch",
    "export",
    "flower experiments",
    "cli",
    "__init__ __main__",
]
NEVER = {
    "tasks": {"randomness"},
    "guard": {"methods"},
    "engine": {"methods", "ledger"},
    "training": {"methods"},
}


def imported(path: Path) -> set[str]:
    """Return the folders and leaves of this package that a file imports."""
    names = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.level:
            names.append("discretion.a relative import")
        elif isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "discretion":
            names += [node.module] if "." in node.module else [f"discretion.{a.name}" for a in node.names]
        elif isinstance(node, ast.Import):
            own = [a.name for a in node.names if a.name.split(".")[0] == "discretion"]
            names += [name if "." in name else "discretion.the whole package" for name in own]
    return {name.split(".")[1] for name in names}


def room(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def test_every_module_has_its_room() -> None:
    rooms = {room(path) for path in SOURCE.rglob("*.py")}
    assert rooms == {name for line in ORDER for name in line.split()}
    leaves = [path.stem for path in SOURCE.glob("*.py") if not path.stem.startswith("__")]
    assert len(leaves) <= 8 and set(leaves) == {name for line in LEAVES for name in line.split()}


def test_imports_point_one_way() -> None:
    below: set[str] = set()
    for line in ORDER:
        for path in SOURCE.rglob("*.py"):
            if (name := room(path)) in line.split():
                wrong = imported(path) - {name} - below | imported(path) & NEVER.get(name, set())
                assert not wrong, f"{path.relative_to(SOURCE)} imports {', '.join(sorted(wrong))}"
        below |= set(line.split())


def test_a_file_name_means_one_thing() -> None:
    """A module of the command line has the name of its command, which may be that of a folder."""
    names = Counter(
        path.stem
        for path in SOURCE.rglob("*.py")
        if room(path) not in ("cli", "__init__", "__main__") and path.stem != "__init__"
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_a_class_name_means_one_thing() -> None:
    names = Counter(
        node.name
        for path in SOURCE.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    )
    assert [name for name, count in names.items() if count > 1] == []


def test_no_name_shadows_a_module() -> None:
    """`import discretion.a.b` gives a module, whatever the packages export."""
    for found in pkgutil.walk_packages(discretion.__path__, "discretion."):
        if found.name.startswith("discretion.flower.") or found.name.endswith(("__main__", "._clients")):
            continue  # they need Flower, are a program, or no Python module
        parent, _, name = found.name.rpartition(".")
        module = importlib.import_module(found.name)
        assert getattr(importlib.import_module(parent), name) is module, found.name


ORDINARY = {"delta", "random"}  # names of methods that are words, too


def test_no_method_is_named_outside_methods() -> None:
    for path in SOURCE.rglob("*.py"):
        if "methods" not in path.relative_to(SOURCE).parts:
            tree = ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            texts = {node.value for node in tree if isinstance(node, ast.Constant)}
            found = [name for name in set(METHODS) - ORDINARY if name in texts]
            assert not found, f"{path.relative_to(SOURCE)} names {', '.join(found)}"


def test_the_core_does_not_even_ask_for_torch() -> None:
    """Nor does the command line when it starts: torch takes longer to load than most commands to run."""
    core = ["plan.plan", "accounting", "ledger.ledger", "methods", "training.loop", "runs.config", "cli.main"]
    script = (
        "import sys\n"
        "class Missing:\n"
        "    def find_spec(self, name, *rest):\n"
        "        if name.split('.')[0] in ('torch', 'sklearn'):\n"
        "            raise RuntimeError(name)\n"
        "sys.meta_path.insert(0, Missing())\n"
        + "".join(f"import discretion.{name}\n" for name in core)
        + "print('imported')"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "imported", done.stderr


def test_only_a_plan_says_how_far_a_unit_can_move_a_sum() -> None:
    """Nobody else divides noise by a clip to charge for it. Accounts read back what was written down, and
    methods look for noise; what they find is charged by the plan that they make of it."""
    making = {"Steps"}
    for path in SOURCE.rglob("*.py"):
        calls = {
            node.func.id
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name)
        }
        free = {"accounting", "methods"} & set(path.relative_to(SOURCE).parts)
        if path.name not in ("plan.py", "steps.py", "entries.py") and not free:
            assert not calls & making, path.relative_to(SOURCE)


def test_noise_is_drawn_in_one_place_only() -> None:
    """Outside the noise and the simulation of populations nobody draws Gaussian numbers.

    The audit of records listens to the noise of its own games, and hands it on as it is.
    """
    drawing = {"normal", "standard_normal", "randn", "randn_like", "normal_", "multivariate_normal"}
    for path in SOURCE.rglob("*.py"):
        names = {
            node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)
        }
        if path.relative_to(SOURCE).as_posix() not in ("randomness/sources.py", "plan/budgets.py"):
            assert not names & drawing, path.relative_to(SOURCE)
        if path.name not in ("sources.py", "release.py", "record_canaries.py"):
            assert "gaussian" not in names or "accounting" in path.parts, path.relative_to(SOURCE)
        called = {node.id for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Name)}
        if path.name not in ("release.py", "integer_release.py"):
            assert not called & {"discrete_gaussian", "rounded_gaussian"}, path.relative_to(SOURCE)


def test_errors_that_python_raises_do_not_speak_of_the_command_line() -> None:
    folders = ("plan", "accounting", "methods", "training", "tasks", "clients", "runs", "audit", "report")
    for folder in (*folders, "ledger/ledger.py"):
        for path in [SOURCE / folder] if folder.endswith(".py") else (SOURCE / folder).rglob("*.py"):
            raised = (n for n in ast.walk(ast.parse(path.read_text("utf-8"))) if isinstance(n, ast.Raise))
            texts = (n.value for each in raised for n in ast.walk(each) if isinstance(n, ast.Constant))
            options = [text for text in texts if re.search(r"(^|[\s(`])(--[a-z]+|-c [a-z])", str(text))]
            assert not options or path.name == "config.py", f"{path}: {options}"  # which reads -c itself
