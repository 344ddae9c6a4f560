"""Rows of the tables of cases for rules: minutes of a tier, and what a rule says of them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace

from judging_samples import answered, minutes
from prose import explain

from rules.confidence import Certainty
from rules.evaluator import tier_rules
from rules.plan.load_bins import TierContext
from rules.replicas.starts import ReplicaStart
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import RuleResult, Status, Unknown

EARLY, UNPLANNED = Gap.TOO_FEW_REQUESTS, Gap.NOT_IN_PLAN
UNSEEN, HIDDEN = Gap.NO_TRAFFIC, Gap.NOT_EXPOSED

WARNED, GUESSED = (Status.WARNING, Certainty.CERTAIN), (Status.WARNING, Certainty.LIKELY)
FINE, FAIRLY = (Status.OK, Certainty.CERTAIN), (Status.OK, Certainty.LIKELY)

Wanted = tuple[Status, Certainty] | Gap


@dataclass(frozen=True)
class Case:
    """Minutes of a tier, and what a rule says of them: `text` is a part of its words."""

    name: str
    tier: TierContext
    replicas: Mapping[str, Iterable[Window]] | list[Window]
    wanted: Wanted
    text: str = ""
    starts: tuple[ReplicaStart, ...] = ()

    def __str__(self) -> str:
        return self.name


def check(rule: str, case: Case) -> None:
    result = answered(rule, case.tier, case.replicas)
    if case.starts:
        assert isinstance(case.replicas, list)
        booked = replace(minutes(case.tier, {"a": case.replicas}), starts=case.starts)
        results = tier_rules.evaluate_tier_rules(booked, case.tier, booked.binned[-1].window.end)
        result = next(result for result in results if result.rule == rule)
    check_result(result, case.wanted, case.text)


def check_result(result: RuleResult, wanted: Wanted, text: str) -> None:
    if isinstance(result, Unknown):
        assert result.reason is wanted, result
        assert text in result.text
    else:
        assert (result.status, result.certainty) == wanted, result
        assert text in explain(result)
        assert bool(result.actions) is (result.status is not Status.OK)
