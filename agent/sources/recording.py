"""Reader of recordings: folders of scraped pages, read in order of time.

The folder has `recording.yaml` with the targets, and a `*.jsonl.gz` per target with a line per scrape (DESIGN 6). A
missing file or broken line becomes a problem; the rest is used.
"""

from __future__ import annotations

import gzip
import heapq
import math
import os
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import orjson
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, ValidationInfo

from agent.config import files
from agent.errors import PathError
from exporters.render.safe_text import one_line, quote_external_text
from rules.plan.validation import problems_of

LATEST_SECONDS = 1e11
"""Upper bound of a plausible time in seconds (year 5138). Larger values are invalid or milliseconds."""

LONGEST_TEXT, LONGEST_PATH = 200, 500
"""Maximum characters of a quoted text, and of the path of a missing file."""


def _join_folder(file: Path, info: ValidationInfo) -> Path:
    return Path(str(info.context)) / file


Name = Annotated[str, AfterValidator(one_line)]
"""Name of somebody else, as a plain line."""


class RecordedTarget(BaseModel):
    """Target of a recording. `path` is its file of scrapes."""

    model_config = ConfigDict(frozen=True, coerce_numbers_to_str=True)

    path: Annotated[Path, AfterValidator(_join_folder)] = Field(alias="file")
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
    """Load a recording, and a problem for each missing file. Raise ConfigError for an unreadable document, else PathError."""
    path = folder / "recording.yaml"
    if files.is_absent(path):
        raise PathError(folder, "has no recording.yaml: is this the folder of a recording?")
    try:
        recording = Recording.model_validate(files.read_document(path), context=folder)
    except ValidationError as error:
        raise PathError(path, "; ".join(problems_of(error, Recording))) from None
    targets = tuple(target for target in recording.targets if os.path.isfile(target.path))
    missing = [target.path for target in recording.targets if target not in targets]
    problems = tuple(f"{quote_external_text(str(file), LONGEST_PATH)} is missing" for file in missing)
    if not targets:
        raise PathError(path, "; ".join(problems) or "has no targets")
    name = recording.name or folder.name
    return recording.model_copy(update={"folder": folder, "name": name, "targets": targets}), problems


def scrapes(recording: Recording, problems: list[str]) -> Iterator[Scrape]:
    """Yield all scrapes of all targets by time. Add unreadable lines to `problems`."""
    return heapq.merge(
        *(_read_scrapes(place, target, problems) for place, target in enumerate(recording.targets)),
        key=lambda scrape: (scrape.t, scrape.target),
    )


def _read_scrapes(place: int, target: RecordedTarget, problems: list[str]) -> Iterator[Scrape]:
    latest = -math.inf
    try:
        with gzip.open(target.path, "rb") as lines:
            for number, line in enumerate(lines, 1):
                scrape = _parse_scrape(place, line)
                if scrape is None or not latest < scrape.t < LATEST_SECONDS:
                    problems.append(f"{target.path}: line {number}: is no scrape that is later than the line before")
                    continue
                latest = scrape.t
                yield scrape
    except (OSError, EOFError, zlib.error) as error:
        problems.append(f"{target.path}: cannot be read further: {error}")


def _parse_scrape(place: int, line: bytes) -> Scrape | None:
    """Return the scrape of a line, None if it is no object with `t` and `text` or `error`."""
    try:
        data = orjson.loads(line)
        t, body, error = float(data["t"]), data.get("text"), data.get("error", "")
        body = body.encode() if body is not None else None
    except (ValueError, LookupError, TypeError, AttributeError):
        return None
    if body is None and not error:
        return None
    text = ""
    if error:
        text = quote_external_text(str(error), LONGEST_TEXT)
    return Scrape(t=t, target=place, body=body, error=text)
