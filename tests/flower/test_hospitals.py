"""The example of four hospitals on Flower, with TLS: every command of its README, on stand-in data."""

import json
import signal
from collections.abc import Iterator

import pytest
from console import Shell, blocks, differs, exchanges

from discretion.clients.messages import public_bytes, read_key
from discretion.ledger.ledger import Ledger
from support.heart_stand_in import README, RECORDS, copy_example, write_stand_in
from support.network import free_port
from support.on_record import epsilon_on_record

BUDGETS = {"cleveland": 1.0, "hungary": 2.0, "switzerland": 4.0, "long-beach": 8.0}


@pytest.fixture
def shell(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> Iterator[Shell]:
    signal.signal(signal.SIGTERM, lambda *_: pytest.exit("told to end", 1))  # and leave nothing behind
    folder = tmp_path_factory.mktemp("h")
    monkeypatch.setenv("DISCRETION_DATA", str(folder))
    write_stand_in(folder)
    copy_example(folder)
    made = Shell(folder)
    yield made
    made.run("discretion flower down net")


def test_the_walk_does_what_is_shown(shell: Shell) -> None:
    port = str(free_port())
    for block in blocks(README):
        if block.kind == "sh":
            done = shell.script(block.text)
            assert done.code == 0, f"{block.text}\n{done.said}"
            continue
        for command, shown in exchanges(block):
            more = f" --port {port}" if "flower init" in command else ""
            # in a shell: processes that `up` leaves behind are not this one's children
            done = shell.run(f"set -e\n{command}{more}")
            expected = shown.replace("18000", port)
            assert done.code == 0 and differs(expected, done.said) is None, f"{command}\n{done.said}"
    for hospital in RECORDS:
        check_hospital(shell, hospital)


def check_hospital(shell: Shell, hospital: str) -> None:
    """Check that a receipt fits run, budget and the guard's ledger; another operator's key is noticed."""
    page = f"receipts/receipt-{hospital}.html"
    verify = f"discretion receipt runs/first --verify {page} --operator"
    operator = public_bytes(read_key(shell.folder / "net" / "operator.key")).hex()
    done = shell.run(f"{verify} {operator}")
    assert done.code == 0, done.said
    assert shell.run(f"{verify} {'0' * 64}").code != 0
    receipt = json.loads((shell.folder / page).with_suffix(".json").read_text(encoding="utf-8"))["receipt"]
    assert receipt["unit"] == "record" and receipt["randomness"] == "cryptographic" and receipt["finished"]
    assert 0.99 * BUDGETS[hospital] < receipt["spent"] <= receipt["epsilon"] == BUDGETS[hospital]
    for path in (f"net/{hospital}/guard/ledger.sqlite", f"{hospital}.sqlite"):  # and its copy
        with Ledger.existing(shell.folder / path) as ledger:
            assert epsilon_on_record(ledger)[0] == pytest.approx(receipt["spent"], rel=1e-6)
