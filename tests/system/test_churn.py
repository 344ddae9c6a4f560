"""Pods that come and go, a store that is away for long, wrong clocks: what must be kept is kept, the rest is forgotten."""

import gc
import itertools
import math
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest
from daemon_runs import configuration, write
from engine_server import engines
from evaluation_steps import EvaluationSteps
from loops import LoopParts
from making import snapshot
from stored_recordings import MemoryStore, PastStore, Sample, agent_samples, engine_samples
from test_fleet_cycles import TIER, Fleet, times, told_by_agents, told_by_engines
from waiting import StandingClock, free_port

from agent.config.load import load
from agent.daemon.assembly import Assembly, assemble
from agent.fleet import agent_series, engine_series
from agent.fleet.agent_series import AgentClock
from agent.fleet.tier_readers import ReplicaReader
from agent.gpu.collector import GpuCollector
from agent.gpu.owners import GpuAssignment
from agent.pipeline.runtime_state import TREND_MINUTES
from agent.prometheus.answers import MatrixSeries, StoreError, StoreErrorKind
from exporters.metrics import names
from rules.plan import load_bins
from rules.telemetry import windows
from rules.verdicts.verdict import Status

SKIPPED = (type, ModuleType, FunctionType, BuiltinFunctionType, MethodType, CodeType, FrameType)
"""What belongs to the program and not to what it remembers."""


def held(root: object, text: str) -> list[str]:
    """The attributes and keys that lead from `root` to `text`, outermost first, each container once."""
    found: list[str] = []
    seen: set[int] = set()
    waiting: list[tuple[object, str]] = [(root, "")]
    while waiting:
        one, path = waiting.pop()
        if isinstance(one, (str, bytes)):
            if (text if isinstance(one, str) else text.encode()) in one:  # type: ignore[operator]
                found.append(path)
            continue
        if id(one) in seen or isinstance(one, SKIPPED):
            continue
        seen.add(id(one))
        waiting.extend((each, f"{path}.{name}" if name else path) for name, each in _parts(one))
    return sorted(set(found))


def _parts(one: object) -> Iterator[tuple[str, Any]]:
    if isinstance(one, dict):
        for key, value in list(one.items()):
            yield "", key
            yield key if isinstance(key, str) else "", value
        return
    slots = (name for kind in type(one).__mro__ for name in getattr(kind, "__slots__", ()))
    named = {name: getattr(one, name, None) for name in slots if not name.startswith("__")} | getattr(
        one, "__dict__", {}
    )
    yield from named.items()
    if not named:
        yield from (("", each) for each in gc.get_referents(one))


BEGIN = 1_800_000_000.0


@contextmanager
def churning(folder: Path, generations: int) -> Iterator[Assembly]:
    """What a node agent is after so many generations of pods, one that answers and one that does not in each, and the last
    for longer than any rule looks back."""
    clock = StandingClock(BEGIN)
    assembly: Assembly | None = None
    with engines(1) as served:
        for generation in range(generations):
            target = {"url": served[0].url, "tier": "cpu-small", "replica": f"pod-{generation}"}
            dead = {**target, "url": f"http://127.0.0.1:{free_port()}/metrics", "replica": f"dead-{generation}"}
            keys = configuration([], targets=[target, dead], role="node", scrape_interval="15s")
            fresh = assemble(load(write(folder, keys)), assembly, clock=clock)
            if assembly is not None:
                fresh.take_state(assembly, clock.now, "a test")
            assembly = fresh
            served[0].asked.clear()
            for _ in range(9):
                clock.now += 15.0
                assembly.loop.run_cycle()
        assert assembly is not None
        for _ in range(TREND_MINUTES + 2):
            clock.now += 60.0
            assembly.loop.run_cycle()
        try:
            yield assembly
        finally:
            assembly.close(clock.now)


def places_of(parts: LoopParts, text: str) -> Iterator[str]:
    """The part of the loop or of the runtime state that each path to a text begins in."""
    for path in held(parts, text):
        # How the tier's replicas started is known for a while: as many starts as `rules.replicas.starts` keeps.
        yield "starts" if ".minutes.cpu-small.starts." in path else path.split(".")[2]


def test_gone_pod_leaves_only_timeline(tmp_path: Path) -> None:
    with churning(tmp_path, 3) as assembly:
        parts = LoopParts(assembly.loop, assembly.loop.source, assembly.runtime)
        assert "replicas" in places_of(parts, "dead-2")
        assert {key[1] for key in assembly.runtime.failures} == {"dead-2"}
        for gone in ("pod-0", "dead-0", "pod-1", "dead-1"):
            assert set(places_of(parts, gone)) <= {"past", "events", "starts"}, held(parts, gone)


@pytest.mark.parametrize("wrong", [-7200.0, 7200.0])
def test_wrong_pod_clock_takes_no_minute(wrong: float) -> None:
    watcher = EvaluationSteps({"t": load_bins.build_tier_context("t", None)})
    for number in range(200):
        t = BEGIN + 15.0 * number
        watcher.apply_snapshot("t", "right", snapshot(t))
        watcher.apply_snapshot("t", "wrong", snapshot(t + wrong))
        watcher.step(t)
    right = [one.window for one in watcher.minutes["t"].binned if one.replica == "right"]
    assert sum(one.expected_seconds for one in right) == 15.0 * 196
    assert sum(one.replica == "wrong" for one in watcher.minutes["t"].binned) <= 1


def test_shrinking_tier_keeps_minutes() -> None:
    watcher = EvaluationSteps({"t": load_bins.build_tier_context("t", None)})
    for number in range(80):
        t = BEGIN + 15.0 * number
        for pod in range(40 if number < 40 else 2):
            watcher.apply_snapshot("t", f"pod-{pod}", snapshot(t))
        if number == 40:
            watcher.remove_replicas({("t", f"pod-{pod}") for pod in range(2, 40)})
        watcher.step(t)
    assert sum(one.window.end <= BEGIN + 540.0 for one in watcher.minutes["t"].binned) == 9 * 40


def test_gone_replica_waits_for_no_gpu() -> None:
    gpus = GpuCollector(None)
    for number in range(3):
        gpus.note_owners({("t", f"pod-{number}"): GpuAssignment(gpus=(), missing="its GPUs are not known")}, BEGIN)
    assert held(gpus, "pod-0") == []
    assert held(gpus, "pod-2") != []


def of_pod(pod: str, gpu: str, begin: float, minutes: int) -> Iterator[Sample]:
    """What a store has of a node agent that watches one pod with one GPU."""
    agent = {"instance": f"{pod}:19095", "job": "sizewatch", names.TIER: TIER, names.REPLICA: pod, names.POOL: "mixed"}
    for number in range(4 * minutes):
        t = begin + 15.0 * number
        yield names.TARGET_UP.name, agent, t, 1.0
        yield names.TARGET_SEEN.name, agent, t, t
        yield names.REPLICA_INFO.name, {**agent, "engine": "vllm"}, t, 1.0
        yield names.FAMILY["requests_running"].name, agent, t, 1.0
        yield names.FAMILY["requests_finished"].name, agent, t, float(number)
        yield names.GPU_INFO.name, {**agent, names.GPU: gpu, "product": "H100"}, t, 1.0
        yield names.FAMILY["gpu_power_watts"].name, {**agent, names.GPU: gpu}, t, 300.0


def test_role_fleet_forgets_pods_and_their_gpus() -> None:
    several = (of_pod(f"pod-{n}", f"GPU-{n}x", BEGIN + 120.0 * n, 3 if n < 9 else 80) for n in range(10))
    api = PastStore(MemoryStore.of(itertools.chain.from_iterable(several)))
    fleet = Fleet(api, ReplicaReader(TIER, agent_series.selector(TIER), agent_series.AgentPages(), api), BEGIN)
    fleet.go(20)
    replicas = fleet.runtime.replicas
    assert {key[1] for key in replicas} <= {f"pod-{n}" for n in range(6, 10)}
    assert [one.gpu for one in replicas[TIER, "pod-9"].gpus.readouts] == ["GPU-9x"]
    fleet.go(75)
    api.store.series.clear()
    fleet.closed.clear()
    assert set(places_of(fleet.parts, "pod-0")) <= {"past", "events"}, held(fleet.parts, "pod-0")


SEEN = "sizewatch_target_last_success_timestamp_seconds"
REPLICA = "cpu-small-0"


@pytest.mark.parametrize("told", [(told_by_agents, agent_samples), (told_by_engines, engine_samples)])
def test_absent_store_ends_no_replica(told: tuple[object, object]) -> None:
    make, of = told
    samples: list[Sample] = list(of("steady"))  # type: ignore[operator]
    fleet, api = make(samples)  # type: ignore[operator]
    fleet.go(2)
    before = {key for key in fleet.loop.state.rules if key[1].replica}
    api.fails_at = 0
    fleet.go(10)
    assert [target.key for target in fleet.source.targets] == [(TIER, REPLICA)]
    assert {key for key in fleet.loop.state.rules if key[1].replica} == before != set()
    assert not [one for one in fleet.runtime.events if one.kind == "gone"]


class OnceLostStore(PastStore):
    """A store that is away for one query, the one of the number `lost`."""

    lost = math.inf

    def query_samples(self, selector: str, start: float, end: float) -> tuple[MatrixSeries, ...]:
        answer = super().query_samples(selector, start, end)
        if len(self.asked) == self.lost:
            raise StoreError(StoreErrorKind.AWAY, self.place, "connection refused")
        return answer


def long_ago(samples: list[Sample], rounds: int) -> list[Sample]:
    """One scrape in four, again and again, each time as an engine that began anew."""
    begin, end = times(samples)
    scraped = set(sorted({t for _, _, t, _ in samples})[::4])
    few = [one for one in samples if one[2] in scraped]
    return [(n, labels, t + place * (end - begin + 10.0), v) for place in range(rounds) for n, labels, t, v in few]


@cache
def samples_of_hours() -> list[Sample]:
    return long_ago(list(engine_samples("steady")), 14)


@cache
def booked_without_a_break() -> float:
    fleet, _ = told_by_engines(samples_of_hours())
    fleet.go(50)
    return booked(fleet)


@pytest.mark.parametrize(("longest", "lost"), [(math.inf, math.inf), (400.0, math.inf), (math.inf, 6), (400.0, 9)])
def test_missed_hour_is_read_in_pieces(longest: float, lost: float) -> None:
    away = OnceLostStore(MemoryStore.of(samples_of_hours()))
    reader = engine_series.EnginePages("instance")
    missed = Fleet(
        away,
        ReplicaReader(TIER, engine_series.engine_selector("vllm", 'job="vllm"'), reader, away),
        times(samples_of_hours())[0] - 1.0,
    )
    missed.go(3)
    away.fails_at = 0
    missed.go(45)
    away.fails_at, away.longest, away.lost = None, longest, lost
    away.asked.clear()
    missed.go(2)
    assert missed.source.errors == {}
    assert booked(missed) == pytest.approx(booked_without_a_break())


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
