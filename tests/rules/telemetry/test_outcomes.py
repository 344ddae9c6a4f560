"""What became of requests, times that contradict each other, and how windows add up.

The last part has a real engine that fails: what its clients met, what its page counts, and what is told of it. The
clients' rows are the truth: which request was answered how, and when. vLLM 0.32.0, its worker killed with SIGKILL.
"""

import functools
import json
import math
from collections import Counter
from itertools import pairwise
from typing import Any

import making
import pytest
import recorded
from judging_samples import gauge, minute
from paths import TESTS

from agent.replay.replay import Replay, replay
from agent.scrape.scrapers import PageReader
from agent.sources.recording import load
from rules.confidence import Certainty
from rules.telemetry import arrivals, windows
from rules.telemetry.arrivals import count_arrivals
from rules.telemetry.contradictions import at_once_contradiction, find_contradictions, find_page_contradiction
from rules.telemetry.histograms import Cumulative
from rules.telemetry.outcomes import READ, Outcomes, count_gone, outcomes
from rules.telemetry.readings import families_of, read
from rules.telemetry.signals import BY_NAME, Gap, Missing
from rules.telemetry.windows import Window
from rules.telemetry.work import count_served
from rules.verdicts.verdict import Finding, Status


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
    ("counters", "first_tokens", "gone", "served"),
    [
        ({"requests_finished": 0.0, "http_requests_ok": 120.0}, 120, 120.0, 120.0),
        ({"requests_finished": 0.0}, 120, 120.0, 120.0),
        ({"requests_finished": 0.0, "in_system_change": 30.0}, 120, 90.0, 105.0),
        ({"requests_finished": 300.0, "requests_failed": 20.0, "http_requests_ok": 420.0}, 500, 100.0, 400.0),
        ({"requests_finished": 300.0, "http_requests_ok": 320.0}, 500, 0.0, 300.0),  # within the order of counting
        ({"requests_finished": 300.0, "http_requests_ok": 100.0}, 300, 0.0, 300.0),  # several prompts in one request
        ({"requests_finished": 300.0, "http_requests_ok": 300.0}, 1200, 0.0, 300.0),  # four answers to one prompt
        ({"requests_finished": 0.0, "requests_arrived": 40.0, "http_requests_ok": 120.0}, 120, 0.0, 0.0),
        ({"http_requests_ok": 120.0}, 120, 0.0, None),
    ],
)
def test_client_aborts_told_two_ways(
    counters: dict[str, float], first_tokens: int, gone: float, served: float | None
) -> None:
    seen = making.window(counters=counters, histograms={"ttft_seconds": (making.histogram([0.2] * first_tokens),)})
    # Tokens belong to those that left after the first token, too.
    assert (count_gone(seen), count_served(seen)) == (gone, served)
    for families in (READ, families_of(BY_NAME["failed_share"]), families_of(BY_NAME["refused_share"])):
        assert count_gone(windows.sum_families((seen, seen), families)) == 2 * gone, "a sum of these alone tells it too"


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
        (2.0, 2.0, None, 44, "E2E mean 2 s for 44 tokens: answers were not streamed", ("ttft", "tpot")),
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


NAME, STEP_SECONDS = "failing", 5.0
EDGE_SECONDS = 2.5
"""Half a scrape interval: a request is put into the phase by its client's clock, its count by the page's."""


@functools.cache
def replayed() -> Replay:
    recording, problems = load(recorded.folder(NAME))
    assert not problems
    return replay(recording, None, STEP_SECONDS)


@functools.cache
def phases() -> dict[str, tuple[float, float]]:
    """Beginning and end of each phase (unix seconds)."""
    lines = (recorded.folder(NAME) / "events.jsonl").read_text().splitlines()
    told = [json.loads(line) for line in lines]
    begins = [(one["t"], one["name"]) for one in told if one["event"] == "phase"] + [(told[-1]["t"], "")]
    ends = {"engine dead": next(one["t"] for one in told if one["event"] == "server killed")}
    return {name: (t, ends.get(name, after)) for (t, name), (after, _) in pairwise(begins)}


def page_of(*names: str) -> Window:
    """The sum of the windows in these phases, of which each is next to the one before."""
    since, until = phases()[names[0]][0], phases()[names[-1]][1]
    shown = [w.window for w in replayed().windows if w.replica]
    return windows.sum_windows(w for w in shown if since <= w.start + EDGE_SECONDS < until)


def met(*names: str) -> Counter[str]:
    """How the clients' requests that ended in these phases were answered; "" is well."""
    since, until = phases()[names[0]][0], phases()[names[-1]][1]
    rows = recorded.requests(NAME)
    return Counter(row["error"] for row in rows if since <= float(row["t_start"]) + float(row["e2e"]) < until)


def ended_in(*names: str) -> Outcomes:
    found = outcomes(page_of(*names))
    assert isinstance(found, Outcomes)
    return found


def first(rule: str) -> Finding:
    done = replayed()
    ended = [e for e in done.ended if isinstance(e, Finding)]
    every = [*ended, *(s.finding for s in done.rule_states if s.finding is not None)]
    return min((e for e in every if e.rule == rule), key=lambda e: e.started_at)


def test_page_counts_match_clients() -> None:
    """Of a whole life of the process: but for what falls between two scrapes."""
    whole = ("healthy", "engine dead")
    told, truth = ended_in(*whole), met(*whole)
    assert told.failed == pytest.approx(truth["http 500"], abs=8)
    assert told.no_room == pytest.approx(truth["http 503"], abs=2)
    assert told.bad == truth["http 400"] + truth["http 404"] == 37
    assert told.served == pytest.approx(truth[""], abs=2)
    assert told.doubt == ""
    before = ended_in("healthy", "healthy again")
    assert before.failed / before.accepted_requests < 0.01, "before the worker died nothing had failed"


def test_front_end_counts_dead_worker_errors() -> None:
    counters = page_of("engine dead").counters
    assert counters["requests_failed"] == 0
    assert counters["http_requests_failed"] > 1600
    dead, end = phases()["engine dead"]
    after = [w.window for w in replayed().windows if w.replica and dead < w.window.start < end - 5]
    assert windows.sum_windows(after).counters["engine_steps"] == 0


def test_broken_stream_is_in_no_count() -> None:
    """200 was sent before: three of these, and ten clients that left, are answers 2xx of requests that never finished."""
    whole = ("healthy", "engine dead")
    counters, truth = page_of(*whole).counters, met(*whole)
    assert truth["error in the stream"] == 3
    assert counters["http_requests_ok"] - counters["requests_finished"] == pytest.approx(
        truth["error in the stream"] + truth["client left"], abs=2
    )
    assert counters["requests_aborted"] == 0


def test_failed_and_refused_requests_are_demand() -> None:
    for name in ("overload", "engine dead"):
        rows = recorded.requests(NAME)
        since, until = phases()[name]
        came = sum(since <= float(row["t_start"]) < until for row in rows)
        assert count_arrivals(page_of(name).counters) == pytest.approx(came, rel=0.02), name


def test_tier_answering_500_pages() -> None:
    found = first("AvailabilityBurn")
    dead = phases()["engine dead"]
    assert found.worst.status is Status.CRITICAL
    assert found.worst.certainty is Certainty.CERTAIN
    assert dead[0] < found.started_at < dead[0] + 120
    certain = next(t.t for t in found.transitions if t.certainty is Certainty.CERTAIN)
    assert certain < dead[1], "while it still fails"
    assert found.worst.causes[0].cause == "engine stopped"
    assert any("99% are promised to be served (the default" in one for one in found.worst.details)


def test_full_queue_is_a_ticket() -> None:
    found = first("RequestsRefused")
    overload = phases()["overload"]
    assert found.worst.certainty is Certainty.CERTAIN
    assert "refused for want of room (503)" in found.worst.sentence
    assert found.started_at < overload[1] + 60
