"""What the engine costs beside training, how much memory a run takes, and how both grow.

overhead: a run of 6,000 clients of ten pictures, 120 a round, five steps each (A_small), through its run
folder with ledger and checkpoints; milliseconds of each part of a round. memory: the same with 10^5 clients,
and how far the process grows beyond its data. round: clients trained a second with 10^2 to 10^4 of them in a
round. population: 10^3 to 10^6 clients in three classes of budgets, a thousand drawn a round; seconds of what
is done once (population, plan, certificate, files, ledger, report) and of a round. ledger: one file with 500
to 2,000 past runs of 20 clients each, the same or others in every run; seconds of opening it, admitting one
more run, reserving its first round, and what its clients, or all on record, have spent. Each column is a
process of its own; medians over --repeats.

Run: python benchmarks/growth.py [overhead memory round population ledger] [--json]
"""

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # what a benchmark does not use shall not take its memory
    from numpy.typing import NDArray

    from discretion.ledger.store import Rule
    from discretion.runs.config import Config
    from discretion.tasks.datasets import Dataset

Row = dict[str, float]

WHAT = ("overhead", "memory", "round", "population", "ledger")
IN_A_ROUND = (100, 1000, 10_000)
CLIENTS = (1000, 10_000, 100_000, 1_000_000)
PAST_RUNS = (500, 1000, 2000)
DRAWN = 1000
FEATURES = 4  # of a record, where the population is what grows


def most_memory() -> float:
    """GB that this process has taken at most."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


@contextmanager
def timed(row: Row, name: str) -> Iterator[None]:
    start = time.perf_counter()
    yield
    row[name] = time.perf_counter() - start


def settings(clients: int, drawn: float, rounds: int, **train: int) -> "Config":
    from discretion.runs.config import Config

    return Config.model_validate(
        {
            "population": {"clients": clients},
            "data": {"records": 10},
            "model": {"name": "cnn_small"},
            "plan": {"rounds": rounds, "rate": drawn / clients},
            "train": {"epochs": 5, "batch_size": 10, "evaluate_every": rounds, **train},
        }
    )


def pictures(clients: int) -> "Dataset":
    """Made, as large as Fashion-MNIST's, ten for each client."""
    from discretion.tasks.datasets import Dataset, Split

    rng = np.random.default_rng(0)

    def split(count: int) -> Split:
        inputs = rng.integers(0, 256, (count, 1, 28, 28), np.uint8)
        return Split(inputs, rng.integers(0, 10, count))

    return Dataset("made", split(10 * clients), split(1000), 10, "image", "made", mean=0.5, std=0.3)


def profiled(clients: int, drawn: int, rounds: int, dataset: "Dataset") -> Row:
    """Milliseconds of each part of a round, by a run as users do it."""
    from discretion.runs.execute import execute
    from discretion.runs.folder import RunFolder
    from discretion.runs.prepare import prepare
    from discretion.timing import Profile

    row: Row = {}
    with tempfile.TemporaryDirectory() as place:
        folder, profile = RunFolder(Path(place) / "run"), Profile()
        with timed(row, "prepare s"):
            task = prepare(settings(clients, drawn, rounds), folder, dataset)
        execute(task, profile=profile)
    seconds = profile.seconds
    row |= {
        f"{part} ms": 1000 * seconds[part] / rounds for part in seconds if part not in ("evaluate", "admit")
    }
    row["clients/s"] = drawn * rounds / seconds["train"]
    row["overhead %"] = 100 * profile.overhead
    return row


def overhead(rounds: int) -> Row:
    from discretion.tasks import datasets

    return profiled(6000, 120, rounds, datasets.load("fashion-mnist"))


def memory(clients: int) -> Row:
    import torch  # noqa: F401  # what it takes is part of a run

    dataset, row = pictures(clients), Row()
    row["data GB"] = dataset.train.inputs.nbytes / 2**30
    row["before GB"] = most_memory()
    row |= {"clients/s": profiled(clients, 120, 5, dataset)["clients/s"], "most GB": most_memory()}
    row["beyond data GB"] = row["most GB"] - row["data GB"]
    return row


def round_of(drawn: int) -> Row:
    found = profiled(2 * drawn, drawn, max(2, 2000 // drawn), pictures(2 * drawn))
    return {
        "clients": drawn,
        **{name: found[name] for name in ("clients/s", "overhead %")},
        "GB": most_memory(),
    }


def population(clients: int) -> Row:
    """Each step on its own, by the public functions; files as a run folder has them."""
    import discretion as dn
    from discretion.accounting import Certificate
    from discretion.clients.local_clients import LocalClients
    from discretion.tasks import models
    from discretion.tasks.datasets import Dataset, Split
    from discretion.tasks.partitions import Partition

    rng, row = np.random.default_rng(0), Row(clients=clients)
    split = Split(rng.random((clients, FEATURES), np.float32), rng.integers(0, 2, clients))
    dataset = Dataset("made", split, split, 2, "tabular", "made")
    with timed(row, "population s"):
        people = dn.Population.of(dn.draw_budgets("0.5-1.5-3", clients, rng), delta=1e-7)
    with timed(row, "plan s"):
        options = {"rounds": 100, "rate": min(1.0, DRAWN / clients), "clip": 0.5}
        plan = dn.make_plan("idp_fedavg", people, options)
    with timed(row, "certify s"):
        certificate = dn.certify(plan, people)
    with timed(row, "write s"):
        texts = people.to_csv(), plan.to_json(), certificate.to_json()
    row["files MB"] = sum(len(text) for text in texts) / 1e6
    with tempfile.TemporaryDirectory() as place:
        csv = Path(place) / "population.csv"
        csv.write_text(texts[0])
        with timed(row, "read s"):
            dn.Population.from_csv(csv), dn.Plan.from_json(texts[1]), Certificate.from_json(texts[2])
        holdings = Partition(np.arange(clients), np.arange(clients + 1))
        local = LocalClients(dataset, holdings, models.build("linear", dataset, 0))
        with timed(row, "ledger s"):
            ledger = dn.Ledger(Path(place) / "ledger.sqlite", people)
        with ledger:
            state = dn.State.start(local.initial())
            rounds = dn.train(plan, certificate, local, ledger, state, run="one", seed=0)
            with timed(row, "admit s"):
                next(rounds)  # and its first round
            taken = []
            for _ in range(20):
                start = time.perf_counter()
                next(rounds)
                taken.append(time.perf_counter() - start)
            row["round ms"] = 1000 * median(taken)
            with timed(row, "spent s"):
                ledger.spent()
        row["ledger MB"] = (Path(place) / "ledger.sqlite").stat().st_size / 1e6
    row["GB"] = most_memory()
    return row


def report(clients: int) -> Row:
    """A whole run of a few rounds, then its report: what it takes, and how large it is."""
    from discretion import report as reports
    from discretion.runs.config import Config
    from discretion.runs.execute import execute
    from discretion.runs.folder import RunFolder
    from discretion.runs.prepare import prepare
    from discretion.tasks.datasets import Dataset, Split

    rng, row = np.random.default_rng(0), Row(clients=clients)
    split = Split(rng.random((clients, FEATURES), np.float32), rng.integers(0, 2, clients))
    dataset = Dataset("made", split, split, 2, "tabular", "made")
    config = Config.model_validate(
        {
            "population": {"clients": clients, "delta": 1e-7},
            "model": {"name": "linear"},
            "plan": {"rounds": 3, "rate": min(1.0, DRAWN / clients)},
        }
    )
    with tempfile.TemporaryDirectory() as place:
        folder = RunFolder(Path(place) / "run")
        with timed(row, "prepare s"):
            task = prepare(config, folder, dataset)
        with timed(row, "3 rounds s"):
            execute(task)
        with timed(row, "report s"):
            reports.write([folder.path], folder.report)
        row["report MB"] = folder.report.stat().st_size / 1e6
    row["GB"] = most_memory()
    return row


def ledger_of(runs: int, same: bool, rule: "Rule") -> Row:
    import discretion as dn
    from discretion.plan.phase import Phase

    def people(run: int) -> dn.Population:
        names = tuple(f"{0 if same else run}-{i}" for i in range(20))
        return replace(dn.Population.of([50.0] * 20, 1e-5), client=names)

    def plan_of(people: dn.Population, run: int) -> dn.Plan:
        return dn.Plan(
            "made", people.client, (Phase.one_pool(2, np.ones(20), np.ones(20), 300.0 + run % 50),)
        )

    class Unasked(dn.Ledger):
        """Puts runs on record without asking whether they fit: asking each time is what takes long."""

        def _consider(self, plan: dn.Plan, accept_no_privacy: bool) -> bool:
            return False

        def _willing(self, *_: object) -> "NDArray[np.bool_]":
            return np.ones(20, dtype=bool)

        def switch_to(self, people: dn.Population) -> None:
            with self._transaction():
                self._enrol(people)
            self._begin(people)

    row = Row(runs=runs)
    with tempfile.TemporaryDirectory() as place:
        path = Path(place) / "ledger.sqlite"
        with Unasked(path, people(0), rule) as past:
            past._db.execute("PRAGMA synchronous = OFF")
            for run in range(runs):
                if not same:
                    past.switch_to(people(run))
                past.admit(f"r{run}", plan_of(past.population, run))
                past.reserve(f"r{run}", 1)
                past.finish(f"r{run}", kept=1)
        with timed(row, "open s"):
            ledger = dn.Ledger(path, people(0), rule)
        with ledger:
            with timed(row, "admit s"):
                ledger.admit("new", plan_of(ledger.population, 100))
            with timed(row, "reserve s"):
                ledger.reserve("new", 1)
            with timed(row, "spent s"):
                ledger.spent()
        with timed(row, "open for all s"):
            ledger = dn.Ledger.existing(path)
        with ledger, timed(row, "all spent s"):
            ledger.spent()
        row["ledger MB"] = path.stat().st_size / 1e6
    row["GB"] = most_memory()
    return row


WORK: dict[str, Callable[[int], Row]] = {
    "overhead": overhead,
    "memory": memory,
    "round": round_of,
    "population": population,
    "report": report,
    "same clients, planned": lambda runs: ledger_of(runs, True, "planned"),
    "same clients, adaptive": lambda runs: ledger_of(runs, True, "adaptive"),
    "other clients, planned": lambda runs: ledger_of(runs, False, "planned"),
    "other clients, adaptive": lambda runs: ledger_of(runs, False, "adaptive"),
}


def alone(what: str, size: int, repeats: int) -> Row:
    """Medians of the rows that processes of their own give."""
    command = [sys.executable, __file__, "--only", what, str(size)]
    rows = []
    for _ in range(repeats):
        done = subprocess.run(command, stdout=subprocess.PIPE, text=True)
        if done.returncode:
            raise SystemExit(f"{' '.join(command)} failed")
        rows.append(json.loads(done.stdout.splitlines()[-1]))
    found = {name: median(row[name] for row in rows) for name in rows[0]}
    return found | {"load": os.getloadavg()[0]}


def show(title: str, rows: list[Row]) -> None:
    """Names down, sizes across."""
    print(f"\n{title}")
    for name in rows[0]:
        cells = (
            f"{row[name]:14,.0f}" if name in ("clients", "runs") else f"{row[name]:14.4g}" for row in rows
        )
        print(f"  {name:18}{''.join(cells)}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("what", nargs="*", metavar="WHAT", help=f"of {', '.join(WHAT)}; none: all of them")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--rounds", type=int, default=100, help="of the run whose overhead is measured")
    parser.add_argument("--largest", type=int, default=CLIENTS[-1], help="population")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--only", nargs=2, metavar=("WHAT", "SIZE"), help="one row, in this process")
    given = parser.parse_args()
    if given.only:
        print(json.dumps(WORK[given.only[0]](int(given.only[1]))))
        return
    if unknown := set(given.what) - set(WHAT):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; known are {', '.join(WHAT)}")
    many = [clients for clients in CLIENTS if clients <= given.largest]
    sizes: dict[str, list[tuple[str, tuple[int, ...] | list[int]]]] = {
        "overhead": [("overhead", (given.rounds,))],
        "memory": [("memory", (100_000,))],
        "round": [("round", IN_A_ROUND)],
        "population": [("population", many), ("report", many)],
        "ledger": [(part, PAST_RUNS) for part in WORK if "clients, " in part],
    }
    found = {}
    for what in given.what or WHAT:
        for part, each in sizes[what]:
            found[part] = [alone(part, size, given.repeats) for size in each]
            if not given.json:
                show(part, found[part])
    if given.json:
        print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
