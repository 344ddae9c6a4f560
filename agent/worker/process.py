"""Child process (`multiprocessing`, spawn) for calls of functions with a deadline and a memory limit.

Libraries for numbers and pages load only in a child, after its limit is set. It exits when the daemon is gone.
"""

from __future__ import annotations

import multiprocessing  # noqa: TID251
import os
import resource
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Collection
from enum import StrEnum
from multiprocessing import connection, resource_tracker  # noqa: TID251
from typing import Any

MIB = 1024 * 1024
SPAWN = multiprocessing.get_context("spawn")

INHERITED = ("PATH", "LANG", "LC_ALL", "LD_LIBRARY_PATH", "PYTHONTZPATH", "TZDIR", "TMPDIR")
ONE_THREAD = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}
"""Single-thread settings: engines on the same machine need the cores, and each thread takes memory."""

NICE, OUT_OF_MEMORY, LAST_SECONDS = 5, 12, 5.0
"""Nice value, below the collector; exit code of a reached memory limit (ENOMEM); wait for a process that has ended."""


class WorkerFailure(StrEnum):
    """Cause of a failed call, as counted and exported."""

    START = "start"
    DIED = "died"
    TIMEOUT = "timeout"
    ERROR = "error"


class WorkerError(Exception):
    """Failed call. It ended the process, but for an ERROR: then `trace` is the traceback in the child."""

    def __init__(self, fault: WorkerFailure, text: str, trace: str = "") -> None:
        super().__init__(text)
        self.fault, self.trace = fault, trace


class WorkerProcess:
    """Child process, started at once. One thread calls; any may `kill`. Raises WorkerError if it cannot start.

    `memory_bytes` limits its data. Functions see an interpreter's variables and those in `keep`. `silent`: no output.
    """

    def __init__(self, memory_bytes: int, *, keep: Collection[str] = (), silent: bool = False) -> None:
        self._memory_bytes = memory_bytes
        # Keep the working directory out of the child's import path.
        os.environ.setdefault("PYTHONSAFEPATH", "1")
        try:
            # Its start changes the signal mask, so it must be running before.
            resource_tracker.ensure_running()
            self._pipe, theirs = SPAWN.Pipe()
            arguments = (theirs, memory_bytes, (*INHERITED, *keep), silent)
            self._process = SPAWN.Process(target=_serve, args=arguments, daemon=True)
            # The child inherits the mask: only the parent handles what a terminal sends, and ends the child.
            mask = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGHUP, signal.SIGQUIT})
            try:
                self._process.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, mask)
                theirs.close()
        except OSError as error:
            raise WorkerError(WorkerFailure.START, f"cannot be begun: {error.strerror or error}") from error
        self.pid = self._process.pid

    def call(self, function: Callable[..., Any], *arguments: Any, seconds: float) -> Any:
        """Return the result of a function of a module, called in the child. Raise WorkerError.

        After `seconds`, and if the process dies, it is ended. An exception of the function leaves it running.
        """
        try:
            self._pipe.send((function, arguments))
            if not self._pipe.poll(seconds):
                self.close()
                raise WorkerError(WorkerFailure.TIMEOUT, f"took longer than {seconds:g} s and was ended")
            result, defect = self._pipe.recv()
        except (EOFError, OSError) as error:
            self._process.join(LAST_SECONDS)
            code = self._process.exitcode
            self.close()
            why = f"exit code {code}, see the log"
            if code == OUT_OF_MEMORY:
                why = f"it needed more than the {self._memory_bytes // MIB} MiB that it may take"
            elif code is not None and code < 0:
                why = f"killed by {signal.Signals(-code).name}"
            raise WorkerError(WorkerFailure.DIED, f"died: {why}") from error
        if defect is not None:
            raise WorkerError(WorkerFailure.ERROR, *defect)
        return result

    def kill(self) -> None:
        """Kill the process. A pending call fails."""
        self._process.kill()

    def close(self) -> None:
        """End the process and release its resources; repeated calls do nothing."""
        self._process.kill()
        self._process.join(LAST_SECONDS)
        self._pipe.close()


def _serve(pipe: connection.Connection, memory_bytes: int, keep: Collection[str], silent: bool) -> None:
    os.setsid()
    # What a library prints belongs into the log.
    output = os.open(os.devnull, os.O_WRONLY) if silent or sys.stderr is None else 2
    os.dup2(output, 1)
    os.dup2(output, 2)
    for name in set(os.environ).difference(keep):
        del os.environ[name]
    os.environ.update(ONE_THREAD)
    os.nice(NICE)
    threading.Thread(target=_exit_with_parent, daemon=True).start()
    # Address space is unsuitable as a limit: it includes shared library files.
    resource.setrlimit(resource.RLIMIT_DATA, (memory_bytes, memory_bytes))
    try:
        while True:
            pipe.send(_call_next(pipe))
    except MemoryError:
        # The remaining memory is fragmented: the next call gets a new process.
        os._exit(OUT_OF_MEMORY)
    except BrokenPipeError:
        return


def _call_next(pipe: connection.Connection) -> tuple[Any, tuple[str, str] | None]:
    """Return the result of the next call, or its error and traceback. The libraries of a function load with it."""
    try:
        function, arguments = pipe.recv()
        return function(*arguments), None
    except MemoryError:
        raise
    except Exception as error:  # noqa: BLE001 - a defect of one call must not stop the others
        return None, (" ".join(f"{type(error).__name__}: {error}".split()), traceback.format_exc())


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    connection.wait([parent.sentinel])
    os._exit(1)
