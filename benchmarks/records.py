"""How many records' clipped gradients a second noisy steps take, beside plain torch and Opacus.

Rounds of 10 clients, each with 5 noisy steps on batches of about 128 of its 600 records; whole rounds are
timed, noise included. Plain torch has no privacy; its images and Opacus' are in the order that is fastest
(channels last). On one core, and for the table on two as well: there ours trains two clients at a time, the
others run in two processes. Every run may keep freed memory (glibc gives it back else, and page faults then
take up to half of the time).

Run: python benchmarks/records.py --seconds 5 --peer-python /path/to/venv/with/opacus/bin/python
"""

import argparse
import json
import os
import subprocess
import sys
import time
from functools import partial
from pathlib import Path

import numpy as np
import records_peers as peers
import torch

from discretion.clients.local_clients import LocalClients
from discretion.clients.training import LocalTraining
from discretion.engine import record_sums
from discretion.randomness.sources import Seeded
from discretion.randomness.streams import Purpose, stream
from discretion.tasks.catalogue import Kind
from discretion.tasks.datasets import Dataset, Split
from discretion.tasks.partitions import Partition
from discretion.training.orders import NoisySteps, Order

KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_ARENA_MAX": "1"}
WORKLOADS = ("B", "B_tf", "adult")
WAYS = {"ours": "ours", "torch": "ours without a compiler", "each": "each record's gradient (vmap)"}
PEERS = {"plain": "plain torch, not private", "opacus_ghost": "Opacus ghost", "opacus_hooks": "Opacus hooks"}


def _steps_of(round_: int, i: int) -> Seeded:
    return Seeded(stream(1, Purpose.STEPS, round_, i))


def ours(way: str, workload: str, seconds: float, cores: int) -> None:
    """torch: without compiled code; each: by the gradient of each record, as for models of unknown parts."""
    torch.set_num_threads(cores)
    if way == "each":
        record_sums.trace_per_record = lambda model: None  # type: ignore[attr-defined]
    inputs, labels = peers.data_of(workload)
    split = Split(inputs, labels)
    kind: Kind = "tabular" if workload == "adult" else "image"
    dataset = Dataset("made", split, split, int(labels.max()) + 1, kind, "made", mean=0.3, std=0.3)
    starts = np.arange(peers.CLIENTS + 1) * peers.RECORDS
    local = LocalTraining(learning_rate=peers.LEARNING_RATE)
    clients = LocalClients(
        dataset, Partition(np.arange(len(labels)), starts), peers.model_of(workload), local
    )
    if way != "ours":
        clients._noisy.stack = None
    who, one, cores_used, before = np.arange(peers.CLIENTS), np.ones(peers.CLIENTS), 0.0, peers.memory()
    for number, times in enumerate(peers.rounds(seconds)):
        noisy = NoisySteps(
            peers.STEPS,
            one * peers.BATCH / peers.RECORDS,
            one * peers.CLIP,
            one * peers.NOISE,
            (),
            partial(_steps_of, number),
        )
        begin, processor = time.perf_counter(), time.process_time()
        for _ in clients.updates(Order(number, 0, clients.initial(), who, np.zeros_like(who), noisy)):
            pass
        times.append(time.perf_counter() - begin)
        cores_used += (time.process_time() - processor) if number else 0.0
    peers.report(times, cores_used, before)


def measured(command: list[str], processes: int) -> list[float]:
    """Together: gradients a second, the same by processor time, GB of memory, and those over the data."""
    environment = {**os.environ, **KEEP, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment, cwd=Path(__file__).parent
        )
        for _ in range(processes)
    ]
    answers = np.array([json.loads(one.communicate()[0].splitlines()[-1]) for one in running])
    total = answers.sum(axis=0)
    total[1] /= processes
    return [float(number) for number in total]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--cores", type=int, nargs="+", help="1, and for the table 2 as well")
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS, choices=WORKLOADS)
    parser.add_argument("--peer-python", help="of an environment with torch and opacus")
    parser.add_argument(
        "--only", nargs=2, metavar=("WAY", "WORKLOAD"), help=f"{', '.join(WAYS)}; in this process"
    )
    given = parser.parse_args()
    if given.only:
        way, workload = given.only
        ours(way, workload, given.seconds, given.cores[0] if given.cores else 1)
        return
    here, seconds = [sys.executable, __file__, "--seconds", str(given.seconds)], str(given.seconds)
    print(f"{'gradients a second':46}{'wall':>9}{'per core':>10}{'GB':>6}{'over data':>11}{'load':>6}")
    for workload in given.workloads:
        for cores in given.cores or ([1, 2] if workload == "adult" else [1]):
            rows = [
                (name, [*here, "--cores", str(cores), "--only", way, workload], 1)
                for way, name in WAYS.items()
            ]
            for mode, name in PEERS.items():
                if mode == "plain" or given.peer_python:
                    python = sys.executable if mode == "plain" else given.peer_python
                    rows.append((name, [python, peers.__file__, mode, workload, seconds], cores))
            for name, command, processes in rows:
                wall, core, memory, over = measured(command, processes)
                row = f"{workload:7}{cores} core{'s' * (cores > 1):2}{name:31}{wall:9.0f}{core:10.0f}"
                print(f"{row}{memory:6.2f}{over:11.2f}{os.getloadavg()[0]:6.1f}", flush=True)


if __name__ == "__main__":
    main()
