"""Rows of the history: keys of closed minutes, windows as compressed JSON, spans as JSON.

A new field of a span or a window needs a default, or a new format version of the file.
"""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, replace
from typing import Any, NamedTuple, TypeVar

from pydantic import TypeAdapter

from agent.history.schema import SumTable
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.observation import ClosedMinute
from rules.plan import load_bins
from rules.plan.capacity import POOL_TOKENS
from rules.plan.load_bins import BinnedWindow
from rules.telemetry import arrivals, windows
from rules.telemetry.arrivals import MinuteSums
from rules.telemetry.windows import Window
from rules.verdicts.verdict import ClosedSpan, Finding, UnknownSpan

T = TypeVar("T")


class SeriesKey(NamedTuple):
    """Series of rows. An empty replica stands for the whole tier; it may be a pool's name. Only hours have a release and a
    precision."""

    tier: str
    plan_version: str
    replica: str = ""
    release: str = ""
    precision: str = ""


def sum_key(table: SumTable, record: ClosedMinute) -> tuple[int, SeriesKey, int]:
    """Return start (unix seconds), series and bin of the row that a minute goes into.

    The middle of its window decides on the row.
    """
    start = int(windows.minute_of(record.slice.window) // table.seconds * table.seconds)
    if table.per_replica:
        series = SeriesKey(record.tier, record.plan_version, record.slice.replica or "")
    else:
        pool = record.pool if record.pool in POOL_TOKENS else ""
        series = SeriesKey(record.tier, record.plan_version, pool, record.release, record.precision)
    return start, series, bin_code(record.slice)


def group_demand(records: Iterable[ClosedMinute]) -> dict[tuple[str, int], list[MinuteSums]]:
    """Return the parts of each minute of a tier, by tier and start (unix seconds).

    A prefill pool has none: each of its requests goes on to the decode pool, which counts it, and its prompt, again.
    """
    parts: dict[tuple[str, int], list[MinuteSums]] = {}
    for record in records:
        if record.pool == "prefill":
            continue
        for part in arrivals.split_by_minute(record.slice.window):
            parts.setdefault((record.tier, int(part.start)), []).append(part)
    return parts


def bin_code(binned: BinnedWindow) -> int:
    """Return the load bin as rows hold it: -1 if it is unknown (no curve, or a gap), -2 beyond the benchmark."""
    if binned.bin is not None:
        return binned.bin
    return -2 if binned.beyond else -1


_WINDOW = TypeAdapter(Window)


def encode_window(window: Window) -> bytes:
    """Return the body of a row. Python's JSON writes an infinite edge as Infinity."""
    fields = _WINDOW.dump_python(window, exclude_defaults=True)
    return zlib.compress(json.dumps(fields, separators=(",", ":"), default=sorted).encode())


def decode_window(body: bytes) -> Window:
    """Return the window in the body of a row. Raise ValueError or zlib.error for a damaged body."""
    window: Window = _WINDOW.validate_json(zlib.decompress(body))
    return window


def decode_slice(replica: str, bin: int, beyond: str, body: bytes) -> BinnedWindow:
    """Return the slice of a row with the load of its window. Raise ValueError or zlib.error for a damaged body."""
    placed = load_bins.bin_window(decode_window(body), None, replica or None, bin if bin >= 0 else None)
    return replace(placed, beyond=beyond)


Span = ClosedSpan | ExternalAlert
"""Finding, unknown span or external alert: it has a start and, some time, an end."""

KINDS: dict[type, str] = {Finding: "episode", UnknownSpan: "unknown", ExternalAlert: "foreign"}
"""Kinds of spans in the file."""

_ADAPTERS: dict[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in KINDS}


def span_row(span: Span) -> tuple[str, str, str, str, float, float | None, str]:
    """Return kind, rule, tier, replica, start, end and JSON of a span. All but the last two never change; empty is none."""
    if isinstance(span, ExternalAlert):
        # Two alerts of one name may begin at the same instant.
        rule, tier, replica = f"{span.name}/{span.identity}", span.tier, span.replica
    else:
        rule, tier, replica = span.rule, span.subject.tier, span.subject.replica
    # A bound of a reading may be infinite, which Python's JSON writes and reads as Infinity.
    body = json.dumps(asdict(span), separators=(",", ":"))
    return KINDS[type(span)], rule, tier or "", replica or "", span.started_at, span.ended_at, body


def decode_span(kind: type[T], text: str) -> T:
    """Return the span of a JSON text. Raise ValueError for anything else."""
    span: T = _ADAPTERS[kind].validate_python(json.loads(text))
    return span
