"""Encoding of stored values: windows as compressed JSON, spans as JSON.

A new field of a span or a window needs a default, or a new format version of the file.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import asdict, replace
from typing import Any, TypeVar

from pydantic import TypeAdapter

from rules.evaluator.external_alerts import ExternalAlert
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow
from rules.telemetry.window_record import from_record, to_record
from rules.telemetry.windows import Window
from rules.verdicts.finding import ClosedSpan, Finding, UnknownSpan

NO_BIN = -1
"""No load bin known: no curve, or no load (a gap)."""

MOST_BYTES = 4 * 1024 * 1024
"""Of a body unpacked: a window with every family and the finest buckets is below 100 KiB."""

BEYOND = -2
"""The load was beyond the benchmark."""


def bin_code(one: BinnedWindow) -> int:
    """The slice's load bin as rows hold it."""
    if one.bin is not None:
        return one.bin
    return BEYOND if one.beyond else NO_BIN


def encode_window(window: Window) -> bytes:
    """A row's body."""
    return zlib.compress(json.dumps(to_record(window), separators=(",", ":"), allow_nan=False).encode())


def decode_window(body: bytes) -> Window:
    """The window in a row's body. Raises ValueError, saying what is wrong, where it holds none."""
    unpacking = zlib.decompressobj()
    try:
        data = unpacking.decompress(body, MOST_BYTES)
        if not unpacking.eof:
            raise ValueError("a row that does not unpack (cut off, or larger than any that was written)")
        return from_record(json.loads(data))
    except (zlib.error, RecursionError) as error:
        raise ValueError(f"a row that does not unpack ({error})") from error


def decode_slice(replica: str, bin: int, beyond: str, body: bytes) -> BinnedWindow:
    """The slice in a row, its load worked out anew. Raises ValueError where the body holds no window."""
    placed = load_bins.bin_window(decode_window(body), None, replica or None, bin if bin >= 0 else None)
    return replace(placed, beyond=beyond) if bin == BEYOND else placed


EPISODE, UNKNOWN, FOREIGN = "episode", "unknown", "foreign"

Span = ClosedSpan | ExternalAlert
"""What has a beginning and, some time, an end."""


T = TypeVar("T")
_ADAPTERS: dict[type, TypeAdapter[Any]] = {kind: TypeAdapter(kind) for kind in (Finding, UnknownSpan, ExternalAlert)}
Row = tuple[str, str, str, str, float, float | None, str]


def row(span: Span) -> Row:
    """Kind, rule, tier, replica, start, end and text. All but the last two never change; empty is none."""
    if isinstance(span, ExternalAlert):
        # Two alerts of one name may begin at the same instant.
        name = f"{span.name}/{span.identity}"
        return FOREIGN, name, span.tier or "", span.replica or "", span.started_at, span.ended_at, encode_span(span)
    kind = EPISODE if isinstance(span, Finding) else UNKNOWN
    subject = span.subject
    return kind, span.rule, subject.tier, subject.replica or "", span.started_at, span.ended_at, encode_span(span)


def encode_span(span: Span) -> str:
    """The span as JSON; a bound of a reading may be infinite, which Python's JSON writes and reads as Infinity."""
    return json.dumps(asdict(span), separators=(",", ":"))


def decode_span(kind: type[T], text: str) -> T:
    """Return the span of a text. Raise ValueError for anything else."""
    found: T = _ADAPTERS[kind].validate_python(json.loads(text))
    return found
