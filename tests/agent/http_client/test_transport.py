"""The clock of a socket that is being read; whole scrapes against their time limit are in test_pages.py."""

import io
import socket
import time

import pytest
from waiting import CEILING_SECONDS

from agent.http_client.transport import DeadlineReader


def test_a_read_waits_for_no_longer_than_is_left_whatever_the_socket_would_allow() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        ours.settimeout(10 * CEILING_SECONDS)
        raw = DeadlineReader(ours, time.monotonic() + CEILING_SECONDS)
        reader = io.BufferedReader(raw)
        theirs.sendall(b"one line\nand a ha")
        assert reader.readline() == b"one line\n"
        raw._deadline = time.monotonic() + 0.1
        started = time.monotonic()
        with pytest.raises(TimeoutError):
            reader.readline()
        assert time.monotonic() - started < CEILING_SECONDS
        reader.close()


def test_after_the_deadline_not_even_what_has_arrived_is_read() -> None:
    ours, theirs = socket.socketpair()
    with ours, theirs:
        reader = DeadlineReader(ours, time.monotonic())
        theirs.sendall(b"late")
        with pytest.raises(TimeoutError):
            reader.read(4)
        reader.close()
