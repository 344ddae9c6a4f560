"""Trace of arriving requests from a CSV as a Series: absent bins are missing, contradictions are errors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np

from agent.durations import duration_text
from agent.forecasting.csv_file import REQUESTS, TraceColumns, TraceError, line_of, read_columns
from agent.forecasting.timestamps import MICRO, TimestampForm, TimeStyle, TraceRowError, local_to_utc
from exporters.render.text import quote_external_text
from forecast.series.binned import Array, Integers, Series, bin_events, resample

FEWEST_ROWS = 3
"""Minimum rows: a single distance between two rows may be a gap."""

LONGEST_GAP_SECONDS = 366 * 86_400.0
"""Maximum gap in seconds: a longer gap is a wrong year or another unit."""

MOST_BINS = 20_000_000
"""Maximum bins: 160 MB, or 38 years of minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests per bin, the format of the file's times, and notes on ignored columns and options."""

    requests: Series
    times: TimeStyle
    notes: tuple[str, ...] = ()


def read_trace(path: Path | str, *, zone: str = "UTC", bin_seconds: float | None = None) -> Trace:
    """Return the trace in a CSV, also gzipped: `timestamp,requests[,prompt_tokens,output_tokens]`, a row per bin.

    Times are ISO 8601 (without an offset: local time in `zone`) or seconds, in ascending order. Rows are not sorted,
    because their order separates the two hours of a clock change in autumn. An empty cell and an absent bin are
    missing. `bin_seconds` makes coarser bins. Raise TraceError with the line.
    """
    path = Path(path)
    if not _is_zone(zone):
        raise TraceError(
            path, f"cannot be read by the clock in '{zone}', which is no time zone; write one such as Europe/Berlin"
        )
    columns = read_columns(path, zone)
    try:
        micros = local_to_utc(columns.micros, zone) if columns.style.form is TimestampForm.LOCAL else columns.micros
        width = _width(path, micros)
    except TraceRowError as bad:
        other = "" if bad.other is None else f" (line {line_of(path, bad.other)})"
        raise TraceError(path, bad.text + other, line_of(path, bad.row)) from None
    if np.isnan(columns.amounts[REQUESTS]).all():
        raise TraceError(path, f"holds no number in the column {REQUESTS}")
    starts: Array = micros / MICRO
    series, notes = bin_events(starts, columns.amounts[REQUESTS], width / MICRO, zone=zone), _notes(columns)
    own = series.bin_seconds
    if bin_seconds is None or bin_seconds == own:
        return Trace(requests=series, times=columns.style, notes=notes)
    if bin_seconds < own:
        note = (
            f"bins of {duration_text(bin_seconds)} were asked for; the file's own are {duration_text(own)} and are kept"
        )
        return Trace(requests=series, times=columns.style, notes=(*notes, note))
    try:
        return Trace(requests=resample(series, bin_seconds), times=columns.style, notes=notes)
    except ValueError:
        text = f"has bins of {duration_text(own)}, of which no whole number makes {duration_text(bin_seconds)}"
        raise TraceError(path, f"{text}; ask for a multiple") from None


def _is_zone(zone: str) -> bool:
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        return False
    return True


def _width(path: Path, micros: Integers) -> int:
    """Return the length of a bin: the most frequent distance of rows. Raise TraceRowError for other distances."""
    if len(micros) < FEWEST_ROWS:
        raise TraceError(path, f"has {len(micros)} rows; {FEWEST_ROWS} are the fewest that tell how long a bin is")
    apart = np.diff(micros)
    for row in np.flatnonzero(apart <= 0)[:1]:
        same = apart[row] == 0
        text = "has the time of a row before" if same else "is earlier than the row before; sort the rows by time"
        raise TraceRowError(int(row) + 1, text + (": which of the two counts?" if same else ""), int(row))
    widths, counts = np.unique(apart, return_counts=True)
    width = int(widths[np.argmax(counts)])
    for row in np.flatnonzero(apart > LONGEST_GAP_SECONDS * MICRO)[:1]:
        raise TraceRowError(
            int(row) + 1, f"comes {apart[row] / MICRO / 86_400:.0f} days after the row before; is the year right?"
        )
    for row in np.flatnonzero(apart % width)[:1]:
        text = f"comes {apart[row] / MICRO:g} s after the row before, and most rows are {width / MICRO:g} s apart"
        raise TraceRowError(int(row) + 1, f"{text}: one row must be one bin, all of one length (not one request)")
    bins = (int(micros[-1]) - int(micros[0])) // width + 1
    if bins > MOST_BINS:
        raise TraceError(
            path, f"spans {bins} bins of {width / MICRO:g} s, most of them missing; {MOST_BINS} are the most"
        )
    return width


def _notes(columns: TraceColumns) -> tuple[str, ...]:
    empty = [f"the column '{name}' is empty" for name, amounts in columns.amounts.items() if np.isnan(amounts).all()]
    return (*(f"the column '{quote_external_text(name, 60)}' is not read" for name in columns.unread), *empty)
