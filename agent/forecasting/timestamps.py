"""Timestamps of a trace: the format is detected from the first, used for all, and kept in outputs.

Local times need care at clock changes. The module opens no file: an error has the number of its row.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from enum import StrEnum
from zoneinfo import ZoneInfo

import numpy as np

from forecast.series.binned import Integers
from forecast.series.calendar import ClockChange, clock_changes

MICRO = 1_000_000
_EPOCH, _MICROSECOND = datetime.fromtimestamp(0, UTC), timedelta(microseconds=1)
LATEST_SECONDS = 1e11
"""Maximum time in seconds (year 5138): a larger number is in milliseconds."""

UTC_ADVICE = "write times in UTC (2026-10-25T00:30:00Z) or with their offset (2026-10-25T02:30:00+02:00)"
EXPECTED = "a time such as 2026-03-01T00:05:00Z, 2026-03-01 00:05 (of the zone's clock), or seconds"

_ISO = re.compile(
    r"(?P<date>\d{4}-\d\d-\d\d)"
    r"((?P<sep>[T ])(?P<time>\d\d:\d\d)(?P<second>:\d\d)?(?P<fraction>\.\d{1,6})?)?(?P<zone>Z|[+-]\d\d:?\d\d)?",
    re.ASCII,
)
_SECONDS = re.compile(r"\d{1,17}(\.(?P<fraction>\d{1,6}))?", re.ASCII)


class TimestampForm(StrEnum):
    """Form of a time."""

    SECONDS = "seconds"  # unix seconds, or from the trace's own start
    UTC = "utc"  # ... and a Z
    OFFSET = "offset"  # ... and +01:00 or +0100
    LOCAL = "local"  # of the clock in the zone


class TraceRowError(Exception):
    """Error in a row of the data (0 is the first after the header). `other` is the row that it contradicts."""

    def __init__(self, row: int, text: str, other: int | None = None) -> None:
        super().__init__(text)
        self.row = row
        self.text = text
        self.other = other


@dataclass(frozen=True, slots=True, kw_only=True)
class TimeStyle:
    """Format of times: `pattern` of strptime without the offset, and `decimals` of a second.

    `suffix` is the offset of the first time; `follows_zone` is true if it was that of the zone."""

    form: TimestampForm
    zone: str = "UTC"
    pattern: str = ""
    decimals: int = 0
    suffix: str = ""
    offset_seconds: float = 0.0
    follows_zone: bool = False

    def text(self, t: float) -> str:
        """Return a time (unix seconds) in this format. Local times of a repeated hour are ambiguous."""
        if self.form is TimestampForm.SECONDS:
            decimals = self.decimals if round(t, self.decimals) == round(t, 6) else 6
            return f"{t:.{decimals}f}"
        moment = datetime.fromtimestamp(0, UTC) + timedelta(microseconds=round(t * MICRO))
        moment = moment.astimezone(self._clock())
        shown = moment.strftime(self.pattern.removesuffix(".%f"))
        fraction = f".{moment.microsecond:06d}"[: self.decimals + 1] if self.decimals else ""
        return f"{shown}{fraction}{self._suffix(moment)}"

    def _clock(self) -> tzinfo:
        if self.form is TimestampForm.LOCAL or self.follows_zone:
            return ZoneInfo(self.zone)
        return timezone(timedelta(seconds=self.offset_seconds))

    def _suffix(self, moment: datetime) -> str:
        if self.form is not TimestampForm.OFFSET:
            return self.suffix
        offset = moment.strftime("%z")
        return f"{offset[:3]}:{offset[3:5]}" if ":" in self.suffix else offset

    def micros(self, cell: str) -> int:
        """Return microseconds since the epoch (LOCAL: as if it were UTC). Raise ValueError with a readable text."""
        if not cell.strip():
            raise ValueError("is missing; a row that nothing is known of may be left out")
        found = _SECONDS.fullmatch(cell) if self.form is TimestampForm.SECONDS else _ISO.fullmatch(cell)
        if found is None or (self.form is not TimestampForm.SECONDS and _shape(found) != (self.form, self.pattern)):
            detect_style(cell, self.zone)
            raise ValueError(f"'{shorten(cell)}' is written otherwise than the first time; write all alike")
        if self.form is TimestampForm.SECONDS:
            if float(cell) > LATEST_SECONDS:
                detect_style(cell, self.zone)
            return round(float(cell) * MICRO)
        try:
            moment = datetime.fromisoformat(cell)
            since = (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)) - _EPOCH
        except (ValueError, OverflowError):
            raise ValueError(f"'{shorten(cell)}' is no time that there is; write {EXPECTED}") from None
        return since // _MICROSECOND


UTC_TIMES = TimeStyle(form=TimestampForm.UTC, pattern="%Y-%m-%dT%H:%M:%S", suffix="Z")
"""Format without a file."""


def detect_style(cell: str, zone: str) -> TimeStyle:
    """Return the format of a first time. Raise ValueError with a readable text if it is none."""
    if found := _SECONDS.fullmatch(cell):
        if float(cell) > LATEST_SECONDS:
            raise ValueError(f"'{shorten(cell)}' is too large for seconds; are these milliseconds? write seconds")
        return TimeStyle(form=TimestampForm.SECONDS, zone=zone, decimals=len(found["fraction"] or ""))
    found = _ISO.fullmatch(cell)
    if found is None:
        raise ValueError(f"'{shorten(cell)}' is no time; write {EXPECTED}")
    try:
        offset = datetime.fromisoformat(cell).utcoffset() or timedelta()
        of_zone = datetime.fromisoformat(cell).astimezone(ZoneInfo(zone)).utcoffset()
    except (ValueError, OverflowError):
        raise ValueError(f"'{shorten(cell)}' is no time that there is; write {EXPECTED}") from None
    form, pattern = _shape(found)
    return TimeStyle(
        form=form,
        zone=zone,
        pattern=pattern,
        decimals=len(found["fraction"] or ".") - 1,
        suffix=found["zone"] or "",
        offset_seconds=offset.total_seconds(),
        follows_zone=form is TimestampForm.OFFSET and offset == of_zone,
    )


def _shape(found: re.Match[str]) -> tuple[TimestampForm, str]:
    """Return the form of a time and its pattern."""
    suffix = found["zone"] or ""
    form = TimestampForm.LOCAL if not suffix else TimestampForm.UTC if suffix == "Z" else TimestampForm.OFFSET
    if not found["time"]:
        return form, "%Y-%m-%d"
    parts = (found["sep"], "%H:%M", ":%S" if found["second"] else "", ".%f" if found["fraction"] else "")
    return form, "%Y-%m-%d" + "".join(parts)


def shorten(cell: str) -> str:
    """Return a cell for an error text."""
    return cell if len(cell) <= 40 else f"{cell[:37]}..."


def local_to_utc(local: Integers, zone: str) -> Integers:
    """Return local times in `zone` (microseconds, in the order of the file) as UTC.

    In the repeated hour of autumn, the second hour begins where times go back. Raise TraceRowError if they do not go
    back or go back twice, and for times that the clock skips in spring.
    """
    if not len(local):
        return local
    day = 86_400
    first, last = int(local.min() // MICRO) - 2 * day, int(local.max() // MICRO) + 2 * day
    changes = clock_changes(first, last, zone)
    offsets = [_first_offset(first, zone, changes), *(change.after for change in changes)]
    ends = np.array([change.t + max(change.before, change.after) for change in changes], dtype=np.int64) * MICRO
    ahead = np.array(offsets, dtype=np.int64)[np.searchsorted(ends, local, "right")]
    for change in changes:
        low, high = sorted((change.t + change.before, change.t + change.after))
        rows = np.flatnonzero((local >= low * MICRO) & (local < high * MICRO))
        if len(rows) and change.after > change.before:
            raise TraceRowError(
                int(rows[0]), f"the clock in {zone} leaves this time out; is it the time of another zone? {UTC_ADVICE}"
            )
        if len(rows):
            ahead[rows[_second_hour(local, rows, zone) :]] = change.after
    return local - ahead * MICRO


def _first_offset(first: int, zone: str, changes: tuple[ClockChange, ...]) -> int:
    if changes:
        return changes[0].before
    offset = datetime.fromtimestamp(first, ZoneInfo(zone)).utcoffset()
    return round(offset.total_seconds()) if offset is not None else 0


def _second_hour(local: Integers, rows: Integers, zone: str) -> int:
    """Return the first row of the second hour, of rows in a repeated hour."""
    back = np.flatnonzero(np.diff(local[rows]) <= 0) + 1
    if len(back) == 0:
        text = f"the clock in {zone} shows this time twice, and the trace has it once: which it is cannot be told"
        raise TraceRowError(int(rows[0]), f"{text}; {UTC_ADVICE}")
    if len(back) > 1:
        row = int(rows[back[1]])
        raise TraceRowError(row, "times go back more than once in the hour that the clock repeats", row - 1)
    return int(back[0])
