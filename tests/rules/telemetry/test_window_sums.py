"""The sum for some families is the sum of the windows reduced to them, to the last digit."""

from dataclasses import replace
from itertools import pairwise

import pytest
import recorded

from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from rules.telemetry.families import stem
from rules.telemetry.windows import Window, diff_snapshots, sum_families, sum_windows


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
def test_sum_of_families_reads_the_same(
    windows: tuple[Window, ...], families: frozenset[str] | set[str] | tuple[str, ...]
) -> None:
    assert len(windows) > 20
    assert sum_families(windows[:1], families) is windows[0], "nothing is added: it is returned whole"
    for several in (windows, windows[:2], windows[::7]):
        whole = sum_windows(several)
        expected = replace(
            whole,
            counters={f: v for f, v in whole.counters.items() if f in families or stem(f) in families},
            histograms={f: parts for f, parts in whole.histograms.items() if f in families},
            gauges={f: gauge for f, gauge in whole.gauges.items() if f in families},
            short_seconds={f: v for f, v in whole.short_seconds.items() if f in families},
        )
        assert sum_families(several, families) == expected


def test_no_windows_have_no_sum() -> None:
    with pytest.raises(ValueError, match="no windows"):
        sum_families((), ("requests_finished",))
