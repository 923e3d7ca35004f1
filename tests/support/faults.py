"""Faults at every file-system call of a scenario: crashes, torn writes, losses of power, errors, a full disk.

A scenario is run once, and every call is logged (`faults.c`), those inside SQLite, too. From the log follows
what any crash leaves on the disk (`disk`); for errors the scenario is run again, with the call failing. Each
time, a new process then goes on as after a restart, and asserts what must hold. Processes are forks of this
one, which `outcomes` starts with `faults.c` preloaded.
"""

import argparse
import ctypes
import errno
import json
import os
import pickle
import shutil
import signal
import subprocess
import sys
import tempfile
import traceback
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any, Protocol

from discretion.errors import DiscretionError
from support.disk import CHANGING, SECTOR, Call, Disk, contents, read_log, write_image

SOURCE = Path(__file__).with_name("faults.c")
ONCE, FROM_THEN_ON, SHORT = 1, 2, 3  # as in faults.c
ERRORS = {  # kind of fault: when calls fail, and how
    "EIO": (ONCE, errno.EIO),
    "ENOSPC": (ONCE, errno.ENOSPC),
    "full disk": (FROM_THEN_ON, errno.ENOSPC),
    "short write": (SHORT, 0),
}
CRASHES = ("killed", "torn", "power")
TOO_LONG = 60  # seconds after which a process counts as hanging

Fact = dict[str, Any]
Say = Callable[[Fact], None]


class Scenario(Protocol):
    def set_up(self, home: Path) -> None:
        """Make what is there before, and is durable."""

    def act(self, home: Path, say: Say) -> None:
        """Do the work of the process that meets the fault; `say` what leaves it, or is promised by it."""

    def restart(self, home: Path, facts: list[Fact]) -> str:
        """Do what a new process does; assert what must hold after these facts; return how it ended."""


@dataclass(frozen=True)
class Point:
    """Where a fault strikes: at a call (errors), at a record of the log (torn), or after one (the others)."""

    scenario: str
    seed: int
    kind: str
    at: int
    site: tuple[str, ...]

    @property
    def name(self) -> str:
        return f"{self.scenario}, {self.seed}, {self.at}, {self.kind}"


@dataclass(frozen=True)
class Outcome:
    point: str
    kind: str
    ended: str  # how the new process ended; empty where something did not hold
    failed: str = ""


class Harness:
    """One scenario, traced, with all its points."""

    def __init__(self, name: str, scenario: Scenario, seed: int, work: Path) -> None:
        self._name, self._scenario, self._seed, self._work = name, scenario, seed, work
        self._library = ctypes.CDLL(None)
        self._home = work / "home"  # the same for all, because files contain paths
        self._before = work / "before"
        self._before.mkdir()
        scenario.set_up(self._fresh(None))
        shutil.move(self._home, self._before / "home")
        self._restarted(self._acted(None))  # not in a fork: what is computed or read here, all forks know
        facts = self._acted(work / "log")
        self._log = read_log(work / "log")
        self._check_model()
        assert facts == self._said(self._log), "the facts are not in the log"

    def _fresh(self, image: dict[str, bytes | None] | None) -> Path:
        """Return the home, as it was before, or with this image in it."""
        shutil.rmtree(self._home, ignore_errors=True)
        if image is not None:
            write_image(image, self._home)
        elif (self._before / "home").exists():
            shutil.copytree(self._before / "home", self._home)
        else:
            self._home.mkdir()
        return self._home

    def _acted(self, log: Path | None, at: int = 0, kind: int = 0, code: int = 0) -> list[Fact]:
        """Have the scenario act, with a fault or without; return what it said."""
        home, facts = self._fresh(None), list[Fact]()

        def say(fact: Fact) -> None:
            facts.append(fact)
            self._library.faults_mark(json.dumps(fact).encode())

        place = str(log).encode() if log else b""
        self._library.faults_begin(str(home).encode(), place, ctypes.c_long(at), kind, code)
        try:
            self._scenario.act(home, say)
        except DiscretionError:
            if not at:
                raise
        finally:
            calls = self._library.faults_end()
        assert calls >= at, f"{calls} calls, and none fails: expected {at} at least"
        return facts

    def _restarted(self, facts: list[Fact]) -> str:
        """Restart the scenario; watched, so that nothing waits for a disk."""
        self._library.faults_begin(str(self._home).encode(), b"", ctypes.c_long(0), 0, 0)
        try:
            return self._scenario.restart(self._home, facts)
        finally:
            self._library.faults_end()

    def _check_model(self) -> None:
        """Assert that the model of the disk ends with what is in the folder."""
        made = contents(self._home)
        disk = Disk(self._fresh(None))
        for call in self._log:
            disk.apply(call)
        assert disk.image() == made
        self._fresh(made)

    def points(self) -> list[Point]:
        step, found = "", []
        for at, call in enumerate(self._log):
            if call.kind == "m":
                step = next(iter(json.loads(call.path)))
            kinds = ["killed", "power"] if call.kind in CHANGING + "m" else []
            kinds += ["torn"] if call.kind == "w" and len(call.data) > 1 else []
            places = [(kind, at) for kind in kinds]
            if call.kind not in "xm":
                kinds = ["EIO"] if call.kind in "ois" else ["EIO", "ENOSPC", "full disk"]
                kinds += ["short write"] if call.kind == "w" else []
                places += [(kind, call.number) for kind in kinds]
            found += [Point(self._name, self._seed, *place, (place[0], step, *call.site)) for place in places]
        return list({point.name: point for point in found}.values())

    def outcome(self, point: Point) -> Outcome:
        try:
            facts = self._errors(point) if point.kind in ERRORS else self._crash(point)
            ended = in_fork(lambda: self._restarted(facts))
        except Broken as problem:
            return Outcome(point.name, point.kind, "", str(problem))
        return Outcome(point.name, point.kind, ended)

    def _errors(self, point: Point) -> list[Fact]:
        facts: list[Fact] = in_fork(lambda: self._acted(None, point.at, *ERRORS[point.kind]))
        return facts

    def _crash(self, point: Point) -> list[Fact]:
        """Leave on the disk what the crash leaves; return what was said before."""
        rng = Random(point.name)
        disk = Disk(self._fresh(None))
        for call in self._log[: point.at]:
            disk.apply(call)
        last = self._log[point.at]
        disk.apply(torn(last, rng) if point.kind == "torn" else last)
        self._fresh(disk.image(rng if point.kind == "power" else None))
        return self._said(self._log[: point.at + 1])

    @staticmethod
    def _said(log: list[Call]) -> list[Fact]:
        return [json.loads(call.path) for call in log if call.kind == "m"]


def torn(call: Call, rng: Random) -> Call:
    """Return a write of which only the first bytes, or sectors, come to the disk."""
    most = len(call.data) - 1
    length = rng.randint(1, most)
    if most >= SECTOR and rng.random() < 0.5:
        length = length // SECTOR * SECTOR or SECTOR
    return call._replace(data=call.data[:length])


class Broken(Exception):
    """What a process did that must not happen."""


def in_fork(work: Callable[[], Any]) -> Any:
    """Return what `work` returns in a process of its own, which ends then and there."""
    reading, writing = os.pipe()
    if (child := os.fork()) == 0:
        signal.alarm(TOO_LONG)
        try:
            result = True, work()
        except BaseException:
            result = False, traceback.format_exc()
        with os.fdopen(writing, "wb") as pipe:
            pickle.dump(result, pipe)
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        content = pipe.read()
    _, status = os.waitpid(child, 0)
    if not content:
        raise Broken(f"the process ended with status {status}, which is {TOO_LONG} seconds' if it is 14")
    went_well, found = pickle.loads(content)
    if not went_well:
        raise Broken(found)
    return found


def chosen(points: Sequence[Point], cases: int, seed: int) -> list[Point]:
    """Return so many points, from every site as many as possible alike."""
    by_site = defaultdict(list)
    for point in points:
        by_site[point.site].append(point)
    rng = Random(seed)
    for some in by_site.values():
        rng.shuffle(some)
    turns = [(turn, rng.random(), point) for some in by_site.values() for turn, point in enumerate(some)]
    return [point for _, _, point in sorted(turns, key=lambda each: each[:2])[:cases]]


def compiled(folder: Path) -> Path:
    """Compile `faults.c` and return the library."""
    library = folder / "faults.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, SOURCE], check=True)
    return library


def outcomes(
    scenario: str, seed: int = 1, cases: int = 10**9, part: str = "0/1", only: str = "", plant: str = ""
) -> Iterator[Outcome]:
    """Yield what happened at the points of a scenario, found in a process with `faults.c` preloaded."""
    with tempfile.TemporaryDirectory() as folder:
        here = Path(__file__).parents[1]
        path = os.pathsep.join([str(here), os.environ.get("PYTHONPATH", "")])
        surroundings = {"LD_PRELOAD": str(compiled(Path(folder))), "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}
        command = [sys.executable, "-m", "support.faults", scenario, "--seed", str(seed)]
        command += ["--cases", str(cases), "--part", part, "--only", only, "--plant", plant]
        process = subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=os.environ | surroundings, cwd=folder
        )
        assert process.stdout
        try:
            with process.stdout:
                yield from (Outcome(**json.loads(line)) for line in process.stdout)
            assert process.wait() == 0, f"the harness failed at {scenario}: see above"
        finally:
            process.kill()
            process.wait()


def main() -> None:
    from support.fault_plants import plant
    from support.fault_scenarios import SCENARIOS

    parser = argparse.ArgumentParser()
    parser.add_argument("scenario")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--cases", type=int, default=10**9)
    parser.add_argument("--part", default="0/1")
    parser.add_argument("--only", default="")
    parser.add_argument("--plant", default="")
    asked = parser.parse_args()
    if asked.plant:
        plant(asked.plant)
    part, parts = map(int, asked.part.split("/"))
    with tempfile.TemporaryDirectory() as folder:
        harness = Harness(asked.scenario, SCENARIOS[asked.scenario](), asked.seed, Path(folder))
        points = [point for point in harness.points() if asked.only in ("", point.name)]
        for point in chosen(points, asked.cases, asked.seed)[part::parts]:
            print(json.dumps(vars(harness.outcome(point))), flush=True)


if __name__ == "__main__":
    main()
