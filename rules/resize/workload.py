"""Present workload beside the planned one (guide 9.1, Step 1), guardrails that fit it (guide 9.4), and its benchmark.

To add a quantity: a field of `WorkloadNow`. To add a load of the benchmark: a row of LOADS.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from rules.catalogue.registry import BY_NAME as RULES
from rules.catalogue.registry import CATALOGUE
from rules.confidence import nearest_rank
from rules.methods.drift import LENGTHS
from rules.plan.guardrails import Guardrail, judge_guardrails
from rules.resize.production_summary import ProductionSummary
from rules.telemetry import histograms
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalValue
from rules.telemetry.work import mean_length
from rules.verdicts.context import SEPARATE

NOTHING_BOOKED = Missing(gap=Gap.SCRAPE_FAILED, text="no hour of this time is in the history")

QUANTILES = ("p50", "p95", "p99")

TOWARDS = {
    frozenset({"prompts"}): "rag",
    frozenset({"outputs"}): "code",
    frozenset({"prompts", "outputs"}): "agentic",
}
"""Archetype that traffic moves to, by the lengths that grow (guide 1.2, figure 1.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Quantile of prompts or outputs in tokens, observed and planned (None: not in the plan).

    `drift` is the factor of WorkloadDrift.
    """

    what: str
    quantile: str
    observed: SignalValue
    planned: float | None
    drift: float

    @property
    def factor(self) -> float | None:
        """Return the best estimate of observed by planned length."""
        if not isinstance(self.observed, Reading) or self.observed.value is None or not self.planned:
            return None
        return self.observed.value / self.planned

    @property
    def factors(self) -> tuple[float, float | None] | None:
        """Return the bounds of that ratio, the upper one None if open."""
        if not isinstance(self.observed, Reading) or not self.planned:
            return None
        low, high = self.observed.low or 0.0, self.observed.high
        return low / self.planned, None if high is None else high / self.planned

    @property
    def longer(self) -> bool:
        """Return whether it is surely longer than planned by more than `drift`."""
        return self.factors is not None and self.factors[0] > self.drift

    @property
    def shorter(self) -> bool:
        high = self.factors[1] if self.factors is not None else None
        return high is not None and high < 1 / self.drift


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadNow:
    """Present workload: lengths, rates of the whole tier (None: unknown) and mean tokens a request.

    `peak_rps` arrived in at least three stretches of five minutes, `highest_rps` in the busiest, `p95_rps` in all but
    one of twenty. `archetype` is the plan's, `towards` the one that lengths move to, or "".
    """

    lengths: tuple[Length, ...]
    requests: float
    average_rps: float | None
    peak_rps: float | None
    p95_rps: float | None
    highest_rps: float | None
    planned_average_rps: float | None
    planned_peak_rps: float | None
    prompt_mean: float | None
    generation_mean: float | None
    archetype: str
    towards: str

    @property
    def peak_to_average(self) -> float | None:
        return self.peak_rps / self.average_rps if self.peak_rps and self.average_rps else None


def measure_workload(seen: ProductionSummary) -> WorkloadNow:
    plan = seen.context.plan
    planned = plan.workload if plan else None
    rates = planned.requests_per_second if planned else None
    lengths = tuple(_length(seen, word, key, name) for word, _, key in LENGTHS for name in QUANTILES)
    arrivals, lately = sorted((rate.rps for rate in seen.rates), reverse=True), seen.lately
    is_known = len(arrivals) >= SEPARATE
    archetype = planned.archetype if planned and planned.archetype else ""
    # The archetype of longer prompts, longer outputs or both (guide 1.2).
    towards = TOWARDS.get(frozenset(length.what for length in lengths if length.longer), "")
    return WorkloadNow(
        lengths=lengths,
        requests=seen.total.counters.get("requests_finished", 0.0) if seen.total else 0.0,
        average_rps=seen.average_rps,
        peak_rps=arrivals[SEPARATE - 1] if is_known else None,
        p95_rps=nearest_rank(arrivals, 0.95) if is_known else None,
        highest_rps=arrivals[0] if is_known else None,
        planned_average_rps=rates.average if rates else None,
        planned_peak_rps=rates.peak if rates else None,
        prompt_mean=mean_length(lately, "prompt_tokens", "prompt_tokens_per_request") if lately else None,
        generation_mean=mean_length(lately, "generation_tokens", "generation_tokens_per_request") if lately else None,
        archetype=archetype,
        towards="" if towards == archetype else towards,
    )


def _length(seen: ProductionSummary, word: str, key: str, name: str) -> Length:
    plan = seen.context.plan
    part = getattr(plan.workload, key) if plan and plan.workload else None
    planned: float | None = getattr(part, name) if part else None
    observed: SignalValue = NOTHING_BOOKED
    if seen.lately is not None:
        observed = read(BY_NAME[f"{key}_{name}"], seen.lately, seen.context.basis)
    drift = RULES["WorkloadDrift"].limit("factor", seen.context.limits)
    return Length(what=word, quantile=name, observed=observed, planned=planned, drift=drift)


def list_guardrails(seen: ProductionSummary, workload: WorkloadNow) -> tuple[Guardrail, ...]:
    """Return the guardrails of a planned tier against production: lengths of the last week, and the busiest arrivals."""
    plan, keys = seen.context.plan, {word: key for word, _, key in LENGTHS}
    if plan is None:
        return ()
    lengths = {f"{keys[length.what]}_{length.quantile}": length.observed for length in workload.lengths}
    return judge_guardrails(
        plan,
        partial(CATALOGUE["Guardrails"].limit, overrides=seen.context.limits),
        {signal: reading for signal, reading in lengths.items() if isinstance(reading, Reading)},
        workload.peak_rps,
    )


LOADS = (
    ("average_rps", 0.5, "half the average"),
    ("average_rps", 1.0, "average"),
    ("peak_rps", 1.0, "third busiest five minutes"),
    ("highest_rps", 1.0, "busiest five minutes"),
)
"""Loads of the benchmark within production: field of `WorkloadNow`, factor, origin."""

STEP, TOP, APART = 1.25, 2.0, 1.1
"""Factor between loads above production's highest, the last one as its multiple, and the least factor between loads. Ours:
capacity is uncertain by a quarter; above the guide's largest safety factor (9.1 step 11: 1.5); closer is chance."""

SMALLEST_BLOCK, MOST_BLOCKS = 16, 64
"""Tokens of the smallest block of a prompt, and blocks of a mean prompt: long prompts get larger blocks."""

NOT_EXPOSED = (
    "which output belongs to which prompt is not exposed: lengths are paired by chance",
    "arrivals within a minute are not exposed: they are at random times (Poisson)",
)
SHARING_NOT_EXPOSED = (
    "which prompts share a prefix is not exposed: all begin with the same tokens, as many as the hit ratio needs",
    "how many prefixes there are, and how long each stays cached, is not exposed: it is not reproduced",
)
"""What no engine's metrics tell of requests, and what stands in its place."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkLoad:
    """Load of one replica: `rps` arrivals a second."""

    rps: float
    origin: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkWorkload:
    """Production as a benchmark of one replica: rising lengths (tokens), loads, and what production does not expose.

    Every prompt begins with the same `shared_blocks` blocks of `block_tokens` tokens; its last block is always its own.
    """

    prompts: tuple[int, ...]
    generations: tuple[int, ...]
    block_tokens: int
    shared_blocks: int
    prefix_hit_ratio: SignalValue
    loads: tuple[BenchmarkLoad, ...]
    remarks: tuple[str, ...]

    @property
    def shared_ratio(self) -> float:
        """Return the share of prompt tokens that all prompts have in common, nearest to the hit ratio."""
        return _count_shared(self.prompts, self.block_tokens, self.shared_blocks) / sum(self.prompts)


def derive_benchmark(seen: ProductionSummary, requests: int, top_rps: float | None = None) -> BenchmarkWorkload | str:
    """Return the workload of a benchmark with so many requests a load, or why there is none. `top_rps` is a replica's."""
    now, window, remarks = measure_workload(seen), seen.lately, list(NOT_EXPOSED)
    if window is None or not seen.observed_replicas or not now.average_rps:
        return "no arrivals were seen, or the engine counts no requests"
    if not seen.context.serves_whole_requests:
        return "prefill and decode are served apart: no load of one replica is a load of whole requests"
    drawn = []
    for (word, family, _), mean in zip(LENGTHS, (now.prompt_mean, now.generation_mean), strict=True):
        parts = window.histograms.get(family, ())
        if not parts and mean is None:
            return f"the engine exposes no lengths of {word}"
        lengths, above = histograms.draw(parts, mean, requests)
        drawn.append(lengths)
        if not parts:
            remarks.append(f"{word}: only their mean is exposed; all have that length")
        if above:
            remarks.append(
                f"{word}: {above} of {requests} are above the last bucket and get its edge, {lengths[-1]} tokens"
            )
    block = SMALLEST_BLOCK
    while sum(drawn[0]) > MOST_BLOCKS * block * requests:
        block *= 2
    hits, shared = read(BY_NAME["prefix_hit_ratio"], window, seen.context.basis), 0
    if isinstance(hits, Reading):
        wanted = (hits.value or 0.0) * sum(drawn[0])
        blocks = range(math.ceil(drawn[0][-1] / block))
        shared = min(blocks, key=lambda number: abs(_count_shared(drawn[0], block, number) - wanted))
    remarks += SHARING_NOT_EXPOSED if shared else ()
    return BenchmarkWorkload(
        prompts=drawn[0],
        generations=drawn[1],
        block_tokens=block,
        shared_blocks=shared,
        prefix_hit_ratio=hits,
        loads=_list_loads(now, seen.observed_replicas, top_rps),
        remarks=tuple(remarks),
    )


def _count_shared(prompts: Sequence[int], block: int, blocks: int) -> int:
    return sum(min(blocks, math.ceil(tokens / block) - 1) * block for tokens in prompts)


def _list_loads(now: WorkloadNow, replicas: float, top_rps: float | None) -> tuple[BenchmarkLoad, ...]:
    rows = [(rate * factor / replicas, origin) for name, factor, origin in LOADS if (rate := getattr(now, name))]
    peak, name = max(rows)
    top = TOP * peak if top_rps is None else top_rps
    steps = range(1, math.ceil(math.log(top / peak, STEP)))
    rows += [(peak * STEP**step, f"{STEP**step:.2f} x {name}") for step in steps]
    loads: list[BenchmarkLoad] = []
    for rps, origin in [(top, "highest"), *(row for row in sorted(rows, reverse=True) if APART * row[0] <= top)]:
        if not loads or APART * rps <= loads[-1].rps:
            loads.append(BenchmarkLoad(rps=float(f"{rps:.3g}"), origin=origin))
    return tuple(reversed(loads))
