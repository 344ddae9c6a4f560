"""Jobs of a reporting process, their results, and the runner that starts a process for each job.

The daemon imports this module, so it loads nothing that a job needs. A job contains the daemon's own configuration:
later changes on disk have no effect. The process itself reads the addresses.
"""

from __future__ import annotations

import base64
import json
import logging
import os
import pickle
import signal
import threading
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from agent.config.report import Destination
from agent.worker.process import MIB, OUT_OF_MEMORY, WorkerError, WorkerFailure, WorkerProcess, worker_command

if TYPE_CHECKING:
    # A sending process needs one destination, not the modules that load a configuration.
    from agent.config.load import LoadedConfig

REPORT_MEMORY_BYTES = 768 * MIB
"""Memory limit in bytes (RLIMIT_DATA). Libraries take about 150 MiB; a quarter of 200 replicas takes the same again."""

NETWORK = (
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
)  # fmt: skip
"""Environment of the processes that send: proxies and certificates."""

_log = logging.getLogger("agent.reporting")


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateJob:
    """Job that writes the report of the time before `due` (unix seconds) into `folder`/`name`."""

    loaded: LoadedConfig
    due: float
    folder: Path
    name: str
    lock: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryJob:
    """Job that sends the report `name` in `folder` and writes a `receipt` after acceptance.

    `link` is the address of the full report, "" if not configured."""

    folder: Path
    name: str
    destination: Destination
    link: str
    receipt: Path
    lock: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressCheckJob:
    """Job that checks whether addresses are readable and supported. Nothing is sent."""

    destinations: tuple[Destination, ...]


Job = GenerateJob | DeliveryJob | AddressCheckJob

LIMIT_SECONDS: Mapping[type[Job], float] = {GenerateJob: 600.0, DeliveryJob: 90.0, AddressCheckJob: 30.0}
"""Time limits of jobs in seconds. A destination that hangs delays the others by this much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressCheckResult:
    """Check of a destination: the service and whether it accepts files, or the reason why it is unusable."""

    service: str = ""
    takes_files: bool = False
    readable_by_all: bool = False
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """Result of a job. `trouble` is "" on success. `text` is the headline of a written report."""

    trouble: str = ""
    text: str = ""
    memory_bytes: int = 0
    checked: tuple[AddressCheckResult, ...] = ()


_RESULT = TypeAdapter(JobResult)


def job_line(job: Job) -> bytes:
    """Return the job as a line for stdin."""
    return base64.b64encode(pickle.dumps(job)) + b"\n"


def parse_job(line: bytes) -> Job:
    """Return the job in a line from stdin. Only the parent process can write there, so unpickling is safe."""
    job = pickle.loads(base64.b64decode(line))
    assert isinstance(job, Job)
    return job


def result_line(result: JobResult) -> bytes:
    return json.dumps(asdict(result)).encode() + b"\n"


class JobRunner:
    """Runner of one job at a time, each in a process of its own. Any thread may call `kill`; no job starts after it."""

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._process: WorkerProcess | None = None
        self._guard = threading.Lock()
        self._ended = False

    @property
    def was_killed(self) -> bool:
        """Return whether `kill` was called."""
        return self._ended

    def run(self, job: Job) -> JobResult:
        """Run a job and return its result. Every error is a `trouble`, never an exception."""
        seconds = self._seconds or LIMIT_SECONDS[type(job)]
        words = worker_command("agent.reporting.worker", str(REPORT_MEMORY_BYTES), f"{seconds:g}")
        # Discard stderr of a delivery: library messages may contain the address.
        log = _log if isinstance(job, GenerateJob) else None
        try:
            with self._guard:
                if self._ended:
                    return JobResult(trouble="sizewatch is ending")
                process = WorkerProcess(words, "reporting process", log, cwd=None, more=_more_environment(job))
                self._process = process
            line = process.ask(job_line(job), seconds)
            process.close()
            return _RESULT.validate_json(line)
        except WorkerError as error:
            return JobResult(trouble=_error_text(error, seconds))
        except ValidationError:
            return JobResult(trouble="it gave no answer")
        finally:
            with self._guard:
                self._process = None

    def kill(self) -> None:
        """Kill the running job. Later jobs fail at once."""
        with self._guard:
            self._ended = True
            if self._process is not None:
                self._process.kill()


def _error_text(error: WorkerError, seconds: float) -> str:
    if error.fault is WorkerFailure.TIMEOUT or error.code == -signal.SIGALRM:
        return f"it took longer than {seconds:g} s and was ended"
    if error.fault is not WorkerFailure.DIED or error.code is None:
        return f"its process {error}"
    if error.code == OUT_OF_MEMORY:
        return f"it needed more than the {REPORT_MEMORY_BYTES // MIB} MiB that it may take"
    if error.code < 0:
        return f"its process was killed by {signal.Signals(-error.code).name}"
    return f"it gave no answer (exit code {error.code}, see the log)"


def _more_environment(job: Job) -> Mapping[str, str]:
    """Return the proxies, the certificates and the addresses that a sending job needs."""
    if isinstance(job, GenerateJob):
        return {}
    destinations = (job.destination,) if isinstance(job, DeliveryJob) else job.destinations
    wanted = (*NETWORK, *(one.url_env for one in destinations if one.url_env)) if destinations else ()
    return {name: os.environ[name] for name in wanted if name in os.environ}
