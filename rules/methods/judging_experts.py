"""Experts of a mixture: whether the GPUs that hold them get tokens evenly (guide 5.4).

Owns which minutes count, and that each replica is judged by itself: its own busiest GPU holds it back. The comparison is
that of a band (`rules.methods.bands`). Overflow, tokens that an expert had no room for, no engine exposes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from rules.confidence import Certainty
from rules.engines.registry import ENGINES
from rules.methods.bands import judge_band
from rules.plan.load_bins import BinnedWindow
from rules.telemetry.signals import BY_NAME, Gap
from rules.verdicts.context import RuleContext, worst_gap
from rules.verdicts.verdict import RuleResult, Status, Verdict

_BADNESS = {Status.OK: 0, Status.WARNING: 1, Status.CRITICAL: 2}


def judge_experts(case: RuleContext) -> RuleResult:
    """The balance of each replica over its minutes with enough requests in the batch; the worst replica is told.

    Tokens of a small batch fall unevenly by chance alone, so those minutes say nothing.
    """
    if not case.slices:
        return case.unknown(Gap.SCRAPE_FAILED, "no replica of the tier has been seen")
    families = BY_NAME[case.rule.signal].families
    told = [one for one in case.slices if all(family in one.window.counters for family in families)]
    if not told:
        return case.unknown(worst_gap(case.slices, families[0]), _not_told(case))
    replicas: dict[str | None, list[BinnedWindow]] = {}
    for one in told:
        if _running(one) >= case.limit("minimum_running"):
            replicas.setdefault(one.replica, []).append(one)
    if not replicas:
        text = (
            f"no minute with {case.limit('minimum_running'):.0f} requests in the batch: fewer fall unevenly by chance"
        )
        return case.unknown(Gap.TOO_FEW_REQUESTS, text)
    answers = [_named(judge_band(replace(case, slices=tuple(group))), name) for name, group in replicas.items()]
    verdicts = [answer for answer in answers if isinstance(answer, Verdict)]
    return max(verdicts, key=_badness) if verdicts else answers[0]


def _running(one: BinnedWindow) -> float:
    gauge = one.window.gauge("requests_running")
    return gauge.integral / gauge.seconds if gauge is not None else 0.0


def _badness(verdict: Verdict) -> tuple[int, bool, float]:
    value = getattr(verdict.observed, "value", None)
    return _BADNESS.get(verdict.status, 0), verdict.certainty is Certainty.CERTAIN, -(1.0 if value is None else value)


def _named(answer: RuleResult, replica: str | None) -> RuleResult:
    if not isinstance(answer, Verdict) or not replica:
        return answer
    return replace(answer, sentence=f"{replica}: {answer.sentence}")


def _not_told(case: RuleContext) -> str:
    """What the engine's own table says of it, where the plan names the engine."""
    name = case.view.plan.engine if case.view.plan else ""
    family = BY_NAME[case.rule.signal].families[0]
    texts: Sequence[str] = [dict(engine.not_exposed).get(family, "") for engine in ENGINES if engine.name == name]
    return next((text for text in texts if text), "the engine tells nothing of experts, or the model has none")
