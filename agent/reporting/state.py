"""What the daemon remembers of its reports over a restart: which is made, what is still to be sent to whom.

Owns the record and its file. Each change is on the disk before the next step is taken: a delivery is neither lost nor, but for a
machine that fails between a destination's answer and the writing of its receipt, repeated. No address is kept here.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from agent.files import OWNER_ONLY, open_new_file

STATE_FILE = "reports.json"
"""In `data_dir`."""

RECEIPTS = "deliveries"
"""Folder in `data_dir`: a file for each delivery that was taken, written by the process that sent it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PendingDelivery:
    """A report that a destination has not taken yet. Times are unix seconds; after `until` it is given up."""

    destination: str
    report: str
    attempts: int = 0
    next_at: float = 0.0
    until: float
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportState:
    """`begun_at` is when reports were first looked after: what was due before is nobody's. `made_for` is the time that the last
    report was due, `made_at` when it was written. While one fails, `attempts`, `next_at` and `trouble` tell of it. `sent` is
    when each destination took its last one, `unsent` why it has not taken the newest.
    """

    begun_at: float
    made_for: float = 0.0
    made_at: float | None = None
    attempts: int = 0
    next_at: float = 0.0
    trouble: str = ""
    headline: str = ""
    waiting: tuple[PendingDelivery, ...] = ()
    sent: Mapping[str, float] = field(default_factory=dict)
    unsent: Mapping[str, str] = field(default_factory=dict)


_STATE = TypeAdapter(ReportState)


def read_state(path: Path) -> ReportState | None:
    """What was kept; None where nothing was. Raises OSError, and ValueError for what is no such file."""
    try:
        text = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        return _STATE.validate_json(text)
    except ValidationError:
        raise ValueError(f"{path} is damaged") from None


def write_state(path: Path, state: ReportState) -> None:
    """Whole or not at all. Raises OSError."""
    write_atomically(path, json.dumps(asdict(state), indent=1).encode())


def receipt(data_dir: Path, report: str, destination: str) -> Path:
    """The file that says that this destination has taken this report."""
    return data_dir / RECEIPTS / f"{report}.{destination}"


def write_atomically(path: Path, content: bytes) -> None:
    """Puts it on the disk under its name, whole. Raises OSError."""
    unfinished = path.with_name(f".{path.name}.new")
    with open_new_file(unfinished, OWNER_ONLY) as opened:
        opened.write(content)
        opened.flush()
        os.fsync(opened.fileno())
    unfinished.replace(path)
    folder = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(folder)
    finally:
        os.close(folder)
