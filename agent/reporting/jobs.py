"""What the daemon asks of a reporting process, and what comes back: one job a process.

Owns the records and their way through the pipes. It loads nothing of what a job needs, for the daemon reads it too. A job carries
the daemon's own configuration as it was read, so what is on the disk by now does not matter; addresses are read by the process.
"""

from __future__ import annotations

import json
import pickle
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import TypeAdapter, ValidationError

from agent.config.report_keys import Destination

if TYPE_CHECKING:
    # A process that sends needs one destination of the configuration and not all that reads one.
    from agent.config.load import LoadedConfig

OUT_OF_MEMORY = 12
"""The exit code of a process that needed more memory than it may take (ENOMEM)."""

MOST_BYTES = 64 * 1024
MOST_LETTERS = 400


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateJob:
    """Write the report of the time before `due` (unix seconds) into `folder`/`name`."""

    loaded: LoadedConfig
    due: float
    folder: Path
    name: str
    lock: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryJob:
    """Send the report `name` in `folder` to a destination, and leave a `receipt` once it was taken. `link` is where people read
    the whole, "" where nobody said."""

    folder: Path
    name: str
    destination: Destination
    link: str
    receipt: Path
    lock: Path


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressCheckJob:
    """Whether these addresses can be read and understood; nothing is sent."""

    destinations: tuple[Destination, ...]


Job = GenerateJob | DeliveryJob | AddressCheckJob


@dataclass(frozen=True, slots=True, kw_only=True)
class AddressCheckResult:
    """Of a destination: the service that its address is of and whether that takes files, or why it cannot be used."""

    service: str = ""
    takes_files: bool = False
    readable_by_all: bool = False
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """What became of a job: `trouble` is "" where it succeeded. `text` is the headline of a report that was written."""

    trouble: str = ""
    text: str = ""
    memory_bytes: int = 0
    checked: tuple[AddressCheckResult, ...] = ()


_DONE = TypeAdapter(JobResult)


def job_bytes(job: Job) -> bytes:
    return pickle.dumps(job)


def job_of(data: bytes) -> Job:
    """The job in what came by stdin from the process that began this one; nobody else can write there."""
    found = pickle.loads(data)
    assert isinstance(found, GenerateJob | DeliveryJob | AddressCheckJob)
    return found


def done_bytes(done: JobResult) -> bytes:
    return json.dumps(asdict(done)).encode()


def parse_result(data: bytes) -> JobResult:
    """Raises ValueError for what is no answer."""
    if len(data) > MOST_BYTES:
        raise ValueError("it answered without end")
    try:
        return _DONE.validate_json(data)
    except ValidationError:
        raise ValueError("it gave no answer") from None
