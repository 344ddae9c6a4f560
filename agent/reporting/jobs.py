"""Runner of the reports' jobs: it starts a process for each.

The daemon imports this module, so the libraries of pages and numbers load only where a job runs. A job contains the
daemon's own configuration: later changes on disk have no effect. The process itself reads the addresses.
"""

from __future__ import annotations

import logging
import resource
import threading
from collections.abc import Mapping
from dataclasses import replace

from agent.errors import SizewatchError
from agent.reporting.records import DeliveryJob, GenerateJob, Job, JobResult
from agent.worker.process import MIB, WorkerError, WorkerFailure, WorkerProcess

REPORT_MEMORY_BYTES = 768 * MIB
"""Memory limit in bytes (RLIMIT_DATA). Libraries take about 150 MiB; a quarter of 200 replicas takes the same again."""

NETWORK = (
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
)  # fmt: skip
"""Environment of the processes that send: proxies and certificates."""

_log = logging.getLogger("agent.reporting")


LIMIT_SECONDS: Mapping[type[Job], float] = {GenerateJob: 600.0, DeliveryJob: 90.0}
"""Time limits of jobs in seconds. A destination that hangs delays the others by this much."""


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
        process = None
        try:
            with self._guard:
                if self._ended:
                    return JobResult(trouble="sizewatch is ending")
                # A library's messages about a delivery may contain the address.
                silent = not isinstance(job, GenerateJob)
                process = self._process = WorkerProcess(REPORT_MEMORY_BYTES, keep=_environment(job), silent=silent)
            result: JobResult = process.call(run_job, job, seconds=self._seconds or LIMIT_SECONDS[type(job)])
            return result
        except WorkerError as error:
            if error.fault is WorkerFailure.ERROR:
                _log.error("report failed\n%s", error.trace)
                return JobResult(trouble=f"defect: {error}")
            return JobResult(trouble=f"its process {error}")
        finally:
            with self._guard:
                self._process = None
            if process is not None:
                process.close()

    def kill(self) -> None:
        """Kill the running job. Later jobs fail at once."""
        with self._guard:
            self._ended = True
            if self._process is not None:
                self._process.kill()


def _environment(job: Job) -> tuple[str, ...]:
    """Return the variables that a sending job needs: proxies, certificates and addresses."""
    if isinstance(job, GenerateJob):
        return ()
    address = job.destination.url_env
    return (*NETWORK, address) if address else NETWORK


def run_job(job: Job) -> JobResult:
    """Run a job in this process. Raise defects of a report alone: another's text may contain an address."""
    try:
        if isinstance(job, GenerateJob):
            from agent.reporting.generate import generate_report

            result = JobResult(text=generate_report(job))
        else:
            result = _run_delivery_job(job)
    except SizewatchError as error:
        result = JobResult(trouble="; ".join(str(error).splitlines()))
    return replace(result, memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def _run_delivery_job(job: DeliveryJob) -> JobResult:
    from agent.reporting.delivery import send

    try:
        return JobResult(trouble=send(job))
    except (MemoryError, SizewatchError):
        raise
    except Exception as error:  # noqa: BLE001 - only its type may be told
        return JobResult(trouble=f"defect: {type(error).__name__}")
