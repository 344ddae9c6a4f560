"""Whether two spellings name the same thing: a model as engines, benchmarks and plans call it.

Owns these comparisons alone.
"""

from __future__ import annotations


def same_model(one: str, other: str) -> bool:
    """The same name, with or without its organisation or folder before it; capitals do not count."""
    return _last(one) == _last(other)


def _last(name: str) -> str:
    return name.casefold().rstrip("/").rpartition("/")[2]
