"""Reporting process: reads one job from stdin, writes its result to stdout, and exits.

It sets its own limits, and a lock prevents two working processes. `agent.reporting.generate` writes reports and
`agent.reporting.delivery` sends them; a job loads only the module it needs. Library output to stdout goes to stderr.
"""

from __future__ import annotations

import fcntl
import logging
import os
import resource
import signal
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

from agent.errors import SizewatchError
from agent.files import NO_LINK, OWNER_ONLY
from agent.reporting.jobs import AddressCheckJob, DeliveryJob, GenerateJob, Job, JobResult, parse_job, result_line
from agent.worker.process import OUT_OF_MEMORY, begin_child

BUSY = "another process still works on a report"


class _Busy(Exception):
    pass


def main() -> int:
    """Run the job from stdin."""
    results = begin_child(int(sys.argv[1]))
    # The parent process may have exited by then.
    signal.setitimer(signal.ITIMER_REAL, float(sys.argv[2]))
    try:
        result = run_job(parse_job(sys.stdin.buffer.readline()))
    except MemoryError:
        return OUT_OF_MEMORY
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    results.write(result_line(replace(result, memory_bytes=peak)))
    results.flush()
    return 0


def run_job(job: Job) -> JobResult:
    """Run a job. Return every error but a lack of memory as the `trouble` of its result."""
    try:
        return WORK[type(job)](job)
    except (MemoryError, KeyboardInterrupt):
        raise
    except _Busy:
        return JobResult(trouble=BUSY)
    except SizewatchError as error:
        return JobResult(trouble="; ".join(str(error).splitlines()))
    except Exception as error:
        if isinstance(job, GenerateJob):
            logging.getLogger("reporting").exception("the report failed")
        # Report only the type of a delivery error: a library message may contain the address.
        return JobResult(trouble=f"defect: {type(error).__name__}")


def _make(job: Job) -> JobResult:
    from agent.reporting.generate import generate_report

    assert isinstance(job, GenerateJob)
    with _alone(job.lock):
        return JobResult(text=generate_report(job))


def _send(job: Job) -> JobResult:
    from agent.reporting.delivery import send

    assert isinstance(job, DeliveryJob)
    with _alone(job.lock):
        return JobResult(trouble=send(job))


def _check(job: Job) -> JobResult:
    from agent.reporting.delivery import check

    assert isinstance(job, AddressCheckJob)
    return JobResult(checked=tuple(check(one) for one in job.destinations))


WORK: dict[type[Job], Callable[[Job], JobResult]] = {GenerateJob: _make, DeliveryJob: _send, AddressCheckJob: _check}


@contextmanager
def _alone(lock: Path) -> Iterator[None]:
    """Hold the lock. A process that outlived its daemon may still hold it; parallel sending must not happen."""
    held = os.open(lock, os.O_CREAT | os.O_RDWR | NO_LINK, OWNER_ONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
        yield
    except BlockingIOError:
        raise _Busy from None
    finally:
        os.close(held)


if __name__ == "__main__":
    sys.exit(main())
