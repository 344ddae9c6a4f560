"""Forecast worker as a child process of the daemon: start, requests with a deadline, and end.

Holds the process, its limits and its pipes. `agent.forecasting.messages` defines the messages,
`agent.forecasting.service` their schedule. Libraries for numbers load only in the child. The child gets no secret and
only the environment of an interpreter. It exits when the daemon is gone, because its stdin ends.
"""

from __future__ import annotations

import logging
import os
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import IO

import agent

MIB = 1024 * 1024
FORECAST_MEMORY_BYTES = 512 * MIB
MEMORY_BYTES_A_TIER = 32 * MIB
"""Memory limit in bytes (RLIMIT_DATA).

The libraries and four weeks of one tier take about 200 MiB, each further tier about 10 MiB. Address space is unsuitable
as a limit: it includes shared library files."""

INHERITED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONTZPATH", "TZDIR", "TMPDIR")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
"""Single-thread settings: engines on the same machine need the cores, and each thread takes memory."""

MOST_LINES, MOST_LETTERS = 200, 500
"""Maximum logged stderr lines of the process, and letters of a line."""

LAST_SECONDS = 5.0
"""Wait in seconds for a process that was ended or died."""

_log = logging.getLogger("agent.forecasting")


class WorkerFailure(StrEnum):
    """Cause of a failed request, as counted and exported."""

    START = "start"
    DIED = "died"
    TIMEOUT = "timeout"
    GARBAGE = "garbage"
    ERROR = "error"


class WorkerError(Exception):
    """Failed request. The process has been ended."""

    def __init__(self, fault: WorkerFailure, text: str) -> None:
        super().__init__(text)
        self.fault = fault


def command(memory_bytes: int) -> tuple[str, ...]:
    """Return the command of the worker. -P keeps the working directory out of the import path."""
    return (sys.executable, "-P", "-m", "agent.forecasting.worker", str(memory_bytes))


def environment() -> dict[str, str]:
    """Return the child's environment, with the path of its modules."""
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {**kept, **ONE_THREAD, "PYTHONPATH": str(Path(agent.__path__[0]).parent)}


class WorkerProcess:
    """Worker process, started at once. One thread sends requests; any may call `kill`. Raises WorkerError if it cannot
    start."""

    def __init__(self, words: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env=environment(),
                # Ctrl-C at the terminal must reach only the daemon.
                start_new_session=True,
            )
        except OSError as error:
            raise WorkerError(WorkerFailure.START, f"the forecasting process cannot be begun: {error}") from error
        self.pid = self._process.pid
        self._in, self._out, errors = self._process.stdin, self._process.stdout, self._process.stderr
        assert self._in is not None
        assert self._out is not None
        assert errors is not None
        os.set_blocking(self._in.fileno(), False)
        os.set_blocking(self._out.fileno(), False)
        self._logging = threading.Thread(target=_log_lines, args=(errors,), daemon=True)
        self._logging.start()

    def ask(self, line: bytes, seconds: float) -> bytes:
        """Send a line and return the response line. On a failure or timeout, end the process and raise WorkerError."""
        try:
            return self._exchange(line, time.monotonic() + seconds)
        except WorkerError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise WorkerError(
                WorkerFailure.DIED, f"the forecasting process died: {self._how_it_ended() or error}"
            ) from error

    def _exchange(self, line: bytes, deadline: float) -> bytes:
        assert self._in is not None
        assert self._out is not None
        left, answer = memoryview(line), bytearray()
        with selectors.DefaultSelector() as ready:
            ready.register(self._in, selectors.EVENT_WRITE)
            ready.register(self._out, selectors.EVENT_READ)
            while not answer.endswith(b"\n"):
                wait = deadline - time.monotonic()
                if wait <= 0:
                    raise WorkerError(WorkerFailure.TIMEOUT, "the forecasting process took too long and was ended")
                for key, _ in ready.select(wait):
                    if key.fileobj is self._in:
                        left = left[os.write(self._in.fileno(), left) :]
                        if not left:
                            ready.unregister(self._in)
                    else:
                        answer += self._read()
                        if len(answer) > MOST_BYTES:
                            raise WorkerError(
                                WorkerFailure.GARBAGE, "the forecasting process answered without end and was ended"
                            )
        return bytes(answer)

    def _read(self) -> bytes:
        assert self._out is not None
        part = os.read(self._out.fileno(), 65_536)
        if not part:
            with suppress(subprocess.TimeoutExpired):
                # The process is about to exit; wait for its exit code.
                self._process.wait(LAST_SECONDS)
            self.close()
            raise WorkerError(WorkerFailure.DIED, f"the forecasting process died: {self._how_it_ended()}")
        return part

    def _how_it_ended(self) -> str:
        code = self._process.poll()
        if code is None:
            return ""
        if code == OUT_OF_MEMORY:
            return "it needed more memory than it may take"
        return f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}, see the log"

    def kill(self) -> None:
        """Kill the process. A pending request fails."""
        self._process.kill()

    def close(self) -> None:
        """End the process and release its resources; repeated calls do nothing. An idle process can exit by itself."""
        for pipe in (self._in, self._out):
            assert pipe is not None
            pipe.close()
        try:
            self._process.wait(0.0 if self._process.poll() is not None else 0.2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(LAST_SECONDS)
        self._logging.join(LAST_SECONDS)


def _log_lines(errors: IO[bytes]) -> None:
    """Log a limited number of lines. Later lines are read and dropped, because a full pipe would block the process."""
    with errors:
        number = 0
        while line := errors.readline(MOST_LETTERS):
            number += 1
            if number <= MOST_LINES:
                _log.warning("forecast worker stderr: %s", line.decode("utf-8", "replace").rstrip())
            elif number == MOST_LINES + 1:
                _log.warning("forecast worker stderr truncated lines=%s", MOST_LINES)


OUT_OF_MEMORY = 12
"""Exit code of a process that reached its memory limit (ENOMEM)."""


MOST_BYTES = 4 * 1024 * 1024
"""Maximum bytes of a response. A response holds at most a day of bins: a hundredth of this."""
