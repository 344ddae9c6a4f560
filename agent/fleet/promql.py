"""Pieces of PromQL that queries over groups of replicas are made from: exact names, and lots that fit into a query.

Owns quoting and length. It knows no metric.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence

MAX_MATCHER_CHARACTERS = 12_000
"""Of one query: VictoriaMetrics takes 16 KiB (-search.maxQueryLen), Prometheus more."""

GROUP, WHAT = "sizewatch_group", "sizewatch_what"
"""Labels that a query puts on its parts."""


def quote_value(value: str) -> str:
    """A value as it stands between double quotes."""
    return value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")


def regex_any(members: Sequence[str]) -> str:
    """A quoted regular expression of exactly these names, with what all begin with written once: names of pods are long."""
    if len(members) == 1:
        return quote_value(re.escape(members[0]))
    first, last = min(members), max(members)
    same = next((n for n, (a, b) in enumerate(zip(first, last, strict=False)) if a != b), min(len(first), len(last)))
    prefix = first[:same]
    rest = "|".join(re.escape(name.removeprefix(prefix)) for name in sorted(members))
    return quote_value(f"{re.escape(prefix)}({rest})")


def set_label(expr: str, group: str, what: str) -> str:
    """The expression's series with the labels that tell whose they are and what."""
    return f'label_replace(label_replace({expr}, "{GROUP}", "{group}", "", ""), "{WHAT}", "{what}", "", "")'


def split_members(members: Iterable[str], most_characters: float) -> Iterator[tuple[str, ...]]:
    """The members in lots whose names together are at most so long."""
    lot: list[str] = []
    for member in sorted(members):
        if lot and len(regex_any([*lot, member])) > most_characters:
            yield tuple(lot)
            lot = []
        lot.append(member)
    if lot:
        yield tuple(lot)


def join_expressions(texts: Iterable[str], most_characters: int = MAX_MATCHER_CHARACTERS) -> Iterator[str]:
    """Expressions joined to queries, as many as fit into each."""
    lot: list[str] = []
    for text in texts:
        if lot and sum(map(len, lot)) + len(text) > most_characters:
            yield " or ".join(lot)
            lot = []
        lot.append(text)
    if lot:
        yield " or ".join(lot)
