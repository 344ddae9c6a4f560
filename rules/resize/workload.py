"""Present workload beside the planned one (guide 9.1, Step 1), guardrails that fit it (guide 9.4), and its benchmark.

To add a quantity: a field of `WorkloadNow`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from pydantic import computed_field

from rules.catalogue.registry import BY_NAME as RULES
from rules.catalogue.registry import CATALOGUE
from rules.methods.drift import LENGTHS
from rules.plan.guardrails import Guardrail, judge_guardrails
from rules.resize.production_summary import ProductionSummary
from rules.telemetry import histograms
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalValue
from rules.telemetry.work import mean_length
from rules.verdicts.context import SEPARATE, read_plan_value

TOWARDS = {frozenset({"prompts"}): "rag", frozenset({"outputs"}): "code", frozenset({"prompts", "outputs"}): "agentic"}
"""Archetype that traffic moves to, by the lengths that grow (guide 1.2, figure 1.2)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """Quantile of prompts or outputs in tokens, observed and planned (None: not in the plan)."""

    what: str
    quantile: str
    observed: SignalValue
    planned: float | None

    @computed_field  # type: ignore[prop-decorator]
    @property
    def factor(self) -> float | None:
        """Return the best estimate of observed by planned length."""
        if not isinstance(self.observed, Reading) or self.observed.value is None or not self.planned:
            return None
        return self.observed.value / self.planned

    @computed_field  # type: ignore[prop-decorator]
    @property
    def factors(self) -> tuple[float, float | None] | None:
        """Return the bounds of observed by planned length, the upper one None if open."""
        if not isinstance(self.observed, Reading) or not self.planned:
            return None
        low, high = self.observed.low or 0.0, self.observed.high
        return low / self.planned, None if high is None else high / self.planned


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadNow:
    """Present workload: lengths, rates of the whole tier (None: unknown) and mean tokens a request.

    `peak_rps` arrived in at least three stretches of five minutes, `highest_rps` in the busiest. `archetype` is the
    plan's, `towards` the one that lengths move to, or "".
    """

    lengths: tuple[Length, ...]
    requests: float
    average_rps: float | None
    peak_rps: float | None
    highest_rps: float | None
    planned_average_rps: float | None
    planned_peak_rps: float | None
    prompt_mean: float | None
    generation_mean: float | None
    archetype: str
    towards: str

    @computed_field  # type: ignore[prop-decorator]
    @property
    def peak_to_average(self) -> float | None:
        return self.peak_rps / self.average_rps if self.peak_rps and self.average_rps else None


def measure_workload(seen: ProductionSummary) -> WorkloadNow:
    planned = partial(read_plan_value, seen.context)
    lengths = tuple(_length(seen, word, key, name) for word, _, key in LENGTHS for name in ("p50", "p95", "p99"))
    arrivals, lately = sorted((rate.rps for rate in seen.rates), reverse=True), seen.lately
    is_known = len(arrivals) >= SEPARATE
    archetype = planned("workload.archetype") or ""
    # The archetype of longer prompts, longer outputs or both (guide 1.2).
    drift = RULES["WorkloadDrift"].limit("factor", seen.context.limits)
    longer = frozenset(length.what for length in lengths if length.factors is not None and length.factors[0] > drift)
    towards = TOWARDS.get(longer, "")
    return WorkloadNow(
        lengths=lengths,
        requests=seen.total.counters.get("requests_finished", 0.0) if seen.total else 0.0,
        average_rps=seen.average_rps,
        peak_rps=arrivals[SEPARATE - 1] if is_known else None,
        highest_rps=arrivals[0] if is_known else None,
        planned_average_rps=planned("workload.requests_per_second.average"),
        planned_peak_rps=planned("workload.requests_per_second.peak"),
        prompt_mean=mean_length(lately, "prompt_tokens", "prompt_tokens_per_request") if lately else None,
        generation_mean=mean_length(lately, "generation_tokens", "generation_tokens_per_request") if lately else None,
        archetype=archetype,
        towards="" if towards == archetype else towards,
    )


def _length(seen: ProductionSummary, word: str, key: str, name: str) -> Length:
    planned: float | None = read_plan_value(seen.context, f"workload.{key}.{name}")
    observed: SignalValue = Missing(gap=Gap.SCRAPE_FAILED, text="no hour of this time is in the history")
    if seen.lately is not None:
        observed = read(BY_NAME[f"{key}_{name}"], seen.lately, seen.context.basis)
    return Length(what=word, quantile=name, observed=observed, planned=planned)


def list_guardrails(seen: ProductionSummary, workload: WorkloadNow) -> tuple[Guardrail, ...]:
    """Return a tier's guardrails against production: lengths of the last week, and the busiest arrivals."""
    plan, keys = seen.context.plan, {word: key for word, _, key in LENGTHS}
    observed = ((f"{keys[length.what]}_{length.quantile}", length.observed) for length in workload.lengths)
    known = {signal: reading for signal, reading in observed if isinstance(reading, Reading)}
    threshold = partial(CATALOGUE["Guardrails"].limit, overrides=seen.context.limits)
    return judge_guardrails(plan, threshold, known, workload.peak_rps) if plan is not None else ()


STEP, TOP, APART = 1.25, 2.0, 1.1
"""Factor between loads above production's highest, the last one as its multiple, and the least factor between loads. Ours:
capacity is uncertain by a quarter; above the guide's largest safety factor (9.1 step 11: 1.5); closer is chance."""

SMALLEST_BLOCK, MOST_BLOCKS = 16, 64
"""Tokens of the smallest block of a prompt, and blocks of a mean prompt: long prompts get larger blocks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BenchmarkWorkload:
    """Production as a benchmark of one replica: rising lengths (tokens), loads (rps), and remarks on the lengths.

    Every prompt begins with the same `shared_blocks` blocks of `block_tokens` tokens; its last block is always its own.
    """

    prompts: tuple[int, ...]
    generations: tuple[int, ...]
    block_tokens: int
    shared_blocks: int
    prefix_hit_ratio: SignalValue
    loads: tuple[float, ...]
    remarks: tuple[str, ...]

    @property
    def shared_ratio(self) -> float:
        """Return the share of prompt tokens that all prompts have in common, nearest to the hit ratio."""
        return _count_shared(self.prompts, self.block_tokens, self.shared_blocks) / sum(self.prompts)


def derive_benchmark(seen: ProductionSummary, requests: int, top_rps: float | None = None) -> BenchmarkWorkload | str:
    """Return the workload of a benchmark with so many requests a load, or why there is none. `top_rps` is a replica's."""
    now, window, remarks = measure_workload(seen), seen.lately, list[str]()
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
            text = f"{above} of {requests} are above the last bucket and get its edge, {lengths[-1]} tokens"
            remarks.append(f"{word}: {text}")
    block = SMALLEST_BLOCK
    while sum(drawn[0]) > MOST_BLOCKS * block * requests:
        block *= 2
    hits, shared = read(BY_NAME["prefix_hit_ratio"], window, seen.context.basis), 0
    if isinstance(hits, Reading):
        wanted = (hits.value or 0.0) * sum(drawn[0])
        blocks = range(math.ceil(drawn[0][-1] / block))
        shared = min(blocks, key=lambda number: abs(_count_shared(drawn[0], block, number) - wanted))
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


def _list_loads(now: WorkloadNow, replicas: float, top_rps: float | None) -> tuple[float, ...]:
    """Return rising loads of a replica: half the average, average, peak, busiest, and steps to the top."""
    rates = ((now.average_rps or 0.0) / 2, now.average_rps, now.peak_rps, now.highest_rps)
    seen = [rate / replicas for rate in rates if rate]
    top = TOP * max(seen) if top_rps is None else top_rps
    steps = range(1, math.ceil(math.log(top / max(seen), STEP)))
    loads = [float(f"{top:.3g}")]
    for rps in sorted([*seen, *(max(seen) * STEP**step for step in steps)], reverse=True):
        if APART * rps <= loads[-1]:
            loads.append(float(f"{rps:.3g}"))
    return tuple(reversed(loads))
