"""What records.py compares with: plain torch without privacy, and Opacus. It needs nothing of Discretion.

Run: python benchmarks/records_peers.py plain B 5   (or opacus_hooks, opacus_ghost; seconds last)
"""

import json
import os
import resource
import statistics
import sys
import time
import warnings
from collections.abc import Callable, Iterator

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

CLIENTS, RECORDS, BATCH, STEPS = 10, 600, 128, 5  # a round: each client does so many steps
CLIP, NOISE, LEARNING_RATE = 1.0, 1.0, 0.1

Step = Callable[[Tensor, Tensor], None]


def model_of(workload: str) -> nn.Module:
    """B; B_tf, the CNN of TF-privacy's MNIST tutorial; adult, one hidden layer for a table."""
    torch.manual_seed(0)
    if workload == "adult":
        return nn.Sequential(nn.Linear(104, 64), nn.ReLU(), nn.Linear(64, 2))
    if workload == "B":
        convolutions = (nn.Conv2d(1, 16, 5, padding=2), nn.Conv2d(16, 32, 5, padding=2))
        dense: list[nn.Module] = [nn.Linear(1568, 512), nn.ReLU(), nn.Linear(512, 32)]
        pool = (2, 2)
    else:
        convolutions = (nn.Conv2d(1, 16, 8, 2, padding=3), nn.Conv2d(16, 32, 4, 2))
        dense, pool = [nn.Linear(512, 32)], (2, 1)
    first, second = ((layer, nn.ReLU(), nn.MaxPool2d(*pool)) for layer in convolutions)
    return nn.Sequential(*first, *second, nn.Flatten(), *dense, nn.ReLU(), nn.Linear(32, 10))


def data_of(workload: str) -> tuple[np.ndarray, np.ndarray]:
    """Records of all clients, one after the other; their values do not matter for the time."""
    random, count = np.random.default_rng(1), CLIENTS * RECORDS
    if workload == "adult":
        return random.standard_normal((count, 104)).astype(np.float32), random.integers(0, 2, count)
    images = random.integers(0, 256, (count, 1, 28, 28), dtype=np.uint8)
    return images, random.integers(0, 10, count)


def memory() -> float:
    """GB, the most so far."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6


def report(times: list[float], cores: float, before: float) -> None:
    """One line for records.py: gradients a second (median round), the same by processor time, memory.

    `before` is the memory once the data and the model were there.
    """
    gradients, most = CLIENTS * STEPS * BATCH, memory()
    answer = [gradients / statistics.median(times), gradients * len(times) / cores, most, most - before]
    print(json.dumps(answer))


def rounds(seconds: float) -> Iterator[list[float]]:
    """Yields, after a round that does not count, where to put the times of so many seconds."""
    yield []
    times: list[float] = []
    while sum(times) < seconds:
        yield times


def main() -> None:
    mode, workload, seconds = sys.argv[1], sys.argv[2], float(sys.argv[3])
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")  # of Opacus' hooks, in every step
    model = model_of(workload).to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    inputs, labels = map(torch.from_numpy, data_of(workload))
    start = {name: p.clone() for name, p in model.state_dict().items()}
    make = {"plain": plain, "opacus_hooks": opacus_hooks, "opacus_ghost": opacus_ghost}[mode](model)
    cores, before = 0.0, memory()
    for number, times in enumerate(rounds(seconds)):
        begin, processor = time.perf_counter(), time.process_time()
        for client in range(CLIENTS):
            model.load_state_dict(start)
            step = make()
            for _ in range(STEPS):
                drawn = client * RECORDS + torch.randperm(RECORDS)[:BATCH]
                batch = inputs[drawn]
                if batch.dim() == 4:
                    batch = ((batch.float() / 255 - 0.3) / 0.3).contiguous(memory_format=torch.channels_last)
                step(batch, labels[drawn])
        times.append(time.perf_counter() - begin)
        cores += (time.process_time() - processor) if number else 0.0
    report(times, cores, before)


def plain(model: nn.Module) -> Callable[[], Step]:
    def make() -> Step:
        optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)

        def step(inputs: Tensor, labels: Tensor) -> None:
            optimizer.zero_grad()
            functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()

        return step

    return make


def opacus_hooks(model: nn.Module) -> Callable[[], Step]:
    from opacus import GradSampleModule
    from opacus.optimizers import DPOptimizer

    wrapped = GradSampleModule(model, batch_first=True, loss_reduction="mean")

    def make() -> Step:
        optimizer = DPOptimizer(
            torch.optim.SGD(wrapped.parameters(), lr=LEARNING_RATE),
            noise_multiplier=NOISE,
            max_grad_norm=CLIP,
            expected_batch_size=BATCH,
        )

        def step(inputs: Tensor, labels: Tensor) -> None:
            optimizer.zero_grad()
            functional.cross_entropy(wrapped(inputs), labels).backward()
            optimizer.step()

        return step

    return make


def opacus_ghost(model: nn.Module) -> Callable[[], Step]:
    from opacus.grad_sample import GradSampleModuleFastGradientClipping
    from opacus.optimizers.optimizer_fast_gradient_clipping import DPOptimizerFastGradientClipping
    from opacus.utils.fast_gradient_clipping_utils import DPLossFastGradientClipping

    wrapped = GradSampleModuleFastGradientClipping(model, max_grad_norm=CLIP, use_ghost_clipping=True)

    def make() -> Step:
        optimizer = DPOptimizerFastGradientClipping(
            torch.optim.SGD(wrapped.parameters(), lr=LEARNING_RATE),
            noise_multiplier=NOISE,
            max_grad_norm=CLIP,
            expected_batch_size=BATCH,
        )
        loss = DPLossFastGradientClipping(wrapped, optimizer, nn.CrossEntropyLoss())

        def step(inputs: Tensor, labels: Tensor) -> None:
            optimizer.zero_grad()
            loss(wrapped(inputs), labels).backward()
            optimizer.step()

        return step

    return make


if __name__ == "__main__":
    if os.environ.get("OMP_NUM_THREADS") != "1":
        print("set OMP_NUM_THREADS=1, or start records.py", file=sys.stderr)
    main()
