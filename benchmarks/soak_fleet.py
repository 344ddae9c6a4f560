"""Role fleet over a store in memory: turns of a minute as fast as they can be made, with pods that come and go.

Owns the store's stand-in: what a node agent tells of a recorded engine, again and again under new names, each for a quarter of an
hour. The turns are the daemon's own (`agent.sources.store`); they run in this process, whose memory is looked at, beside a
store that keeps an hour.
"""

from __future__ import annotations

import gc
import itertools
import logging
import os
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from fleet_replica import bare_assembly
from soak_bounds import Cycle, Sample
from soak_memory import held

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE.parent / "tests" / "support")]

from stored_recordings import MemoryStore, agent_samples

from agent.config.files import load_plan
from agent.daemon.status_builder import status
from agent.fleet.agent_series import AgentPages, selector
from agent.fleet.tier_readers import ReplicaReader
from agent.pipeline import runtime_state
from agent.pipeline.loop import EvaluationLoop
from agent.pipeline.runtime_state import RuntimeState
from agent.prometheus.answers import MatrixSeries
from agent.prometheus.api import QueryCounters
from agent.sources.store import StoreSource
from exporters.metrics import exposition, self_metrics
from exporters.status.records import AgentHealth
from rules.plan.load_bins import build_tier_context
from rules.replicas import starts

TIER = "cpu-small"
TURN_SECONDS = 60.0
ALIVE_TURNS = 15
REMEMBERED_SECONDS = 3_600.0
"""Instead of the day of episodes and events that is in memory: growing is over when that is."""

REMEMBERED_PODS = 20
"""Instead of the 200 starts of a tier that are in memory, for the same reason."""

CYCLE = Cycle(turns=3 * ALIVE_TURNS, full=90)
"""All pods do the same. Minutes, episodes and events look back one hour, which are 60 turns. The 20th pod comes after 60 turns.
The samples are in the memory that is looked at, some twenty blocks each, so there are few."""

AT_ONCE = 5
BEGIN = 1_800_000_000.0
TIMES = frozenset({self_metrics.TARGET_SEEN.name})
"""Series whose values are times."""


class Churning:
    """A store: at every minute AT_ONCE pods, the oldest of which gives place to one of a new name every few minutes."""

    place = "http://memory"

    def __init__(self) -> None:
        self.counts = QueryCounters()
        samples = list(agent_samples("steady"))
        self._whole = MemoryStore.of(samples)
        times = [t for _, _, t, _ in samples]
        self._first, self._length = min(times), max(times) - min(times)

    def query_samples(self, expr: str, start: float, end: float) -> tuple[MatrixSeries, ...]:
        found: list[MatrixSeries] = []
        step = ALIVE_TURNS * TURN_SECONDS / AT_ONCE
        newest = int((end - BEGIN) // step)
        for pod in range(max(0, newest - AT_ONCE), newest + 1):
            begun = BEGIN + pod * step
            moved = begun - self._first
            inside = self._whole.query_samples(
                expr, start - moved, min(end, begun + ALIVE_TURNS * TURN_SECONDS) - moved
            )
            found += (_moved(one, pod, moved) for one in inside)
        return tuple(found)


def _moved(one: MatrixSeries, pod: int, by: float) -> MatrixSeries:
    """The series as one of another pod, so much later."""
    labels: Mapping[str, str] = {**one.labels, "replica": f"pod-{pod}-{one.labels['replica']}"}
    values = tuple(value + by for value in one.values) if one.labels["__name__"] in TIMES else one.values
    return MatrixSeries(labels, tuple(t + by for t in one.times), values)


def soak_fleet(minutes: float, turns: int) -> list[Sample]:
    """Makes turns until so many minutes or turns are over; a sample every cycle."""
    logging.getLogger("agent").setLevel(logging.ERROR)
    runtime_state.DAY_SECONDS = REMEMBERED_SECONDS
    starts.MOST = REMEMBERED_PODS
    now = BEGIN
    api = Churning()
    plan = load_plan(HERE.parent / "tests" / "plans" / "cpu-small.yaml")
    source = StoreSource(
        readers={("soak", TIER): ReplicaReader(TIER, selector(TIER), AgentPages(), api)},
        api=api,
        agent_tiers=frozenset(),
        delay_seconds=0.0,
    )
    runtime = RuntimeState()
    loop = EvaluationLoop(
        source=source,
        tiers={TIER: build_tier_context(TIER, plan.tiers[TIER])},
        sinks=(runtime,),
        clock=lambda: now,
    )
    samples: list[Sample] = []
    began = time.monotonic()
    for number in itertools.count(1):
        now += TURN_SECONDS
        loop.run_cycle()
        if number % CYCLE.turns == 0:
            samples.append(_sample(loop, runtime, number, now, time.monotonic() - began))
        if number >= turns or CYCLE.is_over(number, time.monotonic() - began, minutes):
            return samples
    raise AssertionError("counting ends")


def _sample(loop: EvaluationLoop, runtime: RuntimeState, turns: int, now: float, seconds: float) -> Sample:
    page, _ = exposition.render(status(bare_assembly(loop, runtime, "fleet"), now, AgentHealth()), "")
    text = page.decode()
    gc.collect()
    told = dict(line.split(":", 1) for line in Path("/proc/self/status").read_text().splitlines() if ":" in line)
    pods = {
        line.partition('replica="pod-')[2].partition("-")[0] for line in text.splitlines() if 'replica="pod-' in line
    }
    return Sample(
        seconds=seconds,
        turns=turns,
        now=now,
        rss_bytes=int(told["VmRSS"].split()[0]) * 1024,
        files=len(os.listdir("/proc/self/fd")),
        threads=int(told["Threads"]),
        series=sum(not line.startswith("#") for line in text.splitlines()),
        generations=len(pods),
        history_bytes=0,
        log_bytes=0,
        left_out=0,
        defects=loop.defects,
        reloads=0,
        posts=0,
        held=held(turns),
    )
