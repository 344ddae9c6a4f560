"""Trace of arriving requests from a CSV, read by pandas: absent bins are missing, contradictions are errors.

The format is `timestamp,requests[,prompt_tokens,output_tokens]`: header first, a row per bin, comma, also gzipped.
"""

from __future__ import annotations

import difflib
import gzip
import io
import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, isnan
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np
import pandas as pd

from agent.durations import duration_text
from agent.errors import SizewatchError
from exporters.render.text import quote_external_text
from forecast.series.binned import Array, Series, bin_events, resample
from rules.telemetry.work import CapacityLengths, MeanTokens, weigh

TIME, REQUESTS = "timestamp", "requests"
TOKENS = ("prompt_tokens", "output_tokens")
COLUMNS = (TIME, REQUESTS, *TOKENS)
HEADER = "timestamp,requests[,prompt_tokens,output_tokens]"

MOST_BYTES = 128 * 1024 * 1024
"""Maximum size of the text: seven years of minutes."""

MOST_AMOUNT = 1e15
"""Maximum amount of a bin: no service has as many, and its square is still exact."""

LATEST_SECONDS = 1e11
"""Maximum time in seconds (year 5138): a larger number is in milliseconds."""

FEWEST_ROWS = 3
"""Minimum rows: a single distance between two rows may be a gap."""

LONGEST_GAP = pd.Timedelta(days=366)
"""Maximum gap: a longer gap is a wrong year or another unit."""

MOST_BINS = 20_000_000
"""Maximum bins: 160 MB, or 38 years of minutes."""

UTC_ADVICE = "write times in UTC (2026-10-25T00:30:00Z) or with their offset (2026-10-25T02:30:00+02:00)"
EXPECTED = "a time such as 2026-03-01T00:05:00Z, 2026-03-01 00:05 (of the zone's clock), or seconds"

_SECONDS = r"\d{1,17}(?:\.\d{1,6})?"
_DATE = r"\d{4}-\d\d-\d\d(?:[T ]\d\d:\d\d(?::\d\d(?:\.\d{1,6})?)?)?"
TIME_FORMS = (_SECONDS, _DATE, _DATE + r"(?:Z|[+-]\d\d:?\d\d)")
"""Forms of a time: unix seconds or seconds from the trace's own start, local time, time with an offset."""


class TraceError(SizewatchError):
    """Unusable trace file, with the line (from 1) or None for the whole file."""

    def __init__(self, path: Path | str, text: str, line: int | None = None) -> None:
        text = "".join(sign if sign.isprintable() else "?" for sign in text)
        super().__init__(f"{path}:{line}: {text}" if line else f"{path}: {text}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests per bin, tokens per bin by column, the text of a time (unix seconds) as in the file, and notes."""

    requests: Series
    time_text: Callable[[float], str]
    notes: tuple[str, ...] = ()
    tokens: Mapping[str, Series] = field(default_factory=dict)

    @property
    def mean_lengths(self) -> CapacityLengths:
        """Return the mean tokens of a request over the bins of which both are known. None is unknown."""
        means: dict[str, MeanTokens] = {}
        for name, series in self.tokens.items():
            known = np.isfinite(self.requests.values) & np.isfinite(series.values)
            requests, tokens = (float(one.values[known].sum()) for one in (self.requests, series))
            if requests > 0 and tokens > 0:
                means[name] = MeanTokens(low=tokens / requests, high=tokens / requests)
        return CapacityLengths(prompt_tokens=means.get(TOKENS[0]), generation_tokens=means.get(TOKENS[1]))

    def work(self, lengths: CapacityLengths) -> Series:
        """Return the requests as work, in requests of these lengths. Unknown tokens count as their requests."""
        columns = [self.tokens[name].values.tolist() if name in self.tokens else None for name in TOKENS]
        values = self.requests.values.copy()
        for place, requests in enumerate(values.tolist()):
            prompts, outputs = (None if one is None or isnan(one[place]) else one[place] for one in columns)
            if isfinite(requests):
                values[place] = weigh(requests, prompts, outputs, None, lengths, n=requests).total.value
        return replace(self.requests, values=values)


def read_trace(path: Path | str, *, zone: str = "UTC", bin_seconds: float | None = None) -> Trace:
    """Return the trace in a CSV, also gzipped: `timestamp,requests[,prompt_tokens,output_tokens]`, a row per bin.

    Times are ISO 8601 (without an offset: local time in `zone`) or seconds, in ascending order. Rows are not sorted,
    because their order separates the two hours of a clock change in autumn. An empty cell and an absent bin are
    missing. `bin_seconds` makes coarser bins. Raise TraceError with the line.
    """
    path = Path(path)
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        text = f"cannot be read by the clock in '{zone}', which is no time zone; write one such as Europe/Berlin"
        raise TraceError(path, text) from None
    cells, unread = _read_cells(path)
    times, in_seconds = _read_times(path, cells[TIME], zone)
    amounts = {name: _read_amounts(path, name, cells[name]) for name in (REQUESTS, *TOKENS) if name in cells}
    width = _bin_width(path, times)
    if amounts[REQUESTS].isna().all():
        raise TraceError(path, f"holds no number in the column {REQUESTS}")
    starts: Array = times.dt.as_unit("us").astype("int64").to_numpy() / 1e6
    own = width / pd.Timedelta(seconds=1)
    series = {
        name: bin_events(starts, np.asarray(values, dtype=np.float64), own, zone=zone)
        for name, values in amounts.items()
        if values.notna().any()
    }
    notes = [f"the column '{quote_external_text(name, 60)}' is not read" for name in unread]
    notes += [f"the column '{name}' is empty" for name in amounts if name not in series]
    if bin_seconds is not None and bin_seconds < own:
        asked, kept = duration_text(bin_seconds), duration_text(own)
        notes.append(f"bins of {asked} were asked for; the file's own are {kept} and are kept")
    elif bin_seconds is not None and bin_seconds != own:
        try:
            series = {name: resample(one, bin_seconds) for name, one in series.items()}
        except ValueError:
            text = f"has bins of {duration_text(own)}, of which no whole number makes {duration_text(bin_seconds)}"
            raise TraceError(path, f"{text}; ask for a multiple") from None
    texts = dict(zip(starts.tolist(), cells[TIME], strict=True))
    other_text = "{:.15g}".format if in_seconds else utc_text
    return Trace(
        requests=series.pop(REQUESTS),
        time_text=lambda t: texts.get(t) or other_text(t),
        notes=tuple(notes),
        tokens=series,
    )


def utc_text(t: float) -> str:
    """Return a time (unix seconds) in ISO 8601."""
    return pd.Timestamp(t, unit="s", tz="UTC").isoformat().replace("+00:00", "Z")


def _read_cells(path: Path) -> tuple[pd.DataFrame, list[str]]:
    """Return the cells of the used columns as text by line of the file, and the names of the other columns."""
    text = _read_text(path)
    header = next((line for line in io.StringIO(text) if line.strip()), None)
    if header is None:
        raise TraceError(path, f"is empty; it must begin with the line {HEADER}")
    # One column more than the header shows rows with too many cells.
    width = header.count(",") + 1
    try:
        cells = pd.read_csv(
            io.StringIO(text),
            header=None,
            names=list(range(width + 1)),
            dtype=str,
            keep_default_na=False,
            skipinitialspace=True,
            skip_blank_lines=False,
            index_col=False,
        ).fillna("")
    except pd.errors.ParserError as error:
        long_row = re.search(r"in line (\d+), saw (\d+)", str(error))
        if long_row is not None:
            raise _too_many_cells(path, int(long_row[2]), width, int(long_row[1])) from None
        open_quote = re.search(r"inside string starting at row (\d+)", str(error))
        if open_quote is not None:
            raise TraceError(path, "has a quote that is never closed", int(open_quote[1]) + 1) from None
        raise TraceError(path, f"is no CSV: {error}") from None
    cells.index += 1
    cells = cells[(cells != "").any(axis=1)]
    names = [name.strip().lower() for name in cells.iloc[0].to_list()[:width]]
    _check_header(path, names, int(cells.index[0]))
    rows = cells.iloc[1:]
    if rows.empty:
        raise TraceError(path, "has a header and no row")
    excess = rows.index[rows[width] != ""]
    if len(excess):
        raise _too_many_cells(path, width + 1, width, int(excess[0]))
    used = {name: rows[place].str.strip() for place, name in enumerate(names) if name in COLUMNS}
    return pd.DataFrame(used), [name for name in names if name not in COLUMNS]


def _read_text(path: Path) -> str:
    try:
        with path.open("rb") as file:
            packed = file.read(2)
            file.seek(0)
            if packed == b"\x1f\x8b" or path.suffix == ".gz":
                with gzip.open(file) as unpacked:
                    data = unpacked.read(MOST_BYTES + 1)
            else:
                data = file.read(MOST_BYTES + 1)
        if len(data) > MOST_BYTES:
            raise TraceError(path, f"has more than {MOST_BYTES} bytes of text; count in longer bins")
        return data.decode("utf-8-sig")
    except FileNotFoundError:
        raise TraceError(path, "there is no such file") from None
    except gzip.BadGzipFile as error:
        raise TraceError(path, f"is named .gz and is not gzipped, or damaged ({error})") from error
    except (EOFError, zlib.error) as error:
        raise TraceError(path, "is a gzip file that is cut off or damaged; copy it again") from error
    except UnicodeDecodeError as error:
        raise TraceError(path, "is not a text file in UTF-8") from error
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error.strerror or error}") from error


def _too_many_cells(path: Path, count: int, width: int, line: int) -> TraceError:
    text = f"has {count} cells, the header has {width}; write numbers without separators between thousands"
    return TraceError(path, text, line)


def _check_header(path: Path, names: list[str], line: int) -> None:
    """Raise TraceError for a header that lacks a column or has one twice."""
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


def _read_times(path: Path, cells: pd.Series[str], zone: str) -> tuple[pd.Series[pd.Timestamp], bool]:
    """Return the times in UTC, and whether the file has seconds. All times must have the form of the first."""
    line, first = int(cells.index[0]), cells.iloc[0]
    form = next((form for form in TIME_FORMS if re.fullmatch(form, first, re.ASCII)), None)
    if form is None:
        text = f"'{_shorten(first)}' is no time; write {EXPECTED}" if first else "has no timestamp"
        raise TraceError(path, f"{TIME}: {text}" if first else text, line)
    _refuse(path, TIME, cells, cells == "", "is missing; a row that nothing is known of may be left out")
    written_alike = cells.str.fullmatch(form, flags=re.ASCII)
    any_form = cells.str.fullmatch("|".join(TIME_FORMS), flags=re.ASCII)
    _refuse(path, TIME, cells, ~any_form, f"{{cell}} is no time; write {EXPECTED}")
    _refuse(path, TIME, cells, ~written_alike, "{cell} is written otherwise than the first time; write all alike")
    if form == _SECONDS:
        seconds = pd.to_numeric(cells)
        late = seconds > LATEST_SECONDS
        _refuse(path, TIME, cells, late, "{cell} is too large for seconds; are these milliseconds? write seconds")
        return pd.to_datetime((seconds * 1e6).round().astype("int64"), unit="us", utc=True), True
    times = pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=form != _DATE)
    _refuse(path, TIME, cells, times.isna(), f"{{cell}} is no time that there is; write {EXPECTED}")
    if form == _DATE:
        try:
            times = times.dt.tz_localize(zone, ambiguous="infer", nonexistent="raise").dt.tz_convert("UTC")
        except ValueError as error:
            reason = str(error).rstrip(".")
            raise TraceError(path, f"{TIME}: by the clock in {zone}: {reason}; {UTC_ADVICE}") from None
    return times, False


def _read_amounts(path: Path, name: str, cells: pd.Series[str]) -> pd.Series[float]:
    """Return the amounts of a column, NaN for an empty cell."""
    amounts = pd.to_numeric(cells, errors="coerce").astype(np.float64)
    unreadable = (cells != "") & ~np.isfinite(amounts)
    _refuse(path, name, cells, unreadable, "{cell} is no number; a number, or an empty cell where it is not known")
    text = "{cell} is negative; a count is 0 or more, or an empty cell where it is not known"
    _refuse(path, name, cells, amounts < 0, text)
    text = f"{{cell}} is more than {MOST_AMOUNT:g}, which nothing serves in a bin; is it another column?"
    _refuse(path, name, cells, amounts > MOST_AMOUNT, text)
    return amounts


def _refuse(path: Path, name: str, cells: pd.Series[str], wrong: pd.Series[bool], text: str) -> None:
    """Raise TraceError for the first cell that is wrong."""
    if wrong.any():
        place = int(np.argmax(wrong))
        shown = f"'{_shorten(cells.iloc[place])}'"
        raise TraceError(path, f"{name}: {text.replace('{cell}', shown)}", int(cells.index[place]))


def _shorten(cell: str) -> str:
    return cell if len(cell) <= 40 else f"{cell[:37]}..."


def _bin_width(path: Path, times: pd.Series[pd.Timestamp]) -> pd.Timedelta:
    """Return the length of a bin: the most frequent distance of rows. Raise TraceError for other distances."""
    if len(times) < FEWEST_ROWS:
        raise TraceError(path, f"has {len(times)} rows; {FEWEST_ROWS} are the fewest that tell how long a bin is")
    apart = times.diff().iloc[1:]
    for place in np.flatnonzero(apart <= pd.Timedelta(0))[:1]:
        text = "is earlier than the row before; sort the rows by time"
        if apart.iloc[place] == pd.Timedelta(0):
            text = "has the time of a row before: which of the two counts?"
        raise TraceError(path, f"{text} (line {times.index[place]})", int(times.index[place + 1]))
    width = pd.Timedelta(apart.mode().iloc[0])
    for line in apart.index[apart > LONGEST_GAP][:1]:
        days = apart[line] / pd.Timedelta(days=1)
        raise TraceError(path, f"comes {days:.0f} days after the row before; is the year right?", int(line))
    for line in apart.index[apart // width * width != apart][:1]:
        distance, usual = apart[line].total_seconds(), width.total_seconds()
        text = f"comes {distance:g} s after the row before, and most rows are {usual:g} s apart"
        raise TraceError(path, f"{text}: one row must be one bin, all of one length (not one request)", int(line))
    bins = (times.iloc[-1] - times.iloc[0]) // width + 1
    if bins > MOST_BINS:
        text = f"spans {bins} bins of {width.total_seconds():g} s, most of them missing; {MOST_BINS} are the most"
        raise TraceError(path, text)
    return width
