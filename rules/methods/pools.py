"""Prefill replicas against decode replicas: whether their ratio is what the traffic wants (guide 6.5).

Owns the guide's formula, the split that whole replicas can come to, and the sentence. What a replica of each pool can do
stands in the plan, which pool a replica is in the configuration says. Windows of the two pools are never added up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from rules.confidence import Certainty
from rules.plan.load_bins import BinnedWindow
from rules.plan.schema import Disaggregation
from rules.telemetry import windows
from rules.telemetry.signals import Gap, Reading
from rules.telemetry.windows import Window
from rules.telemetry.wording import number
from rules.verdicts.context import RuleContext, is_persistent
from rules.verdicts.verdict import RuleResult, Status, Unknown

PREFILL, DECODE = "prefill", "decode"
PROMPT, GENERATED = "prompt_tokens", "generation_tokens"


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRatio:
    """Replicas of each pool that were seen, tokens per second of the whole pool, and how many replicas those want."""

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
        """The guide's P:D ratio: (prompt tokens/s / prefill rate) / (output tokens/s / decode rate)."""
        return self.wants_prefill / self.wants_decode

    @property
    def best_split(self) -> tuple[int, int]:
        """The split of the same replicas whose busier pool has the least to do; each pool keeps one."""
        whole = self.prefill + self.decode
        splits = [(prefill, whole - prefill) for prefill in range(1, whole)]
        return min(splits, key=lambda split: (self._load(split), split != (self.prefill, self.decode)))

    def _load(self, split: tuple[int, int]) -> float:
        return max(self.wants_prefill / split[0], self.wants_decode / split[1])

    @property
    def short(self) -> tuple[str, float]:
        """The pool that is short, and its wanted replicas per present one (0-1: the share of it that works)."""
        if self.wanted_ratio > self.present:
            return PREFILL, self.wants_prefill / self.prefill
        return DECODE, self.wants_decode / self.decode

    def is_off(self, factor: float, busy: float) -> bool:
        """Return whether the ratio is off by more than `factor`, whole replicas would do better, and the short pool is
        at work."""
        apart = max(self.wanted_ratio / self.present, self.present / self.wanted_ratio)
        return apart > factor and self.best_split != (self.prefill, self.decode) and self.short[1] >= busy


def judge_pools(case: RuleContext) -> RuleResult:
    """The ratio of prefill to decode replicas against what prompt and output tokens want of each (guide 6.5)."""
    planned = case.view.plan.disaggregation if case.view.plan else None
    if planned is None:
        return case.unknown(Gap.NOT_IN_PLAN, "the plan has no disaggregation")
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    unseen = _cannot(case)
    if unseen is not None:
        return unseen
    found = _pools(case, case.slices, planned)
    if found is None:
        return case.unknown(Gap.NO_TRAFFIC, "no tokens in one of the pools")
    factor, busy = case.limit("factor"), case.limit("busy")
    last = _pools(case, case.last_quarter(case.slices), planned)
    if last is None:
        return case.unknown(Gap.NO_TRAFFIC, "no tokens in one of the pools in the last quarter of the time")
    each = [_pools(case, group, planned) for group in case.periods(case.slices)]
    firing = found.is_off(factor, busy) and is_persistent(last, each, lambda pools: pools.is_off(factor, busy))
    observed = Reading(value=last.present, low=last.present, high=last.present, n=last.prefill + last.decode)
    expected = Reading(
        value=found.wanted_ratio, low=found.wanted_ratio, high=found.wanted_ratio, n=last.prefill + last.decode
    )
    status = Status.WARNING if firing else Status.OK
    return case.verdict(status, Certainty.CERTAIN, observed, expected, _sentence(last, firing))


def _cannot(case: RuleContext) -> Unknown | None:
    """Why the pools cannot be told apart, or what one of them does not show."""
    for pool, family in ((PREFILL, PROMPT), (DECODE, GENERATED)):
        if pool not in case.view.pools.values():
            return case.unknown(Gap.NOT_EXPOSED, f"no target is configured with `pool: {pool}`; engines do not say it")
        seen = windows.sum_windows(_of(case, case.slices, pool))
        if family not in seen.counters:
            return case.unknown(seen.explain_missing(family), f"{family} of the {pool} pool are not there")
    return None


def _of(case: RuleContext, slices: Iterable[BinnedWindow], pool: str) -> tuple[Window, ...]:
    return tuple(s.window for s in slices if case.view.pools.get(s.replica or "") == pool)


def _pools(case: RuleContext, slices: Sequence[BinnedWindow], planned: Disaggregation) -> PoolRatio | None:
    """None where a pool was not seen, or had nothing to do: of nothing there is no ratio."""
    prompt, generation = (_rate(case, slices, *one) for one in ((PREFILL, PROMPT), (DECODE, GENERATED)))
    if not prompt or not generation:
        return None
    return PoolRatio(
        prefill=_replicas(case, slices, PREFILL),
        decode=_replicas(case, slices, DECODE),
        prompt_rate=prompt,
        generation_rate=generation,
        wants_prefill=prompt / planned.prefill_tokens_per_second,
        wants_decode=generation / planned.decode_tokens_per_second,
    )


def _rate(case: RuleContext, slices: Sequence[BinnedWindow], pool: str, family: str) -> float:
    """Tokens per second of the pool: those of a replica-second, for each replica that was seen."""
    several = _of(case, slices, pool)
    seconds = sum(window.seconds_of(family) for window in several if family in window.counters)
    tokens = sum(window.counters.get(family, 0.0) for window in several)
    return tokens / seconds * _replicas(case, slices, pool) if seconds > 0 else 0.0


def _replicas(case: RuleContext, slices: Sequence[BinnedWindow], pool: str) -> int:
    return len(
        {s.replica for s in slices if s.window.covered_seconds > 0 and case.view.pools.get(s.replica or "") == pool}
    )


def _sentence(pools: PoolRatio, firing: bool) -> str:
    pool, share = pools.short
    text = (
        f"{pools.prefill} prefill and {pools.decode} decode replicas (P:D {pools.present:.2g}); "
        f"{number(pools.prompt_rate, 'tokens_per_second')} of prompts and "
        f"{number(pools.generation_rate, 'tokens_per_second')} of output want P:D {pools.wanted_ratio:.2g}"
    )
    if not firing:
        return text
    prefill, decode = pools.best_split
    return f"{text}: {prefill} and {decode} of the same replicas would fit; the {pool} pool is short, {share:.0%} of it is used"
