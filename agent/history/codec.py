"""Encoding of stored values: windows as compressed JSON, columns of numbers as bytes, spans as JSON.

A letter of a column encoding never gets another meaning. A new field of a span needs a default, or a new format
version of the file.
"""

from __future__ import annotations

import json
import struct
import sys
import zlib
from array import array
from collections.abc import Iterable, Sequence
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

MOST_BYTES = 64 * 1024 * 1024
"""Of a body unpacked: a chunk of a day with every family is below 4 MiB."""

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
    try:
        return from_record(json.loads(decompress_body(body)))
    except (zlib.error, RecursionError) as error:
        raise ValueError(f"a row that does not unpack ({error})") from error


def decompress_body(body: bytes) -> bytes:
    """What a body holds. Raises zlib.error, also where that is more than MOST_BYTES."""
    unpacking = zlib.decompressobj()
    data = unpacking.decompress(body, MOST_BYTES)
    if not unpacking.eof:
        raise zlib.error("it is cut off, or larger than any that was written")
    return data


def slice_of(replica: str, bin: int, beyond: str, window: Window) -> BinnedWindow:
    """The slice of a row's window, its load worked out anew."""
    placed = load_bins.bin_window(window, None, replica or None, bin if bin >= 0 else None)
    return replace(placed, beyond=beyond) if bin == BEYOND else placed


Column = Sequence[float]

_INTEGERS = (("B", 0, 2**8), ("h", -(2**15), 2**15), ("i", -(2**31), 2**31), ("q", -(2**53), 2**53))
"""Letter, smallest and one beyond the largest; above 2**53 doubles are not exact themselves."""

_LETTERS = frozenset({"d", *(letter for letter, _, _ in _INTEGERS)})

_COUNT = struct.Struct("<I")
_DOUBLE = struct.Struct("<d")


def encode_columns(columns: Iterable[Column]) -> bytes:
    """Columns one behind the other, each behind a letter that says how it is written."""
    known: dict[bytes, int] = {}
    parts = []
    for place, column in enumerate(columns):
        values = array("d", column)
        same = known.setdefault(values.tobytes(), place)
        parts.append(b"=" + _COUNT.pack(same) if same != place else _one(values))
    return b"".join(parts)


def decode_columns(data: bytes, rows: int, count: int) -> list[Column]:
    """`count` columns of `rows` numbers each. Raises ValueError where the bytes are not theirs."""
    found: list[Column] = []
    at = 0
    try:
        while len(found) < count:
            letter = chr(data[at])
            at += 1
            if letter == "0":
                found.append((0.0,) * rows)
            elif letter == "c":
                found.append(_DOUBLE.unpack_from(data, at) * rows)
                at += _DOUBLE.size
            elif letter == "=":
                found.append(found[_COUNT.unpack_from(data, at)[0]])
                at += _COUNT.size
            elif letter not in _LETTERS:
                raise ValueError(f"no column is written with {letter!r}")
            else:
                values = array(letter)
                values.frombytes(_together(data[at : at + rows * values.itemsize], rows, values.itemsize))
                found.append(values.tolist() if letter == "d" else [float(value) for value in values])
                at += rows * values.itemsize
    except (IndexError, struct.error, ValueError) as error:
        raise ValueError(f"columns that do not unpack ({error})") from error
    if at != len(data):
        raise ValueError(f"{len(data) - at} bytes behind its columns")
    return found


def _one(values: array[float]) -> bytes:
    first = values[0]
    if values.count(first) == len(values):
        return b"0" if first == 0 else b"c" + _DOUBLE.pack(first)
    low, high = min(values), max(values)
    # NaN compares with nothing, so that a column with one is doubles; so is one with an infinity.
    if all(map(float.is_integer, values)):
        for letter, least, beyond in _INTEGERS:
            if least <= low and high < beyond:
                return letter.encode() + _apart(array(letter, map(int, values)))
    return b"d" + _apart(values)


def _apart(values: array[int] | array[float]) -> bytes:
    """First the lowest byte of each number, then the next of each."""
    data, size = _little(values).tobytes(), values.itemsize
    return b"".join(data[place::size] for place in range(size))


def _together(data: bytes, rows: int, size: int) -> bytes:
    if len(data) != rows * size:
        raise ValueError("they end early")
    whole = bytearray(len(data))
    for place in range(size):
        whole[place::size] = data[place * rows : (place + 1) * rows]
    if sys.byteorder == "big":
        swapped = array({1: "B", 2: "h", 4: "i", 8: "q"}[size], bytes(whole))
        swapped.byteswap()
        return swapped.tobytes()
    return bytes(whole)


def _little(values: array[int] | array[float]) -> array[int] | array[float]:
    if sys.byteorder == "little":
        return values
    swapped = values[:]
    swapped.byteswap()
    return swapped


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
