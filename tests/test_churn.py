"""Pods that come and go: what is keyed by their names is forgotten with them, in role node and in role fleet."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from daemon_runs import configuration, free_port, write
from engine_server import engines
from held_names import held
from stored_recordings import MemoryStore, Sample
from test_fleet_turns import TIER, Away, Fleet

from agent.assembly import Assembly, assemble
from agent.collect.gpu_owners import Owned
from agent.collect.gpus import Gpus
from agent.config import load
from agent.fleet.each import EachReplica
from agent.ledger import TREND_MINUTES
from agent.store import own_pages
from exporters import names
from rules.gpu_readout import GpuReadout

BEGIN = 1_800_000_000.0


class Time:
    def __init__(self) -> None:
        self.now = BEGIN

    def __call__(self) -> float:
        return self.now


@contextmanager
def churning(folder: Path, generations: int) -> Iterator[Assembly]:
    """What a node agent is after so many generations of pods, one that answers and one that does not in each, and the last
    for longer than any rule looks back."""
    clock = Time()
    assembly: Assembly | None = None
    with engines(1) as served:
        for generation in range(generations):
            target = {"url": served[0].url, "tier": "cpu-small", "replica": f"pod-{generation}"}
            dead = {**target, "url": f"http://127.0.0.1:{free_port()}/metrics", "replica": f"dead-{generation}"}
            keys = configuration([], targets=[target, dead], role="node", scrape_interval="15s")
            fresh = assemble(load(write(folder, keys)), assembly, clock=clock)
            if assembly is not None:
                fresh.take_over(assembly, clock.now)
            assembly = fresh
            served[0].asked.clear()
            for _ in range(9):
                clock.now += 15.0
                assembly.turns.turn()
        assert assembly is not None
        for _ in range(TREND_MINUTES + 2):
            clock.now += 60.0
            assembly.turns.turn()
        try:
            yield assembly
        finally:
            assembly.close(clock.now)


def test_nothing_but_the_days_events_and_episodes_knows_a_pod_that_is_gone(tmp_path: Path) -> None:
    with churning(tmp_path, 3) as assembly:
        turns = assembly.turns
        assert "ledger" in {place.split(".")[1] for place in held(turns, "dead-2")}
        assert {key[1] for key in turns.ledger.failures} == {"dead-2"}
        for gone in ("pod-0", "dead-0", "pod-1", "dead-1"):
            places = {place.split(".")[1] for place in held(turns, gone)}
            assert places <= {"past", "events"}, held(turns, gone)


def test_gpus_that_a_replica_was_waiting_for_are_not_waited_for_after_it_is_gone() -> None:
    class Nothing:
        def read(self, now: float) -> tuple[tuple[GpuReadout, ...], tuple[str, ...]]:
            return (), ()

        def close(self) -> None:
            return

    gpus = Gpus(Nothing())
    for number in range(3):
        gpus.trouble(("t", f"pod-{number}"), Owned(gpus=(), missing="its GPUs are not known"), BEGIN)
        gpus.keep({("t", f"pod-{number}")})
    assert held(gpus, "pod-0") == []
    assert held(gpus, "pod-2") != []


def of_pod(pod: str, gpu: str, begin: float, minutes: int) -> Iterator[Sample]:
    """What a store has of a node agent that watches one pod with one GPU."""
    agent = {"instance": f"{pod}:9095", "job": "sizewatch", names.TIER: TIER, names.REPLICA: pod, names.POOL: "mixed"}
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
    fleet = Fleet(api, EachReplica(TIER, own_pages.selector(TIER), own_pages.OwnPages(), api), BEGIN)
    fleet.go(20)
    turns = fleet.turns
    assert "GPU-9x" in turns.gpus.latest
    assert set(turns.gpus.latest) <= {f"GPU-{n}x" for n in range(6, 10)}
    assert {key[1] for key in turns.owned} <= {f"pod-{n}" for n in range(6, 10)}
    fleet.go(75)
    api.store.series.clear()
    places = {place.split(".")[1] for place in held(turns, "pod-0")}
    assert places <= {"past", "events"}, held(turns, "pod-0")
