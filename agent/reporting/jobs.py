"""Jobs of the reports, each in a process of its own: a report is written, or delivered to one destination.

The daemon imports this module, so the libraries of pages and numbers load only where a job runs. A job contains the
daemon's own configuration: later changes on disk have no effect. The process itself reads the addresses.
"""

from __future__ import annotations

import logging
import resource
import threading
from collections.abc import Callable, Collection
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from agent.config.load import LoadedConfig
from agent.config.notifications import Destination
from agent.errors import SizewatchError
from agent.reporting import storage
from agent.worker.process import MIB, WorkerError, WorkerProcess

REPORT_MEMORY_BYTES = 768 * MIB
"""Memory limit in bytes (RLIMIT_DATA). Libraries take about 150 MiB; a quarter of 200 replicas takes the same again."""

NETWORK = (
    "HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy",
    "SSL_CERT_FILE", "SSL_CERT_DIR", "REQUESTS_CA_BUNDLE", "CURL_CA_BUNDLE",
)  # fmt: skip
"""Environment of the processes that send: proxies and certificates."""

GENERATE_SECONDS, DELIVERY_SECONDS = 600.0, 90.0
"""Time limits of jobs in seconds. A destination that hangs delays the others by this much."""

_log = logging.getLogger("agent.reporting")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """Result of a job. `trouble` is "" on success. `headline` is that of a written report."""

    trouble: str = ""
    headline: str = ""
    memory_bytes: int = 0


class JobRunner:
    """Runner of one job at a time. Any thread may call `kill`; no job starts after it.

    Every error is a `trouble`, never an exception. `seconds` replaces the time limits.
    """

    def __init__(self, seconds: float | None = None) -> None:
        self._seconds = seconds
        self._process: WorkerProcess | None = None
        self._guard = threading.Lock()
        self._ended = False

    def generate(self, loaded: LoadedConfig, due: float, folder: Path, name: str) -> JobResult:
        """Write the report of the time before `due` (unix seconds) into `folder`/`name`."""
        return self._run(GENERATE_SECONDS, (), run_generate, loaded, due, folder, name)

    def deliver(self, place: Path, destination: Destination, link: str) -> JobResult:
        """Send the report in the folder `place`. `link` is the address of the full report, or ""."""
        keep = (*NETWORK, destination.url_env or NETWORK[0])
        return self._run(DELIVERY_SECONDS, keep, run_delivery, place, destination, link)

    def _run(self, seconds: float, keep: Collection[str], function: Callable[..., Any], *arguments: Any) -> JobResult:
        try:
            with self._guard:
                if self._ended:
                    return JobResult(trouble="sizewatch is ending")
                # A library's messages about a delivery may contain the address.
                self._process = WorkerProcess(REPORT_MEMORY_BYTES, keep=keep, silent=True)
            with closing(self._process) as process:
                result: JobResult = process.call(function, *arguments, seconds=self._seconds or seconds)
                return result
        except WorkerError as error:
            if error.trace:
                _log.error("report failed\n%s", error.trace)
            return JobResult(trouble=f"{'defect:' if error.trace else 'its process'} {error}")

    def kill(self) -> None:
        """Kill the running job. Later jobs fail at once."""
        with self._guard:
            self._ended = True
            if self._process is not None:
                self._process.kill()


def run_generate(loaded: LoadedConfig, due: float, folder: Path, name: str) -> JobResult:
    """Write the report of the time before `due` in this process, and remove old reports."""
    from agent.reporting.generate import make_files

    keys = loaded.config.report
    try:
        texts, report = make_files(loaded, keys.since_seconds, due)
        files = {file: text.encode("utf-8", "replace") for file, text in texts.items()}
        storage.publish(folder, name, files, keys.keep)
    except SizewatchError as error:
        return JobResult(trouble="; ".join(str(error).splitlines()))
    except OSError as error:
        return JobResult(trouble=f"{folder} cannot be written: {error.strerror or error}")
    return JobResult(headline=report.headline, memory_bytes=resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)


def run_delivery(place: Path, destination: Destination, link: str) -> JobResult:
    """Send a report in this process. The text of an unexpected error may contain the address: return its type only."""
    from agent.reporting.delivery import deliver

    try:
        return JobResult(trouble=deliver(place, destination, link))
    except SizewatchError as error:
        return JobResult(trouble=str(error))
    except Exception as error:  # noqa: BLE001 - see above
        return JobResult(trouble=f"defect: {type(error).__name__}")
