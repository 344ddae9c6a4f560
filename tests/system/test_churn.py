"""Pods that come and go: what is keyed by their names is forgotten with them, in role node and in role fleet."""

import gc
import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import BuiltinFunctionType, CodeType, FrameType, FunctionType, MethodType, ModuleType
from typing import Any

import pytest
from daemon_runs import configuration, write
from engine_server import engines
from evaluation_steps import EvaluationSteps
from loops import LoopParts
from making import snapshot
from stored_recordings import MemoryStore, Sample
from test_fleet_cycles import TIER, Away, Fleet
from waiting import StandingClock, free_port

from agent.config.load import load
from agent.daemon.assembly import Assembly
from agent.daemon.factory import assemble
from agent.fleet import agent_series
from agent.fleet.tier_readers import ReplicaReader
from agent.gpu.collector import GpuCollector
from agent.gpu.owners import GpuAssignment
from agent.pipeline.runtime_state import TREND_MINUTES
from exporters.metrics import names
from rules.plan import load_bins

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
    api = Away(MemoryStore.of(itertools.chain.from_iterable(several)))
    fleet = Fleet(api, ReplicaReader(TIER, agent_series.selector(TIER), agent_series.AgentPages(), api), BEGIN)
    fleet.go(20)
    replicas = fleet.runtime.replicas
    assert {key[1] for key in replicas} <= {f"pod-{n}" for n in range(6, 10)}
    assert [one.gpu for one in replicas[TIER, "pod-9"].gpus.readouts] == ["GPU-9x"]
    fleet.go(75)
    api.store.series.clear()
    fleet.closed.clear()
    assert set(places_of(fleet.parts, "pod-0")) <= {"past", "events"}, held(fleet.parts, "pod-0")
