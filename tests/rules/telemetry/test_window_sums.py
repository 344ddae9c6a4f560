"""The sum for some families is the sum of the windows reduced to them, to the last digit."""

from __future__ import annotations

from itertools import pairwise

import pytest
import recorded

from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from rules.telemetry.windows import Window, diff_snapshots, select_families, sum_families, sum_windows


@pytest.fixture(scope="module")
def windows() -> tuple[Window, ...]:
    recording, _ = load(recorded.folder("specdecode"))
    reader = PageReader("vllm")
    pages = [reader.read(one.body, one.t) for one in scrapes(recording, []) if one.body is not None]
    return tuple(diff_snapshots(before, after) for before, after in pairwise(pages[:40]))


@pytest.mark.parametrize(
    "families",
    [
        ("requests_finished",),
        frozenset({"ttft_seconds", "requests_waiting", "kv_utilization"}),
        {"spec_accepted_at_position", "generation_tokens"},
        (),
    ],
)
def test_only_what_is_read_is_added_and_it_is_the_same(
    windows: tuple[Window, ...], families: frozenset[str] | set[str] | tuple[str, ...]
) -> None:
    assert len(windows) > 20
    for several in (windows, windows[:2], windows[:1], windows[::7]):
        expected = sum_windows([select_families(one, families) for one in several])
        assert sum_families(several, families) == expected


def test_no_windows_have_no_sum() -> None:
    with pytest.raises(ValueError, match="no windows"):
        sum_families((), ("requests_finished",))
