"""CSV file of a trace as columns of numbers, with the line of the first error.

The format is `timestamp,requests[,prompt_tokens,output_tokens]`: header first, comma, also gzipped.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import itertools
import math
import zlib
from array import array
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import IO, cast

import numpy as np

from agent.errors import SizewatchError
from agent.forecasting.timestamps import TimeStyle, detect_style, shorten
from forecast.series.binned import Array, Integers

TIME, REQUESTS = "timestamp", "requests"
TOKENS = ("prompt_tokens", "output_tokens")
COLUMNS = (TIME, REQUESTS, *TOKENS)
HEADER = "timestamp,requests[,prompt_tokens,output_tokens]"

MOST_ROWS = 50_000_000
"""Maximum rows: a century of minutes."""

LONGEST_LINE = 65_536
"""Maximum characters of a line."""

MOST_AMOUNT = 1e15
"""Maximum amount of a bin: no service has as many, and its square is still exact."""

_MAGIC = b"\x1f\x8b"


class TraceError(SizewatchError):
    """Unusable trace file, with the line (from 1) or None for the whole file."""

    def __init__(self, path: Path | str, text: str, line: int | None = None) -> None:
        text = "".join(sign if sign.isprintable() else "?" for sign in text)
        super().__init__(f"{path}:{line}: {text}" if line else f"{path}: {text}")


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceColumns:
    """Columns of a file by row: `micros` as in `TimeStyle.micros`, amounts NaN for an empty cell. `unread` are the
    ignored columns."""

    style: TimeStyle
    micros: Integers
    amounts: dict[str, Array]
    unread: tuple[str, ...]


def read_columns(path: Path, zone: str) -> TraceColumns:
    """Return all rows of a trace. Raise TraceError with the line."""
    with _failures(path):
        names = _header(path)
        style = _style(path, names, zone)
        micros = array("q")
        amounts = {name: array("d") for name in COLUMNS if name in names and name != TIME}
        with _text(path) as text:
            rows = _rows(text)
            next(rows)
            for line, row in rows:
                if len(micros) == MOST_ROWS:
                    raise TraceError(path, f"has more than {MOST_ROWS} rows; count in longer bins")
                name = ""
                try:
                    cells = _cells(row, names)
                    name = TIME
                    micros.append(style.micros(cells[TIME]))
                    for name, column in amounts.items():
                        column.append(_amount(cells[name]))
                except ValueError as error:
                    raise TraceError(path, f"{name}: {error}" if name else str(error), line) from None
    unread = tuple(name for name in names if name not in COLUMNS)
    joined = {name: np.array(column, dtype=np.float64) for name, column in amounts.items()}
    return TraceColumns(style=style, micros=np.array(micros, dtype=np.int64), amounts=joined, unread=unread)


def line_of(path: Path, row: int) -> int:
    """Return the line in the file (from 1) of a row of the data (from 0)."""
    with _failures(path), _text(path) as text:
        return next(line for line, _ in itertools.islice(_rows(text), row + 1, None))


@contextmanager
def _failures(path: Path) -> Iterator[None]:
    try:
        yield
    except FileNotFoundError:
        raise TraceError(path, "there is no such file") from None
    except gzip.BadGzipFile as error:
        raise TraceError(path, f"is named .gz and is not gzipped, or damaged ({error})") from error
    except (EOFError, zlib.error) as error:
        raise TraceError(path, "is a gzip file that is cut off or damaged; copy it again") from error
    except UnicodeDecodeError as error:
        raise TraceError(path, "is not a text file in UTF-8") from error
    except csv.Error as error:
        raise TraceError(path, f"is no CSV: {error}") from error
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error.strerror or error}") from error


@contextmanager
def _bytes(path: Path) -> Iterator[IO[bytes]]:
    with path.open("rb") as raw:
        zipped = raw.read(2) == _MAGIC
        raw.seek(0)
        if zipped or path.suffix == ".gz":
            with gzip.open(raw) as unzipped:
                yield cast("IO[bytes]", unzipped)
        else:
            yield raw


@contextmanager
def _text(path: Path) -> Iterator[IO[str]]:
    with _bytes(path) as raw:
        yield io.TextIOWrapper(raw, encoding="utf-8-sig", newline="")


def _rows(text: IO[str]) -> Iterator[tuple[int, list[str]]]:
    """Return every row with its line, the header first. Blank lines are skipped."""
    # A longer line is read as several: a file without an end of line must not fill the memory.
    lines = iter(partial(text.readline, LONGEST_LINE), "")
    reader = csv.reader(lines, skipinitialspace=True)
    return ((reader.line_num, row) for row in reader if len(row) > 1 or "".join(row).strip())


def _header(path: Path) -> list[str]:
    with _text(path) as text:
        line, names = next(_rows(text), (0, []))
    names = [name.strip().lower() for name in names]
    if not names:
        raise TraceError(path, f"is empty; it must begin with the line {HEADER}")
    if len(names) == 1 and (other := next((c for c in ";\t|" if c in names[0]), None)):
        raise TraceError(path, f"has {other!r} between its columns; it must be a comma", line)
    if names[0][:1].isdigit():
        raise TraceError(path, f"has no header; it must begin with the line {HEADER}", line)
    twice = next((name for name in COLUMNS if names.count(name) > 1), None)
    if twice:
        raise TraceError(path, f"has the column {twice} twice", line)
    for name in (TIME, REQUESTS):
        if name not in names:
            close = difflib.get_close_matches(name, names, n=1)
            meant = f"is {close[0]} meant?" if close else "one row must be one bin with its count, not one request"
            raise TraceError(path, f"has no column {name}; the header must be {HEADER} ({meant})", line)
    return names


def _style(path: Path, names: list[str], zone: str) -> TimeStyle:
    with _text(path) as text:
        rows = _rows(text)
        next(rows)
        line, row = next(rows, (0, []))
    if not row:
        raise TraceError(path, "has a header and no row")
    place = names.index(TIME)
    cell = row[place].strip() if place < len(row) else ""
    if not cell:
        raise TraceError(path, "has no timestamp", line)
    try:
        return detect_style(cell, zone)
    except ValueError as error:
        raise TraceError(path, f"{TIME}: {error}", line) from None


def _cells(row: list[str], names: list[str]) -> dict[str, str]:
    """Return the used cells of a row; a cell that the row lacks is empty. Raise ValueError for too many cells."""
    if len(row) > len(names):
        raise ValueError(
            f"has {len(row)} cells, the header has {len(names)}; write numbers without separators between thousands"
        )
    found = dict.fromkeys((name for name in names if name in COLUMNS), "")
    found.update((name, cell) for name, cell in zip(names, row, strict=False) if name in found)
    return found


def _amount(cell: str) -> float:
    """Return an amount, NaN for an empty cell. Raise ValueError with a readable text."""
    if not cell.strip():
        return math.nan
    shown = shorten(cell)
    try:
        amount = float(cell) if cell.isascii() and "_" not in cell else math.nan
    except ValueError:
        amount = math.nan
    if not math.isfinite(amount):
        raise ValueError(f"'{shown}' is no number; a number, or an empty cell where it is not known")
    if amount < 0:
        raise ValueError(f"'{shown}' is negative; a count is 0 or more, or an empty cell where it is not known")
    if amount > MOST_AMOUNT:
        raise ValueError(
            f"'{shown}' is more than {MOST_AMOUNT:g}, which nothing serves in a bin; is it another column?"
        )
    return amount
