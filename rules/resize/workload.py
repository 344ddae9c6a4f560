"""Step 1 again (guide 9.1): what the traffic is now, beside what the tier was sized for.

Owns lengths, average and peak rate and their comparison with the plan's workload. Whether the difference matters is the rule
WorkloadDrift's; its words come in from outside. Another quantity of the workload is a field of `WorkloadNow`.
"""

from __future__ import annotations

from dataclasses import dataclass

from rules.methods.drift import LENGTHS, TOWARDS
from rules.methods.periods import nearest_rank
from rules.resize.production_summary import ProductionSummary
from rules.telemetry import histograms
from rules.telemetry.readings import read
from rules.telemetry.signals import BY_NAME, Gap, Missing, Reading, SignalValue
from rules.verdicts.context import SEPARATE

NOTHING_BOOKED = Missing(gap=Gap.SCRAPE_FAILED, text="no hour of this time is in the history")

QUANTILES = ("p50", "p95", "p99")

DRIFTED = 1.3
"""A quantile surely so many times as long as planned, or 1 / so many as short, has moved (as WorkloadDrift allows)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Length:
    """One quantile of prompts or outputs, in tokens: seen with its bucket's edges, and planned (None: the plan has none)."""

    what: str
    quantile: str
    observed: SignalValue
    planned: float | None

    @property
    def factor(self) -> float | None:
        """How many times as long as planned, by the best estimate."""
        if not isinstance(self.observed, Reading) or self.observed.value is None or not self.planned:
            return None
        return self.observed.value / self.planned

    @property
    def factors(self) -> tuple[float, float | None] | None:
        """The same between the bounds, the upper one None where it is open."""
        if not isinstance(self.observed, Reading) or not self.planned:
            return None
        low, high = self.observed.low or 0.0, self.observed.high
        return low / self.planned, None if high is None else high / self.planned

    @property
    def longer(self) -> bool:
        """Whether it is longer than planned by more than DRIFTED, whatever happened inside the bucket."""
        seen = self.observed
        return isinstance(seen, Reading) and bool(self.planned) and (seen.low or 0.0) > DRIFTED * (self.planned or 0.0)

    @property
    def shorter(self) -> bool:
        seen = self.observed
        high = seen.high if isinstance(seen, Reading) else None
        return high is not None and bool(self.planned) and high < (self.planned or 0.0) / DRIFTED


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkloadNow:
    """`peak_rps` arrived in at least three stretches of five minutes; `highest_rps` in the busiest of them, `p95_rps` in all
    but one of twenty. Rates are of the whole tier, None where nothing told them. `prompt_mean` and `generation_mean` are
    tokens a request. `archetype` is the plan's, `towards` what lengths move to ("" where they do not)."""

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
    """Step 1 from what was seen."""
    plan = seen.view.plan
    planned = plan.workload if plan else None
    rates = planned.requests_per_second if planned else None
    found = tuple(_length(seen, word, key, name) for word, _, key in LENGTHS for name in QUANTILES)
    arrivals = sorted((one.rps for one in seen.rates), reverse=True)
    several = len(arrivals) >= SEPARATE
    archetype = planned.archetype if planned and planned.archetype else ""
    return WorkloadNow(
        lengths=found,
        requests=seen.total.counters.get("requests_finished", 0.0) if seen.total else 0.0,
        average_rps=seen.average_rps,
        peak_rps=arrivals[SEPARATE - 1] if several else None,
        p95_rps=nearest_rank(arrivals, 0.95) if several else None,
        highest_rps=arrivals[0] if several else None,
        planned_average_rps=rates.average if rates else None,
        planned_peak_rps=rates.peak if rates else None,
        prompt_mean=_mean(seen, "prompt_tokens", "prompt_tokens_per_request"),
        generation_mean=_mean(seen, "generation_tokens", "generation_tokens_per_request"),
        archetype=archetype,
        towards=_towards(found, archetype),
    )


def _length(seen: ProductionSummary, word: str, key: str, name: str) -> Length:
    plan = seen.view.plan
    part = getattr(plan.workload, key) if plan and plan.workload else None
    planned: float | None = getattr(part, name) if part else None
    observed: SignalValue = NOTHING_BOOKED
    if seen.lately is not None:
        observed = read(BY_NAME[f"{key}_{name}"], seen.lately, seen.view.basis)
    return Length(what=word, quantile=name, observed=observed, planned=planned)


def _mean(seen: ProductionSummary, counter: str, family: str) -> float | None:
    """Tokens a request: the histogram's own mean, else tokens by requests that finished meanwhile."""
    if seen.lately is None:
        return None
    told = histograms.mean(seen.lately.histograms.get(family, ()))
    finished = seen.lately.counters.get("requests_finished", 0.0)
    if told is not None or finished <= 0 or counter not in seen.lately.counters:
        return told
    return seen.lately.counters[counter] / finished


def _towards(lengths: tuple[Length, ...], archetype: str) -> str:
    """The archetype that longer prompts, longer outputs or both belong to (guide 1.2)."""
    found = TOWARDS.get(frozenset(one.what for one in lengths if one.longer), "")
    return "" if found == archetype else found
