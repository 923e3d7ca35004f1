"""The layout keeps its promises: imports point one way, method names stay at home, no torch in the core."""

import ast
import subprocess
import sys
from pathlib import Path

from discretion.methods import METHODS

SOURCE = Path(__file__).parent.parent / "src" / "discretion"

# who may import whom, by first part of the module's name within the package
ALLOWED = {
    "errors": set(),
    "kinds": set(),
    "population": {"errors", "kinds"},
    "streams": {"errors"},
    "budgets": {"errors", "population"},
    "steps": {"errors", "population"},
    "records": {"errors"},
    "grid": {"discrete", "errors", "population"},
    "phase": {"errors", "population"},
    "extension": set(),
    "clip": {"errors", "extension", "population"},
    "pick": {"errors", "population", "phase"},
    "combine": {"errors", "population"},
    "plan_records": {"errors", "population", "phase", "records", "pick", "combine"},
    "plan": {
        *("errors", "population", "steps", "phase", "grid", "records", "pick", "combine", "plan_records"),
    },
    "treatment": {"plan", "population"},
    "accounting": {"errors", "kinds", "population", "steps", "phase", "plan", "records"},
    "problems": {"errors", "population", "steps", "accounting", "streams"},
    "methods": {
        *("errors", "kinds", "population", "steps", "phase", "pick", "combine", "plan"),
        *("accounting", "problems", "streams"),
    },
    "accounts": {"errors", "population", "steps", "plan"},
    "book": {"errors", "population"},
    "ledger": {"errors", "population", "steps", "plan", "accounting", "accounts", "book"},
    "discrete": {"errors", "population", "streams"},
    "noise": {"discrete", "errors", "population", "streams"},
    "profile": set(),
    "files": {"errors"},
    "journal": {"files"},
    "on_record": {"population"},
    "orders": {"clip", "noise", "pick", "population", "server"},
    "release": {
        *("errors", "population", "profile", "phase", "plan", "orders"),
        *("clip", "discrete", "grid", "noise"),
    },
    "train": {
        *("errors", "population", "profile", "phase", "plan", "accounting", "ledger"),
        *("clip", "noise", "orders", "pick", "release", "server", "streams"),
    },
    "server": {"population"},
    "tasks": {"errors"},
    "engine": {"errors", "extension", "population", "clip", "tasks"},
    "frames": {"errors"},
    "messages": {"errors", "pick", "records"},
    "clients": {
        *("errors", "population", "clip", "orders", "plan", "release", "streams", "tasks", "pick", "engine"),
        *("frames", "messages", "server"),
    },
    "guard": {
        *("errors", "population", "clip", "orders", "plan", "release", "streams", "tasks", "pick", "noise"),
        *("clients", "frames", "ledger", "messages", "server", "steps"),
    },
    "config": {"errors", "plan", "methods", "clients"},
    "materials": {
        *("errors", "population", "budgets", "streams", "plan", "methods", "tasks", "clients", "config"),
    },
}
# what people use: it may import everything, and nothing above imports it
OUTERMOST = {
    *("__init__", "__main__", "advice", "catalogue", "cli", "experiments", "flower", "ledger_command"),
    *("looking", "operate", "options", "plots", "receipts", "reconcile", "replan", "report", "results"),
    *("runs", "sketch", "terminal", "track", "verify", "watch"),
}


def imported(path: Path) -> set[str]:
    """The parts of this package that a file imports."""
    parts = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "discretion":
            names = [node.module] if "." in node.module else [f"discretion.{a.name}" for a in node.names]
            parts |= {name.split(".")[1] for name in names}
        elif isinstance(node, ast.Import):
            parts |= {a.name.split(".")[1] for a in node.names if a.name.startswith("discretion.")}
    return parts - {"__version__"}


def files(part: str) -> list[Path]:
    folder = SOURCE / part
    return sorted(folder.rglob("*.py")) if folder.is_dir() else [SOURCE / f"{part}.py"]


def test_every_part_has_its_place() -> None:
    parts = {
        path.stem for path in SOURCE.iterdir() if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert parts == set(ALLOWED) | OUTERMOST


def test_imports_point_one_way() -> None:
    for allowed in ALLOWED.values():
        assert not allowed & OUTERMOST and allowed <= set(ALLOWED)
    for part, allowed in ALLOWED.items():
        for path in files(part):
            beyond = imported(path) - allowed - {part}
            assert not beyond, f"{path.relative_to(SOURCE)} imports {', '.join(sorted(beyond))}"


def test_a_guard_sees_no_server_and_a_server_no_guard() -> None:
    for path in files("guard"):
        assert not imported(path) & {"train", "methods", "config"}, path
    for part in ("train", "clients", "release"):
        assert not any("guard" in imported(path) for path in files(part))


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
    core = ["population", "budgets", "plan", "accounting", "ledger", "methods", "train", "config", "cli"]
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
        if path.name not in ("plan.py", "steps.py", "accounts.py") and not free:
            assert not calls & making, path.relative_to(SOURCE)


def test_noise_is_drawn_in_one_place_only() -> None:
    """Outside the noise and the simulation of populations nobody draws Gaussian numbers; where budgets are
    solved for many clients, directions are drawn, of nobody's data."""
    drawing = {"normal", "standard_normal", "randn", "randn_like", "normal_", "multivariate_normal"}
    for path in SOURCE.rglob("*.py"):
        names = {
            node.attr for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.Attribute)
        }
        if path.relative_to(SOURCE).as_posix() not in ("noise.py", "budgets.py", "accounting/surface.py"):
            assert not names & drawing, path.relative_to(SOURCE)
        if path.name not in ("noise.py", "release.py"):
            assert "gaussian" not in names or "accounting" in path.parts, path.relative_to(SOURCE)
