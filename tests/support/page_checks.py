"""Our pages of engines, and what must hold of every snapshot and window that is read from any page."""

import math
from collections.abc import Iterable, Mapping
from functools import cache

from paths import TESTS

from rules.telemetry.histograms import check_cumulative
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window

NOW = 1_800_000_000.0

MESSAGE_CHARACTERS = 1_500
"""Of one problem: what a person reads in a log line."""
MOST_PROBLEMS = 2_000
SIGNED = {"in_system_change"}
"""Counters of a window that may fall."""


@cache
def engine_pages() -> tuple[bytes, ...]:
    """Return the pages of engines, the smallest first."""
    return tuple(sorted((path.read_bytes() for path in sorted((TESTS / "pages").iterdir())), key=len))


def message_trouble(problems: Iterable[str]) -> str:
    """Return what is wrong with the words of problems: too long, too many or unprintable. Empty if nothing is."""
    several = tuple(problems)
    if len(several) > MOST_PROBLEMS:
        return f"{len(several)} problems"
    for one in several:
        if len(one) > MESSAGE_CHARACTERS:
            return f"{len(one)} characters, {one[:60]!r}"
        if not one.isprintable():
            return f"not printable: {one[:200]!r}"
    return ""


def check_numbers(values: Mapping[str, float], what: str) -> None:
    """Require finite numbers from 0 on."""
    for name, value in values.items():
        assert 0 <= value < math.inf, f"{what} {name[:60]} is {value}"


def check_snapshot(page: Snapshot) -> None:
    """Require what normalisation promises of every page that it lets through."""
    check_numbers(page.counters, "counter")
    check_numbers(page.gauges, "gauge")
    for family, one in page.histograms.items():
        assert check_cumulative(one.edges, one.counts, one.counts[-1]) is None, f"histogram {family}"
        assert one.total is None or math.isfinite(one.total), f"sum of {family}"
    assert page.broken.isdisjoint({*page.counters, *page.gauges, *page.histograms}), "a broken family is used"
    assert not (wrong := message_trouble(page.problems)), wrong


def check_window(window: Window) -> None:
    """Require what holds of a window of two such pages."""
    check_numbers({name: value for name, value in window.counters.items() if name not in SIGNED}, "increase of")
    for family, parts in window.histograms.items():
        for part in parts:
            assert all(0 <= count < math.inf for count in part.counts), f"increase of {family}"
    for family, gauge in window.gauges.items():
        check_numbers({family: gauge.integral}, "integral of")
        check_numbers({family: gauge.seconds}, "seconds of")
