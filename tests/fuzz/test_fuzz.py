"""Whatever is read from outside is what it says, or refused by an error that is meant: nothing else happens.

`make test` tries a few cases of each target, always the same; `make fuzz CASES=20000 SEED=1` tries others. A
failure names its case: FUZZ_SEED, and the number after the target.
"""

import csv
import hashlib
import io
import math
import os
import random
import shutil
import signal
import socket
import struct
import threading
import tomllib
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from discretion import jsonfile
from discretion.accounting import Certificate
from discretion.audit import receipts
from discretion.clients import messages, transport
from discretion.errors import DiscretionError
from discretion.guard import policy
from discretion.guard.guard import INSIDE
from discretion.guard.serve import serve
from discretion.ledger.ledger import Ledger
from discretion.plan.plan import Plan
from discretion.plan.population import Population
from discretion.report import receipt_page
from discretion.runs import config
from discretion.runs.folder import SEAL, UNSEALED, RunFolder, read_sealed, write_checkpoint
from discretion.runs.manifest import write_manifest
from discretion.runs.read import read_run
from discretion.tasks.own_table import read_table
from discretion.training.loop import State
from support import guarding
from support.mutations import mutated
from support.run_folders import trained

CASES = int(os.environ.get("FUZZ_CASES", "150"))
SEED = os.environ.get("FUZZ_SEED", "0")
TOO_LONG = 60  # seconds after which a case counts as hanging


@contextmanager
def named(case: str) -> Iterator[None]:
    """End a case that hangs, by an exception that nobody expects."""

    def hangs(*_: object) -> None:
        raise AssertionError(f"{case} takes longer than {TOO_LONG} seconds")

    before = signal.signal(signal.SIGALRM, hangs)
    signal.alarm(TOO_LONG)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def fuzz(target: str, content: bytes, accept: Callable[[bytes], object], count: int = CASES) -> None:
    """Have mutations of the content accepted, which must assert what they mean, or refused."""
    accept(content)
    refused = 0
    for number in range(count):
        case = f"FUZZ_SEED={SEED}, {target} {number}"
        found = mutated(content, random.Random(f"{SEED} {target} {number}"))
        with named(case):
            try:
                accept(found)
            except DiscretionError as problem:
                assert str(problem), case
                refused += 1
            except BaseException as problem:
                problem.add_note(f"{case}: {found[:2000]!r}")
                raise
    assert refused > count / 10, f"of {target}, only {refused} of {count} mutations were refused"


def text_of(content: bytes) -> str:
    """As whoever decodes a file carelessly hands it on."""
    return content.decode(errors="surrogateescape")


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return trained(tmp_path_factory.mktemp("fuzzed") / "run")


def test_population(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "population.csv"

    def accept(content: bytes) -> None:
        path.write_bytes(content)
        found = Population.from_csv(path)
        path.write_text(found.to_csv(), encoding="utf-8")
        assert Population.from_csv(path).digest() == found.digest()
        header, *rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        at = [name.strip() for name in header].index("epsilon")
        said = [row[at].strip() for row in rows if any(map(str.strip, row))]
        assert "_" not in "".join(said)
        assert [float(Decimal(cell)) for cell in said] == found.epsilon.tolist()

    fuzz(
        "population",
        b"client,epsilon,delta,size,speed\nann,2.5,1e-5,30,0.5\nbob,inf,1e-6,7,2\n",
        accept,
    )


def test_config(tmp_path: Path) -> None:
    path = tmp_path / "config.toml"

    def accept(content: bytes) -> None:
        path.write_bytes(content)
        found = config.read(path)
        assert config.make(tomllib.loads(found.to_toml())) == found
        assert not list(jsonfile.coerced(tomllib.loads(content.decode()), found.model_dump()))

    fuzz("config", config.template().encode(), accept)


def test_policy(tmp_path: Path) -> None:
    path = guarding.policy_of(tmp_path, 1, hours="08:00-18:00", ceilings={"rounds": 5, "rate": 0.5})

    def accept(content: bytes) -> None:
        path.write_bytes(content)
        found = policy.read(path)
        said = tomllib.loads(content.decode())
        assert said["epsilon"] == found.epsilon and type(said["epsilon"]) in (int, float)
        assert said.get("test_seed") == found.test_seed and type(said.get("test_seed")) is not bool

    fuzz("policy", path.read_bytes(), accept)


PLANS = {
    "turns": guarding.plan_of(guarding.own_pools(2, turns=np.array([1, 0, 2, 0, 1]))),
    "two phases": guarding.plan_of(
        guarding.one_pool(2), guarding.one_pool(3, noise=30.0), noise_at="server", promise="clients"
    ),
}


@pytest.mark.parametrize("kind", PLANS)
def test_plan(kind: str) -> None:
    def accept(content: bytes) -> None:
        found = Plan.from_json(text_of(content))
        assert Plan.from_json(found.to_json()).digest() == found.digest()
        said = jsonfile.loads(content)
        assert [phase["rounds"] for phase in said["phases"]] == [phase.rounds for phase in found.phases]
        for phase, known in zip(said["phases"], found.phases, strict=True):
            assert min(phase["noise"], default=0) == known.noise.min()
            assert len(repr(known)) > 0

    fuzz(f"plan with {kind}", PLANS[kind].to_json().encode(), accept)


def test_certificate(run: Path) -> None:
    def accept(content: bytes) -> None:
        found = Certificate.from_json(text_of(content))
        said, again = jsonfile.loads(content), jsonfile.loads(found.to_json())
        assert said | {"dropout": 0} == again | {"dropout": 0}
        assert len(repr(found)) > 0

    fuzz("certificate", (run / "certificate.json").read_bytes(), accept)


@pytest.mark.parametrize("kind", ["json", "html"])
def test_receipt(kind: str, run: Path, tmp_path: Path) -> None:
    key, path = Ed25519PrivateKey.from_private_bytes(bytes(32)), tmp_path / f"receipt.{kind}"
    signed = receipts.issue(run, "c4", key)
    text = receipts.to_json(signed) if kind == "json" else receipt_page.render(signed)

    def accept(content: bytes) -> None:
        path.write_bytes(content)
        found = receipts.read(path, receipt_page.render)
        receipts.check(found)
        assert found == signed and content == text.encode()

    fuzz(f"receipt in {kind}", text.encode(), accept, CASES if kind == "json" else CASES // 3)


def test_table(tmp_path: Path) -> None:
    path = tmp_path / "table.csv"

    def accept(content: bytes) -> None:
        path.write_bytes(content)
        found = read_table(path)
        assert np.isfinite(found.features).all() and len(found.labels) == len(found.features)
        header, *rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""))
        at = next(k for k, name in enumerate(header) if name.strip() not in ("label", "client"))
        assert all(found.labels) and not any("_" in row[at] for row in rows if row)

    fuzz(
        "table",
        b"label,client,x,y\n" + b"".join(b"%d,c%d,%d.5,-1e3\n" % (k % 2, k % 3, k) for k in range(9)),
        accept,
    )


def test_table_of_a_spreadsheet(tmp_path: Path) -> None:
    """No mutation moves a decimal comma: what is accepted has the digits that stand in the file."""
    path = tmp_path / "table.csv"

    def accept(content: bytes) -> None:
        path.write_bytes(content)
        found = read_table(path)
        (separator,) = {";", "\t", ","} & {mark for mark in ";\t," if mark in content.decode("utf-8-sig")[:8]}
        header, *rows = csv.reader(io.StringIO(content.decode("utf-8-sig"), newline=""), delimiter=separator)
        at = next(k for k, name in enumerate(header) if name.strip() not in ("label", "client"))
        said = [row[at].strip() for row in rows if any(map(str.strip, row))]
        assert not any({"_", "."} <= set(cell) or {",", "."} <= set(cell) for cell in said)
        expected = [np.float32(float(Decimal(cell.replace(",", ".")))) for cell in said]
        assert found.features[:, 0].tolist() == expected

    rows = b"".join(b"%d;c%d;%d,5;-1e3\r\n" % (k % 2, k % 3, k) for k in range(9))
    fuzz("table of a spreadsheet", b"label;client;x;y\r\n" + rows, accept)


def test_messages() -> None:
    order = messages.Train(
        **{"client": "c1", "run": "r", "plan": "0" * 64, "round": 2, "turn": 0, "key": 2**64 - 1},
        **{"clip": 0.5, "noise": math.inf, "local": LOCAL},
    )
    answer = messages.Answer(kind="refused", order="1" * 64, reason="ünsaid")

    def accept_order(content: bytes) -> None:
        found, body = messages.decode_order(content)
        again, _ = messages.decode_order(messages.encode(found, body))
        assert again == found and type(getattr(found, "round", 1)) is int

    def accept_answer(content: bytes) -> None:
        found, body = messages.decode_answer(content)
        again = messages.sign_answer(messages.encode(found, body), guarding.KEY)
        assert messages.decode_answer(again) == (found, body)

    fuzz("order", messages.encode(order, b"1234"), accept_order)
    fuzz("answer", messages.sign_answer(messages.encode(answer), guarding.KEY), accept_answer)


LOCAL = messages.Local(
    **{"epochs": 1, "batch_size": 20, "learning_rate": 0.1, "momentum": 0.0, "weight_decay": 0.0},
    **{"schedule": messages.ScheduleMessage(kind="constant", factor=1.0), "steps": 0, "order": "shuffled"},
)


def test_checkpoint(tmp_path: Path) -> None:
    """With a seal that fits, as if it had been written so: else every mutation is refused at once."""
    folder = RunFolder(tmp_path)
    state = replace(State.start(np.ones(3, np.float32)), round=2, memory=np.ones((1, 3), np.float32))
    write_checkpoint(folder, state, {"history.jsonl": "f" * 64})
    whole = folder.checkpoint.read_bytes()
    at = whole.index(f'"{SEAL}":"'.encode()) + len(SEAL) + 4
    bare = whole[:at] + UNSEALED + whole[at + 64 :]

    def accept(content: bytes) -> None:
        folder.checkpoint.write_bytes(content)
        sealed(folder.checkpoint)
        found = read_sealed(folder)
        assert found is not None and found.state.round >= 1 and found.state.model.dtype == np.float32
        assert found.state.velocity.shape == found.state.model.shape and 0 < found.state.scale < math.inf

    fuzz("checkpoint", bare, accept)


def sealed(path: Path) -> None:
    content = path.read_bytes()
    path.write_bytes(content.replace(UNSEALED, hashlib.sha256(content).hexdigest().encode(), 1))


PARTS = (
    "config.toml",
    "population.csv",
    "plan.json",
    "certificate.json",
    "run.json",
    "profile.json",
    "history.jsonl",
)


@pytest.mark.parametrize("name", [*PARTS, "manifest.json", "answers.jsonl"])
def test_run_folder(name: str, run: Path, tmp_path: Path) -> None:
    """Each file of a folder, listed in its manifest as it is: who changes one can change the other."""
    folder = RunFolder(Path(shutil.copytree(run, tmp_path / "run")))
    said = {"round": 1, "asked": 2, "answered": 1, "refused": {"c1": "no"}, "lost": 0, "missing": 0.5}
    folder.answers.write_text(2 * jsonfile.line(said))
    write_manifest(folder)
    path = folder.path / name

    def accept(content: bytes) -> None:
        path.write_bytes(content)
        if name != "manifest.json":
            write_manifest(folder)
        found = read_run(folder)
        assert len(repr(found)) > 0 and found._repr_html_()
        assert all(line.round >= 1 for line in found.history.lines) and len(found.refusals) >= 0
        assert found.profile is None or found.profile.rounds >= 0

    whole = path.read_bytes()
    fuzz(f"run folder with {name}", whole, accept, CASES // 3)


def test_ledger(run: Path, tmp_path: Path) -> None:
    path = tmp_path / "ledger.sqlite"
    whole = (run / "ledger.sqlite").read_bytes()
    path.write_bytes(whole)
    with Ledger.existing(path) as ledger:
        honest = ledger.spent()

    def accept(content: bytes) -> None:
        for left in tmp_path.iterdir():
            left.unlink()
        path.write_bytes(content)
        with Ledger.existing(path) as ledger:
            spent = ledger.spent()
        assert spent.shape == honest.shape and (spent >= honest * (1 - 1e-9)).all()

    fuzz("ledger", whole, accept)


def test_frames_over_a_socket(tmp_path: Path) -> None:
    """Frames, signed or not, with mutated lengths, headers and bodies; in the end an honest one is served."""
    said = policy.read(guarding.policy_of(tmp_path, 1))
    plan = PLANS["turns"]
    about: dict[str, Any] = {"client": "c1", "run": "r", "plan": plan.digest()}
    join = messages.encode(
        messages.Join(
            **about, size=40, model="linear", shapes=guarding.SHAPES, records=guarding.RECORDS, local=LOCAL
        ),
        plan.to_json().encode(),
    )
    reasons: list[str] = []

    def ask(content: bytes) -> bytes | None:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(str(said.socket_path))
            try:
                connection.sendall(content)
                connection.shutdown(socket.SHUT_WR)
                return transport.receive(connection, 2**20, 30.0)
            except (DiscretionError, OSError):
                return None

    def framed(content: bytes) -> bytes:
        return struct.pack(">Q", len(content)) + content

    def visit() -> None:
        try:
            for number in range(CASES):
                chance = random.Random(f"{SEED} frames {number}")
                order = messages.sign(join, guarding.KEY)
                if chance.random() < 0.7:
                    order = messages.sign(mutated(join, chance), guarding.KEY)
                    answer = ask(framed(order))
                    assert answer is not None, number
                    reasons.append(messages.decode_answer(answer)[0].reason)
                else:
                    ask(mutated(framed(order), chance))
            answer = ask(framed(messages.sign(join, guarding.KEY)))
            assert answer is not None
            reasons.append(messages.decode_answer(answer)[0].kind)
        finally:
            os.kill(os.getpid(), signal.SIGTERM)

    visitor, before = threading.Thread(target=visit), signal.getsignal(signal.SIGTERM)
    try:
        with pytest.raises(SystemExit):
            serve(said, visitor.start)
    finally:
        signal.signal(signal.SIGTERM, before)
        visitor.join()
    assert INSIDE not in reasons, [number for number, reason in enumerate(reasons) if reason == INSIDE]
    assert reasons[-1] in ("done", "refused") and len(set(reasons)) > 5
