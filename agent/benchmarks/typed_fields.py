"""Typed access to a decoded result file, which refuses values of the wrong type with their place.

Absent and null are None, never zero. A wrong value (text, NaN, a negative count) raises BenchmarkError.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from agent.errors import BenchmarkError, NotAResultError

MAX_COUNT = 2**53
"""Largest count: above it a float does not hold every whole number."""

CONTRADICTION = "which cannot be"
"""Phrase in every remark about values that exclude each other and are dropped."""

_KINDS: tuple[tuple[type | tuple[type, ...], str], ...] = (
    (str, "text"),
    (bool, "true or false"),
    (Mapping, "an object"),
    ((list, tuple), "a list"),
    ((int, float), "a number"),
    (type(None), "null"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ResultFields:
    """Object of a file, located by `line` of JSON lines and `path` inside the document."""

    source: str
    line: str
    path: str
    data: Mapping[str, Any]

    @property
    def place(self) -> str:
        """Return the place in the file: `line 2`, `benchmarks[1]`, or "" for the whole file."""
        return ": ".join(part for part in (self.line, self.path) if part)

    def bad(self, text: str, *keys: str, kind: type[BenchmarkError] = BenchmarkError) -> BenchmarkError:
        """Return an error with file and place: `run.json: line 2: metrics.count is missing`."""
        path = ".".join(part for part in (self.path, *keys) if part)
        words = f"{path} {text}" if path else text
        return kind(self.source, f"{self.line}: {words}" if self.line else words)

    def left_out(self, text: str) -> NotAResultError:
        """Return the error for a load without a place in a curve, beside which others may have one."""
        return NotAResultError(f"{self.source}: {self.place}" if self.place else self.source, text)

    def get(self, *keys: str) -> Any:
        """Return the value under the keys, or None if any is absent or null."""
        here: Any = self.data
        for depth, key in enumerate(keys):
            if here is None:
                return None
            if not isinstance(here, Mapping):
                raise self.bad(f"must be an object, not {kind(here)}", *keys[:depth])
            here = here.get(key)
        return here

    def number(self, *keys: str) -> float | None:
        """Return a finite number >= 0, or None if absent or null."""
        value = self.get(*keys)
        return None if value is None else self._checked(value, *keys)

    def needed(self, *keys: str) -> float:
        """Return a required number. Raise BenchmarkError if it is absent."""
        value = self.number(*keys)
        if value is None:
            raise self.bad("is missing", *keys)
        return value

    def positive_number(self, *keys: str) -> float | None:
        """Return a measured duration or rate, or None for 0: tools write 0 for no measurement."""
        return self.number(*keys) or None

    def count(self, *keys: str) -> int | None:
        """Return a whole number (20.0 is one), or None if absent or null."""
        value = self.number(*keys)
        if value is not None and not value.is_integer():
            raise self.bad(f"must be a whole number, not {value:g}", *keys)
        if value is not None and value > MAX_COUNT:
            raise self.bad("is too large to be a count", *keys)
        return None if value is None else int(value)

    def needed_count(self, *keys: str) -> int:
        """Return a required whole number. Raise BenchmarkError if it is absent."""
        value = self.count(*keys)
        if value is None:
            raise self.bad("is missing", *keys)
        return value

    def text(self, *keys: str) -> str:
        """Return a text, or "" if absent or null."""
        value = self.get(*keys)
        if value is None:
            return ""
        if not isinstance(value, str):
            raise self.bad(f"must be text, not {kind(value)}", *keys)
        return value

    def flag(self, *keys: str) -> bool:
        """Return a boolean, or False if absent or null."""
        value = self.get(*keys)
        if value is not None and not isinstance(value, bool):
            raise self.bad(f"must be true or false, not {kind(value)}", *keys)
        return bool(value)

    def part(self, *keys: str) -> ResultFields | None:
        """Return the object under the keys, or None if absent or null."""
        value = self.get(*keys)
        return None if value is None else self._object(value, *keys)

    def parts(self, key: str) -> Iterator[ResultFields]:
        """Yield the objects of a list; nothing if absent or null."""
        for index, value in enumerate(self._list(key)):
            yield self._object(value, f"{key}[{index}]")

    def numbers(self, key: str) -> tuple[float, ...]:
        """Return a list of finite numbers >= 0; empty if absent or null."""
        return tuple(self._checked(value, f"{key}[{index}]") for index, value in enumerate(self._list(key)))

    def _object(self, value: Any, *keys: str) -> ResultFields:
        if not isinstance(value, Mapping):
            raise self.bad(f"must be an object, not {kind(value)}", *keys)
        path = ".".join(part for part in (self.path, *keys) if part)
        return ResultFields(source=self.source, line=self.line, path=path, data=value)

    def _list(self, key: str) -> Sequence[Any]:
        values = self.get(key)
        if values is not None and not isinstance(values, list | tuple):
            raise self.bad(f"must be a list, not {kind(values)}", key)
        return values or ()

    def _checked(self, value: object, *keys: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.bad(f"must be a number, not {kind(value)}", *keys)
        try:
            number = float(value)
        except OverflowError:
            number = math.inf
        if not math.isfinite(number):
            raise self.bad("must be a finite number", *keys)
        if number < 0:
            raise self.bad(f"must not be negative, but is {number:g}, {CONTRADICTION}", *keys, kind=NotAResultError)
        return number


def kind(value: object) -> str:
    """Return the type of a value in words: `text`, `a list`."""
    return next((words for kinds, words in _KINDS if isinstance(value, kinds)), f"a {type(value).__name__}")


def percentile(values: Sequence[float], share: float) -> float | None:
    """Return the percentile at `share` (0.99), linear between ranks as in numpy and all tools here."""
    if not values:
        return None
    ranked = sorted(values)
    rank = share * (len(ranked) - 1)
    below = math.floor(rank)
    above = min(below + 1, len(ranked) - 1)
    return ranked[below] + (ranked[above] - ranked[below]) * (rank - below)
