"""Reader of recordings: folders of scraped pages, read in order of time.

The folder has `recording.yaml` with the targets, and a `*.jsonl.gz` per target with a line per scrape (DESIGN 6). A
missing file or broken line becomes a problem; the rest is used.
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

from agent.config import files
from agent.errors import RecordingError
from exporters.render.text import one_line
from rules.problems import FURTHER, MOST_PROBLEMS

MOST_INDEX_BYTES = 4 * 1024 * 1024
MOST_LINE_BYTES = 64 * 1024 * 1024
"""Maximum bytes of one scrape: gzip expands a megabyte to a gigabyte. A page has at most 16 MiB by default."""

LATEST_SECONDS = 1e11
"""Upper bound of a plausible time in seconds (year 5138). Larger values are invalid or milliseconds."""

MOST_BROKEN = 1_000
"""Maximum unreadable lines of one file. Two kilobytes of gzip can contain millions of blank lines."""

_LONGEST = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class RecordedTarget:
    """Target of a recording. `path` is its file of scrapes."""

    path: Path
    tier: str
    replica: str
    engine: str | None
    engine_version: str | None
    pool: str = "mixed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """Line of a recording: the bytes of a page, or the error in its place. `t` is unix seconds."""

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
    """Load a recording and its problems. Raise RecordingError if no part of it is usable."""
    index = folder / "recording.yaml"
    try:
        data = files.parse_yaml(_index(index))
    except FileNotFoundError:
        raise RecordingError(str(folder), "has no recording.yaml: is this the folder of a recording?") from None
    except NotADirectoryError:
        raise RecordingError(str(folder), "is a file; a recording is a folder with recording.yaml") from None
    except RecursionError:
        raise RecordingError(str(index), "is nested too deeply") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise RecordingError(str(index), f"cannot be read: {_short(error)}") from error
    entries = data.get("targets") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not entries:
        raise RecordingError(str(index), "has no list `targets`")
    targets: list[RecordedTarget] = []
    problems: list[str] = []
    for place, entry in enumerate(entries):
        target = _target(folder, entry)
        if isinstance(target, str):
            problems.append(f"{index}: targets[{place}]: {target}")
        else:
            targets.append(target)
    if not targets:
        raise RecordingError(str(folder), "; ".join(problems))
    return Recording(folder=folder, name=str(data.get("name") or folder.name), targets=tuple(targets)), tuple(problems)


def _target(folder: Path, entry: Any) -> RecordedTarget | str:
    if not isinstance(entry, dict):
        return "is not a mapping"
    missing = [key for key in ("file", "tier", "replica") if not isinstance(entry.get(key), str)]
    if missing:
        return f"lacks {', '.join(missing)}"
    odd = [
        key
        for key in ("tier", "replica", "engine", "engine_version", "pool")
        if (text := _text(entry, key)) and text != one_line(text)
    ]
    if odd:
        return f"{', '.join(odd)} must be one line without control characters"
    path, shown = folder / entry["file"], _short(entry["file"])
    try:
        if not path.resolve().is_relative_to(folder.resolve()):
            return f"{shown} lies outside the recording"
        if not path.is_file():
            return f"{shown} is missing"
    except (OSError, ValueError) as error:
        return f"{shown} cannot be the name of a file: {getattr(error, 'strerror', None) or error}"
    return RecordedTarget(
        path=path,
        tier=entry["tier"],
        replica=entry["replica"],
        engine=_text(entry, "engine"),
        engine_version=_text(entry, "engine_version"),
        pool=_text(entry, "pool") or "mixed",
    )


def _index(path: Path) -> str:
    with path.open("rb") as file:
        body = file.read(MOST_INDEX_BYTES + 1)
    if len(body) > MOST_INDEX_BYTES:
        raise yaml.YAMLError(f"is larger than {MOST_INDEX_BYTES >> 20} MiB")
    return body.decode("utf-8")


def _short(said: object) -> str:
    """Return a text as one line with a bounded length."""
    text = "".join(sign if sign.isprintable() else " " for sign in str(said)[: 4 * _LONGEST])
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 1]}…"


def _text(entry: dict[str, Any], key: str) -> str | None:
    value = entry.get(key)
    return None if value is None else str(value)


def scrapes(recording: Recording, problems: list[str]) -> Iterator[Scrape]:
    """Yield all scrapes of all targets by time. Add unreadable lines to `problems`."""
    return heapq.merge(
        *(_lines(place, target, problems) for place, target in enumerate(recording.targets)),
        key=lambda scrape: (scrape.t, scrape.target),
    )


def tell(problems: list[str], text: str) -> None:
    """Add a problem up to a limit: a file of broken lines has a problem per line."""
    if len(problems) < MOST_PROBLEMS:
        problems.append(text)
    elif len(problems) == MOST_PROBLEMS:
        problems.append(FURTHER)


def _lines(place: int, target: RecordedTarget, problems: list[str]) -> Iterator[Scrape]:
    latest, broken = -math.inf, 0
    try:
        with gzip.open(target.path, "rb") as lines:
            for number, line in enumerate(iter(lambda: lines.readline(MOST_LINE_BYTES + 1), b""), 1):
                if len(line) > MOST_LINE_BYTES:
                    tell(
                        problems,
                        f"{target.path}: line {number}: is longer than {MOST_LINE_BYTES >> 20} MiB; no further",
                    )
                    return
                scrape = _scrape(place, line, latest)
                if isinstance(scrape, Scrape):
                    latest = scrape.t
                    yield scrape
                    continue
                tell(problems, f"{target.path}: line {number}: {scrape}")
                broken += 1
                if broken == MOST_BROKEN:
                    tell(problems, f"{target.path}: line {number}: is the {broken}th that cannot be read; no further")
                    return
    except (OSError, EOFError, zlib.error) as error:
        tell(problems, f"{target.path}: cannot be read further: {error}")


def _scrape(place: int, line: bytes, latest: float) -> Scrape | str:
    try:
        data = json.loads(line)
    except (ValueError, RecursionError):
        return "is not JSON"
    t = data.get("t") if isinstance(data, dict) else None
    if not isinstance(t, (int, float)) or isinstance(t, bool) or not abs(t) < LATEST_SECONDS:
        return "has no time `t`"
    if t <= latest:
        return "its time is not after the line before"
    if isinstance(data.get("text"), str):
        try:
            return Scrape(t=float(t), target=place, body=data["text"].encode(), error="")
        except UnicodeEncodeError:
            return "has a `text` that is no text: half of a character"
    if isinstance(data.get("error"), str):
        return Scrape(t=float(t), target=place, body=None, error=_short(data["error"]))
    return "has neither `text` nor `error`"
