"""A simulated engine: it is given requests, and can be asked for its page at any instant.

Owns the running sums of one replica and its GPUs. What a request takes at a load is the plan's own curve, so that readings
agree with the benchmark wherever the story (`agent.demo.simulation.scenario`) does not say otherwise. Windows are not its business:
the pages go the way of every page.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass

from agent.demo.simulation.loads import (
    FIRST_TOKEN_EDGES,
    LENGTH_EDGES,
    REQUEST_EDGES,
    TOKEN_EDGES,
    Loads,
    LogNormal,
    SimulatedLoad,
    lengths,
)
from rules.plan.curve import Curve
from rules.plan.schema import TierPlan
from rules.telemetry.histograms import Cumulative
from rules.telemetry.snapshots import Snapshot

EDGES: Mapping[str, tuple[float, ...]] = {
    "ttft_seconds": FIRST_TOKEN_EDGES,
    "tpot_seconds": TOKEN_EDGES,
    "itl_seconds": TOKEN_EDGES,
    "e2e_seconds": REQUEST_EDGES,
    "queue_seconds": REQUEST_EDGES,
    "prefill_seconds": REQUEST_EDGES,
    "decode_seconds": REQUEST_EDGES,
    "prompt_tokens_per_request": LENGTH_EDGES,
    "generation_tokens_per_request": LENGTH_EDGES,
}

COUNTERS = (
    *("requests_finished", "requests_aborted", "requests_failed", "requests_ended_by_length", "admission_rejections"),
    *("prompt_tokens", "prompt_tokens_computed", "generation_tokens", "preemptions", "engine_steps"),
    *("prefix_queried_tokens", "prefix_hit_tokens"),
)
GPU_COUNTERS = ("gpu_busy_seconds", "gpu_busy_covered_seconds", "gpu_energy_joules", "gpu_energy_covered_seconds")

ENDED_BY_LENGTH = 0.02
PREFILL_EXPONENT = 1.15
"""Longer prompts take more than their share until the first token: attention grows with the square of their length."""

SETTLE_SECONDS = 60.0
"""In about so long what is in the system follows the requests that arrive; chance in it lasts as long."""

MEMORY_BYTES, USED_SHARE = 80e9, 0.9
IDLE_WATTS, FULL_WATTS = 90.0, 620.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Conditions:
    """What makes a replica differ from its benchmark; None where the curve says what there is."""

    prompt_scale: float = 1.0
    generation_scale: float = 1.0
    first_token_factor: float = 1.0
    kv_level: float | None = None
    running: float | None = None
    waiting: float = 0.0
    preemptions_per_second: float = 0.0


class SimulatedEngine:
    """One replica. `started_at` and `ready_at` are those of its process, `t` up to when it has been advanced (unix seconds);
    `busy` is the share of time its GPUs worked of late.
    """

    def __init__(self, plan: TierPlan, curve: Curve, rng: random.Random, t: float) -> None:
        workload = plan.workload
        assert workload is not None, "a simulated tier has a workload"
        self._loads, self._rng, self.t = Loads(curve), rng, t
        self._model = plan.model
        self._gpus = plan.gpu.per_replica
        self._prompts = lengths(workload.prompt_tokens)
        self._outputs = lengths(workload.generation_tokens)
        self._hits = workload.prefix_hit_ratio or 0.0
        self._gpu_sums = dict.fromkeys(GPU_COUNTERS, 0.0)
        self.busy = 0.0
        self.restart(t - 3600.0, t - 3500.0)

    def restart(self, started_at: float, ready_at: float) -> None:
        """Another process: its sums begin anew."""
        self.started_at, self.ready_at = started_at, ready_at
        self.t = max(self.t, ready_at)
        self.in_system = 0.0
        self._rps: float | None = None
        self._chance = 0.0
        self._counters = dict.fromkeys(COUNTERS, 0.0)
        self._buckets = {family: [0] * len(edges) for family, edges in EDGES.items()}
        self._totals = dict.fromkeys(EDGES, 0.0)
        self._gauges: dict[str, float] = {}

    def advance(self, t: float, arrivals: int, now: Conditions) -> tuple[int, float, float]:
        """Up to `t`, with so many requests that arrived; the requests finished, their prompt and their generated tokens."""
        dt = t - self.t
        settled = 1.0 if self._rps is None else 1 - math.exp(-dt / SETTLE_SECONDS)
        rps = self._rps = (self._rps or 0.0) + settled * (arrivals / dt - (self._rps or 0.0))
        kept = math.exp(-dt / SETTLE_SECONDS)
        self._chance = kept * self._chance + math.sqrt(1 - kept**2) * self._rng.gauss(0.0, 1.0)
        slower = now.prompt_scale**PREFILL_EXPONENT * now.first_token_factor
        load = self._loads.interpolate_load(rps)
        first, each = load.first.scale(slower), load.each
        prompts, outputs = self._prompts.scale(now.prompt_scale), self._outputs.scale(now.generation_scale)
        decode = LogNormal(outputs.median * each.median, math.hypot(outputs.sigma, each.sigma))
        seconds = first.mean + decode.mean
        running = rps * seconds + 0.3 * self._chance * math.sqrt(rps * seconds + 0.1)
        running = max(0.0, round(running if now.running is None else now.running))
        finished = max(0, round(arrivals - (running + now.waiting - self.in_system)))
        self.in_system = max(0.0, self.in_system + arrivals - finished)
        running = min(running, self.in_system)
        self._levels(load, running, self.in_system - running, now)
        self._observe("ttft_seconds", first, finished)
        self._observe("tpot_seconds", each, finished)
        self._observe("e2e_seconds", LogNormal(first.median + decode.median, decode.sigma * 0.95), finished)
        self._observe("queue_seconds", LogNormal(0.002 * now.first_token_factor**3, 1.0), finished)
        self._observe("prefill_seconds", first, finished)
        self._observe("decode_seconds", decode, finished)
        prompted = self._observe("prompt_tokens_per_request", prompts, finished)
        generated = self._observe("generation_tokens_per_request", outputs, finished)
        self._observe("itl_seconds", load.gap, max(0, round(generated) - finished))
        self._count(dt, load, finished, prompted, generated, now)
        self.t = t
        return finished, prompted, generated

    def _levels(self, load: SimulatedLoad, running: float, waiting: float, now: Conditions) -> None:
        prompt, output = self._prompts.mean, self._outputs.mean / 2
        longer = (prompt * now.prompt_scale + output * now.generation_scale) / (prompt + output)
        level = load.kv * longer * (1 + 0.04 * self._chance)
        level = min(0.99, max(0.0, level)) if now.kv_level is None else now.kv_level
        self._gauges = {
            "requests_running": running,
            "requests_waiting": waiting,
            "requests_waiting_capacity": waiting,
            "requests_waiting_deferred": 0.0,
            "kv_utilization": level,
            "kv_utilization_max": level,
            "engine_awake": 1.0,
            "gpu_memory_used_bytes": USED_SHARE * MEMORY_BYTES,
            "gpu_memory_total_bytes": MEMORY_BYTES,
            "gpu_temperature_celsius": 35.0 + 35.0 * load.gpu,
            "gpu_power_limit_watts": 700.0,
        }

    def _observe(self, family: str, of: LogNormal, n: int) -> float:
        """Adds `n` observations and returns their sum."""
        if n <= 0:
            return 0.0
        edges, known = EDGES[family], self._buckets[family]
        grown = of.cumulative(edges, n, self._rng.random())
        self._buckets[family] = [a + b for a, b in zip(known, grown, strict=True)]
        # The mean of n differs from the mean of all by its standard error, and stays inside the buckets.
        error = math.sqrt(math.exp(of.sigma**2) - 1) / math.sqrt(n)
        total = n * of.mean * (1 + self._rng.gauss(0.0, 1.0) * min(0.3, error))
        low, high = _bounds(edges, grown)
        total = min(max(total, low), high)
        total = float(round(total)) if edges is LENGTH_EDGES else total
        self._totals[family] += total
        return total

    def _count(
        self, dt: float, load: SimulatedLoad, finished: int, prompted: float, generated: float, now: Conditions
    ) -> None:
        hits = round(self._hits * prompted)
        grown = {
            "requests_finished": finished,
            "requests_ended_by_length": int(finished * ENDED_BY_LENGTH + self._rng.random()),
            "prompt_tokens": prompted,
            "prompt_tokens_computed": prompted - hits,
            "generation_tokens": generated,
            "preemptions": int(now.preemptions_per_second * dt + self._rng.random() * (now.preemptions_per_second > 0)),
            "engine_steps": round(dt * (1.0 if finished == 0 else 40.0)),
            "prefix_queried_tokens": prompted,
            "prefix_hit_tokens": hits,
        }
        for family, value in grown.items():
            self._counters[family] += value
        self.busy = share = min(1.0, load.gpu * (1 + self._rng.gauss(0.0, 0.01)))
        of_gpus = dt * self._gpus
        self._gpu_sums["gpu_busy_seconds"] += share * of_gpus
        self._gpu_sums["gpu_energy_joules"] += (IDLE_WATTS + share * (FULL_WATTS - IDLE_WATTS)) * of_gpus
        for covered in ("gpu_busy_covered_seconds", "gpu_energy_covered_seconds"):
            self._gpu_sums[covered] += of_gpus

    def snapshot(self, gpus: bool = True) -> Snapshot:
        """The page as it stands; with `gpus` the sums of its GPUs too, which on a real node come from the driver."""
        counters = {**self._counters, **(self._gpu_sums if gpus else {})}
        gauges = {name: value for name, value in self._gauges.items() if gpus or not name.startswith("gpu_")}
        return Snapshot(
            t=self.t,
            engine="vllm",
            generation="v1",
            started_at=self.started_at,
            ready_at=self.ready_at,
            counters=counters,
            histograms={
                family: Cumulative(edges, tuple(map(float, self._buckets[family])), self._totals[family])
                for family, edges in EDGES.items()
            },
            gauges=gauges,
            facts={"model": self._model, "engine_versions": "0.32.0"},
        )


def _bounds(edges: tuple[float, ...], cumulative: tuple[int, ...]) -> tuple[float, float]:
    """Between which sums observations in these buckets can add up."""
    low = high = 0.0
    edge_before, count_before = 0.0, 0
    for edge, count in zip(edges, cumulative, strict=True):
        if count > count_before:
            low += (count - count_before) * edge_before
            high += (count - count_before) * edge
        edge_before, count_before = edge, count
    return low, high
