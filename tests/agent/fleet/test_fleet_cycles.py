"""Role fleet's turns over what node agents export and over engines' own series; a store in memory, and a real one for sums."""

import re
from pathlib import Path
from typing import Any

import pytest
from loops import store_loop
from paths import TESTS
from prometheus_server import victoria_metrics
from stored_recordings import MemoryStore, PastStore, Sample, agent_samples, engine_samples

from agent.config.files import load_plan
from agent.config.store import StoreConfig
from agent.fleet import agent_series, engine_series
from agent.fleet.sums import AgentSums, group_sums
from agent.fleet.tier_readers import AdaptiveReader, ReplicaReader, SummedReader, TierReader
from agent.prometheus.answers import MatrixSeries, StoreError, StoreErrorKind
from agent.prometheus.api import StoreApi
from agent.sources.store import StoreSource
from exporters.metrics import exposition
from rules.evaluator.observation import StepResult
from rules.plan.load_bins import build_tier_context
from rules.telemetry import readings, windows
from rules.telemetry.signals import Gap
from rules.verdicts.verdict import Finding, Status, Subject

PLANS = TESTS / "plans"
TIER = "cpu-small"
PLAN = load_plan(PLANS / "cpu-small.yaml")
VIEW = build_tier_context(TIER, PLAN.tiers[TIER])


def times(samples: list[Sample]) -> tuple[float, float]:
    return min(s[2] for s in samples), max(s[2] for s in samples)


class Fleet:
    """One tier's turns, a minute apart, on a clock of its own."""

    def __init__(self, api: Any, asking: TierReader, start: float) -> None:
        self.now = start
        self.closed: list[Any] = []
        self.source = StoreSource(
            readers={("test", asking.tier): asking}, api=api, agent_tiers=frozenset(), delay_seconds=0.0
        )
        self.parts = store_loop(self.source, {asking.tier: VIEW}, lambda: self.now, self)
        self.loop, self.runtime = self.parts.loop, self.parts.runtime

    def accept(self, result: StepResult) -> None:
        self.closed += result.minutes

    def end_cycle(self, now: float) -> None:
        """Minutes are kept as they close."""

    def close(self) -> None:
        """Holds nothing."""

    def go(self, turns: int = 1, seconds: float = 60.0) -> None:
        for _ in range(turns):
            self.now += seconds
            self.loop.run_cycle()

    def result(self, rule: str, replica: str | None = None) -> Any:
        return self.loop.state.rules[rule, Subject(tier=TIER, replica=replica)].result

    @property
    def total(self) -> windows.Window:
        return windows.sum_windows(closed.slice.window for closed in self.closed)

    def findings(self, rule: str) -> list[Finding]:
        opened = [s.finding for (name, _), s in self.loop.state.rules.items() if s.finding and name == rule]
        return [*opened, *(e for e in self.runtime.past if e.rule == rule)]


def told_by_agents(samples: list[Sample]) -> tuple[Fleet, PastStore]:
    api = PastStore(MemoryStore.of(samples))
    each = ReplicaReader(TIER, agent_series.selector(TIER), agent_series.AgentPages(), api)
    return Fleet(api, each, times(samples)[0] - 1.0), api


def told_by_engines(samples: list[Sample]) -> tuple[Fleet, PastStore]:
    api = PastStore(MemoryStore.of(samples))
    reader = engine_series.EnginePages("instance")
    each = ReplicaReader(TIER, engine_series.engine_selector("vllm", 'job="vllm"'), reader, api)
    return Fleet(api, each, times(samples)[0] - 1.0), api


@pytest.mark.parametrize("told", [told_by_agents, told_by_engines])
def test_store_shows_cascade_in_place(told: Any) -> None:
    of = agent_samples if told is told_by_agents else engine_samples
    fleet, _ = told(list(of("cascade_fast")))
    fleet.go(5)
    (cascade,) = fleet.findings("KvCacheCascade")
    assert cascade.subject == Subject(tier=TIER, replica="cpu-small-0")
    assert max(t.stage or 0 for t in cascade.transitions) == 4
    assert len(cascade.transitions) >= 3


def test_restarted_agent_counters_continue() -> None:
    samples = list(agent_samples("steady"))
    begin, end = times(samples)
    cut = (begin + end) / 2
    at_cut: dict[Any, float] = {}
    for name, labels, t, value in samples:
        if t <= cut:
            at_cut[name, tuple(sorted(labels.items()))] = value

    def restarted(one: Sample) -> Sample:
        name, labels, t, value = one
        cumulative = name.endswith(("_total", "_bucket", "_sum", "_count"))
        before = at_cut.get((name, tuple(sorted(labels.items()))), 0.0) if cumulative and t > cut else 0.0
        return name, labels, t, value - before

    whole, _ = told_by_agents(samples)
    again, _ = told_by_agents([restarted(one) for one in samples])
    whole.go(6)
    again.go(6)
    assert again.total.counters == pytest.approx(whole.total.counters)
    p99 = [readings.read_all(fleet.total, VIEW.basis)["ttft_p99_seconds"] for fleet in (whole, again)]
    assert p99[0] == p99[1]


def test_absent_store_is_unknown_then_caught_up() -> None:
    samples = list(agent_samples("steady"))
    fleet, api = told_by_agents(samples)
    fleet.go(2)
    assert fleet.result("TargetDown", "cpu-small-0").status is Status.OK
    api.fails_at = 0
    fleet.go(1)
    for (rule, _), rule_state in fleet.loop.state.rules.items():
        assert rule == "UnknownTooLong" or rule_state.result.reason is Gap.STALE
    assert "connection refused" in fleet.source.errors[TIER]
    assert fleet.findings("TierDown") == []
    api.fails_at = None
    fleet.go(1)
    assert fleet.source.errors == {}
    assert fleet.result("TargetDown", "cpu-small-0").status is Status.OK
    known, _ = told_by_agents(samples)
    known.go(4)
    assert fleet.total.counters == known.total.counters
    assert fleet.total.covered_seconds == pytest.approx(known.total.covered_seconds)


def test_an_agent_that_two_see_counts_once() -> None:
    samples = list(agent_samples("steady"))
    doubled = [*samples, *((n, {**labels, "instance": "node-9:19095"}, t + 0.1, v) for n, labels, t, v in samples)]
    once, _ = told_by_agents(samples)
    twice, _ = told_by_agents(doubled)
    for fleet in (once, twice):
        fleet.go(4)
    assert once.total.counters == twice.total.counters


class NewestOnly(StoreApi):
    """A store's series with their last sample only: what sums see."""

    def query_samples(self, selector: str, start: float, end: float) -> tuple[MatrixSeries, ...]:
        found = super().query_samples(selector, start, end)
        return tuple(MatrixSeries(one.labels, one.times[-1:], one.values[-1:]) for one in found)


def copies(count: int, names: tuple[str, ...], begin: float) -> list[Sample]:
    """So many replicas that do what was recorded, each a little later than the one before."""
    recorded = {name: list(agent_samples(name, PLAN)) for name in names}
    found: list[Sample] = []
    for number in range(count):
        samples = recorded[names[number % len(names)]]
        later = begin + number * 0.7 % 15 - samples[0][2]
        for name, labels, t, value in samples:
            if "replica" in labels:
                seen = later if name == "sizewatch_target_last_success_timestamp_seconds" else 0.0
                own = {**labels, "replica": f"r{number:03d}", "instance": f"node-{number}:19095"}
                found.append((name, own, t + later, value + seen))
    return found


BEGIN = 1_790_000_000.0


def adaptive(api: Any, most: int, each: ReplicaReader | None = None) -> AdaptiveReader:
    """A reader of up to `most` replicas one by one, of more in sums."""
    each = each or ReplicaReader(TIER, agent_series.selector(TIER), agent_series.AgentPages(), api)
    summed = SummedReader(TIER, AgentSums(tier=TIER), VIEW.basis.ttft_slo_seconds, api, 60.0)
    return AdaptiveReader(each, summed, agent_series.replica_count_query(TIER), most, api)


def test_sums_equal_their_replicas(tmp_path: Path) -> None:
    with victoria_metrics(tmp_path) as store:
        store.write(copies(24, ("steady", "cascade_fast", "prefix"), BEGIN))
        found = {}
        for way, most in (("each", 1000), ("sums", 0)):
            api = StoreApi(StoreConfig(url=store.url, timeout_seconds=60.0))
            newest = ReplicaReader(
                TIER, agent_series.selector(TIER), agent_series.AgentPages(), NewestOnly(api.store), 60.0
            )
            fleet = Fleet(api, adaptive(api, most, newest), BEGIN - 30)
            fleet.go(4)
            fleet.closed += fleet.loop.evaluator.flush(fleet.loop.state)
            assert fleet.source.errors == {}
            found[way] = fleet, api.counts.queries
    whole = {way: fleet.total for way, (fleet, _) in found.items()}
    assert whole["sums"].counters == pytest.approx(whole["each"].counters)
    assert whole["sums"].covered_seconds == pytest.approx(whole["each"].covered_seconds)
    each, sums = (readings.read_all(whole[way], VIEW.basis) for way in ("each", "sums"))
    assert _parts(sums) == pytest.approx(_parts(each))
    assert {c.replica for c in found["sums"][0].closed} == {"*"}
    assert len(found["sums"][0].closed) < len(found["each"][0].closed) / 4
    assert found["sums"][1] <= 4 * 5
    cascades = {way: {e.subject for e in fleet.findings("KvCacheCascade")} for way, (fleet, _) in found.items()}
    assert cascades["sums"] == cascades["each"] != set()


def _parts(read: dict[str, Any]) -> dict[tuple[str, str], Any]:
    """Each part of each reading."""
    parts = ("value", "low", "high", "n", "gap")
    return {(name, part): getattr(reading, part, None) for name, reading in read.items() for part in parts}


def regridded(samples: list[Sample], replica: str) -> list[Sample]:
    """The same with another release's bucket edges on one replica: every second edge is not there."""
    ttft = "sizewatch_ttft_seconds_bucket"
    edges = sorted({labels["le"] for name, labels, _, _ in samples if name == ttft}, key=float)
    gone = {(ttft, replica, edge) for edge in edges[1:-1:2]}
    return [one for one in samples if (one[0], one[1].get("replica"), one[1].get("le")) not in gone]


def test_differing_buckets_are_never_summed(tmp_path: Path) -> None:
    samples = regridded(copies(6, ("steady",), BEGIN), "r002")
    with victoria_metrics(tmp_path) as store:
        store.write(samples)
        api = StoreApi(StoreConfig(url=store.url, timeout_seconds=60.0))
        fleet = Fleet(api, adaptive(api, 0), BEGIN - 30)
        fleet.go(4)
    parts = fleet.total.histograms["ttft_seconds"]
    finished = fleet.total.histograms["e2e_seconds"]
    assert len(parts) == len(finished) == 1
    assert parts[0].n == pytest.approx(finished[0].n, rel=0.1)


def test_growing_tier_switches_to_sums(tmp_path: Path) -> None:
    samples = copies(6, ("steady",), BEGIN)
    grown = [one for one in samples if one[2] > BEGIN + 75 or one[1]["replica"] in ("r000", "r001")]
    with victoria_metrics(tmp_path) as store:
        store.write(grown)
        api = StoreApi(StoreConfig(url=store.url, timeout_seconds=60.0))
        reader = adaptive(api, 3)
        fleet = Fleet(api, reader, BEGIN - 30)
        read = []
        for _ in range(4):
            fleet.go(1)
            read.append((reader.sums, len(fleet.source.targets)))
        assert fleet.source.errors == {}
    assert read == [(False, 2), (False, 6), (True, 6), (True, 6)]
    assert fleet.result("TierDown").status is Status.OK


def test_refused_sums_are_a_gap(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(api: StoreApi, *query: object) -> None:
        raise StoreError(StoreErrorKind.TOO_MUCH, api.place, "too many samples")

    monkeypatch.setattr(StoreApi, "query_range", refuse)
    with victoria_metrics(tmp_path) as store:
        store.write(copies(4, ("steady",), BEGIN))
        api = StoreApi(StoreConfig(url=store.url, timeout_seconds=60.0))
        fleet = Fleet(api, adaptive(api, 0), BEGIN - 30)
        fleet.go(3)
        assert "too many samples" in fleet.source.errors[TIER]
        assert all(c.slice.window.covered_seconds == 0 for c in fleet.closed)
        turn = []
        for observation in fleet.source.observe(fleet.now + 60.0):
            fleet.source.take_windows(fleet.loop.evaluator.step(fleet.loop.state, observation))
            turn.append((bool(observation.scrapes), TIER in observation.unavailable))
    # Pages came: the rules of their replicas are evaluated before the tier is unknown.
    assert turn == [(True, False), (False, True)]


def test_replica_verdicts_are_exported_once() -> None:
    fleet, _ = told_by_agents(list(agent_samples("steady")))
    fleet.go(3)

    def exported(tiers: frozenset[str]) -> set[tuple[str, str]]:
        """Replica and rule of every verdict on the page of an agent that exports these tiers of other agents."""
        fleet.source.agent_tiers = tiers
        page, _ = exposition.render(fleet.parts.status(fleet.now, "fleet"), "")
        series = {name for name in page.decode().split() if name.startswith("sizewatch_requests_running{")}
        assert bool(series) is not bool(tiers)
        return set(re.findall(r'sizewatch_verdict\{replica="([^"]*)",rule="([^"]*)"', page.decode()))

    whole, everything = exported(frozenset({TIER})), exported(frozenset())
    assert ("", "TierDown") in whole
    assert {replica for replica, _ in whole} == {""}
    assert ("cpu-small-0", "TargetDown") in everything
    assert whole < everything


def test_gpus_across_nodes_are_joined() -> None:
    samples = list(agent_samples("steady"))
    labels = {"tier": TIER, "pool": "mixed", "replica": "cpu-small-0", "job": "sizewatch"}
    scrapes = sorted({t for name, _, t, _ in samples if name == "sizewatch_target_up"})
    gpus: list[Sample] = []
    for gpu, instance, late, ratio in (("GPU-a", "node-1:19095", 0.0, 0.25), ("GPU-b", "node-2:19095", 1.3, 0.75)):
        own = {**labels, "gpu": gpu, "instance": instance}
        gpus += [("sizewatch_gpu_gr_engine_active_ratio", own, t - late, ratio) for t in scrapes]
    fleet, _ = told_by_agents([*samples, *gpus])
    alone, _ = told_by_agents(samples)
    for one in (fleet, alone):
        one.go(4)
    whole = fleet.total
    assert whole.gauges["gpu_gr_engine_active"].maximum == 0.75
    assert readings.read_all(whole, VIEW.basis)["gpu_utilization"].value == pytest.approx(0.5, abs=0.02)  # type: ignore[union-attr]
    assert [one.gpu for one in fleet.runtime.replicas[TIER, "cpu-small-0"].gpus.readouts] == ["GPU-a", "GPU-b"]
    assert whole.counters == alone.total.counters


def test_foreign_series_are_ignored() -> None:
    strange = [{"__name__": "sizewatch_x_total"}, {"sizewatch_part": "a.b.sums"}, {"sizewatch_part": "." * 2000}]
    assert group_sums((MatrixSeries(labels, (0.0, 60.0), (1.0, 2.0)) for labels in strange), 0.0, 60.0) == {}
