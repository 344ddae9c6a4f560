"""Trace of arriving requests from a CSV as a Series: absent bins are missing, contradictions are errors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import isfinite, isnan
from pathlib import Path
from zoneinfo import ZoneInfo

import numpy as np

from agent.durations import duration_text
from agent.forecasting.csv_file import REQUESTS, TOKENS, TraceColumns, TraceError, line_of, read_columns
from agent.forecasting.timestamps import MICRO, TimestampForm, TimeStyle, TraceRowError, local_to_utc
from exporters.render.text import quote_external_text
from forecast.series.binned import Array, Integers, Series, bin_events, resample
from rules.telemetry.work import CapacityLengths, MeanTokens, weigh

FEWEST_ROWS = 3
"""Minimum rows: a single distance between two rows may be a gap."""

LONGEST_GAP_SECONDS = 366 * 86_400.0
"""Maximum gap in seconds: a longer gap is a wrong year or another unit."""

MOST_BINS = 20_000_000
"""Maximum bins: 160 MB, or 38 years of minutes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests per bin, tokens per bin by column, the format of the file's times, and notes for the reader."""

    requests: Series
    times: TimeStyle
    notes: tuple[str, ...] = ()
    tokens: Mapping[str, Series] = field(default_factory=dict)

    @property
    def mean_lengths(self) -> CapacityLengths:
        """Return the mean tokens of a request over the bins of which both are known. None is unknown."""
        means: dict[str, MeanTokens] = {}
        for name, found in self.tokens.items():
            known = np.isfinite(self.requests.values) & np.isfinite(found.values)
            requests, tokens = (float(one.values[known].sum()) for one in (self.requests, found))
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
    series = {
        name: bin_events(starts, amounts, width / MICRO, zone=zone)
        for name, amounts in columns.amounts.items()
        if not np.isnan(amounts).all()
    }
    notes, own = _notes(columns), width / MICRO
    if bin_seconds is not None and bin_seconds < own:
        note = (
            f"bins of {duration_text(bin_seconds)} were asked for; the file's own are {duration_text(own)} and are kept"
        )
        notes = (*notes, note)
    elif bin_seconds is not None and bin_seconds != own:
        try:
            series = {name: resample(one, bin_seconds) for name, one in series.items()}
        except ValueError:
            text = f"has bins of {duration_text(own)}, of which no whole number makes {duration_text(bin_seconds)}"
            raise TraceError(path, f"{text}; ask for a multiple") from None
    return Trace(requests=series.pop(REQUESTS), times=columns.style, notes=notes, tokens=series)


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
