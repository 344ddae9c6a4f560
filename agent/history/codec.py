"""What is in a row of history: the zlib-compressed JSON of a window's record, and the load bin it stands for.

Owns both ways between a slice and what is stored of it. It must not touch a file. How a window becomes a record is
`rules.telemetry.window_record`'s.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import replace

from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow
from rules.telemetry.window_record import from_record, to_record
from rules.telemetry.windows import Window

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
