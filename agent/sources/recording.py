"""Reader of recordings: folders of scraped pages, read in order of time.

The folder has `recording.yaml` with the targets, and a `*.jsonl.gz` per target with a line per scrape (DESIGN 6). A
missing file or broken line becomes a problem; the rest is used.
"""

from __future__ import annotations

import gzip
import heapq
import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from agent.config import files
from agent.errors import ConfigError, RecordingError
from exporters.render.text import one_line, quote_external_text
from rules.problems import FURTHER, MOST_PROBLEMS

LATEST_SECONDS = 1e11
"""Upper bound of a plausible time in seconds (year 5138). Larger values are invalid or milliseconds."""

LONGEST_TEXT = 200
"""Maximum characters of a quoted text."""


def _require_one_line(text: str) -> str:
    if text != one_line(text):
        raise ValueError("must be one line without control characters")
    return text


Name = Annotated[str, AfterValidator(_require_one_line)]


class RecordedTarget(BaseModel):
    """Target of a recording. `path` is its file of scrapes."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)

    path: Path = Field(alias="file")
    tier: Name
    replica: Name
    engine: Name | None = None
    engine_version: Name | None = None
    pool: Name = "mixed"

    @field_validator("path")
    @classmethod
    def _find(cls, file: Path, info: ValidationInfo) -> Path:
        folder = Path(str(info.context))
        path = folder / file
        if not path.resolve().is_relative_to(folder.resolve()):
            raise ValueError(f"{file} lies outside the recording")
        if not path.is_file():
            raise ValueError(f"{file} is missing")
        return path


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
    if folder.is_file():
        raise RecordingError(str(folder), "is a file; a recording is a folder with recording.yaml")
    if not index.exists():
        raise RecordingError(str(folder), "has no recording.yaml: is this the folder of a recording?")
    try:
        data = files.read_document(index).data
    except ConfigError as error:
        raise RecordingError(*str(error).split(": ", 1)) from None
    entries = data.get("targets") if isinstance(data, dict) else None
    if not isinstance(entries, list) or not entries:
        raise RecordingError(str(index), "has no list `targets`")
    targets: list[RecordedTarget] = []
    problems: list[str] = []
    for place, entry in enumerate(entries):
        try:
            targets.append(RecordedTarget.model_validate(entry, context=folder))
        except ValidationError as error:
            for problem in error.errors():
                path = ".".join(("", *map(str, problem["loc"])))
                text = quote_external_text(problem["msg"].removeprefix("Value error, "), LONGEST_TEXT)
                problems.append(f"{index}: targets[{place}]{path}: {text}")
        except OSError as error:
            problems.append(f"{index}: targets[{place}].file: {error.strerror}")
    if not targets:
        raise RecordingError(str(folder), "; ".join(problems))
    return Recording(folder=folder, name=str(data.get("name") or folder.name), targets=tuple(targets)), tuple(problems)


def scrapes(recording: Recording, problems: list[str]) -> Iterator[Scrape]:
    """Yield all scrapes of all targets by time. Add unreadable lines to `problems`."""
    return heapq.merge(
        *(_read_scrapes(place, target, problems) for place, target in enumerate(recording.targets)),
        key=lambda scrape: (scrape.t, scrape.target),
    )


def add_problem(problems: list[str], text: str) -> None:
    """Add a problem up to a limit: a file of broken lines has a problem per line."""
    if len(problems) < MOST_PROBLEMS:
        problems.append(text)
    elif len(problems) == MOST_PROBLEMS:
        problems.append(FURTHER)


def _read_scrapes(place: int, target: RecordedTarget, problems: list[str]) -> Iterator[Scrape]:
    latest = -math.inf
    try:
        with gzip.open(target.path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                try:
                    scrape = _parse_scrape(place, line)
                    if scrape.t <= latest:
                        raise ValueError("its time is not after the line before")
                except ValueError as error:
                    add_problem(problems, f"{target.path}: line {number}: {error}")
                else:
                    latest = scrape.t
                    yield scrape
    except (OSError, EOFError, zlib.error) as error:
        add_problem(problems, f"{target.path}: cannot be read further: {error}")


def _parse_scrape(place: int, line: bytes) -> Scrape:
    """Return the scrape of a line. Raise ValueError."""
    try:
        data = orjson.loads(line)
    except orjson.JSONDecodeError:
        raise ValueError("is not JSON") from None
    t = data.get("t") if isinstance(data, dict) else None
    if not isinstance(t, int | float) or not abs(t) < LATEST_SECONDS:
        raise ValueError("has no time `t`")
    if isinstance(data.get("text"), str):
        return Scrape(t=float(t), target=place, body=data["text"].encode(), error="")
    if isinstance(data.get("error"), str):
        return Scrape(t=float(t), target=place, body=None, error=quote_external_text(data["error"], LONGEST_TEXT))
    raise ValueError("has neither `text` nor `error`")
