"""Problems of one document: their bound (a file of the wrong type may have one per line), and the name that was meant."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

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


def unknown_name_text(name: str, known: tuple[str, ...], what: str) -> str:
    """Return the problem text for an unknown `name`, with the closest or all known names."""
    known = known[:MOST_COMPARED]
    close = find_close_name(name, known)
    return f"is not {what}; " + (f"did you mean {close}?" if close else f"known: {', '.join(known)}")
