"""Bound on the problems that are reported of one document: a file of the wrong type may have one per line."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import islice

MOST_PROBLEMS = 1_000
"""Maximum number of reported problems per document."""

FURTHER = "further problems are not told"


def cap_problems(problems: Iterable[str]) -> tuple[str, ...]:
    """Return the first MOST_PROBLEMS, with FURTHER in place of the rest. The rest is not computed."""
    several = tuple(islice(problems, MOST_PROBLEMS + 2))
    told = tuple(problem for problem in several if not problem.endswith(FURTHER))
    return (*told[:MOST_PROBLEMS], FURTHER) if len(told) < len(several) or len(told) > MOST_PROBLEMS else told
