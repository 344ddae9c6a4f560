"""Columns of numbers as bytes and back, without loss: what a chunk of history is made of.

Owns how one column is written: nothing for zeros and for a column that was there before, the value for a constant, whole
numbers in as few bytes as they need, all else as doubles. Bytes of equal weight stand together, for a compressor finds more in
them then. It must not know what a column means. Another way to write one is a letter here, in both directions; letters that
were written once are never given another meaning.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Sequence

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
