"""Clients a second of pfl-research on one workload; run by clients.py in an environment that has pfl.

Run: torchrun --nproc_per_node 2 -- pfl_clients.py DATA.npz A_small ROUNDS [channels_last]
"""

import json
import sys
import time

import numpy as np
import torch
from models import build
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy.gaussian_mechanism import GaussianMechanism
from pfl.privacy.privacy_mechanism import CentrallyAppliedPrivacyMechanism

COHORT, RECORDS, STEPS = 120, 10, 5


class Net(torch.nn.Module):
    def __init__(self, workload: str, channels_last: bool) -> None:
        super().__init__()
        self.net = build(workload)
        self.format = torch.channels_last if channels_last else torch.contiguous_format
        self.to(memory_format=self.format)

    def loss(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(self.net(x.to(memory_format=self.format)), y)

    def metrics(self, x: torch.Tensor, y: torch.Tensor, eval: bool = False) -> dict[str, Weighted]:
        return {"loss": Weighted(0.0, len(y))}


class Timer(TrainingProcessCallback):
    def __init__(self) -> None:
        self.times = [time.perf_counter()]

    def after_central_iteration(self, aggregate_metrics, model, *, central_iteration):
        self.times.append(time.perf_counter())
        return False, Metrics()


def main() -> None:
    path, workload, rounds = sys.argv[1], sys.argv[2], int(sys.argv[3])
    torch.set_num_threads(1)
    data = np.load(path)
    images = torch.from_numpy(data["images"]).float().div(255).unsqueeze(1)
    labels = torch.from_numpy(data["labels"]).long()

    def user(number: str | int) -> Dataset:
        at = slice(int(number) * RECORDS, (int(number) + 1) * RECORDS)
        return Dataset(raw_data=[images[at], labels[at]])

    users = list(range(len(labels) // RECORDS))
    dataset = FederatedDataset(user, get_user_sampler("random", users))
    net = Net(workload, "channels_last" in sys.argv)
    model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.0))
    noise = CentrallyAppliedPrivacyMechanism(
        GaussianMechanism(clipping_bound=0.5, relative_noise_stddev=0.01)
    )
    backend = SimulatedBackend(training_data=dataset, val_data=dataset, postprocessors=[noise])
    timer = Timer()
    FederatedAveraging().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=rounds,
            evaluation_frequency=10**9,
            train_cohort_size=COHORT,
            val_cohort_size=0,
        ),
        backend=backend,
        model=model,
        model_train_params=NNTrainHyperParams(
            local_num_epochs=STEPS, local_learning_rate=0.1, local_batch_size=RECORDS
        ),
        model_eval_params=NNEvalHyperParams(local_batch_size=None),
        callbacks=[timer],
    )
    took = float(np.median(np.diff(timer.times)[1:]))
    print(json.dumps({"clients_per_second": COHORT / took}), flush=True)


if __name__ == "__main__":
    main()
