"""CSV file of a trace as columns of numbers, read in pieces, with the line of the first error.

The format is `timestamp,requests[,prompt_tokens,output_tokens]`: header first, comma, also gzipped.
"""

from __future__ import annotations

import csv
import difflib
import gzip
import io
import itertools
import math
import warnings
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, cast

import numpy as np
import pandas as pd

from agent.errors import SizewatchError
from agent.forecasting.timestamps import LATEST_SECONDS, TimestampForm, TimeStyle, detect_style, shorten
from forecast.series.binned import Array, Integers

TIME, REQUESTS = "timestamp", "requests"
TOKENS = ("prompt_tokens", "output_tokens")
COLUMNS = (TIME, REQUESTS, *TOKENS)
HEADER = "timestamp,requests[,prompt_tokens,output_tokens]"

ROWS_AT_A_TIME = 500_000
"""Rows of a piece. Their timestamps take about 40 MB as text."""

MOST_ROWS = 50_000_000
"""Maximum rows: a century of minutes."""

MOST_AMOUNT = 1e15
"""Maximum amount of a bin: no service has as many, and its square is still exact."""

_MAGIC = b"\x1f\x8b"
_MISREAD = (ValueError, OverflowError, pd.errors.ParserError, pd.errors.ParserWarning, UnicodeDecodeError)


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
        used = [name for name in COLUMNS if name in names]
        times: list[Integers] = []
        amounts: dict[str, list[Array]] = {name: [] for name in used if name != TIME}
        sound = 0
        try:
            for piece in _pieces(path, names, used, style):
                times.append(_micros(piece[TIME], style))
                for name, parts in amounts.items():
                    parts.append(_amounts(piece[name]))
                sound += len(piece)
        except _MISREAD as error:
            raise _find_error(path, names, style, sound) or TraceError(
                path, f"cannot be read as CSV ({error})"
            ) from error
    unread = tuple(name for name in names if name not in COLUMNS)
    joined = {name: np.concatenate(parts) for name, parts in amounts.items()}
    return TraceColumns(style=style, micros=np.concatenate(times), amounts=joined, unread=unread)


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
    """Return every row with its line, the header first. Blank lines are skipped, as by pandas."""
    reader = csv.reader(text, skipinitialspace=True)
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
        style = detect_style(cell, zone)
    except ValueError as error:
        raise TraceError(path, f"{TIME}: {error}", line) from None
    # pandas would read a column of only True as ones.
    if wrong := _row_error(row, names, style):
        raise TraceError(path, wrong, line)
    return style


def _pieces(path: Path, names: list[str], used: list[str], style: TimeStyle) -> Iterator[pd.DataFrame]:
    """Yield the rows in pieces. Raise an error of _MISREAD for an invalid cell."""
    kinds: dict[str, type[np.float64] | type[str]] = dict.fromkeys(used, np.float64)
    if style.form is not TimestampForm.SECONDS:
        kinds[TIME] = str
    seen = 0
    with _bytes(path) as raw, warnings.catch_warnings():
        # pandas would only warn of a row with too many cells, and drop the last.
        warnings.simplefilter("error", pd.errors.ParserWarning)
        pieces = pd.read_csv(
            raw,
            header=0,
            names=_unique(names),
            index_col=False,
            dtype={name: kinds.get(name, str) for name in _unique(names)},
            keep_default_na=False,
            na_values=[""],
            skipinitialspace=True,
            encoding="utf-8-sig",
            chunksize=ROWS_AT_A_TIME,
        )
        for piece in pieces:
            seen += len(piece)
            if seen > MOST_ROWS:
                raise TraceError(path, f"has more than {MOST_ROWS} rows; count in longer bins")
            yield piece


def _unique(names: list[str]) -> list[str]:
    """Return unique column names: ignored columns may share a name."""
    return [name if name in COLUMNS else f"{place} {name}" for place, name in enumerate(names)]


def _micros(cells: pd.Series, style: TimeStyle) -> Integers:
    if style.form is not TimestampForm.SECONDS:
        return style.micros(cells)
    seconds = cells.to_numpy(dtype=np.float64)
    if not ((seconds >= 0) & (seconds <= LATEST_SECONDS)).all():
        raise ValueError("a time is missing, or out of bounds")
    found: Integers = np.rint(seconds * 1e6).astype(np.int64)
    return found


def _amounts(cells: pd.Series) -> Array:
    found: Array = cells.to_numpy(dtype=np.float64)
    if (found > MOST_AMOUNT).any() or (found < 0).any():
        raise ValueError("an amount is negative or too large")
    return found


def _find_error(path: Path, names: list[str], style: TimeStyle, sound: int) -> TraceError | None:
    """Return the error of the first invalid line after `sound` rows, or None."""
    with _text(path) as text:
        for line, row in itertools.islice(_rows(text), sound + 1, None):
            if wrong := _row_error(row, names, style):
                return TraceError(path, wrong, line)
    return None


def _row_error(row: list[str], names: list[str], style: TimeStyle) -> str:
    if len(row) > len(names):
        return f"has {len(row)} cells, the header has {len(names)}; write numbers without separators between thousands"
    for name, cell in zip(names, row, strict=False):
        try:
            if name == TIME:
                style.check(cell)
            elif name in COLUMNS:
                _check_amount(cell)
        except ValueError as error:
            return f"{name}: {error}"
    return ""


def _check_amount(cell: str) -> None:
    if not cell.strip():
        return
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
