"""Connections to a guard over real sockets: idle, slow, half-closed and flooding peers hold up nobody."""

import queue
import socket
import struct
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from discretion.clients import transport
from discretion.clients.messages import decode_answer, encode, sign
from discretion.errors import MessageError
from discretion.guard import reception
from discretion.guard.reception import Reception
from support.guard_process import Process
from support.guarding import KEY, RECORDS, SHAPES, own_pools, plan_of, policy_of, sockets

SOON = 60.0  # seconds, for what comes at once: so long that only what hangs is late
MOST = 2**20


def echo(order: bytes) -> bytes:
    if order == b"end":
        raise SystemExit
    return b"answer to " + order[:20]


@contextmanager
def receiving(path: Path, answer: Callable[[bytes], bytes] = echo) -> Iterator[Callable[..., socket.socket]]:
    """Orders are answered in a thread; a function connects, and sends what it is given."""
    with ExitStack() as opened, socket.socket(socket.AF_UNIX) as door:
        door.bind(str(path / "door"))
        door.listen(64)

        def come(sent: bytes = b"") -> socket.socket:
            connection = opened.enter_context(socket.socket(socket.AF_UNIX))
            connection.connect(str(path / "door"))
            connection.settimeout(SOON)
            with suppress(BrokenPipeError):  # in a flood it may be ended already
                connection.sendall(sent)
            return connection

        with Reception(door, MOST) as there:

            def work() -> None:
                with suppress(SystemExit):
                    there.answer_with(answer)

            guard = threading.Thread(target=work, daemon=True)
            guard.start()
            yield come
            come(framed(b"end"))
            guard.join(SOON)
            assert not guard.is_alive()


def framed(order: bytes) -> bytes:
    return struct.pack(">Q", len(order)) + order


def answer_to(connection: socket.socket) -> bytes:
    return transport.receive(connection, 2 * MOST, SOON)


def is_closed(connection: socket.socket) -> bool:
    """Wait until the other side has closed the connection, or something comes."""
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_idle_and_slow_connections_hold_up_nobody(tmp_path: Path) -> None:
    with receiving(tmp_path) as come:
        idle = [come() for _ in range(10)]
        slow = [come(framed(b"x" * 1000)[: 3 + k]) for k in range(10)]  # some not even a length
        assert answer_to(come(framed(b"quick"))) == b"answer to quick"
        for k, connection in enumerate(slow):
            connection.sendall(framed(b"x" * 1000)[3 + k :])
            assert answer_to(connection).startswith(b"answer to xxx")
        for connection in idle:
            connection.sendall(framed(b"late"))
            assert answer_to(connection) == b"answer to late"


def test_a_half_closed_connection_gets_its_answer_and_a_cut_one_nothing(tmp_path: Path) -> None:
    with receiving(tmp_path) as come:
        whole, cut = come(framed(b"whole")), come(framed(b"cut")[:-1])
        for connection in (whole, cut):
            connection.shutdown(socket.SHUT_WR)
        assert answer_to(whole) == b"answer to whole" and is_closed(cut)
        come(framed(b"gone")).close()
        assert answer_to(come(framed(b"next"))) == b"answer to next"


def test_a_peer_that_does_not_read_its_answer_holds_up_nobody(tmp_path: Path) -> None:
    with receiving(tmp_path, lambda order: echo(order) if len(order) > 1 else bytes(MOST)) as come:
        deaf = [come(framed(b"x")) for _ in range(3)]  # more than a socket's buffer holds
        assert answer_to(come(framed(b"next"))) == b"answer to next"
        assert answer_to(deaf[0]) == bytes(MOST)


def test_a_peer_that_is_late_is_dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reception, "READING", 0.01)
    with receiving(tmp_path) as come:
        assert is_closed(come()) and is_closed(come(b"\0"))
        monkeypatch.setattr(reception, "READING", SOON)


def test_a_message_that_is_too_long_is_dropped_unread(tmp_path: Path) -> None:
    with receiving(tmp_path) as come:
        assert is_closed(come(struct.pack(">Q", MOST + 1)))
        assert answer_to(come(framed(bytes(MOST)))).startswith(b"answer to")


def test_of_many_connections_the_oldest_makes_room(tmp_path: Path) -> None:
    with receiving(tmp_path) as come:
        first = come()
        others = [come() for _ in range(reception.AT_ONCE - 1)]
        assert answer_to(come(framed(b"new"))) == b"answer to new"
        assert is_closed(first)
        others[-1].sendall(framed(b"last"))
        assert answer_to(others[-1]) == b"answer to last"


def test_a_flood_is_survived(tmp_path: Path) -> None:
    """Five times as many connections as are served, each with a part of a long message."""
    with receiving(tmp_path) as come:
        for _ in range(5 * reception.AT_ONCE):
            come(struct.pack(">Q", MOST) + bytes(100))
        assert answer_to(come(framed(b"new"))) == b"answer to new"


def test_all_connections_together_hold_no_more_than_is_said(tmp_path: Path) -> None:
    """Not quite the longest message from each: none of them is read in full."""
    with receiving(tmp_path) as come:
        hoard = framed(bytes(MOST))[:-100]
        kept = [come(hoard) for _ in range(reception.WHOLE)]
        late = come(hoard)
        assert is_closed(kept[0])
        for connection in (*kept[1:], late):
            connection.sendall(bytes(100))
            assert answer_to(connection).startswith(b"answer to")


def test_connections_that_wait_for_the_guard_are_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The guard is at work on one order, and the others fill the room: one more is refused, none is lost."""
    monkeypatch.setattr(reception, "AT_ONCE", 3)
    here, go = queue.SimpleQueue[Any](), threading.Event()

    class Queue(queue.SimpleQueue[Any]):
        def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
            super().put(item)
            here.put(item)

    monkeypatch.setattr(queue, "SimpleQueue", Queue)

    def slowly(order: bytes) -> bytes:
        assert go.wait(SOON)
        return echo(order)

    with receiving(tmp_path, slowly) as come:
        waiting = []
        for order in (b"1", b"2", b"3"):
            waiting.append(come(framed(order)))
            here.get(timeout=SOON)  # the order was read
        assert is_closed(come())
        go.set()
        assert [answer_to(connection) for connection in waiting] == [b"answer to %d" % k for k in (1, 2, 3)]


def test_the_end_leaves_no_connection_and_no_thread(tmp_path: Path) -> None:
    before, held = threading.active_count(), threading.Event()

    def never(order: bytes) -> bytes:
        held.set()
        raise SystemExit

    with ExitStack() as opened, socket.socket(socket.AF_UNIX) as door:
        door.bind(str(tmp_path / "door"))
        door.listen(64)
        peers = [opened.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(3)]
        with Reception(door, MOST) as there:
            for peer, sent in zip(peers, (b"", b"\0\0", framed(b"whole")), strict=True):
                peer.settimeout(SOON)
                peer.connect(str(tmp_path / "door"))
                peer.sendall(sent)
            with pytest.raises(SystemExit):
                there.answer_with(never)
        assert held.is_set() and all(is_closed(peer) for peer in peers)
    assert threading.active_count() == before


@pytest.mark.parametrize("what", ["thread", "file"])
def test_what_the_machine_cannot_give_is_tried_again(
    what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No more threads, or no more files, for once: the guard goes on."""
    monkeypatch.setattr(reception, "PAUSE", 0.0)
    fails = iter([True])

    def start(thread: threading.Thread, begin: Callable[..., Any] = threading.Thread.start) -> None:
        if thread.name.startswith("visit") and next(fails, False):
            raise RuntimeError("can't start new thread")
        begin(thread)

    def accept(door: socket.socket, take: Callable[..., Any] = socket.socket.accept) -> Any:
        if next(fails, False):
            raise OSError("Too many open files")
        return take(door)

    if what == "thread":
        monkeypatch.setattr(threading.Thread, "start", start)
    else:
        monkeypatch.setattr(socket.socket, "accept", accept)
    with receiving(tmp_path) as come:
        if what == "thread":
            assert is_closed(come())
        assert answer_to(come(framed(b"next"))) == b"answer to next"
    assert next(fails, None) is None


def test_a_guard_answers_while_others_say_nothing(tmp_path: Path) -> None:
    """It used to wait for each of them in turn, a minute long."""
    from discretion.clients.messages import Join, Local

    guard = Process(policy_of(tmp_path, 1)).ready()
    plan = plan_of(own_pools(2))
    local = {"epochs": 1, "batch_size": 20, "learning_rate": 0.1, "momentum": 0.0, "weight_decay": 0.0}
    order = Join(
        client="c1",
        run="r",
        plan=plan.digest(),
        size=40,
        model="linear",
        shapes=SHAPES,
        records=RECORDS,
        local=Local.model_validate(
            local | {"schedule": {"kind": "constant", "factor": 1.0}, "steps": 0, "order": "shuffled"}
        ),
    )
    message = sign(encode(order, plan.to_json().encode()), KEY)
    with ExitStack() as opened:
        idle = [opened.enter_context(socket.socket(socket.AF_UNIX)) for _ in range(5)]
        for connection in idle:
            connection.connect(str(tmp_path / "c1" / "guard" / "guard.sock"))
        try:
            ((_, answer),) = sockets(tmp_path).exchange([("c1", message)], 3 * SOON)
            assert decode_answer(answer)[0].kind == "done"
            transport.send(idle[0], b"no order", SOON)
            assert "signature" in decode_answer(transport.receive(idle[0], MOST, SOON))[0].reason
        finally:
            assert guard.end() == 0


def test_bytes_are_counted_as_they_come() -> None:
    one, other = socket.socketpair()
    came: list[int] = []
    with one, other:
        one.sendall(framed(bytes(1000)))
        transport.receive(other, 1000, SOON, came.append)
        assert sum(came) == 1008
        one.sendall(struct.pack(">Q", 1001))
        with pytest.raises(MessageError, match="longer than the 1000"):
            transport.receive(other, 1000, SOON, came.append)
