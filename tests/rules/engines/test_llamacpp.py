"""llama.cpp's server as its pages are, and a recording of it against what its clients measured."""

import functools
import math

import pytest
import recorded

from agent.replay.replay import replay
from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from rules.telemetry import windows
from rules.telemetry.readings import read_all
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window

RECORDING = "llamacpp"
STEP_SECONDS = 15.0

# The page is made up to this long before the recorder notes its time; a request that ends within it is in the one window
# or the other. Each is worth as many tokens as it generated (or has in its prompt).
EDGE_SECONDS = 0.3

# Server and clients measure the time from first to last token of all 237 requests on their own clocks: 172.99 and 173.04 s.
SECONDS_SHARE = 0.001


@functools.cache
def shown() -> tuple[Window, ...]:
    recording, problems = load(recorded.folder(RECORDING))
    found = replay(recording, None, STEP_SECONDS)
    assert (problems, found.problems) == ((), [])
    return tuple(one.window for one in found.windows if one.replica is not None)


@functools.cache
def pages() -> tuple[tuple[float, Snapshot], ...]:
    recording, _ = load(recorded.folder(RECORDING))
    reader = PageReader("llamacpp")
    bodies = [(scrape.t, scrape.body) for scrape in scrapes(recording, [])]
    return tuple((t, reader.read(body, t)) for t, body in bodies if body is not None)


def moments(when: str, tokens: str) -> list[tuple[float, int]]:
    """When (unix seconds) each request had its first token or ended, and the tokens that it counts then."""
    return [(float(r["t_start"]) + float(r[when]), int(r[tokens])) for r in recorded.requests(RECORDING)]


@pytest.mark.parametrize(
    ("family", "when", "tokens"),
    [("generation_tokens", "e2e", "completion_tokens"), ("prompt_tokens_computed", "ttft", "prompt_tokens")],
)
def test_window_tokens_match_clients(family: str, when: str, tokens: str) -> None:
    """Generated ones count when their request ends, prompts when they are done."""
    compared = exact = 0
    for window in shown():
        truth = at_edges = 0
        for t, n in moments(when, tokens):
            truth += n if window.start < t <= window.end else 0
            at_edges += n if min(abs(t - window.start), abs(t - window.end)) <= EDGE_SECONDS else 0
        assert abs(window.counters[family] - truth) <= at_edges, window.start
        compared, exact = compared + 1, exact + (window.counters[family] == truth)
    assert compared >= 8
    assert exact >= compared - 2


def test_recording_totals_match_clients() -> None:
    """Requests are not counted, so their first tokens, which took no such time, are among those TPOT is divided by."""
    clients = recorded.requests(RECORDING)
    seconds = math.fsum(float(r["e2e"]) - float(r["ttft"]) for r in clients)
    tokens = sum(int(r["completion_tokens"]) for r in clients)
    whole = windows.sum_windows(shown())
    assert whole.counters["generation_tokens"] == tokens == 29144
    assert whole.counters["prompt_tokens"] == sum(int(r["prompt_tokens"]) for r in clients) == 58030
    assert whole.counters["generation_seconds"] == pytest.approx(seconds, rel=SECONDS_SHARE)
    found = read_all(whole)["tpot_mean_seconds"]
    assert found.value == pytest.approx(seconds / tokens, rel=SECONDS_SHARE)
    assert found.value == pytest.approx(seconds / (tokens - len(clients)), rel=0.01)


def test_running_and_waiting_match_slots() -> None:
    """12 clients at once on 4 slots; each sends its next request when its last one ends."""
    queueing, spans = 0, [(float(r["t_start"]), float(r["e2e"])) for r in recorded.requests(RECORDING)]
    for t, page in pages():
        asked = [start for start, seconds in spans if start <= t < start + seconds]
        if len(asked) < 12 or t - min(asked) < EDGE_SECONDS:
            continue
        queueing += 1
        assert (page.gauges["requests_running"], page.gauges["requests_waiting"]) == (4, 8)
    assert queueing == 9
