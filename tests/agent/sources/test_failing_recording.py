"""A real engine that fails: what its clients met, what its page counts, and what is told of it.

The clients' rows are the truth: which request was answered how, and when. vLLM 0.32.0, its worker killed with SIGKILL.
"""

import functools
import json
from collections import Counter
from itertools import pairwise

import pytest
import recorded

from agent.replay.replay import Replay, replay
from agent.sources.recording import load
from rules.confidence import Certainty
from rules.telemetry import windows
from rules.telemetry.arrivals import count_arrivals
from rules.telemetry.outcomes import Outcomes, outcomes
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Finding, Status

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


def ended(*names: str) -> Outcomes:
    found = outcomes(page_of(*names))
    assert isinstance(found, Outcomes)
    return found


def first(rule: str) -> Finding:
    done = replayed()
    ended = [e for e in done.ended if isinstance(e, Finding)]
    every = [*ended, *(s.finding for s in done.rule_states if s.finding is not None)]
    return min((e for e in every if e.rule == rule), key=lambda e: e.started_at)


# --- what the page counts


def test_page_counts_match_clients() -> None:
    """Of a whole life of the process: but for what falls between two scrapes."""
    whole = ("healthy", "engine dead")
    told, truth = ended(*whole), met(*whole)
    assert told.failed == pytest.approx(truth["http 500"], abs=8)
    assert told.no_room == pytest.approx(truth["http 503"], abs=2)
    assert told.bad == truth["http 400"] + truth["http 404"] == 37
    assert told.served == pytest.approx(truth[""], abs=2)
    assert told.doubt == ""
    before = ended("healthy", "healthy again")
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


# --- what is told


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
