"""Trace of arriving requests from a CSV, read by pandas: absent bins are missing, contradictions are errors."""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, isnan
from pathlib import Path

import numpy as np
import pandas as pd

from agent.durations import duration_text
from agent.errors import SizewatchError
from exporters.render.safe_text import quote_external_text
from forecast.series.binned import Array, Series, bin_events, resample
from rules.telemetry.work import CapacityLengths, MeanTokens, weigh

TIME, REQUESTS = "timestamp", "requests"
TOKENS = ("prompt_tokens", "output_tokens")
COLUMNS = (TIME, REQUESTS, *TOKENS)
HEADER = "timestamp,requests[,prompt_tokens,output_tokens]"

MOST_AMOUNT = 1e15
"""Maximum amount of a bin: no service has as many, and its square is still exact."""

LATEST_SECONDS = 1e11
"""Maximum time in seconds (year 5138): a larger number is in milliseconds."""

FEWEST_ROWS = 3
"""Minimum rows: a single distance between two rows may be a gap."""

MOST_BINS = 20_000_000
"""Maximum bins: 160 MB, or 38 years of minutes."""

UTC_ADVICE = "write times in UTC (2026-10-25T00:30:00Z) or with their offset (2026-10-25T02:30:00+02:00)"
EXPECTED = "a time such as 2026-03-01T00:05:00Z, 2026-03-01 00:05 (of the zone's clock), or seconds"

_SECONDS = r"\d{1,17}(?:\.\d{1,6})?"
"""Form of unix seconds, or of seconds from the trace's own start."""
_WITH_OFFSET = r".*[T ].*(?:Z|[+-]\d\d:?\d\d)"


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
            requests, tokens = (float(candidate.values[known].sum()) for candidate in (self.requests, series))
            if requests > 0 and tokens > 0:
                means[name] = MeanTokens(low=tokens / requests, high=tokens / requests)
        return CapacityLengths(prompt_tokens=means.get(TOKENS[0]), generation_tokens=means.get(TOKENS[1]))

    def work(self, lengths: CapacityLengths) -> Series:
        """Return the requests as work, in requests of these lengths. Unknown tokens count as their requests."""
        columns = [self.tokens[name].values.tolist() if name in self.tokens else None for name in TOKENS]
        values = self.requests.values.copy()
        for place, requests in enumerate(values.tolist()):
            prompts, outputs = (None if column is None or isnan(column[place]) else column[place] for column in columns)
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
    cells, unread = _read_cells(path)
    times, in_seconds = _read_times(path, cells[TIME], zone)
    amounts = {}
    for name in (REQUESTS, *TOKENS):
        if name in cells:
            amounts[name] = _read_amounts(path, name, cells[name])
    width = _bin_width(path, cells[TIME], times)
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
        words, kept = duration_text(bin_seconds), duration_text(own)
        notes.append(f"bins of {words} were asked for; the file's own are {kept} and are kept")
    elif bin_seconds is not None and bin_seconds != own:
        try:
            series = {name: resample(candidate, bin_seconds) for name, candidate in series.items()}
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
    try:
        cells = pd.read_csv(
            path,
            header=None,
            dtype=str,
            keep_default_na=False,
            skipinitialspace=True,
            skip_blank_lines=False,
            encoding="utf-8-sig",
        ).fillna("")
    except OSError as error:
        raise TraceError(path, f"cannot be read: {error.strerror or error}") from error
    except (EOFError, ValueError, zlib.error) as error:
        line = re.search(r"in line (\d+)", str(error))
        text = f"is no CSV in UTF-8 with as many cells in each line: {str(error).strip()}"
        raise TraceError(path, text, int(line[1]) if line else None) from error
    cells.index += 1
    cells = cells[(cells != "").any(axis=1)]
    names = [name.strip().lower() for name in cells.iloc[0]] if len(cells) else []
    for name in COLUMNS:
        if names.count(name) > 1 or (name in (TIME, REQUESTS) and name not in names):
            have = "more than one column"
            if name not in names:
                have = "no column"
            text = f"has {have} {name}; the header must be {HEADER}, one row a bin"
            raise TraceError(path, text, int(cells.index[0]) if names else None)
    if len(cells) < 2:
        raise TraceError(path, "has a header and no row")
    used = {}
    for place, name in enumerate(names):
        if name in COLUMNS:
            used[name] = cells[place].iloc[1:].str.strip()
    return pd.DataFrame(used), [name for name in names if name not in COLUMNS]


def _read_times(path: Path, cells: pd.Series[str], zone: str) -> tuple[pd.Series[pd.Timestamp], bool]:
    """Return the times in UTC, and whether the file has seconds. All times must have the form of the first."""
    _refuse(path, TIME, cells, cells == "", "is missing; a row that nothing is known of may be left out")
    in_seconds, with_offset = (cells.str.fullmatch(form, flags=re.ASCII) for form in (_SECONDS, _WITH_OFFSET))
    alike = (in_seconds == in_seconds.iloc[0]) & (with_offset == with_offset.iloc[0])
    _refuse(path, TIME, cells, ~alike, "{cell} is written otherwise than the first time; write all alike")
    if in_seconds.iloc[0]:
        seconds = pd.to_numeric(cells)
        late = seconds > LATEST_SECONDS
        _refuse(path, TIME, cells, late, "{cell} is too large for seconds; are these milliseconds? write seconds")
        return pd.to_datetime((seconds * 1e6).round().astype("int64"), unit="us", utc=True), True
    times = pd.to_datetime(cells, format="ISO8601", errors="coerce", utc=bool(with_offset.iloc[0]))
    no_time = times.isna() | ~cells.str.match(r"\d{4}-\d\d-\d\d")
    _refuse(path, TIME, cells, no_time, f"{{cell}} is no time; write {EXPECTED}")
    if not with_offset.iloc[0]:
        try:
            times = times.dt.tz_localize(zone, ambiguous="infer", nonexistent="raise").dt.tz_convert("UTC")
        except ValueError as error:
            reason = str(error).rstrip(".")
            raise TraceError(path, f"{TIME}: by the clock in {zone}: {reason}; {UTC_ADVICE}") from None
    return times, False


def _read_amounts(path: Path, name: str, cells: pd.Series[str]) -> pd.Series[float]:
    amounts = pd.to_numeric(cells, errors="coerce").astype(np.float64)
    unreadable = (cells != "") & ~amounts.between(0, MOST_AMOUNT)
    text = f"{{cell}} is no count of 0 to {MOST_AMOUNT:g}; leave the cell empty where it is not known"
    _refuse(path, name, cells, unreadable, text)
    return amounts


def _refuse(path: Path, name: str, cells: pd.Series[str], wrong: pd.Series[bool], text: str) -> None:
    if wrong.any():
        place = int(np.argmax(wrong))
        shown = f"'{quote_external_text(cells.iloc[place], 40)}'"
        raise TraceError(path, f"{name}: {text.replace('{cell}', shown)}", int(cells.index[place]))


def _bin_width(path: Path, cells: pd.Series[str], times: pd.Series[pd.Timestamp]) -> pd.Timedelta:
    """Return the length of a bin: the most frequent distance of rows. Raise TraceError for other distances."""
    if len(times) < FEWEST_ROWS:
        raise TraceError(path, f"has {len(times)} of the {FEWEST_ROWS} rows that tell how long a bin is")
    apart = times.diff()
    width = pd.Timedelta(apart.mode().iloc[0])
    text = "{cell} is not later than the row before; sort by time, and write the zone where clocks are set back"
    _refuse(path, TIME, cells, apart <= pd.Timedelta(0), text)
    text = (
        f"{{cell}} is no whole number of bins of {width.total_seconds():g} s after the row before; one row is one bin"
    )
    _refuse(path, TIME, cells, apart.fillna(width) // width * width != apart.fillna(width), text)
    bins = (times.iloc[-1] - times.iloc[0]) // width + 1
    if bins > MOST_BINS:
        text = f"spans {bins} bins of {width.total_seconds():g} s, most of them missing; {MOST_BINS} are the most"
        raise TraceError(path, text)
    return width
