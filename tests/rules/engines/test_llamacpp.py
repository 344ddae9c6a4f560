"""llama.cpp's server as its pages are, and a recording of it against what its clients measured."""

import functools
import math

import pytest
import recorded
from making import START, page_text, read
from table_checks import with_value

from agent.replay.replay import replay
from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from rules.telemetry import windows
from rules.telemetry.readings import read_all
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import Snapshot
from rules.telemetry.windows import Window

FRESH, LOADED = "llamacpp_startup.prom", "llamacpp_after_load.prom"
RECORDING = "llamacpp"
STEP_SECONDS = 15.0

# The page is made up to this long before the recorder notes its time; a request that ends within it is in the one window
# or the other. Each is worth as many tokens as it generated (or has in its prompt).
EDGE_SECONDS = 0.3

# Server and clients measure the time from first to last token of all 237 requests on their own clocks: 172.99 and 173.04 s.
SECONDS_SHARE = 0.001


POSITIONS = """\
# TYPE llamacpp:spec_decode_num_accepted_tokens_per_pos_total counter
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 30
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 20
"""


def of(text: str, t: float = START) -> Snapshot:
    page = read(text, t)
    assert (page.engine, page.generation) == ("llamacpp", "server")
    return page


def test_llamacpp_gauges_cached_tokens_and_positions() -> None:
    text = with_value(
        with_value(page_text(LOADED), "llamacpp:requests_processing", "4"), "llamacpp:requests_deferred", "8"
    )
    gauges = of(text).gauges
    assert (gauges["requests_running"], gauges["requests_waiting"]) == (4, 8)
    # prompt_tokens_total is without them, as its help says.
    counters = of(with_value(page_text(LOADED), "llamacpp:prompt_tokens_cached_total", "1000")).counters
    assert (counters["prompt_tokens"], counters["prompt_tokens_computed"]) == (59030, 58030)
    assert (counters["prefix_hit_tokens"], counters["prefix_queried_tokens"]) == (1000, 59030)
    counters = of(page_text(LOADED) + POSITIONS).counters
    assert [counters[f"spec_accepted_at_position/{place}"] for place in (0, 1)] == [30, 20]


@pytest.mark.parametrize("value", ["nan", "-nan", "NaN"])
def test_nan_breaks_only_its_family(value: str) -> None:
    """A mean of nothing; only its own family is lost."""
    text = page_text(LOADED)
    assert of(with_value(text, "llamacpp:predicted_tokens_seconds", value)) == of(text)
    page = of(with_value(text, "llamacpp:tokens_predicted_seconds_total", value))
    assert page.broken == {"generation_seconds"}
    assert page.counters["generation_tokens"] == 29144


def test_restart_is_seen_without_start_time() -> None:
    before, after = of(page_text(LOADED)), of(page_text(FRESH), START + 15)
    assert (before.started_at, after.started_at) == (None, None)
    assert windows.diff_snapshots(before, after).explain_missing("generation_tokens") is Gap.RESTARTED


@functools.cache
def shown() -> tuple[Window, ...]:
    recording, problems = load(recorded.folder(RECORDING))
    found = replay(recording, None, STEP_SECONDS)
    assert (problems, found.problems) == ((), [])
    return tuple(one.window for one in found.windows if one.replica is not None)


@functools.cache
def whole() -> Window:
    return windows.sum_windows(shown())


@functools.cache
def pages() -> tuple[tuple[float, Snapshot], ...]:
    recording, _ = load(recorded.folder(RECORDING))
    reader = PageReader("llamacpp")
    bodies = [(scrape.t, scrape.body) for scrape in scrapes(recording, [])]
    return tuple((t, reader.read(body, t)) for t, body in bodies if body is not None)


def moments(when: str, tokens: str) -> list[tuple[float, int]]:
    """When (unix seconds) each request had its first token or ended, and the tokens that it counts then."""
    return [(float(r["t_start"]) + float(r[when]), int(r[tokens])) for r in recorded.requests(RECORDING)]


@functools.cache
def spans() -> tuple[tuple[float, float], ...]:
    """When (unix seconds) each request began and ended, by its client."""
    began = [(float(r["t_start"]), float(r["e2e"])) for r in recorded.requests(RECORDING)]
    return tuple((start, start + seconds) for start, seconds in began)


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
    clients = recorded.requests(RECORDING)
    assert whole().counters["generation_tokens"] == sum(int(r["completion_tokens"]) for r in clients) == 29144
    assert whole().counters["prompt_tokens"] == sum(int(r["prompt_tokens"]) for r in clients) == 58030
    clients = recorded.requests(RECORDING)
    seconds = math.fsum(float(r["e2e"]) - float(r["ttft"]) for r in clients)
    assert whole().counters["generation_seconds"] == pytest.approx(seconds, rel=SECONDS_SHARE)


def test_mean_tpot_matches_clients() -> None:
    """Requests are not counted, so their first tokens, which took no such time, are among those it is divided by."""
    clients = recorded.requests(RECORDING)
    seconds = math.fsum(float(r["e2e"]) - float(r["ttft"]) for r in clients)
    tokens = sum(int(r["completion_tokens"]) for r in clients)
    found = read_all(whole())["tpot_mean_seconds"]
    assert found.value == pytest.approx(seconds / tokens, rel=SECONDS_SHARE)
    assert found.value == pytest.approx(seconds / (tokens - len(clients)), rel=0.01)


def test_running_and_waiting_match_slots() -> None:
    """12 clients at once on 4 slots; each sends its next request when its last one ends."""
    queueing = 0
    for t, page in pages():
        asked = [start for start, end in spans() if start <= t < end]
        if len(asked) < 12 or t - min(asked) < EDGE_SECONDS:
            continue
        queueing += 1
        assert (page.gauges["requests_running"], page.gauges["requests_waiting"]) == (4, 8)
    assert queueing == 9
