"""The secure sum beside the plain one: equal bit for bit, bytes beside float32, time of each party.

Run: python benchmarks/secure_sum.py [--colluding 1] [--without-training]

Clients have random whole numbers; one in five does not answer. Times are those of one core, in
processor time, which a busy machine disturbs less. `ready` is what a client does once a round for its terms.
Bytes are all that travel: contributions of the survivors, requests to members, and their answers, beside the
survivors' updates in float32. Training is that of benchmarks/engine.py (ten pictures a client, five steps),
compiled, on random pictures.
"""

import argparse
import time
from collections.abc import Callable
from typing import TypeVar

import numpy as np
import torch
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.asymmetric.x25519 import X25519PrivateKey

from discretion.arrays import Ints
from discretion.clients.local_clients import LocalClients
from discretion.clients.training import LocalTraining
from discretion.secure_sum.committee import answer, decide, open_request
from discretion.secure_sum.contribution import contribute, read_contribution
from discretion.secure_sum.roster import Roster, contact_of
from discretion.secure_sum.terms import Terms, agreed_terms
from discretion.secure_sum.unmasking import survivors_request, unmask
from discretion.tasks import models
from discretion.tasks.datasets import Dataset, Split
from discretion.tasks.partitions import even_sizes, iid
from discretion.training.orders import Order

SMALL, BIG, DROPPED = 21_840, 1_663_370, 0.2
SETTINGS = ((100, SMALL), (100, BIG), (1000, SMALL))
Result = TypeVar("Result")


def timed(work: Callable[[], Result]) -> tuple[Result, float]:
    start = time.process_time()
    return work(), time.process_time() - start


def whole(client: int, size: int) -> Ints:
    """Whole numbers of 21 bits: the sum of a thousand does not wrap."""
    return np.random.default_rng(client).integers(-(2**20), 2**20, size)


def play(clients: int, size: int, colluding: int) -> float:
    """Play one sum, print its row, and return a client's seconds."""
    names = [f"client-{i}" for i in range(clients)]
    identities = {name: Ed25519PrivateKey.generate() for name in names}
    agreements = {name: X25519PrivateKey.generate() for name in names}
    roster = Roster({name: contact_of(name, identities[name], agreements[name]) for name in names})

    def agreed() -> Terms:
        made = agreed_terms(
            roster,
            names,
            run="run",
            plan=bytes(32),
            round_=1,
            pool=0,
            size=size,
            bits=32,
            colluding=colluding,
            least=int(clients * (1 - DROPPED)),
        )
        assert made.digest  # which is worked out when it is asked for
        return made

    terms, ready = timed(agreed)
    alive = np.sort(np.random.default_rng(0).permutation(clients)[: int(clients * (1 - DROPPED))])
    plain, sending, receiving, messages, kept = np.zeros(size, dtype=np.int64), [], [], 0, []
    for client in alive:
        row = whole(int(client), size)
        plain += row
        name = names[client]
        sent, seconds = timed(lambda name=name, row=row: contribute(terms, name, identities[name], row))  # type: ignore[misc]
        message = sent.to_bytes()
        got, checking = timed(lambda message=message: read_contribution(message, terms))  # type: ignore[misc]
        sending.append(seconds)
        receiving.append(checking)
        messages += len(message)
        kept.append(got)
    request, asking = timed(lambda: survivors_request(terms, kept))
    answers, answering = {}, []
    for contact in terms.committee:
        name = contact.client

        def reply(name: str = name) -> bytes:
            opened = open_request(terms, name, agreements[name], request)
            return answer(opened, decide(opened.choice, None), identities[name])

        answers[name], seconds = timed(reply)
        answering.append(seconds)
    total, unmasking = timed(lambda: unmask(terms, kept, answers))
    travelling = messages + len(answers) * len(request) + sum(map(len, answers.values()))
    client_seconds = float(np.median(sending))
    print(
        f"{clients:5} x {size:9,}, {len(terms.committee)} members: equal {bool((total == plain).all())}; "
        f"ready {1e3 * ready:.1f} ms, client {1e3 * client_seconds:.2f} ms, member {max(answering):.3f} s, "
        f"server {sum(receiving) + asking + unmasking:.3f} s; {travelling / (4 * size * len(alive)):.3f} of "
        f"float32 (upwards from a client {messages / (4 * size * len(alive)):.3f})",
        flush=True,
    )
    return client_seconds


def training(model_name: str, clients: int) -> float:
    """Return the seconds of one core in which the compiled engine trains a client: median of five."""
    rng = np.random.default_rng(0)
    pictures = rng.integers(0, 256, (10 * clients, 1, 28, 28), dtype=np.uint8)
    split = Split(pictures, rng.integers(0, 10, 10 * clients))
    dataset = Dataset("random", split, split, 10, "image", "random", 0.5, 0.5)
    partition = iid(split.labels, even_sizes(10 * clients, clients), rng)
    local = LocalTraining(epochs=5, batch_size=10, learning_rate=0.1)
    model = models.build(model_name, dataset, 0)
    made = LocalClients(dataset, partition, model, local, device="cpu", workers=1)
    order = Order(1, 0, made.initial(), np.arange(clients), np.zeros(clients, dtype=np.int64))
    times = [timed(lambda: [part.change.shape for part in made.updates(order)])[1] for _ in range(6)]
    return float(np.median(times[1:])) / clients


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--colluding", type=int, default=1)
    parser.add_argument("--without-training", action="store_true")
    options = parser.parse_args()
    seconds = {size: play(clients, size, options.colluding) for clients, size in reversed(SETTINGS)}
    if not options.without_training:
        torch.set_num_threads(1)
        for name, size, clients in (("cnn_small", SMALL, 100), ("cnn", BIG, 10)):
            trained = training(name, clients)
            share = seconds[size] / trained
            print(
                f"training {size:9,}: {1e3 * trained:.2f} ms a client; the client's part of a sum {share:.1%}"
            )


if __name__ == "__main__":
    main()
