"""What became of requests, times that contradict each other, and how windows add up."""

import math
from typing import Any

import making
import pytest
from judging_samples import gauge, minute
from paths import TESTS

from agent.scrape.scrapers import PageReader
from rules.telemetry import arrivals
from rules.telemetry.contradictions import at_once_contradiction, find_contradictions, find_page_contradiction
from rules.telemetry.histograms import Cumulative
from rules.telemetry.outcomes import Outcomes, count_gone, outcomes
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Missing
from rules.telemetry.windows import Window


def ended(**counters: float) -> Outcomes:
    return outcomes(window(**counters))


def window(running: float = 3.0, **counters: float) -> Window:
    """A minute with 180 served requests beside these."""
    return minute(0, counters=counters, gauges={"requests_running": gauge(running), "requests_waiting": gauge(0.0)})


@pytest.mark.parametrize(
    ("counters", "expected"),
    [
        ({"requests_failed": 5.0, "http_requests_failed": 8.0}, {"served": 180, "failed": 8, "most_failed": 13}),
        (
            {"http_requests_failed": 40.0, "admission_rejections": 37.0, "http_requests_refused": 4.0},
            {"failed": 3, "no_room": 37, "bad": 4, "accepted_requests": 183, "all_requests": 224},
        ),
        # Failures need evidence.
        ({"http_requests_failed": 1.0, "admission_rejections": 3.0}, {"failed": 0}),
        ({"requests_failed": 0.0, "requests_aborted": 90.0}, {"failed": 0}),
    ],
)
def test_answered_errors_and_full_queue(counters: dict[str, float], expected: dict[str, float]) -> None:
    found = ended(**counters)
    assert {name: getattr(found, name) for name in expected} == expected
    assert found.doubt == ""
    assert outcomes(window()) == Missing(gap=Gap.NOT_EXPOSED)
    began_anew = minute(0, counters={"http_requests_failed": 20.0}, short_seconds={"requests_finished": 15.0})
    assert "different times" in outcomes(began_anew).doubt


@pytest.mark.parametrize(
    ("counters", "doubted"),
    [
        ({"http_requests_ok": 180.0, "http_requests_failed": 20.0, "requests_failed": 10.0}, False),
        ({"http_requests_ok": 0.0, "http_requests_failed": 20.0, "requests_failed": 500.0}, True),
        ({"requests_arrived": 20.0, "requests_failed": 23.0}, False),
        ({"requests_arrived": 20.0, "requests_failed": 30.0}, True),
    ],
)
def test_more_failures_than_requests_prove_nothing(counters: dict[str, float], doubted: bool) -> None:
    """Three requests were in the system before, and may fail now."""
    assert bool(ended(**counters).doubt) is doubted


def test_failed_requests_arrived_unserved() -> None:
    counters = {"http_requests_failed": 50.0, "requests_failed": 20.0, "admission_rejections": 10.0}
    seen = window(**counters, in_system_change=5.0)
    assert arrivals.count_arrivals(seen.counters) == 180 + 5 + 40 + 10
    assert read(BY_NAME["arrival_rps"], seen).value == pytest.approx((180 + 5 + 40 + 10) / 60)
    assert read(BY_NAME["completed_rps"], seen).value == pytest.approx(3.0)
    booked = arrivals.minute_from_window(seen)
    assert (booked.requests, booked.completed) == (235.0, 180.0)
    # Counted arrivals include them, and a tier that only fails has demand.
    counted = {"requests_arrived": 100.0, "requests_finished": 20.0, "requests_failed": 80.0}
    assert arrivals.count_arrivals(counted) == 100.0
    only_failing = minute(0, rps=0.0, counters={"http_requests_failed": 120.0})
    assert read(BY_NAME["arrival_rps"], only_failing).value == pytest.approx(2.0)


def test_shares_use_taken_and_ended() -> None:
    seen = window(http_requests_failed=40.0, admission_rejections=20.0, http_requests_refused=20.0)
    failed, refused = (read(BY_NAME[name], seen) for name in ("failed_share", "refused_share"))
    assert (failed.value, failed.n, refused.value, refused.n) == (20 / 200, 200, 40 / 240, 240)


@pytest.mark.parametrize(
    ("counters", "first_tokens", "gone"),
    [
        ({"requests_finished": 0.0, "http_requests_ok": 120.0}, 120, 120.0),
        ({"requests_finished": 0.0}, 120, 120.0),
        ({"requests_finished": 0.0, "in_system_change": 30.0}, 120, 90.0),
        ({"requests_finished": 300.0, "requests_failed": 20.0, "http_requests_ok": 420.0}, 500, 100.0),
        ({"requests_finished": 300.0, "http_requests_ok": 320.0}, 500, 0.0),  # within the order of counting
        ({"requests_finished": 300.0, "http_requests_ok": 100.0}, 300, 0.0),  # several prompts in one request
        ({"requests_finished": 300.0, "http_requests_ok": 300.0}, 1200, 0.0),  # four answers to one prompt
        ({"requests_finished": 0.0, "requests_arrived": 40.0, "http_requests_ok": 120.0}, 120, 0.0),
        ({"http_requests_ok": 120.0}, 120, 0.0),
    ],
)
def test_client_aborts_told_two_ways(counters: dict[str, float], first_tokens: int, gone: float) -> None:
    seen = making.window(counters=counters, histograms={"ttft_seconds": (making.histogram([0.2] * first_tokens),)})
    assert count_gone(seen) == gone


EDGES = (0.001, 0.1, 1.0, 10.0, 100.0, math.inf)
LENGTHS = "generation_tokens_per_request"


@pytest.mark.parametrize(
    ("ttft", "e2e", "tpot", "tokens", "text", "wrong"),
    [
        (9.0, 3.6, None, None, "TTFT mean 9 s is above E2E mean 3.6 s", ("ttft", "e2e")),
        (0.3, 2.3, 45.0, 44, "TPOT 45 s x 43 tokens is 1935 s, E2E - TTFT is 2 s", ("ttft", "tpot", "e2e")),
        (0.3, 2.3, 4.5e-5, 44, "TPOT 4.5e-05 s x 43 tokens is 0.001935 s, E2E - TTFT is 2 s", ("tpot",)),
        (0.3, 2300.0, 0.045, 44, "TPOT 0.045 s x 43 tokens is 1.935 s, E2E - TTFT is 2300 s", ("ttft", "tpot", "e2e")),
        (7e-5, 4.1, 7.5e-5, 100, "TPOT 7.5e-05 s x 99 tokens is 0.007425 s, E2E - TTFT is 4.1 s", ("ttft", "tpot")),
        (7e-5, 4.1, 0.0415, 100, "TTFT mean 7e-05 s is below a tenth of a decode step", ("ttft",)),
        (7e-5, 4.1, None, 100, "TTFT mean 7e-05 s is below a tenth of a decode step", ("ttft",)),
        (
            2.0,
            2.0,
            None,
            44,
            "TTFT mean 2 s is E2E mean 2 s for 44 tokens: answers were not streamed",
            ("ttft", "tpot"),
        ),
        (2.0, 2.001, 2e-5, 44, "answers were not streamed", ("ttft", "tpot")),
    ],
)
def test_exclusive_times_tell_both_numbers(
    ttft: float, e2e: float, tpot: float | None, tokens: float | None, text: str, wrong: tuple[str, ...]
) -> None:
    (found,) = find_contradictions(ttft=ttft, e2e=e2e, tpot=tpot, tokens=tokens)
    assert text in found.text
    assert found.wrong == wrong
    assert found.not_streamed is ("not streamed" in text)


@pytest.mark.parametrize(
    ("ttft", "e2e", "tpot", "tokens"),
    [
        (0.3, 2.285, 0.045, 44),
        (3.61, 3.6, None, None),  # rounded
        (0.02, 0.47, 0.0035, 62),  # a client with time of its own after the last token
        (30.0, 30.1, 0.02, 4),  # a long prompt, a short answer
        (30.0, 30.2, 0.01, 60),  # little of the time is decode
        (2.0, 2.0, None, 1),  # one token: nothing follows it
        (5e-4, 0.05, 0.001, 50),  # a small model
        (0.0, 0.0, None, None),
        (None, 2.0, 0.1, 44),
        (0.3, None, 0.1, 44),
    ],
)
def test_times_that_can_be_are_quiet(
    ttft: float | None, e2e: float | None, tpot: float | None, tokens: float | None
) -> None:
    assert not list(find_contradictions(ttft=ttft, e2e=e2e, tpot=tpot, tokens=tokens))


def test_clients_are_held_against_rate_and_latency() -> None:
    told = "7 rps x 2.285 s are 16 requests at once, the load is 64 clients"
    assert at_once_contradiction(64, 7.0, 2.285, 5120) == told
    assert at_once_contradiction(8, 7.0, 2.285, 40) == told.replace("64", "8")
    assert at_once_contradiction(64, 7.0, 2.285, 320) == told  # 45 s for five requests of 2 s a client
    assert at_once_contradiction(1, 7.0, 2.285, 40) == told.replace("64 clients", "1 client")
    assert at_once_contradiction(64, 7.0, 2.285, 150) is None  # the slowest requests may be most of the run
    assert at_once_contradiction(3, 1.4, 0.7, 16) is None  # too few for a mean
    assert at_once_contradiction(64, 7.0, 2.285, None) is None  # an open loop below its cap, or one with failures
    assert at_once_contradiction(22, 7.0, 2.285, 5120) is None


def page(first: tuple[float, ...], whole: tuple[float, ...], *, ttft: float, e2e: float) -> dict[str, Cumulative]:
    return {"ttft_seconds": Cumulative(EDGES, first, ttft), "e2e_seconds": Cumulative(EDGES, whole, e2e)}


MANY, RUNNING = {"generation_tokens": 100_000.0}, {"generation_tokens": 900_000.0}
USUAL = page((0, 0, 1000, 1000, 1000, 1000), (0, 0, 0, 1000, 1000, 1000), ttft=500.0, e2e=4_000.0)
BY_TOKEN = USUAL | {"tpot_seconds": Cumulative(EDGES, (0, 1000, 1000, 1000, 1000, 1000), 35.0)}
LENGTH_EDGES = (64.0, 128.0, math.inf)
FINISHED = BY_TOKEN | {LENGTHS: Cumulative(LENGTH_EDGES, (0, 1000, 1000), 100_000.0)}
BY_MICROSECONDS = {"tpot_seconds": Cumulative(EDGES, (1000,) * 6, 0.035)}
GAPS = Cumulative(EDGES, (0, *[99_000] * 5), 3_500.0)


@pytest.mark.parametrize(
    ("histograms", "counters", "wrong"),
    [
        (
            page((0, 0, 0, 0, 1000, 1000), (0, 0, 0, 1000, 1000, 1000), ttft=30_000.0, e2e=4_000.0),
            MANY,
            ("ttft_seconds", "e2e_seconds"),
        ),
        # 90 of 1,090 wait for their 600th second and have not finished: the mean TTFT is above the mean E2E, and may be.
        (page((0, 0, 1000, 1000, 1000, 1090), (0, 0, 0, 1000, 1000, 1000), ttft=54_500.0, e2e=4_000.0), MANY, None),
        # Few requests are no evidence, nor is a sum that its buckets contradict.
        (page((0, 0, 0, 0, 99, 99), (0, 0, 0, 99, 99, 99), ttft=3_000.0, e2e=400.0), MANY, None),
        (page((0, 0, 1000, 1000, 1000, 1000), (0, 0, 0, 1000, 1000, 1000), ttft=9e6, e2e=4_000.0), MANY, None),
        # Gaps of several tokens prove nothing, and no gap does.
        (USUAL | {"itl_seconds": Cumulative(EDGES, (0, 0, *[20_000] * 4), 3_500.0)}, MANY, None),
        (USUAL | {"itl_seconds": Cumulative(EDGES, (99_000,) * 6, 5.0)}, MANY, ("itl_seconds",)),
        # Of TPOT and ITL the one that agrees with the E2E is used. The slow half of the gaps may be of a request that runs.
        (FINISHED | {"itl_seconds": Cumulative(EDGES, (99_000,) * 6, 5.0)}, MANY, ("itl_seconds",)),
        (FINISHED | {"itl_seconds": Cumulative(EDGES, (0, 0, 0, *[99_000] * 3), 400_000.0)}, MANY, ("itl_seconds",)),
        (FINISHED | {"itl_seconds": Cumulative(EDGES, (0, 60_000, 60_000, *[99_000] * 3), 200_000.0)}, MANY, None),
        (FINISHED | BY_MICROSECONDS | {"itl_seconds": GAPS}, MANY, ("tpot_seconds",)),
        (BY_TOKEN | {LENGTHS: Cumulative(LENGTH_EDGES, (1000,) * 3, 900_000.0)}, MANY, None),
        (BY_TOKEN | {"queue_seconds": Cumulative(EDGES, (0, 0, 0, 1000, 1000, 1000), 4_000.0)}, MANY, None),
        (BY_TOKEN | {"queue_seconds": Cumulative(EDGES, (0, 0, 0, 0, 1000, 1000), 80e3)}, MANY, ("queue_seconds",)),
        (BY_TOKEN | {"queue_seconds": Cumulative(EDGES, (0, 1000, 1000, 1000, 1100, 1100), 9e3)}, MANY, None),
        # Generations that run prove nothing, finished ones do, unless they are more than all.
        (FINISHED, {"generation_tokens": 98_500.0}, None),
        (FINISHED | BY_MICROSECONDS, {"generation_tokens": 5e4}, ("tpot_seconds", "generation_tokens", LENGTHS)),
        (BY_TOKEN, RUNNING, None),
        (FINISHED, RUNNING, None),
        (BY_TOKEN | {LENGTHS: Cumulative(LENGTH_EDGES, (0, 0, 1000), 900_000.0)}, RUNNING, ...),
    ],
)
def test_page_contradicts_its_own_times(
    histograms: dict[str, Cumulative], counters: dict[str, float], wrong: Any
) -> None:
    found = find_page_contradiction(histograms, counters)
    if wrong is None or found is None:
        assert found is wrong
    else:
        assert wrong is ... or found[1] == wrong


def test_oldest_vllm_page_contradicts_nothing() -> None:
    body = (TESTS / "cases" / "39-ttft-zero" / "page.prom").read_bytes()
    snapshot = PageReader().read(body, 1.8e9)
    assert snapshot.contradictory == {"ttft_seconds", "itl_seconds"}
    assert "e2e_seconds" in snapshot.histograms
    (problem,) = snapshot.problems
    assert problem.startswith("ttft_seconds: ITL 7.519e-05 s x 99 tokens is 0.007444 s, E2E - TTFT is 4.125 s")
    for zeros in ((b" 0.5871782302856445\n", b" 0.0\n"), (b"} 60.0\n", b"} 0.0\n")):
        assert PageReader().read(body.replace(*zeros), 1.8e9).contradictory == {"ttft_seconds", "itl_seconds"}
