"""A reporting process as the daemon and the doctor have it: begun for one job, waited for so long, ended.

Owns the process and its limits; what it does is `agent.reporting.worker`'s. It gets of the environment what an interpreter and the
way out need, and the variables that hold the addresses of this job, nothing else. It ends by itself too, by its own alarm clock.
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
"""What it may allocate (RLIMIT_DATA): its libraries take some 150 MiB, a quarter of a year of 200 replicas as much again."""

MAKE_SECONDS, SEND_SECONDS, CHECK_SECONDS = 600.0, 90.0, 30.0
"""A destination that hangs costs the others so long."""

NETWORK = (
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
)  # fmt: skip

MOST_LINES, MOST_LETTERS = 100, 500
"""Of what the process complains, as far as it is logged."""

_log = logging.getLogger("agent.reporting")


def limit_seconds(job: Job) -> float:
    """How long this job may take."""
    return {GenerateJob: MAKE_SECONDS, DeliveryJob: SEND_SECONDS, AddressCheckJob: CHECK_SECONDS}[type(job)]


class JobRunner:
    """Runs jobs, one at a time; `kill` may be called from any thread, and no job begins after it."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._process: subprocess.Popen[bytes] | None = None
        self._guard = threading.Lock()
        self._ended = False

    @property
    def was_killed(self) -> bool:
        """Whether it was killed."""
        return self._ended

    def run(self, job: Job) -> JobResult:
        """What became of it; whatever goes wrong is a `trouble`, never an exception."""
        seconds = self._seconds or limit_seconds(job)
        words = (sys.executable, "-P", "-m", "agent.reporting.worker", str(REPORT_MEMORY_BYTES), f"{seconds:g}")
        # What a library says of a delivery may hold its address: nobody reads it.
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
                    # A Ctrl-C at the terminal is the daemon's to answer.
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
        """Ends the job that runs, and every later one at once."""
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
        _log.warning("reporting process: %s", line[:MOST_LETTERS].decode("utf-8", "replace").rstrip())
