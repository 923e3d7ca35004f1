"""Clients a second of Flower's simulation (Ray, 2 actors) on one workload; run by clients.py.

Run: python flower_clients.py DATA.npz A_small ROUNDS [channels_last]
"""

import json
import os
import sys
import time

os.environ |= {"FLWR_TELEMETRY_ENABLED": "0", "RAY_DEDUP_LOGS": "0", "OMP_NUM_THREADS": "1"}
os.environ["PYTHONPATH"] = os.path.dirname(os.path.abspath(__file__))

import numpy as np
import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from models import build

COHORT, RECORDS, STEPS, CLIENTS = 120, 10, 5, 600  # more supernodes only make Ray slower to start
PATH, WORKLOAD, ROUNDS = sys.argv[1], sys.argv[2], int(sys.argv[3])
FORMAT = torch.channels_last if "channels_last" in sys.argv else torch.contiguous_format
client, server = ClientApp(), ServerApp()
_data: dict[str, np.ndarray] = {}


@client.train()
def train(message: Message, context: Context) -> Message:
    torch.set_num_threads(1)
    if not _data:
        _data.update(np.load(PATH))
    at = slice(*(RECORDS * (int(context.node_config["partition-id"]) + i) for i in (0, 1)))
    images = torch.from_numpy(_data["images"][at]).float().div(255).unsqueeze(1).to(memory_format=FORMAT)
    labels = torch.from_numpy(_data["labels"][at]).long()
    net = build(WORKLOAD).to(memory_format=FORMAT)
    net.load_state_dict(message.content["arrays"].to_torch_state_dict())
    optimiser = torch.optim.SGD(net.parameters(), 0.1)
    for _ in range(STEPS):
        optimiser.zero_grad()
        torch.nn.functional.cross_entropy(net(images), labels).backward()
        optimiser.step()
    content = {"arrays": ArrayRecord(net.state_dict()), "metrics": MetricRecord({"num-examples": RECORDS})}
    return Message(RecordDict(content), reply_to=message)


class Timed(FedAvg):
    """Counts from the second round on: the first one starts the actors."""

    times: list[float] = []

    def aggregate_train(self, server_round, replies):
        result = super().aggregate_train(server_round, replies)
        self.times.append(time.perf_counter())
        return result


@server.main()
def main(grid: Grid, context: Context) -> None:
    strategy = Timed(fraction_train=COHORT / CLIENTS, fraction_evaluate=0.0)
    strategy.start(grid, ArrayRecord(build(WORKLOAD).state_dict()), num_rounds=ROUNDS)
    took = float(np.median(np.diff(strategy.times)))
    print(json.dumps({"clients_per_second": COHORT / took}), flush=True)


if __name__ == "__main__":
    actors = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}}
    run_simulation(server, client, num_supernodes=CLIENTS, backend_config=actors)
