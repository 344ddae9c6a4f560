"""What `make chaos` found in role fleet, each short and the same every time: a store that is away for long, wrong clocks."""

import math
from collections.abc import Iterator

import pytest
from stored_recordings import MemoryStore, Sample, agent_samples, engine_samples
from test_fleet_cycles import TIER, Away, Fleet, times, told_by_agents, told_by_engines

from agent.fleet import engine_series
from agent.fleet.agent_series import AgentClock
from agent.fleet.tier_readers import ReplicaReader
from agent.prometheus.answers import MatrixSeries, StoreError, StoreErrorKind
from rules.telemetry import windows
from rules.verdicts.verdict import Status

SEEN = "sizewatch_target_last_success_timestamp_seconds"
REPLICA = "cpu-small-0"


@pytest.mark.parametrize("told", [(told_by_agents, agent_samples), (told_by_engines, engine_samples)])
def test_absent_store_ends_no_replica(told: tuple[object, object]) -> None:
    make, of = told
    samples: list[Sample] = list(of("steady"))  # type: ignore[operator]
    fleet, api = make(samples)  # type: ignore[operator]
    fleet.go(2)
    before = {key for key in fleet.loop.state.rules if key[1].replica}
    api.away = True
    fleet.go(10)
    assert [target.key for target in fleet.source.targets] == [(TIER, REPLICA)]
    assert {key for key in fleet.loop.state.rules if key[1].replica} == before != set()
    assert not [one for one in fleet.runtime.events if one.kind == "gone"]


class Small(Away):
    """A store that gives at most so many seconds at once, and counts what was asked of it."""

    most_seconds = math.inf
    fails_at = math.inf
    asked = 0

    def query_samples(self, selector: str, start: float, end: float) -> tuple[MatrixSeries, ...]:
        self.asked += 1
        if end - start > self.most_seconds:
            raise StoreError(StoreErrorKind.TOO_MUCH, self.place, "answers with more than 2000000 samples")
        if self.asked == self.fails_at:
            raise StoreError(StoreErrorKind.AWAY, self.place, "connection refused")
        return super().query_samples(selector, start, end)


def long_ago(samples: list[Sample], rounds: int) -> list[Sample]:
    """One scrape in four, again and again, each time as an engine that began anew."""
    begin, end = times(samples)
    scraped = set(sorted({t for _, _, t, _ in samples})[::4])
    few = [one for one in samples if one[2] in scraped]
    return [(n, labels, t + place * (end - begin + 10.0), v) for place in range(rounds) for n, labels, t, v in few]


@pytest.mark.parametrize(
    ("most_seconds", "fails_at"), [(math.inf, math.inf), (400.0, math.inf), (math.inf, 6), (400.0, 9)]
)
def test_missed_hour_is_read_in_pieces(most_seconds: float, fails_at: float) -> None:
    samples = long_ago(list(engine_samples("steady")), 14)
    fleet, _ = told_by_engines(samples)
    away = Small(MemoryStore.of(samples))
    reader = engine_series.EnginePages("instance")
    missed = Fleet(
        away,
        ReplicaReader(TIER, engine_series.engine_selector("vllm", 'job="vllm"'), reader, away),
        times(samples)[0] - 1.0,
    )
    for one in (fleet, missed):
        one.go(3)
    away.away = True
    for one in (fleet, missed):
        one.go(45)
    away.away, away.most_seconds, away.fails_at, away.asked = False, most_seconds, fails_at, 0
    for one in (fleet, missed):
        one.go(2)
    assert missed.source.errors == {}
    assert booked(missed) == pytest.approx(booked(fleet))


def test_tier_without_any_sample_is_unseen() -> None:
    samples = list(agent_samples("steady"))
    fleet, _ = told_by_agents([(name, {**labels, "tier": "another"}, t, v) for name, labels, t, v in samples])
    fleet.go(1)
    assert fleet.source.errors == {TIER: "the store has no sample of the tier"}


def by_a_wrong_clock(samples: list[Sample], ahead: float, since: float, until: float) -> Iterator[Sample]:
    """What the agent tells of the times of its scrapes is so many seconds ahead for a while."""
    for name, labels, t, value in samples:
        yield name, labels, t, value + ahead if name == SEEN and since <= t < until else value


def booked(fleet: Fleet) -> float:
    return windows.sum_windows(one.slice.window for one in fleet.closed).counters["requests_finished"]


@pytest.mark.parametrize("ahead", [3600.0, 120.0, -120.0, -7200.0])
@pytest.mark.parametrize("lasts", [80.0, math.inf])
def test_wrong_agent_clock_follows_the_store(ahead: float, lasts: float) -> None:
    samples = list(agent_samples("steady"))
    begin, _ = times(samples)
    wrong = list(by_a_wrong_clock(samples, ahead, begin + 60, begin + 60 + lasts))
    (fleet, _), (right, _) = told_by_agents(wrong), told_by_agents(samples)
    for _ in range(4):
        fleet.go(1)
        right.go(1)
        assert fleet.source.errors == {}
        assert fleet.result("TargetDown", REPLICA).status is Status.OK
    assert booked(fleet) == pytest.approx(booked(right), rel=0.1)


def test_agent_with_clock_ahead_is_missed() -> None:
    samples = list(agent_samples("steady"))
    begin, _ = times(samples)
    fleet, _ = told_by_agents(
        [one for one in by_a_wrong_clock(samples, 3600.0, begin, math.inf) if one[2] < begin + 100]
    )
    fleet.go(3)
    assert "no sample of the tier" in fleet.source.errors[TIER]


def test_scrapes_keep_distance_despite_wrong_clock() -> None:
    clock = AgentClock()
    repeated = [clock.scrape_time(t, 98.0) for t in (100.0, 115.0, 900.0)]
    assert (repeated, clock.behind) == ([98.0, None, None], 0.0)
    clock = AgentClock()
    told = [clock.scrape_time(1000.0 + 15.0 * n, 1000.0 + 15.2 * n - 600.0) for n in range(5)]
    assert told == pytest.approx([1000.0 + 15.2 * n for n in range(5)])
    assert clock.scrape_time(1075.0, 1074.0) == 1074.0, "it is right again"


def test_fleet_recovers_after_clock_ahead() -> None:
    samples = list(engine_samples("steady"))
    fleet, api = told_by_engines(samples)
    assert isinstance(api, Away)
    fleet.go(2, 30.0)
    fleet.now += 120.0
    right = api.store
    api.store = type(right).of([one for one in samples if one[2] <= fleet.now - 120.0])
    fleet.loop.run_cycle()
    assert TIER in fleet.source.errors
    fleet.now -= 120.0
    api.store = right
    fleet.go(2, 30.0)
    assert fleet.source.errors == {}
