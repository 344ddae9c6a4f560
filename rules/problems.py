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
    """Return what an unknown key may mean: a key of its section, or the place of another section's.

    Empty if none is close, or if several sections have a key of this name.
    """
    key, names = str(path[-1]), [str(place[-1]) for place in places]
    close = key
    if key not in names:
        close = find_close_name(key, dict.fromkeys(names))
    homes = [place for place, name in zip(places, names, strict=True) if name == close]
    if len(homes) == 1 and (len(homes[0]), homes[0][0]) != (len(path), path[0]):
        return homes[0]
    if homes and close != key:
        return (close,)
    return ()


def unknown_name_text(name: str, known: tuple[str, ...], what: str) -> str:
    """Return the problem text for an unknown `name`, with the closest or all known names."""
    known = known[:MOST_COMPARED]
    close = find_close_name(name, known)
    return f"is not {what}; " + (f"did you mean {close}?" if close else f"known: {', '.join(known)}")
