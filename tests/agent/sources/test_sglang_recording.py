"""A recording of SGLang 0.5.23 against what its clients measured, request by request, as far as its metrics allow.

Counts agree exactly: what finished by the end of a request, what was prefilled by its first token. Latencies lie within
their bounds, and those are wide where SGLang has no edges: nothing below 0.1 s to the first token, nothing below 100
tokens of a length.
"""

import functools
from dataclasses import dataclass
from itertools import pairwise

import pytest
import recorded
from test_recordings import FEWEST, at_edge, bounds, inside, nearest_rank, shown

from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from rules.telemetry.readings import read_all
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window, diff_snapshots

NAME = "sglang"

# HTTP and the client itself, before the first token and for each token after it.
TTFT_OVERHEAD_SECONDS = 0.02
TPOT_OVERHEAD_SECONDS = 0.0005


@dataclass(frozen=True, slots=True)
class Request:
    """One request as its client saw it, unix seconds."""

    began_at: float
    first_at: float
    ended_at: float
    prompt_tokens: int
    generated_tokens: int

    @property
    def ttft(self) -> float:
        return self.first_at - self.began_at

    @property
    def tpot(self) -> float:
        return (self.ended_at - self.first_at) / (self.generated_tokens - 1)


@functools.cache
def clients() -> tuple[Request, ...]:
    found = []
    for row in recorded.requests(NAME):
        assert not row["error"]
        start = float(row["t_start"])
        first, ended = start + float(row["ttft"]), start + float(row["e2e"])
        found.append(Request(start, first, ended, int(row["prompt_tokens"]), int(row["completion_tokens"])))
    return tuple(found)


@functools.cache
def pages() -> tuple[Snapshot, ...]:
    recording, problems = load(recorded.folder(NAME))
    assert problems == ()
    reader = PageReader()
    found = [reader.read(scrape.body, scrape.t) for scrape in scrapes(recording, []) if scrape.body is not None]
    assert len(found) == 28
    return tuple(found)


def whole_windows() -> list[Window]:
    return [window for _, window in shown(NAME) if window.coverage == 1]


# --- counts


def test_requests_and_tokens_are_counted_once() -> None:
    """From the first page to the last; the three before it are not the clients'."""
    whole = diff_snapshots(pages()[0], pages()[-1])
    mine = [request for request in clients() if inside(whole, request.ended_at)]
    prompt, generated = sum(r.prompt_tokens for r in mine), sum(r.generated_tokens for r in mine)
    assert (whole.counters["requests_finished"], len(mine)) == (286, 286)
    assert whole.counters["requests_arrived"] == 286
    assert whole.counters["http_requests_ok"] == 285, "the last answer is counted after the last page"
    assert (whole.counters["prompt_tokens"], whole.counters["generation_tokens"]) == (prompt, generated)
    assert whole.counters["prefix_queried_tokens"] == prompt
    for family in ("tpot_seconds", "e2e_seconds", "prompt_tokens_per_request"):
        assert sum(part.n for part in whole.histograms[family]) == 286, family
    assert [whole.counters[family] for family in ("preemptions", "requests_aborted")] == [0, 0]


def test_first_tokens_count_from_first_histogram() -> None:
    """A histogram appears with its first event: what happened between the page before and that one is not known."""
    assert "ttft_seconds" not in pages()[0].histograms
    late = diff_snapshots(pages()[1], pages()[-1])
    measured = [request for request in clients() if inside(late, request.first_at)]
    assert sum(part.n for part in late.histograms["ttft_seconds"]) == len(measured) == 278
    between_tokens = sum(request.generated_tokens - 1 for request in measured)
    assert sum(part.n for part in late.histograms["itl_seconds"]) == between_tokens, "nothing was in flight"


def test_windows_match_clients_within_edges() -> None:
    compared = building = 0
    for window in whole_windows():
        compared += sum(inside(window, request.ended_at) for request in clients())
        building += window.counters["requests_arrived"] > window.counters["requests_finished"]
        for family, moment, amount in (
            ("requests_arrived", "began_at", lambda _: 1),
            ("requests_finished", "ended_at", lambda _: 1),
            ("prompt_tokens", "ended_at", lambda request: request.prompt_tokens),
            ("generation_tokens", "ended_at", lambda request: request.generated_tokens),
        ):
            counted = sum(amount(r) for r in clients() if inside(window, getattr(r, moment)))
            near = sum(amount(r) for r in clients() if at_edge(window, getattr(r, moment)))
            assert abs(window.counters[family] - counted) <= near, (window.start, family)
    assert compared > 250
    assert building >= 1


# --- latencies


@pytest.mark.parametrize(
    ("family", "moment", "below", "above"),
    [
        ("tpot", "ended_at", TPOT_OVERHEAD_SECONDS, TPOT_OVERHEAD_SECONDS),
        ("ttft", "first_at", 0.0, TTFT_OVERHEAD_SECONDS),
    ],
)
def test_latencies_are_within_bounds(family: str, moment: str, below: float, above: float) -> None:
    compared = 0
    for window in whole_windows():
        measured = [getattr(r, family) for r in clients() if inside(window, getattr(r, moment))]
        if len(measured) < FEWEST:
            continue
        for q, signal in ((0.5, f"{family}_p50_seconds"), (0.99, f"{family}_p99_seconds")):
            compared += 1
            low, high = bounds(read_all(window)[signal])
            assert low - below <= nearest_rank(measured, q) <= high + above, signal
    assert compared >= 8


def test_below_100_ms_is_only_a_bound() -> None:
    """The clients measured 15 ms; SGLang's first edge says no more than that it was below 100."""
    light = [w for w in whole_windows() if max((r.ttft for r in clients() if inside(w, r.first_at)), default=1.0) < 0.1]
    assert len(light) >= 4
    for window in light:
        assert bounds(read_all(window)["ttft_p50_seconds"]) == (0.0, 0.1)


# --- gauges


def test_queue_and_cache_fill() -> None:
    """Limits of the recording: 8 running requests, 3072 tokens; 12 clients."""
    full = [window for window in whole_windows() if window.gauges["requests_waiting"].minimum >= 3]
    assert len(full) >= 2
    for window in full:
        readings = read_all(window)
        assert bounds(readings["requests_running"])[1] <= 8
        waiting, usage = readings["requests_waiting"], readings["kv_utilization"]
        assert waiting.value == pytest.approx(5, abs=1.5)
        assert usage.value == pytest.approx(0.72, abs=0.06)


def test_stale_usage_is_not_believed() -> None:
    """Three pages say 0.02 after the light phase, while no pass was made and nothing ran."""
    idle = 0
    for earlier, later in pairwise(pages()):
        if earlier.counters["engine_steps"] != later.counters["engine_steps"] or later.gauges["kv_utilization"] == 0:
            continue
        idle += 1
        window = diff_snapshots(earlier, later)
        assert "kv_utilization" not in window.gauges
        assert window.gauges["requests_running"].maximum == 0
    assert idle
