"""Problems of one document: their bound (a file of the wrong type may have one per line), and the name that was meant."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any

Path = tuple[str | int, ...]

MOST_PROBLEMS = 1_000
"""Maximum number of reported problems per document."""

MOST_COMPARED = 100
"""Maximum number of known names that an unknown name is compared with, and that its message names."""

FURTHER = "further problems are not told"


def cap_problems(problems: Iterable[str]) -> tuple[str, ...]:
    """Return the first MOST_PROBLEMS, with FURTHER in place of the rest. The rest is not computed."""
    texts = tuple(islice(problems, MOST_PROBLEMS + 2))
    rows = tuple(problem for problem in texts if not problem.endswith(FURTHER))
    return (*rows[:MOST_PROBLEMS], FURTHER) if len(rows) < len(texts) or len(rows) > MOST_PROBLEMS else rows


def find_close_name(word: str, known: Iterable[str]) -> str:
    """Return the known name that is closest to a word, or "" if none is close."""
    # Its module takes 0.13 MiB, and few documents have a mistake.
    from difflib import get_close_matches

    return next(iter(get_close_matches(word, list(known), n=1, cutoff=0.7)), "")


STEPS: Mapping[str, Path] = {"items": (0,), "additionalProperties": ("NAME",), "patternProperties": ("NAME",)}
"""Steps from a list or a mapping of a JSON Schema into its values."""


def list_keys(part: Any, sections: Mapping[str, Any], place: Path = ()) -> Iterator[Path]:
    """Yield the place of each key in a part of a JSON Schema that refers to `sections`."""
    if isinstance(part, list):
        for choice in part:
            yield from list_keys(choice, sections, place)
    elif isinstance(part, dict):
        part = sections.get(str(part.get("$ref")).rpartition("/")[2], part)
        for key, inner in part.get("properties", {}).items():
            yield (*place, key)
            yield from list_keys(inner, sections, (*place, key))
        for name, inner in part.items():
            if name != "properties":
                yield from list_keys(inner, sections, (*place, *STEPS.get(name, ())))


def find_home(path: Path, places: Sequence[Path]) -> Path:
    """Return what an unknown key may mean: a key of its section, else the only place below it, else elsewhere."""
    depth, own, below = len(path) - 1, list[Path](), list[Path]()
    for place in places:
        steps = zip(place, path[:depth], strict=False)
        if len(place) > depth and all(step in (given, 0, "NAME") for step, given in steps):
            below.append((*path[:depth], *place[depth:]))
            if len(place) == len(path):
                own.append(place[depth:])
    for candidates in (own, below, places):
        names = [str(place[-1]) for place in candidates]
        close = find_close_name(str(path[-1]), dict.fromkeys(names))
        if names.count(close) == 1:
            return candidates[names.index(close)]
    return ()


def unknown_name_text(name: str, known: tuple[str, ...], what: str) -> str:
    """Return the problem text for an unknown `name`, with the closest or all known names."""
    known = known[:MOST_COMPARED]
    close = find_close_name(name, known)
    return f"is not {what}; " + (f"did you mean {close}?" if close else f"known: {', '.join(known)}")
