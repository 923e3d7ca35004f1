"""Connections to a guard, served side by side: orders are read and answers sent in a thread for each."""

import logging
import queue
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from types import TracebackType

from discretion.clients import transport
from discretion.errors import MessageError

log = logging.getLogger("discretion.guard")

READING, WRITING = 60.0, 60.0  # seconds allowed for receiving an order and for sending its answer
AT_ONCE = 64  # connections
WHOLE = 4  # messages of the greatest length that all connections together may hold
WAKING = 0.5  # seconds until the guard's thread sees a signal that another thread got
PAUSE = 0.2  # seconds before another try where a connection could not be taken


class Visit:
    """One connection: an order is read, waits for its answer, and the answer is sent."""

    def __init__(self, connection: socket.socket) -> None:
        self.connection = connection
        self.since = time.monotonic()  # when reading or writing began
        self.held = 0  # bytes of its order or answer in memory
        self.waiting = False  # for the guard, which has the order
        self.order = b""
        self.answer = queue.SimpleQueue[bytes]()  # empty: there will be none

    def end(self) -> None:
        with suppress(OSError):  # closed, or by the other side
            self.connection.shutdown(socket.SHUT_RDWR)


class Reception:
    """Reads orders from all connections to a listening socket, for the one thread that has the guard.

    Guarantees:
        Connections that send nothing, or slowly, or do not read their answers, hold up no other.
        There are never more than `AT_ONCE` connections, and together they hold no more than `WHOLE` messages
        of the greatest length. What would be more ends the connection that has been read from, or written to,
        for the longest time, and is refused where there is none; one that waits for the guard is not ended.
        Orders are answered one after the other, in the thread that calls `answer_with`.
    """

    def __init__(self, door: socket.socket, most: int) -> None:
        self._door, self._most = door, most
        self._orders = queue.SimpleQueue[Visit]()
        self._lock = threading.Lock()  # of the two below
        self._visits: dict[Visit, threading.Thread] = {}
        self._over = False
        self._receiving = threading.Thread(target=self._receive, name="reception", daemon=True)

    def __enter__(self) -> "Reception":
        self._receiving.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        """End all connections, and wait for their threads."""
        with self._lock:
            self._over = True
        self._door.shutdown(socket.SHUT_RDWR)  # wakes the thread that waits for connections
        self._receiving.join()
        with self._lock:
            left = dict(self._visits)
        for visit in left:
            visit.end()
            visit.answer.put(b"")
        for thread in left.values():
            thread.join()

    def answer_with(self, answer: Callable[[bytes], bytes]) -> None:
        """Answer orders, for ever."""
        while True:
            with suppress(queue.Empty):
                visit = self._orders.get(timeout=WAKING)
                order, visit.order = visit.order, b""
                visit.answer.put(answer(order))

    def _receive(self) -> None:
        while True:
            try:
                connection, _ = self._door.accept()
                self._begin(Visit(connection))
            except (OSError, RuntimeError) as problem:  # no more files or threads, or the guard ends
                if self._over:
                    return
                log.warning("cannot take a connection: %s", problem)
                time.sleep(PAUSE)

    def _begin(self, visit: Visit) -> None:
        thread = threading.Thread(target=self._serve, args=(visit,), name="visit", daemon=True)
        with self._lock:
            if len(self._visits) >= AT_ONCE and not self._end_oldest():
                visit.connection.close()
                log.info("connection refused: %d are waiting for answers", AT_ONCE)
                return
            self._visits[visit] = thread
        try:
            thread.start()
        except RuntimeError:
            self._forget(visit)
            raise

    def _serve(self, visit: Visit) -> None:
        connection = visit.connection
        try:
            visit.order = transport.receive(
                connection, self._most, READING, lambda size: self._hold(visit, visit.held + size)
            )
            visit.waiting = True
            self._orders.put(visit)
            answer = visit.answer.get()
            visit.since, visit.waiting = time.monotonic(), False
            self._hold(visit, len(answer))
            if answer:
                transport.send(connection, answer, WRITING)
        except (OSError, MessageError) as problem:
            log.info("connection dropped: %s", problem)
        finally:
            self._forget(visit)

    def _forget(self, visit: Visit) -> None:
        visit.connection.close()
        with self._lock:
            self._visits.pop(visit, None)

    def _hold(self, visit: Visit, size: int) -> None:
        """Say how much a connection has in memory; end others if that is too much with what they have."""
        with self._lock:
            visit.held = size
            while sum(each.held for each in self._visits) > WHOLE * self._most and self._end_oldest():
                pass

    def _end_oldest(self) -> bool:
        """End the connection that is being read from or written to for the longest time, if there is any."""
        busy = [visit for visit in self._visits if not visit.waiting]
        if not busy:
            return False
        oldest = min(busy, key=lambda visit: visit.since)
        oldest.end()
        del self._visits[oldest]
        log.info("connection dropped: others came, and it was the slowest")
        return True
