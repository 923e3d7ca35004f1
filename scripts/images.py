"""The steps of deploy/Dockerfile, carried out in fresh root folders where no container engine runs.

`make images-check` runs this script, as root. Each stage becomes a root folder, in which its RUN steps are
done by chroot; the folder `debian` stands for the base image. PIP_ variables of this shell are handed on.
"""

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

DOCKERFILE = Path("deploy/Dockerfile")


class Step(NamedTuple):
    """A statement of a Dockerfile: its keyword and what follows it."""

    kind: str
    text: str

    @property
    def words(self) -> list[str]:
        """Return the words of a list in JSON, or of a line."""
        return json.loads(self.text) if self.text.startswith("[") else shlex.split(self.text)


@dataclass
class Stage:
    name: str
    base: str  # the name of a stage before it, or of an image
    steps: list[Step] = field(default_factory=list)

    def last(self, kind: str) -> Step | None:
        return next((step for step in reversed(self.steps) if step.kind == kind), None)


def stages(text: str) -> dict[str, Stage]:
    """Return all stages by name, in their order."""
    text = re.sub(r"^\s*#.*\n", "", text, flags=re.M).replace("\\\n", " ")
    arguments: dict[str, str] = {}
    found: dict[str, Stage] = {}
    for line in filter(str.strip, text.splitlines()):
        kind, _, rest = line.strip().partition(" ")
        if kind == "FROM":
            base, _, name = rest.split()
            found[name] = Stage(name, expanded(base, arguments))
        elif not found:
            arguments |= assigned(rest)
        else:
            [*found.values()][-1].steps.append(Step(kind, rest.strip()))
    return found


def assigned(text: str) -> dict[str, str]:
    """Return the variables that ENV or ARG sets."""
    return dict(word.split("=", 1) for word in shlex.split(text))


def expanded(text: str, values: dict[str, str]) -> str:
    return re.sub(r"\$\{(\w+)\}", lambda found: values[found[1]], text)


def ancestors(stage: Stage, by_name: dict[str, Stage]) -> list[Stage]:
    """Return the stages that a stage begins with, the first one first, and itself."""
    before = ancestors(by_name[stage.base], by_name) if stage.base in by_name else []
    return [*before, stage]


def environment(stage: Stage, by_name: dict[str, Stage]) -> dict[str, str]:
    """Return the variables that RUN steps at the end of a stage see."""
    values: dict[str, str] = {}
    for step in (step for each in ancestors(stage, by_name) for step in each.steps):
        if step.kind in ("ENV", "ARG"):
            values |= {name: expanded(value, values) for name, value in assigned(step.text).items()}
    return values


def inside(root: Path, folder: str, script: str, values: dict[str, str], binds: list[str]) -> None:
    """Run a shell's script in a root folder, with /dev, /proc and these paths of this machine mounted."""
    lines = []
    for path in ("/dev", "/proc", "/etc/resolv.conf", *binds):
        place = root / path.lstrip("/")
        if Path(path).is_dir():
            place.mkdir(parents=True, exist_ok=True)
        else:
            place.parent.mkdir(parents=True, exist_ok=True)
            place.touch()
        lines.append(shlex.join(["mount", "--rbind", path, str(place)]))
    lines.append(shlex.join(["exec", "chroot", str(root), "sh", "-eu", "-c", f"cd {folder}\n{script}"]))
    subprocess.run(["unshare", "--mount", "sh", "-eu", "-c", "\n".join(lines)], env=values, check=True)


def build(stage: Stage, by_name: dict[str, Stage], work: Path, binds: list[str]) -> None:
    """Make the root folder of a stage in `work`, and those of the stages that it needs."""
    root, folder = work / stage.name, "/"
    if root.exists():
        return
    needed = [step.words[0].removeprefix("--from=") for step in stage.steps if step.kind == "COPY"]
    for name in (stage.base, *needed):
        if name in by_name:
            build(by_name[name], by_name, work, binds)
    subprocess.run(["cp", "-a", work / (stage.base if stage.base in by_name else "debian"), root], check=True)
    handed_on = {name: value for name, value in os.environ.items() if name.startswith("PIP_")}
    values = environment(stage, by_name) | handed_on
    values["PATH"] = f"{values['PATH']}:/usr/sbin:/sbin"
    for step in (step for each in ancestors(stage, by_name) for step in each.steps):
        folder = step.text if step.kind == "WORKDIR" else folder
    (root / folder.lstrip("/")).mkdir(exist_ok=True)
    for step in stage.steps:
        if step.kind == "RUN":
            print(f"{stage.name}: {' '.join(step.text.split())}", flush=True)
            inside(root, folder, step.text, values, binds)
        elif step.kind == "COPY":
            copy(step.words, root / folder.lstrip("/"), work)


def copy(words: list[str], folder: Path, work: Path) -> None:
    """Copy files of the project into a stage's folder, or a tree of another stage to where it was."""
    if words[0].startswith("--from="):
        stage, path = words[0].removeprefix("--from="), words[1].lstrip("/")
        shutil.copytree(work / stage / path, folder / path, symlinks=True)
        return
    *sources, target = words
    for source in sources:
        if Path(source).is_dir():
            shutil.copytree(source, folder / target, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
        else:
            (folder / target).mkdir(exist_ok=True)
            shutil.copy2(source, folder / target)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("work", type=Path, help="where root folders are made; `debian` in it is the first")
    parser.add_argument("--bind", action="append", default=[], help="path of this machine that pip needs")
    given = parser.parse_args()
    found = stages(DOCKERFILE.read_text(encoding="utf-8"))
    for stage in found.values():
        build(stage, found, given.work, given.bind)


if __name__ == "__main__":
    main()
