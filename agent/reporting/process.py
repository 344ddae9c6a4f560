"""Runner of reporting processes for the daemon and the doctor: a process per job, with a time and memory limit.

The process gets the environment of an interpreter, proxy and certificate variables, and the variables with the
addresses of its job. It also ends itself by an alarm clock. The job itself runs in `agent.reporting.worker`.
"""

from __future__ import annotations

import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Mapping

from agent.config.report_keys import Destination
from agent.reporting.jobs import (
    OUT_OF_MEMORY,
    AddressCheckJob,
    DeliveryJob,
    GenerateJob,
    Job,
    JobResult,
    job_bytes,
    parse_result,
)
from agent.worker.process import MIB, environment

REPORT_MEMORY_BYTES = 768 * MIB
"""Memory limit in bytes (RLIMIT_DATA). Libraries take about 150 MiB; a quarter of 200 replicas takes the same again."""

MAKE_SECONDS, SEND_SECONDS, CHECK_SECONDS = 600.0, 90.0, 30.0
"""Time limits in seconds. A destination that hangs delays the others by this much."""

NETWORK = (
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
)  # fmt: skip

MOST_LINES, MOST_LETTERS = 100, 500
"""Maximum logged stderr lines of the process, and letters of a line."""

_log = logging.getLogger("agent.reporting")


def limit_seconds(job: Job) -> float:
    """Return the time limit of a job in seconds."""
    return {GenerateJob: MAKE_SECONDS, DeliveryJob: SEND_SECONDS, AddressCheckJob: CHECK_SECONDS}[type(job)]


class JobRunner:
    """Runner of one job at a time. Any thread may call `kill`; no job starts after it."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._guard = threading.Lock()
        self._ended = False

    @property
    def was_killed(self) -> bool:
        """Return whether `kill` was called."""
        return self._ended

    def run(self, job: Job) -> JobResult:
        """Run a job and return its result. Every error is a `trouble`, never an exception."""
        seconds = self._seconds or limit_seconds(job)
        words = (sys.executable, "-P", "-m", "agent.reporting.worker", str(REPORT_MEMORY_BYTES), f"{seconds:g}")
        # Discard stderr of a delivery: library messages may contain the address.
        errors = subprocess.DEVNULL if isinstance(job, DeliveryJob | AddressCheckJob) else subprocess.PIPE
        try:
            with self._guard:
                if self._ended:
                    return JobResult(trouble="sizewatch is ending")
                self._process = subprocess.Popen(
                    words,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    env={**environment(), **_more(job)},
                    # Ctrl-C at the terminal must reach only the daemon.
                    start_new_session=True,
                )
            return self._wait(self._process, job_bytes(job), seconds)
        except OSError as error:
            return JobResult(trouble=f"its process cannot be begun: {error.strerror or error}")
        finally:
            with self._guard:
                self._process = None

    def _wait(self, process: subprocess.Popen[bytes], job: bytes, seconds: float) -> JobResult:
        try:
            answer, errors = process.communicate(job, timeout=seconds)
        except subprocess.TimeoutExpired:
            process.kill()
            process.communicate()
            return JobResult(trouble=f"it took longer than {seconds:g} s and was ended")
        _log_lines(errors or b"")
        if process.returncode == OUT_OF_MEMORY:
            return JobResult(trouble=f"it needed more than the {REPORT_MEMORY_BYTES // MIB} MiB that it may take")
        if process.returncode == -signal.SIGALRM:
            return JobResult(trouble=f"it took longer than {seconds:g} s and was ended")
        if process.returncode < 0:
            return JobResult(trouble=f"its process was killed by {signal.Signals(-process.returncode).name}")
        try:
            return parse_result(answer)
        except ValueError as error:
            return JobResult(trouble=f"{error} (exit code {process.returncode}, see the log)")

    def kill(self) -> None:
        """Kill the running job. Later jobs fail at once."""
        with self._guard:
            self._ended = True
            if self._process is not None:
                self._process.kill()


def _more(job: Job) -> Mapping[str, str]:
    several: tuple[Destination, ...] = ()
    if isinstance(job, DeliveryJob):
        several = (job.destination,)
    elif isinstance(job, AddressCheckJob):
        several = job.destinations
    wanted = (*NETWORK, *(one.url_env for one in several if one.url_env)) if several else ()
    return {name: os.environ[name] for name in wanted if name in os.environ}


def _log_lines(errors: bytes) -> None:
    for line in errors.splitlines()[:MOST_LINES]:
        _log.warning("reporting process stderr: %s", line[:MOST_LETTERS].decode("utf-8", "replace").rstrip())
