"""A trace (what arrived when, from a CSV) as Series: what is not in it is missing, what contradicts itself is refused.

Owns what the rows mean together: their order, the length of a bin, gaps, bins that were asked for. How a file is read and
a time written is `agent.forecasting.csv_file`'s and `agent.forecasting.timestamps`'s.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np

from agent.durations import duration_text
from agent.forecasting.csv_file import REQUESTS, TraceColumns, TraceError, line_of, read_columns
from agent.forecasting.timestamps import MICRO, Integers, TimestampForm, TimeStyle, TraceRowError, local_to_utc
from exporters.render.text import quote_external_text
from forecast.series.binned import Array, Series, bin_events, resample

FEWEST_ROWS = 3
"""Two rows are one distance, and nothing says that it is a bin and no gap."""

LONGEST_GAP_SECONDS = 366 * 86_400.0
"""A longer one is a wrong year or another unit, and would be millions of missing bins."""

MOST_BINS = 20_000_000
"""160 MB a column: 38 years of minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """What arrived: requests and, where given, tokens per bin, all on one grid. `times.text` writes a time as the file does;
    `notes` say what was not taken as it was asked for or given."""

    requests: Series
    prompt_tokens: Series | None
    output_tokens: Series | None
    times: TimeStyle
    notes: tuple[str, ...] = ()


def read_trace(path: Path | str, *, zone: str = "UTC", bin_seconds: float | None = None) -> Trace:
    """The trace in a CSV, also gzipped: `timestamp,requests[,prompt_tokens,output_tokens]`, one row a bin.

    Times are ISO 8601 (without an offset: of the clock in `zone`) or seconds; an empty cell, and a bin that is left out, is
    missing. `bin_seconds` makes coarser bins; where the file's own are longer those are kept, and noted. Rows must stand in
    the order of time: they are not sorted, for in the hour that a clock repeats in autumn only their order tells them
    apart. Raises BadTrace, naming the line.
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
    given = {name: amounts for name, amounts in columns.amounts.items() if not np.isnan(amounts).all()}
    series = {name: _series(micros, amounts, width, zone) for name, amounts in given.items()}
    notes = _notes(columns)
    if bin_seconds is not None:
        series, notes = _coarser(path, series, bin_seconds, notes)
    return Trace(
        requests=series[REQUESTS],
        prompt_tokens=series.get("prompt_tokens"),
        output_tokens=series.get("output_tokens"),
        times=columns.style,
        notes=notes,
    )


def _is_zone(zone: str) -> bool:
    try:
        ZoneInfo(zone)
    except (KeyError, ValueError, OSError):
        return False
    return True


def _width(path: Path, micros: Integers) -> int:
    """The length of a bin: the distance that most rows have. Raises BadRow where the others are no multiples of it."""
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


def _series(micros: Integers, amounts: Array, width: int, zone: str) -> Series:
    starts: Array = micros / MICRO
    return bin_events(starts, amounts, width / MICRO, zone=zone)


def _notes(columns: TraceColumns) -> tuple[str, ...]:
    empty = [f"the column '{name}' is empty" for name, amounts in columns.amounts.items() if np.isnan(amounts).all()]
    return (*(f"the column '{quote_external_text(name, 60)}' is not read" for name in columns.unread), *empty)


def _coarser(
    path: Path, series: dict[str, Series], bin_seconds: float, notes: tuple[str, ...]
) -> tuple[dict[str, Series], tuple[str, ...]]:
    own = series[REQUESTS].bin_seconds
    if bin_seconds < own:
        note = (
            f"bins of {duration_text(bin_seconds)} were asked for; the file's own are {duration_text(own)} and are kept"
        )
        return series, (*notes, note)
    try:
        return {name: resample(one, bin_seconds) for name, one in series.items()}, notes
    except ValueError:
        text = f"has bins of {duration_text(own)}, of which no whole number makes {duration_text(bin_seconds)}"
        raise TraceError(path, f"{text}; ask for a multiple") from None
