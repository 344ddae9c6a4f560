"""Recordings: folders of scraped pages, read back in the order of time.

Owns the folder's format (DESIGN 6): `recording.yaml` with its targets, and one `*.jsonl.gz` a target, a line a scrape.
A missing file or a broken line is named and costs only itself; the rest is used.
"""

from __future__ import annotations

import gzip
import heapq
import json
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from agent.errors import BadRecording


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTarget:
    """One target of a recording; `path` is its file of scrapes, `pool` the part of its tier it belongs to."""

    path: Path
    tier: str
    replica: str
    engine: str | None
    engine_version: str | None
    pool: str = "mixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """One line: the page's bytes, or the error that stood in its place. `t` is unix seconds."""

    t: float
    target: int
    body: bytes | None
    error: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    folder: Path
    name: str
    targets: tuple[RecordedTarget, ...]


def load(folder: Path) -> tuple[Recording, tuple[str, ...]]:
    """The recording and what is wrong with it. Raises BadRecording where nothing of it can be used."""
    index = folder / "recording.yaml"
    try:
        data = yaml.safe_load(index.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise BadRecording(str(folder), "has no recording.yaml: is this the folder of a recording?") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise BadRecording(str(index), f"cannot be read: {' '.join(str(error).split())}") from error
    entries = data.get("targets") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not entries:
        raise BadRecording(str(index), "has no list `targets`")
    targets: list[RecordedTarget] = []
    problems: list[str] = []
    for place, entry in enumerate(entries):
        target = _target(folder, entry)
        if isinstance(target, str):
            problems.append(f"{index}: targets[{place}]: {target}")
        else:
            targets.append(target)
    if not targets:
        raise BadRecording(str(folder), "; ".join(problems))
    return Recording(folder=folder, name=str(data.get("name") or folder.name), targets=tuple(targets)), tuple(problems)


def _target(folder: Path, entry: Any) -> RecordedTarget | str:
    if not isinstance(entry, dict):
        return "is not a mapping"
    missing = [key for key in ("file", "tier", "replica") if not isinstance(entry.get(key), str)]
    if missing:
        return f"lacks {', '.join(missing)}"
    path = folder / entry["file"]
    if not path.resolve().is_relative_to(folder.resolve()):
        return f"{entry['file']} lies outside the recording"
    if not path.is_file():
        return f"{entry['file']} is missing"
    return RecordedTarget(
        path=path,
        tier=entry["tier"],
        replica=entry["replica"],
        engine=_text(entry, "engine"),
        engine_version=_text(entry, "engine_version"),
        pool=_text(entry, "pool") or "mixed",
    )


def _text(entry: dict[str, Any], key: str) -> str | None:
    value = entry.get(key)
    return None if value is None else str(value)


def scrapes(recording: Recording, problems: list[str]) -> Iterator[Scrape]:
    """All scrapes of all targets by time. Lines that cannot be read are named in `problems` as they are met."""
    return heapq.merge(
        *(_lines(place, target, problems) for place, target in enumerate(recording.targets)),
        key=lambda scrape: (scrape.t, scrape.target),
    )


def _lines(place: int, target: RecordedTarget, problems: list[str]) -> Iterator[Scrape]:
    latest = -math.inf
    try:
        with gzip.open(target.path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                scrape = _scrape(place, line)
                if isinstance(scrape, str):
                    problems.append(f"{target.path}: line {number}: {scrape}")
                elif scrape.t <= latest:
                    problems.append(f"{target.path}: line {number}: its time is not after the line before")
                else:
                    latest = scrape.t
                    yield scrape
    except (OSError, EOFError, zlib.error) as error:
        problems.append(f"{target.path}: cannot be read further: {error}")


def _scrape(place: int, line: bytes) -> Scrape | str:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return "is not JSON"
    t = data.get("t") if isinstance(data, dict) else None
    if not isinstance(t, (int, float)) or isinstance(t, bool) or not math.isfinite(t):
        return "has no time `t`"
    if isinstance(data.get("text"), str):
        return Scrape(t=float(t), target=place, body=data["text"].encode(), error="")
    if isinstance(data.get("error"), str):
        return Scrape(t=float(t), target=place, body=None, error=data["error"])
    return "has neither `text` nor `error`"
