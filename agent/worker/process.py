"""Child processes of the daemon: start, exchanges with a deadline, limits, and end.

Libraries for numbers and pages load only in a child. It gets no secret and only the environment of an interpreter. It
exits when the daemon is gone, because its stdin ends.
"""

from __future__ import annotations

import logging
import os
import resource
import selectors
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from pathlib import Path
from typing import IO, BinaryIO

import agent

MIB = 1024 * 1024

INHERITED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONTZPATH", "TZDIR", "TMPDIR")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
"""Single-thread settings: engines on the same machine need the cores, and each thread takes memory."""

NICE = 5
"""Nice value: below the collector and an engine on the same machine."""

OUT_OF_MEMORY = 12
"""Exit code of a process that reached its memory limit (ENOMEM)."""

MOST_BYTES = 4 * 1024 * 1024
"""Maximum bytes of a response. A response holds at most a day of bins: a hundredth of this."""

MOST_LINES, MOST_LETTERS = 200, 500
"""Maximum logged stderr lines of a process, and letters of a line."""

LAST_SECONDS = 5.0
"""Wait in seconds for a process that was ended or died."""


class WorkerFailure(StrEnum):
    """Cause of a failed request, as counted and exported."""

    START = "start"
    DIED = "died"
    TIMEOUT = "timeout"
    GARBAGE = "garbage"
    ERROR = "error"


class WorkerError(Exception):
    """Failed request. The process has been ended, with this exit code if it ended by itself."""

    def __init__(self, fault: WorkerFailure, text: str, code: int | None = None) -> None:
        super().__init__(text)
        self.fault = fault
        self.code = code


def worker_command(module: str, *arguments: str) -> tuple[str, ...]:
    """Return the command of a worker. -P keeps the working directory out of the import path."""
    return (sys.executable, "-P", "-m", module, *arguments)


def environment() -> dict[str, str]:
    """Return the child's environment, with the path of its modules."""
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {**kept, **ONE_THREAD, "PYTHONPATH": str(Path(agent.__path__[0]).parent)}


class WorkerProcess:
    """Worker process, started at once. One thread sends requests; any may call `kill`. Raises WorkerError if it cannot
    start.

    `name` stands in the log for its stderr; without a `log` that output is discarded. `more` is added to its environment.
    """

    def __init__(
        self,
        words: Sequence[str],
        name: str = "",
        log: logging.Logger | None = None,
        *,
        cwd: str | None = "/",
        more: Mapping[str, str] | None = None,
    ) -> None:
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE if log is not None else subprocess.DEVNULL,
                cwd=cwd,
                env={**environment(), **(more or {})},
                # Ctrl-C at the terminal must reach only the daemon.
                start_new_session=True,
            )
        except OSError as error:
            raise WorkerError(WorkerFailure.START, f"cannot be begun: {error.strerror or error}") from error
        self.pid = self._process.pid
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._in, self._out = self._process.stdin, self._process.stdout
        os.set_blocking(self._in.fileno(), False)
        os.set_blocking(self._out.fileno(), False)
        self._logging: threading.Thread | None = None
        if log is not None:
            self._logging = threading.Thread(target=_log_lines, args=(self._process.stderr, log, name), daemon=True)
            self._logging.start()

    def ask(self, request: bytes, seconds: float) -> bytes:
        """Send a request and return the response line. On a failure or timeout, end the process and raise
        WorkerError."""
        try:
            return self._exchange(request, time.monotonic() + seconds)
        except WorkerError:
            self.close()
            raise
        except OSError as error:
            self.close()
            raise self._died(str(error)) from error

    def _exchange(self, request: bytes, deadline: float) -> bytes:
        left, result = memoryview(request), bytearray()
        with selectors.DefaultSelector() as ready:
            ready.register(self._in, selectors.EVENT_WRITE)
            ready.register(self._out, selectors.EVENT_READ)
            while not result.endswith(b"\n"):
                wait = deadline - time.monotonic()
                if wait <= 0:
                    raise WorkerError(WorkerFailure.TIMEOUT, "took too long and was ended")
                for key, _ in ready.select(wait):
                    if key.fileobj is self._in:
                        left = left[os.write(self._in.fileno(), left) :]
                        if not left:
                            ready.unregister(self._in)
                    else:
                        result += self._read()
                        if len(result) > MOST_BYTES:
                            raise WorkerError(WorkerFailure.GARBAGE, "answered without end and was ended")
        return bytes(result)

    def _read(self) -> bytes:
        part = os.read(self._out.fileno(), 65_536)
        if not part:
            with suppress(subprocess.TimeoutExpired):
                # The process is about to exit; wait for its exit code.
                self._process.wait(LAST_SECONDS)
            self.close()
            raise self._died("")
        return part

    def _died(self, otherwise: str) -> WorkerError:
        code = self._process.poll()
        if code is None:
            why = otherwise
        elif code == OUT_OF_MEMORY:
            why = "it needed more memory than it may take"
        else:
            why = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}, see the log"
        return WorkerError(WorkerFailure.DIED, f"died: {why}", code)

    def kill(self) -> None:
        """Kill the process. A pending request fails."""
        self._process.kill()

    def close(self) -> None:
        """End the process and release its resources; repeated calls do nothing. An idle process can exit by itself."""
        self._in.close()
        self._out.close()
        try:
            self._process.wait(0.0 if self._process.poll() is not None else 0.2)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait(LAST_SECONDS)
        if self._logging is not None:
            self._logging.join(LAST_SECONDS)


def _log_lines(errors: IO[bytes], log: logging.Logger, name: str) -> None:
    """Log a limited number of lines. Later lines are read and dropped, because a full pipe would block the process."""
    with errors:
        number = 0
        while line := errors.readline(MOST_LETTERS):
            number += 1
            if number <= MOST_LINES:
                log.warning("%s stderr: %s", name, line.decode("utf-8", "replace").rstrip())
            elif number == MOST_LINES + 1:
                log.warning("%s stderr truncated lines=%s", name, MOST_LINES)


def begin_child(memory_bytes: int) -> BinaryIO:
    """Set the limits of this child process and return its stdout. Other output to stdout goes to stderr."""
    logging.basicConfig(stream=sys.stderr, format="%(levelname)s %(message)s", level=logging.WARNING)
    results = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)
    limit_memory(memory_bytes)
    os.nice(NICE)
    return results


def limit_memory(memory_bytes: int) -> None:
    """Limit the data of this process (RLIMIT_DATA). Address space is unsuitable: it includes shared library files."""
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
