"""Pool of connections that wait for their clients, before a request and during an answer.

One thread waits for all of them, so slow clients hold no worker. The count of missing bytes is an estimate: HTTP is
parsed by cheroot.
"""

from __future__ import annotations

import logging
import os
import re
import selectors
import threading
import time
from typing import Protocol

READ, WRITE, NOTHING = selectors.EVENT_READ, selectors.EVENT_WRITE, 0

_log = logging.getLogger(__name__)


class PendingConnection(Protocol):
    """Who waits. Every method is called by the room's thread alone."""

    def fileno(self) -> int: ...

    @property
    def ends_at(self) -> float:
        """When it has to leave, in seconds of time.monotonic."""
        ...

    @property
    def weight(self) -> int:
        """What it holds, in bytes."""
        ...

    def step(self) -> int:
        """Does what can be done without waiting, and says what it waits for; NOTHING: it is done here. Raises OSError where
        there is nothing more to be had of the client."""
        ...

    def finish_served(self) -> None:
        """It has left, done."""
        ...

    def dismissed(self) -> None:
        """It has left and was not done."""
        ...


class ConnectionPool:
    """Holds `most` guests and `most_bytes` of theirs; with more, those that have waited longest have to leave. `start` and `stop`
    may be called once each."""

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._guests: dict[PendingConnection, int] = {}
        self._newcomers: list[PendingConnection] = []
        self._lock = threading.Lock()
        self._open = True
        self._selector = selectors.DefaultSelector()
        self._waking, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._waking, READ)
        self._thread = threading.Thread(target=self._run, name="web-room", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def enter(self, guest: PendingConnection) -> None:
        """From any thread. After the end it is dismissed at once."""
        with self._lock:
            if self._open:
                self._newcomers.append(guest)
                self._wake()
                return
        guest.dismissed()

    def stop(self) -> None:
        """Dismisses everybody."""
        with self._lock:
            if not self._open:
                return
            self._open = False
            self._wake()
        if self._thread.ident is None:
            self._shut()
        else:
            self._thread.join(timeout=5)

    def _wake(self) -> None:
        try:
            os.write(self._woken, b".")
        except BlockingIOError:
            # The pipe is full of reasons to wake up.
            return

    def _run(self) -> None:
        while self._open:
            for key, _ in self._selector.select(self._seconds()):
                if key.data is None:
                    os.read(self._waking, 4096)
                elif key.data in self._guests:
                    self._step(key.data)
            self._admit()
            self._end()
        self._shut()

    def _seconds(self) -> float | None:
        ends = [guest.ends_at for guest in self._guests]
        return max(0.0, min(ends) - time.monotonic()) if ends else None

    def _admit(self) -> None:
        with self._lock:
            newcomers, self._newcomers = self._newcomers, []
        for guest in newcomers:
            self._guests[guest] = NOTHING
            self._step(guest)
        while self._crowded():
            self._leave(next(iter(self._guests))).dismissed()

    def _crowded(self) -> bool:
        """One guest may hold as much as it likes: an answer is as long as it is."""
        if len(self._guests) < 2:
            return False
        return len(self._guests) > self._most or sum(guest.weight for guest in self._guests) > self._most_bytes

    def _end(self) -> None:
        now = time.monotonic()
        for guest in [one for one in self._guests if one.ends_at <= now]:
            self._leave(guest).dismissed()

    def _step(self, guest: PendingConnection) -> None:
        try:
            wanted = guest.step()
            if wanted != NOTHING:
                self._watch(guest, wanted)
                return
        except OSError as error:
            _log.debug('client disconnected error="%s"', error)
            self._leave(guest).dismissed()
        except Exception:  # noqa: BLE001 - one connection's trouble must not cost the others theirs
            _log.exception("closed a connection after an unexpected error")
            self._leave(guest).dismissed()
        else:
            self._leave(guest).finish_served()

    def _watch(self, guest: PendingConnection, wanted: int) -> None:
        before, self._guests[guest] = self._guests[guest], wanted
        if before == NOTHING:
            self._selector.register(guest.fileno(), wanted, guest)
        elif before != wanted:
            self._selector.modify(guest.fileno(), wanted, guest)

    def _leave(self, guest: PendingConnection) -> PendingConnection:
        if self._guests.pop(guest) != NOTHING:
            self._selector.unregister(guest.fileno())
        return guest

    def _shut(self) -> None:
        with self._lock:
            newcomers, self._newcomers = self._newcomers, []
        for guest in (*newcomers, *map(self._leave, list(self._guests))):
            guest.dismissed()
        self._selector.close()
        os.close(self._waking)
        os.close(self._woken)


MOST_BODY_BYTES = 65_536
"""Of a body that is waited for: a sender that is refused then learns why. A longer one its worker reads, once it may be sent."""

_END = re.compile(rb"\r?\n\r?\n")
_LENGTH = re.compile(rb"\ncontent-length[ \t]*:[ \t]*([0-9]{1,12})[ \t]*(?=\r?\n)", re.IGNORECASE)
_EXPECTS = re.compile(rb"\nexpect[ \t]*:", re.IGNORECASE)


def is_head_complete(held: bytes | bytearray) -> bool:
    """Return whether the line is there that ends a request's head."""
    return _END.search(held) is not None


def missing(held: bytes | bytearray, most_head_bytes: int, most_body_bytes: int) -> int:
    """Return how many bytes more are to be waited for, at most; 0: none. A head or a body beyond the limits is there
    as soon as that is
    known, and so is the head of a client that sends its body only once it is told to."""
    end = _END.search(held)
    if end is None:
        return max(0, most_head_bytes + 1 - len(held))
    head = bytes(held[: end.end()])
    length = max((int(found) for found in _LENGTH.findall(head)), default=0)
    if length > most_body_bytes or _EXPECTS.search(head):
        return 0
    return max(0, end.end() + min(length, MOST_BODY_BYTES) - len(held))
