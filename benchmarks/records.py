"""How many records' clipped gradients a second noisy steps take, beside plain torch and Opacus.

Rounds of 10 clients, each with 5 noisy steps on batches of about 128 of its 600 records; whole rounds are
timed, noise included. On `--cores` 2 ours trains two clients at a time, the others run in two processes.
Every run may keep freed memory (glibc gives it back else, and page faults then take up to half of the time).

Run: python benchmarks/records.py --seconds 5 --cores 2 --peer-python /path/to/venv/with/opacus/bin/python
"""

import argparse
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import records_peers as peers
import torch

from discretion.clients.local import LocalClients, LocalTraining
from discretion.engine import records
from discretion.noise import Seeded
from discretion.orders import NoisySteps, Order
from discretion.streams import Purpose, stream
from discretion.tasks.datasets import Dataset, Split
from discretion.tasks.partitions import Partition

KEEP = {"MALLOC_MMAP_THRESHOLD_": str(2**30), "MALLOC_TRIM_THRESHOLD_": str(2**32), "MALLOC_ARENA_MAX": "1"}
WORKLOADS = ("B", "B_tf", "adult")


def ours(workload: str, seconds: float, cores: int, each: bool) -> None:
    """`each`: by the gradient of each record, as for models of unknown parts."""
    torch.set_num_threads(cores)
    if each:
        records.known = lambda model: None
    inputs, labels = peers.data_of(workload)
    split = Split(inputs, labels)
    kind = "tabular" if workload == "adult" else "image"
    dataset = Dataset("made", split, split, int(labels.max()) + 1, kind, "made", mean=0.3, std=0.3)
    starts = np.arange(peers.CLIENTS + 1) * peers.RECORDS
    local = LocalTraining(learning_rate=peers.LEARNING_RATE)
    clients = LocalClients(
        dataset, Partition(np.arange(len(labels)), starts), peers.model_of(workload), local
    )
    who, one, cores_used = np.arange(peers.CLIENTS), np.ones(peers.CLIENTS), 0.0
    for number, times in enumerate(peers.rounds(seconds)):
        noisy = NoisySteps(
            peers.STEPS,
            one * peers.BATCH / peers.RECORDS,
            one * peers.CLIP,
            one * peers.NOISE,
            (),
            lambda i, number=number: Seeded(stream(1, Purpose.STEPS, number, i)),
        )
        begin, processor = time.perf_counter(), time.process_time()
        for _ in clients.updates(Order(number, 0, clients.initial(), who, np.zeros_like(who), noisy)):
            pass
        times.append(time.perf_counter() - begin)
        cores_used += (time.process_time() - processor) if number else 0.0
    peers.report(times, cores_used)


def measured(command: list[str], processes: int) -> tuple[float, float, float]:
    """Together: gradients a second, the same for each second of processor, the most memory (GB)."""
    environment = {**os.environ, **KEEP, "OMP_NUM_THREADS": "1"}
    running = [
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, env=environment, cwd=Path(__file__).parent
        )
        for _ in range(processes)
    ]
    answers = np.array([json.loads(one.communicate()[0].splitlines()[-1]) for one in running])
    return float(answers[:, 0].sum()), float(answers[:, 1].mean()), float(answers[:, 2].sum())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--cores", type=int, default=1)
    parser.add_argument("--workloads", nargs="+", default=WORKLOADS, choices=WORKLOADS)
    parser.add_argument("--peer-python", help="of an environment with torch and opacus")
    parser.add_argument("--only", nargs=2, metavar=("WAY", "WORKLOAD"), help="ours or each, in this process")
    given = parser.parse_args()
    if given.only:
        ours(given.only[1], given.seconds, given.cores, each=given.only[0] == "each")
        return
    here, seconds = [sys.executable, __file__], str(given.seconds)
    print(f"{'gradients a second':34}{'wall':>10}{'per core':>10}{'GB':>7}{'load':>7}")
    for workload in given.workloads:
        options = ["--seconds", seconds, "--cores", str(given.cores)]
        rows = [
            ("ours", [*here, *options, "--only", "ours", workload], 1),
            ("each record's gradient (vmap)", [*here, *options, "--only", "each", workload], 1),
        ]
        for mode in ("plain", "opacus_hooks", "opacus_ghost"):
            if mode == "plain" or given.peer_python:
                python = sys.executable if mode == "plain" else given.peer_python
                rows.append((mode, [python, peers.__file__, mode, workload, seconds], given.cores))
        for name, command, processes in rows:
            wall, core, memory = measured(command, processes)
            load = os.getloadavg()[0]
            print(f"{workload:6}{name:28}{wall:10.0f}{core:10.0f}{memory:7.2f}{load:7.1f}", flush=True)


if __name__ == "__main__":
    main()
