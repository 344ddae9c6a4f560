"""Jobs of a reporting process and their results, with their encoding for the pipes. A process runs one job.

The daemon imports this module, so it loads nothing that a job needs. A job contains the daemon's own configuration:
later changes on disk have no effect. The process itself reads the addresses.
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
    # A sending process needs one destination, not the modules that load a configuration.
    from agent.config.load import LoadedConfig

OUT_OF_MEMORY = 12
"""Exit code of a process that reached its memory limit (ENOMEM)."""

MOST_BYTES = 64 * 1024
MOST_LETTERS = 400


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


_DONE = TypeAdapter(JobResult)


def job_bytes(job: Job) -> bytes:
    return pickle.dumps(job)


def job_of(data: bytes) -> Job:
    """Return the job from stdin. Only the parent process can write there, so unpickling is safe."""
    found = pickle.loads(data)
    assert isinstance(found, GenerateJob | DeliveryJob | AddressCheckJob)
    return found


def done_bytes(done: JobResult) -> bytes:
    return json.dumps(asdict(done)).encode()


def parse_result(data: bytes) -> JobResult:
    """Parse a result. Raise ValueError if the data is not a result."""
    if len(data) > MOST_BYTES:
        raise ValueError("it answered without end")
    try:
        return _DONE.validate_json(data)
    except ValidationError:
        raise ValueError("it gave no answer") from None
