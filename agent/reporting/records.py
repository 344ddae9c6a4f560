"""Jobs of the reports and their results, as they pass between the daemon and the process of a job."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from agent.config.load import LoadedConfig
from agent.config.report import Destination


@dataclass(frozen=True, slots=True, kw_only=True)
class GenerateJob:
    """Job that writes the report of the time before `due` (unix seconds) into `folder`/`name`."""

    loaded: LoadedConfig
    due: float
    folder: Path
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DeliveryJob:
    """Job that sends the report `name` in `folder` and writes a `receipt` after acceptance.

    `link` is the address of the full report, "" if not configured."""

    folder: Path
    name: str
    destination: Destination
    link: str
    receipt: Path


Job = GenerateJob | DeliveryJob


@dataclass(frozen=True, slots=True, kw_only=True)
class JobResult:
    """Result of a job. `trouble` is "" on success. `text` is the headline of a written report."""

    trouble: str = ""
    text: str = ""
    memory_bytes: int = 0
