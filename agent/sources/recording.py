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
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo

from agent.config import files
from agent.config.sections import problems_of
from agent.errors import ConfigError, RecordingError
from exporters.render.text import one_line, quote_external_text
from rules.plan.validation import validation_error
from rules.problems import FURTHER, MOST_PROBLEMS

LATEST_SECONDS = 1e11
"""Upper bound of a plausible time in seconds (year 5138). Larger values are invalid or milliseconds."""

LONGEST_TEXT = 200
"""Maximum characters of a quoted text."""


def _require_one_line(text: str) -> str:
    if text != one_line(text):
        raise validation_error("must be one line without control characters")
    return text


def _require_inside(file: Path, info: ValidationInfo) -> Path:
    folder = Path(str(info.context)).resolve()
    if not (folder / file).resolve().is_relative_to(folder):
        raise validation_error("lies outside the recording")
    return Path(str(info.context)) / file


Name = Annotated[str, AfterValidator(_require_one_line)]


class RecordedTarget(BaseModel):
    """Target of a recording. `path` is its file of scrapes."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)

    path: Annotated[Path, AfterValidator(_require_inside)] = Field(alias="file")
    tier: Name
    replica: Name
    engine: Name | None = None
    engine_version: Name | None = None
    pool: Name = "mixed"


class Recording(BaseModel):
    """Folder of scrapes by target."""

    model_config = ConfigDict(frozen=True)

    folder: Path = Path()
    name: Annotated[str, Field(coerce_numbers_to_str=True)] = ""
    targets: tuple[RecordedTarget, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Scrape:
    """Line of a recording: the bytes of a page, or the error in its place. `t` is unix seconds."""

    t: float
    target: int
    body: bytes | None
    error: str


def load(folder: Path) -> tuple[Recording, tuple[str, ...]]:
    """Load a recording without the targets whose file is missing, and those problems. Raise RecordingError."""
    path = folder / "recording.yaml"
    if not path.exists():
        raise RecordingError(str(folder), "has no recording.yaml: is this the folder of a recording?")
    try:
        recording = Recording.model_validate(files.read_document(path).data, context=folder)
        targets = tuple(target for target in recording.targets if target.path.is_file())
    except ConfigError as error:
        raise RecordingError(*str(error).split(": ", 1)) from None
    except ValidationError as error:
        raise RecordingError(str(path), "; ".join(problems_of(error, Recording))) from None
    except OSError as error:
        raise RecordingError(str(path), f"names a file that cannot be: {error.strerror}") from None
    problems = tuple(f"{target.path} is missing" for target in recording.targets if target not in targets)
    if not targets:
        raise RecordingError(str(path), "; ".join(problems) or "has no targets")
    name = recording.name or folder.name
    return recording.model_copy(update={"folder": folder, "name": name, "targets": targets}), problems


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
