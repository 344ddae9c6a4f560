"""Pool of connections that wait for their clients, before a request and during an answer.

One thread accepts connections and waits for all of them, so slow clients hold no worker.
"""

from __future__ import annotations

import errno
import logging
import os
import resource
import selectors
import socket
import threading
import time
from collections.abc import Callable
from ipaddress import IPv4Address, ip_address, ip_network
from typing import Protocol

READ, WRITE, NOTHING = selectors.EVENT_READ, selectors.EVENT_WRITE, 0

ACCEPTED_AT_ONCE = 32
"""Connections accepted in a row. The connections that wait get their turn in between."""

PAUSE_SECONDS = 0.25
"""Pause of accepting, in seconds, after the process or the system had nothing left for a connection."""

LOG_SECONDS = 60.0
"""Interval of the log message about such errors, in seconds."""

DESCRIPTOR_SHARE = 4
"""The part of the process's descriptors (RLIMIT_NOFILE) that waiting connections may take: one in so many."""

_EXHAUSTED = frozenset({errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM})

_log = logging.getLogger(__name__)


class PendingConnection(Protocol):
    """Who waits. Every method is called by the pool's thread alone."""

    def fileno(self) -> int: ...

    @property
    def origin(self) -> str:
        """Address that it counts for."""
        ...

    @property
    def is_crowded(self) -> bool:
        """Whether its address has more connections than one may have."""
        ...

    @property
    def is_idle(self) -> bool:
        """Whether its request is still incomplete."""
        ...

    @property
    def is_answered(self) -> bool:
        """Whether its answer is sent. It no longer counts for its address, and leaves before all others."""
        ...

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


Accept = Callable[[socket.socket], PendingConnection | None]
"""Function that accepts a connection of a listening socket. It returns None for a client that is gone, and raises OSError."""


class ConnectionPool:
    """Holds `most` guests and `most_bytes` of theirs; with more, the answered have to leave, then those that have waited
    longest. A guest whose address has too many takes the place of the oldest idle one of that address.

    `start` and `stop` may be called once each.
    """

    def __init__(self, most: int, most_bytes: int) -> None:
        self._most = most
        self._most_bytes = most_bytes
        self._guests: dict[PendingConnection, int] = {}
        self._newcomers: list[PendingConnection] = []
        self._lock = threading.Lock()
        self._open = True
        self._listening: socket.socket | None = None
        self._accept: Accept = lambda listening: None
        self._accept_again_at = self._log_again_at = 0.0
        self._accept_errors = 0
        self._selector = selectors.DefaultSelector()
        self._waking, self._woken = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
        self._selector.register(self._waking, READ)
        self._thread = threading.Thread(target=self._run, name="web-pool", daemon=True)

    def start(self, listening: socket.socket | None = None, accept: Accept = lambda listening: None) -> None:
        """Start the thread. It closes the listening socket in the end."""
        self._listening, self._accept = listening, accept
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
            self._listen()
            for key, _ in self._selector.select(self._seconds()):
                if key.fileobj is self._listening:
                    self._accept_several()
                elif key.data is None:
                    os.read(self._waking, 4096)
                elif key.data in self._guests:
                    self._step(key.data)
            self._admit()
            self._end()
        self._shut()

    def _listen(self) -> None:
        """Watch the listening socket, but not during a pause."""
        if self._listening is None or self._listening in self._selector.get_map():
            return
        if self._accept_again_at <= time.monotonic():
            self._selector.register(self._listening, READ)

    def _accept_several(self) -> None:
        assert self._listening is not None
        for _ in range(ACCEPTED_AT_ONCE):
            try:
                guest = self._accept(self._listening)
            except BlockingIOError:
                return
            except OSError as error:
                if error.errno not in _EXHAUSTED:
                    _log.debug('client disconnected error="%s"', error)
                    continue
                self._pause(error)
                return
            if guest is not None:
                self._take(guest)

    def _pause(self, error: OSError) -> None:
        """Accept nothing for a moment: the socket stays readable and would be tried without end. One guest makes room."""
        assert self._listening is not None
        self._selector.unregister(self._listening)
        now = time.monotonic()
        self._accept_again_at = now + PAUSE_SECONDS
        self._accept_errors += 1
        if self._guests:
            self._leave(self._first_to_leave()).dismissed()
        if self._log_again_at <= now:
            _log.warning('accept failed count=%d error="%s"', self._accept_errors, error.strerror)
            self._log_again_at, self._accept_errors = now + LOG_SECONDS, 0

    def _seconds(self) -> float | None:
        ends = [guest.ends_at for guest in self._guests]
        now = time.monotonic()
        if self._listening is not None and self._accept_again_at > now:
            ends.append(self._accept_again_at)
        return max(0.0, min(ends) - now) if ends else None

    def _take(self, guest: PendingConnection) -> None:
        if guest.is_crowded:
            own = [one for one in self._guests if one.origin == guest.origin and not one.is_answered]
            # Guests are in order of arrival, and `min` returns the first of equals. Without one of them all requests of the
            # address are with the workers: this guest may ask for what needs none.
            if own:
                self._leave(min(own, key=lambda one: not one.is_idle)).dismissed()
        self._guests[guest] = NOTHING
        self._step(guest)

    def _admit(self) -> None:
        with self._lock:
            newcomers, self._newcomers = self._newcomers, []
        for guest in newcomers:
            self._guests[guest] = NOTHING
            self._step(guest)
        while self._crowded():
            self._leave(self._first_to_leave()).dismissed()

    def _first_to_leave(self) -> PendingConnection:
        """Return the oldest answered guest, else the oldest of all."""
        return next((one for one in self._guests if one.is_answered), next(iter(self._guests)))

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
        if self._listening is not None:
            self._listening.close()
        os.close(self._waking)
        os.close(self._woken)


def limit_guests(most: int) -> int:
    """Return how many guests may wait: `most`, or fewer where the process may open few files."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return most if soft == resource.RLIM_INFINITY else max(1, min(most, soft // DESCRIPTOR_SHARE))


def origin(address: str) -> str:
    """Whom an address counts for: in IPv6 a network of 64 bits is one customer's, who has every address in it."""
    try:
        found = ip_address(address.partition("%")[0])
    except ValueError:
        return address
    if isinstance(found, IPv4Address):
        return str(found)
    return str(found.ipv4_mapped or ip_network((int(found) >> 64 << 64, 64)))
