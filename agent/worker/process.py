"""The forecasting process as the daemon has it: begun, asked, waited for so long, and ended.

Owns the process, its limits and its pipes; what is asked and answered is `agent.forecasting.messages`'s, when and how often
`agent.forecasting.service`'s. It loads no numbers' library: that is what the process is for. The process gets no secret:
of the environment only what an interpreter needs. It leaves by itself when the daemon is gone, for then its stdin ends.
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
"""What the process may allocate (RLIMIT_DATA): its libraries and the four weeks of one tier take some 200 MiB, each further
tier some ten. Address space is no measure: it counts the libraries' files, which others share."""

INHERITED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONTZPATH", "TZDIR", "TMPDIR")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
"""The engines beside us need the cores, and each thread of a numbers' library takes memory."""

MOST_LINES, MOST_LETTERS = 200, 500
"""Of what the process complains, as far as it is logged."""

LAST_SECONDS = 5.0
"""How long a process that was told to end, or died, is waited for."""

_log = logging.getLogger("agent.forecasting")


class WorkerFailure(StrEnum):
    """How a question was not answered; one word, counted and exported."""

    START = "start"
    DIED = "died"
    TIMEOUT = "timeout"
    GARBAGE = "garbage"
    ERROR = "error"


class WorkerError(Exception):
    """The process gave no answer; it is ended."""

    def __init__(self, fault: WorkerFailure, text: str) -> None:
        super().__init__(text)
        self.fault = fault


def command(memory_bytes: int) -> tuple[str, ...]:
    """How the process is begun, by this interpreter; -P: the working folder is no place to import from."""
    return (sys.executable, "-P", "-m", "agent.forecasting.worker", str(memory_bytes))


def environment() -> dict[str, str]:
    """What the process gets of ours, and where its modules are."""
    kept = {name: os.environ[name] for name in INHERITED if name in os.environ}
    return {**kept, **ONE_THREAD, "PYTHONPATH": str(Path(agent.__path__[0]).parent)}


class WorkerProcess:
    """One process, begun at once. Asked by one thread; `kill` may be called from any. Raises NoAnswer where it cannot begin."""

    def __init__(self, words: Sequence[str]) -> None:
        try:
            self._process = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                cwd="/",
                env=environment(),
                # A Ctrl-C at the terminal is the daemon's to answer.
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
        """The line that is answered. Raises NoAnswer, with the process ended, where none came within so many seconds."""
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
                # It is about to end by itself, and how is worth telling.
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
        """Ends it at once; who waits for an answer hears of it."""
        self._process.kill()

    def close(self) -> None:
        """Ends it, gently if it answers no question just now, and gives everything back; a second call does nothing."""
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
    """Into the daemon's log, so many lines; what comes after is read and dropped, or the process would wait."""
    with errors:
        number = 0
        while line := errors.readline(MOST_LETTERS):
            number += 1
            if number <= MOST_LINES:
                _log.warning("forecasting process: %s", line.decode("utf-8", "replace").rstrip())
            elif number == MOST_LINES + 1:
                _log.warning("forecasting process: it says more than is logged")


OUT_OF_MEMORY = 12
"""The exit code of a process that needed more memory than it may take (ENOMEM)."""


MOST_BYTES = 4 * 1024 * 1024
"""An answer holds a day of bins at most: a hundredth of this."""
