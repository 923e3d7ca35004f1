"""The pins of every environment: two files of constraints and, with hashes, the folder requirements.

`make pins` runs this script. Versions stay as they are unless it is given --upgrade.
"""

import re
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

CONSTRAINTS, FOLDER = Path("constraints.txt"), Path("requirements")
FLOWER_CONSTRAINTS = Path("constraints-flower.txt")
# torch comes in builds for processors and for graphics cards, each with other bytes, and an index decides
# which it offers; the latter bring libraries of their own. A hash of one build would shut out the others.
EXEMPT = re.compile(r"(torch|triton|(cuda|nvidia)-[a-z0-9-]+)==")
VERSIONS = "# The versions that `make demo` and `make test` install; the package itself allows ranges.\n"
FLOWER_VERSIONS = "# The versions of an environment with Flower, whose own pins are others than ours.\n"
HASHES = "# Hashes of the files that may be installed; see CONTRIBUTING.md.\n"
MADE = "# Made anew by `make pins`.\n"


class Layer(NamedTuple):
    """A file of the folder: what extras and other requirements need beyond the files before it."""

    name: str
    extras: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    python: str = "3.11"  # the oldest version that the pins must suit


OURS = (
    Layer("core"),
    Layer("test", others=("hypothesis", "pytest")),
    Layer("torch", ("torch",)),
    Layer("docs", ("docs",), python="3.11.5"),
    Layer("dev", ("dev",), python="3.11.5"),
)
FLOWER = (Layer("flower", ("flower",)), Layer("flower-sim", ("flower-sim",)))


def resolved(layers: Sequence[Layer], preferred: str) -> dict[str, str]:
    """Return what these layers need together: each pin with its marker, and the lines with its hashes.

    `preferred`: the text of a file of requirements, whose versions are kept where they can be.
    """
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    needed = [*project["build-system"]["requires"], *(other for layer in layers for other in layer.others)]
    extras = [f"--extra={extra}" for layer in layers for extra in layer.extras]
    return compiled(["pyproject.toml", *extras, f"--python-version={layers[-1].python}"], needed, preferred)


def compiled(arguments: Sequence[str], needed: Sequence[str], preferred: str) -> dict[str, str]:
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "pins.txt"
        file.write_text(preferred, encoding="utf-8")
        options = ["--universal", "--generate-hashes", "--no-annotate", "--no-header", "--quiet"]
        command = ["uv", "pip", "compile", "-", *arguments, *options, f"--output-file={file}"]
        subprocess.run(command, input="\n".join(needed), text=True, check=True, stdout=subprocess.DEVNULL)
        return blocks(file.read_text(encoding="utf-8"))


def blocks(text: str) -> dict[str, str]:
    """Return the pins of a file, each with its marker if it has one, and the lines below it."""
    found = re.findall(r"^([a-z0-9][^\\\n]*?)(?: \\)?\n((?: +.*\n)*)", text, re.MULTILINE)
    return dict(found)


def write(layer: str, pins: dict[str, str]) -> None:
    lines = "".join(f"{pin} \\\n{hashes}" for pin, hashes in pins.items() if not EXEMPT.match(pin))
    (FOLDER / f"{layer}.txt").write_text(HASHES + MADE + lines, encoding="utf-8")


def write_stack(stack: Sequence[Layer], preferred: str) -> None:
    before: dict[str, str] = {}
    for number, layer in enumerate(stack, 1):
        pins = resolved(stack[:number], preferred)
        write(layer.name, {pin: hashes for pin, hashes in pins.items() if pin not in before})
        before |= pins


def kept(files: Sequence[str]) -> str:
    """Return the pins that these files have now and, for all other packages, those of constraints.txt."""
    own = [pin for name in files for pin in blocks((FOLDER / f"{name}.txt").read_text(encoding="utf-8"))]
    named = {pin.split("==")[0] for pin in own}
    ours = blocks(CONSTRAINTS.read_text(encoding="utf-8"))
    return "\n".join([*own, *(pin for pin in ours if pin.split("==")[0] not in named)]) + "\n"


def flower_constraints() -> str:
    """Return the text of the constraints for Flower: the pins of its layers, and our torch."""
    layers = [blocks((FOLDER / f"{layer.name}.txt").read_text(encoding="utf-8")) for layer in FLOWER]
    ours = blocks(CONSTRAINTS.read_text(encoding="utf-8"))
    pins = {*(pin for layer in layers for pin in layer), *(pin for pin in ours if pin.startswith("torch=="))}
    return FLOWER_VERSIONS + MADE + "\n".join(sorted(pins)) + "\n"


def main(upgrade: bool) -> None:
    pins = resolved(OURS, "" if upgrade else CONSTRAINTS.read_text(encoding="utf-8"))
    ours = [pin for pin in pins if pin.startswith("torch==") or not EXEMPT.match(pin)]
    CONSTRAINTS.write_text(VERSIONS + MADE + "\n".join(ours) + "\n", encoding="utf-8")
    write_stack(OURS, kept([]))
    write_stack(FLOWER, kept([] if upgrade else [layer.name for layer in FLOWER]))
    FLOWER_CONSTRAINTS.write_text(flower_constraints(), encoding="utf-8")
    project = tomllib.loads(Path("pyproject.toml").read_text(encoding="utf-8"))
    flower = [
        need for need in project["project"]["optional-dependencies"]["flower"] if need.startswith("flwr")
    ]
    write("node", compiled(["--python-version=3.11"], flower, kept(["flower"])))
    tools = compiled(["--python-version=3.11"], ["pip-audit", "uv"], kept([] if upgrade else ["tools"]))
    write("tools", tools)


if __name__ == "__main__":
    main("--upgrade" in sys.argv[1:])
