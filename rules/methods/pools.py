"""Ratio of prefill to decode replicas against the ratio that the traffic needs (guide 6.5).

The plan has the rate of a replica of each pool. Windows of the two pools are never added.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rules.confidence import Certainty
from rules.methods.evidence import exact_reading
from rules.plan.load_bins import BinnedWindow
from rules.plan.schema import Disaggregation
from rules.telemetry import windows
from rules.telemetry.signals import Gap
from rules.telemetry.wording import number
from rules.verdicts.context import RuleContext, is_persistent
from rules.verdicts.verdict import RuleResult, Status

PREFILL, DECODE = "prefill", "decode"
PROMPT, GENERATED = "prompt_tokens", "generation_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRatio:
    """Observed replicas of each pool, tokens per second of the whole pool, and the replicas that these rates need."""

    prefill: int
    decode: int
    prompt_rate: float
    generation_rate: float
    wants_prefill: float
    wants_decode: float

    @property
    def present(self) -> float:
        return self.prefill / self.decode

    @property
    def wanted_ratio(self) -> float:
        """Return the guide's P:D ratio: (prompt tokens/s / prefill rate) / (output tokens/s / decode rate)."""
        return self.wants_prefill / self.wants_decode

    @property
    def best_split(self) -> tuple[int, int]:
        """Return the split of the same replicas with the lowest load of the busier pool. Each pool keeps a replica."""
        whole = self.prefill + self.decode
        splits = [(prefill, whole - prefill) for prefill in range(1, whole)]

        def rank(split: tuple[int, int]) -> tuple[float, bool]:
            load = max(self.wants_prefill / split[0], self.wants_decode / split[1])
            return load, split != (self.prefill, self.decode)

        return min(splits, key=rank)

    @property
    def short(self) -> tuple[str, float]:
        """Return the pool that is short, and its needed replicas per present one."""
        if self.wanted_ratio > self.present:
            return PREFILL, self.wants_prefill / self.prefill
        return DECODE, self.wants_decode / self.decode

    def is_off(self, factor: float, busy: float) -> bool:
        """Return whether the ratio is off by more than `factor`, another split is better, and the short pool is busy."""
        apart = max(self.wanted_ratio / self.present, self.present / self.wanted_ratio)
        return apart > factor and self.best_split != (self.prefill, self.decode) and self.short[1] >= busy


def judge_pools(case: RuleContext) -> RuleResult:
    """Compare the ratio of prefill to decode replicas with the ratio that the tokens need (guide 6.5)."""
    planned = case.context.plan.disaggregation if case.context.plan else None
    if planned is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the plan has no disaggregation")
    if not case.binned:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    for pool, family in ((PREFILL, PROMPT), (DECODE, GENERATED)):
        if pool not in case.context.pools.values():
            return case.unknown(Gap.NOT_EXPOSED, f"no target is configured with `pool: {pool}`; engines do not say it")
        seen = windows.sum_windows(one.window for one in _select_pool(case, case.binned, pool))
        if family not in seen.counters:
            return case.unknown(seen.explain_missing(family), f"{family} of the {pool} pool are not there")
    found = _measure(case, case.binned, planned)
    if found is None:
        return case.unknown(Gap.NO_TRAFFIC, "no tokens in one of the pools")
    factor, busy = case.limit("factor"), case.limit("busy")
    last = _measure(case, case.last_quarter(case.binned), planned)
    if last is None:
        return case.unknown(Gap.NO_TRAFFIC, "no tokens in one of the pools in the last quarter of the time")
    each = [_measure(case, group, planned) for group in case.periods(case.binned)]
    firing = found.is_off(factor, busy) and is_persistent(last, each, lambda pools: pools.is_off(factor, busy))
    replicas = last.prefill + last.decode
    observed, expected = exact_reading(last.present, replicas), exact_reading(found.wanted_ratio, replicas)
    status = Status.WARNING if firing else Status.OK
    pool, share = last.short
    present = f"{last.prefill} prefill and {last.decode} decode replicas"
    sentence = f"{present} (P:D {last.present:.2g}); the traffic wants P:D {last.wanted_ratio:.2g}"
    if firing:
        prefill, decode = last.best_split
        sentence = f"The {pool} pool is short, {share:.0%} of it is used; {prefill} and {decode} replicas would fit"
    details = (
        f"{present}, P:D {last.present:.2g}, the traffic wants {last.wanted_ratio:.2g}",
        f"prompts {number(last.prompt_rate, 'tokens_per_second')}",
        f"output {number(last.generation_rate, 'tokens_per_second')}",
    )
    return case.verdict(status, Certainty.CERTAIN, observed, expected, sentence, details=details)


def _select_pool(case: RuleContext, binned: Iterable[BinnedWindow], pool: str) -> list[BinnedWindow]:
    return [one for one in binned if case.context.pools.get(one.replica or "") == pool]


def _measure(case: RuleContext, binned: Sequence[BinnedWindow], planned: Disaggregation) -> PoolRatio | None:
    """Return the ratio, or None if a pool was not observed or had no tokens."""
    (prefill, prompt), (decode, generation) = (
        _measure_pool(_select_pool(case, binned, pool), family)
        for pool, family in ((PREFILL, PROMPT), (DECODE, GENERATED))
    )
    if not prompt or not generation:
        return None
    return PoolRatio(
        prefill=prefill,
        decode=decode,
        prompt_rate=prompt,
        generation_rate=generation,
        wants_prefill=prompt / planned.prefill_tokens_per_second,
        wants_decode=generation / planned.decode_tokens_per_second,
    )


def _measure_pool(binned: Sequence[BinnedWindow], family: str) -> tuple[int, float]:
    """Return the observed replicas of a pool, and its tokens per second: those per replica-second x replicas."""
    replicas = len({one.replica for one in binned if one.window.covered_seconds > 0})
    seconds = sum(one.window.seconds_of(family) for one in binned if family in one.window.counters)
    tokens = sum(one.window.counters.get(family, 0.0) for one in binned)
    return replicas, tokens / seconds * replicas if seconds > 0 else 0.0
