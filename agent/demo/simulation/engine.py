"""Simulated engine: takes requests and shows its metrics page at any time, at the latencies of the plan's curve.

Lengths and latencies are log-normal, as counts of vLLM's buckets. Every bucket gets its share each time, rounded with
a random number that is passed in. So sums over a day keep the distribution.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache

from rules.plan.curve import Curve
from rules.plan.schema import TierPlan, TokenQuantiles
from rules.telemetry.histograms import Cumulative
from rules.telemetry.snapshots import Snapshot

Z95, Z99 = 1.6449, 2.3263
"""Standard deviations above the median at which P95 and P99 of a normal distribution lie."""

_TO_MINUTES = (0.3, 0.5, 0.8, 1.0, 1.5, 2.0, 2.5, 5.0, 10.0, 15.0, 20.0, 30.0, 40.0, 50.0, 60.0, 120.0, 240.0, 480.0)
_TO_SECONDS = (0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0, 20.0, 40.0, 80.0)

REQUEST_EDGES = (*_TO_MINUTES, 960.0, 1920.0, 7680.0, math.inf)
FIRST_TOKEN_EDGES = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, *_TO_SECONDS, 160.0, 640.0, 2560.0, math.inf)
TOKEN_EDGES = (0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, *_TO_SECONDS[2:], math.inf)
LENGTH_EDGES = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0, 10_000.0, math.inf)
"""As a page of vLLM 0.32 prints them (vllm/v1/metrics/loggers.py); lengths for a model of 16384 tokens."""

MEMORY_GAUGES = {"gpu_memory_used_bytes": 70.4e9, "gpu_memory_total_bytes": 80e9}
IDLE_WATTS, FULL_WATTS = 90.0, 650.0


def gpu_sums(share: float, seconds: float) -> dict[str, float]:
    """Return the counters of GPUs that worked a share (0 to 1) of so many seconds."""
    joules = (IDLE_WATTS + share * (FULL_WATTS - IDLE_WATTS)) * seconds
    return {
        "gpu_busy_seconds": share * seconds,
        "gpu_busy_covered_seconds": seconds,
        "gpu_energy_joules": joules,
        "gpu_energy_covered_seconds": seconds,
    }


@dataclass(frozen=True, slots=True)
class LogNormal:
    """Median and standard deviation of the logarithm."""

    median: float
    sigma: float

    @staticmethod
    def from_quantiles(p50: float, high: float, z: float = Z99) -> LogNormal:
        """From the median and the quantile that lies `z` standard deviations above it."""
        return LogNormal(p50, max(1e-6, math.log(high / p50) / z))

    @property
    def mean(self) -> float:
        return self.median * math.exp(self.sigma**2 / 2)

    def scale(self, factor: float) -> LogNormal:
        return LogNormal(self.median * factor, self.sigma)

    def cumulative(self, edges: tuple[float, ...], n: int, chance: float) -> tuple[int, ...]:
        """Return how many of `n` lie at or below each edge, rounded up with `chance` (0 to 1)."""
        shares = _shares(round(self.median, 6), round(self.sigma, 4), edges)
        return (*[min(n, int(n * share + chance)) for share in shares[:-1]], n)


@lru_cache(maxsize=8192)
def _shares(median: float, sigma: float, edges: tuple[float, ...]) -> tuple[float, ...]:
    scale = sigma * math.sqrt(2)
    middle = math.log(median)
    finite = (0.5 * (1 + math.erf((math.log(edge) - middle) / scale)) for edge in edges[:-1])
    return (*finite, 1.0)


STEPS = 200
"""Loads up to the last point of the curve that are told apart."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedLoad:
    """A replica at one load of its benchmark: TTFT, TPOT, the gaps between tokens; shares of GPU time and KV cache."""

    first: LogNormal
    each: LogNormal
    gap: LogNormal
    gpu: float
    kv: float


def load_at(curve: Curve, rps: float) -> SimulatedLoad:
    """Return what the curve says of a load (completed requests per second); beyond its last point, what that says."""
    return _load(curve, min(STEPS, max(1, round(rps / curve.top_rps * STEPS))))


@lru_cache
def _load(curve: Curve, step: int) -> SimulatedLoad:
    rps = step / STEPS * curve.top_rps
    bin, _ = curve.place(rps, None)

    def at(metric: str) -> float:
        assert bin is not None, "the curve of a simulated tier has a place for every load"
        expected = curve.expectation(bin, metric, rps)
        assert expected is not None, "the curve of a simulated tier has every metric"
        return expected.value

    each = LogNormal.from_quantiles(at("tpot_p50_seconds"), at("tpot_p99_seconds"))
    return SimulatedLoad(
        first=LogNormal.from_quantiles(at("ttft_p50_seconds"), at("ttft_p99_seconds")),
        each=each,
        gap=LogNormal.from_quantiles(each.median, at("itl_p99_seconds")),
        gpu=at("gpu_utilization"),
        kv=at("kv_utilization"),
    )


def lengths(planned: TokenQuantiles | None) -> LogNormal:
    """Return planned lengths as a distribution: requests differ from the plan only where the scenario says so."""
    assert planned is not None, "a simulated tier has lengths"
    assert planned.p50 and planned.p95, "a simulated tier has lengths"  # noqa: PT018
    return LogNormal.from_quantiles(planned.p50, planned.p95, Z95)


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

ENDED_BY_LENGTH = 0.02
PREFILL_EXPONENT = 1.15
"""Longer prompts take more than their share until the first token: attention grows with the square of their length."""

SETTLE_SECONDS = 60.0
"""In about so long what is in the system follows the requests that arrive; chance in it lasts as long."""


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
    """One replica. `started_at` and `ready_at` are those of its process, `t` up to when it has been advanced (unix seconds)."""

    def __init__(self, plan: TierPlan, curve: Curve, rng: random.Random, t: float) -> None:
        workload = plan.workload
        assert workload is not None, "a simulated tier has a workload"
        self._curve, self._rng, self.t = curve, rng, t
        self._model = plan.model
        self._gpus = plan.gpu.per_replica
        self._prompts = lengths(workload.prompt_tokens)
        self._outputs = lengths(workload.generation_tokens)
        self._hits = workload.prefix_hit_ratio or 0.0
        self._gpu_sums = gpu_sums(0.0, 0.0)
        # So old that its start is no event of the weeks.
        self.restart(t - 30 * 86_400.0, t - 30 * 86_400.0 + 100.0)

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
        load = load_at(self._curve, rps)
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
            **MEMORY_GAUGES,
        }

    def _observe(self, family: str, of: LogNormal, n: int) -> float:
        if n <= 0:
            return 0.0
        edges, known = EDGES[family], self._buckets[family]
        grown = of.cumulative(edges, n, self._rng.random())
        self._buckets[family] = [a + b for a, b in zip(known, grown, strict=True)]
        # The mean of n differs from the mean of all by its standard error, and stays inside the buckets.
        error = math.sqrt(math.exp(of.sigma**2) - 1) / math.sqrt(n)
        total = n * of.mean * (1 + self._rng.gauss(0.0, 1.0) * min(0.3, error))
        counts = [now - below for below, now in zip((0, *grown), grown, strict=False)]
        low = math.fsum(count * edge for count, edge in zip(counts, (0.0, *edges), strict=False))
        high = math.fsum(count * edge for count, edge in zip(counts, edges, strict=True) if count)
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
        busy = min(1.0, load.gpu * (1 + self._rng.gauss(0.0, 0.01)))
        for family, value in gpu_sums(busy, dt * self._gpus).items():
            self._gpu_sums[family] += value

    def snapshot(self) -> Snapshot:
        """Return the page as it stands, with the sums of its GPUs, which on a real node come from the driver."""
        return Snapshot(
            t=self.t,
            engine="vllm",
            generation="v1",
            started_at=self.started_at,
            ready_at=self.ready_at,
            counters=self._counters | self._gpu_sums,
            histograms={
                family: Cumulative(edges, tuple(map(float, self._buckets[family])), self._totals[family])
                for family, edges in EDGES.items()
            },
            gauges=self._gauges,
            facts={"model": self._model, "engine_versions": "0.32.0"},
        )
