"""Changes bytes on purpose, as files and answers go wrong: cut, joined, repeated, of another type, or larger than anybody meant.

Owns the changes and nothing of any format: `Target.words` brings what is worth putting in. Another way to go wrong is a
function in CHANGES. Everything is drawn from the one `Random` that it is given, so that a seed repeats a run.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any

Change = Callable[[random.Random, bytes, bytes, Sequence[bytes]], bytes]
"""Takes chance, the input, another input to take parts of, and words."""

_NUMBER = re.compile(rb"-?\d+(?:\.\d+)?(?:[eE][+-]?\d+)?")
_NUMBERS = (
    b"0",
    b"-1",
    b"NaN",
    b"1e308",
    b"1e999",
    b"-0.0",
    b"0.1",
    b"4294967296",
    b"9007199254740993",
    b"1" + b"0" * 400,
)


def mutated(chance: random.Random, data: bytes, other: bytes, words: Sequence[bytes], most: int) -> bytes:
    """One to four changes in a row, cut to `most` bytes."""
    for _ in range(chance.choice((1, 1, 1, 2, 3, 4))):
        data = chance.choice(CHANGES)(chance, data, other, words)[:most]
    return data


def _span(chance: random.Random, data: bytes) -> tuple[int, int]:
    start = chance.randrange(len(data) + 1)
    return start, min(len(data), start + chance.choice((1, 1, 2, 4, 8, 16, 64, 256)))


def _cut_off(chance: random.Random, data: bytes, other: bytes, words: Sequence[bytes]) -> bytes:
    return data[: chance.randrange(len(data) + 1)]


def _cut_out(chance: random.Random, data: bytes, other: bytes, words: Sequence[bytes]) -> bytes:
    start, end = _span(chance, data)
    return data[:start] + data[end:]


def _bit(chance: random.Random, data: bytes, other: bytes, words: Sequence[bytes]) -> bytes:
    if not data:
        return b"\0"
    place = chance.randrange(len(data))
    return data[:place] + bytes([data[place] ^ (1 << chance.randrange(8))]) + data[place + 1 :]


def _byte(chance: random.Random, data: bytes, other: bytes, words: Sequence[bytes]) -> bytes:
    start, end = _span(chance, data)
    return data[:start] + bytes([chance.randrange(256)]) + data[min(end, start + 1) :]


def _word(chance: random.Random, data: bytes, other: bytes, words: Sequence[bytes]) -> bytes:
    start, end = _span(chance, data)
    return data[:start] + chance.choice(words or (b"\0",)) + data[chance.choice((start, end)) :]


def _repeated(chance: random.Random, data: bytes, other: bytes, words: Sequence[bytes]) -> bytes:
    start, end = _span(chance, data)
    return data[:end] + data[start:end] * chance.choice((1, 1, 2, 10, 1000)) + data[end:]


def _joined(chance: random.Random, data: bytes, other: bytes, words: Sequence[bytes]) -> bytes:
    return data[: chance.randrange(len(data) + 1)] + other[chance.randrange(len(other) + 1) :]


def _number(chance: random.Random, data: bytes, other: bytes, words: Sequence[bytes]) -> bytes:
    found = list(_NUMBER.finditer(data))
    if not found:
        return data
    one = chance.choice(found)
    return data[: one.start()] + chance.choice(_NUMBERS) + data[one.end() :]


def _lines(chance: random.Random, data: bytes, other: bytes, words: Sequence[bytes]) -> bytes:
    """A line left out, twice, or elsewhere."""
    lines = data.split(b"\n")
    place, there = chance.randrange(len(lines)), chance.randrange(len(lines))
    line = lines[place]
    if chance.random() < 0.6:
        lines.pop(place)
    if chance.random() < 0.6:
        lines.insert(there, line)
    return b"\n".join(lines)


def _value(chance: random.Random, data: bytes, other: bytes, words: Sequence[bytes]) -> bytes:
    """In a JSON document a value of another type, a key left out, or a list a thousand times as long."""
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        return _word(chance, data, other, words)
    places = list(_places(document))
    if not places:
        return data
    holder, key = chance.choice(places)
    if isinstance(holder, dict) and chance.random() < 0.2:
        del holder[key]
    elif isinstance(holder[key], list) and chance.random() < 0.3:
        holder[key] = holder[key] * chance.choice((0, 2, 1000))
    else:
        strange = (None, True, -1, 0, 1.5, 10**400, 1e308, "", "\ud800", "A" * 10_000, [], {}, [[]], "NaN", "\0\n")
        holder[key] = chance.choice(strange)
    try:
        return json.dumps(document).encode()
    except (ValueError, RecursionError):
        return data


def _places(part: Any) -> list[tuple[Any, Any]]:
    found: list[tuple[Any, Any]] = []
    waiting = [part]
    while waiting and len(found) < 5_000:
        holder = waiting.pop()
        keys = holder.keys() if isinstance(holder, dict) else range(len(holder)) if isinstance(holder, list) else ()
        for key in keys:
            found.append((holder, key))
            waiting.append(holder[key])
    return found


CHANGES: tuple[Change, ...] = (
    *(_cut_off, _cut_out, _bit, _byte, _word, _word, _word, _repeated, _joined),
    *(_number, _number, _lines, _lines, _value, _value),
)
