"""Rows of the tables of cases for rules: minutes of a tier, and what a rule says of them."""

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
PAGED, PAGE_GUESSED = (Status.CRITICAL, Certainty.CERTAIN), (Status.CRITICAL, Certainty.LIKELY)
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


def judge(rule: str, case: Case) -> RuleResult:
    """What the rule says at the end of a case, by the way of the daemon."""
    if not case.starts:
        return answered(rule, case.tier, case.replicas)
    assert isinstance(case.replicas, list)
    booked = replace(minutes(case.tier, {"a": case.replicas}), starts=case.starts)
    results = tier_rules.evaluate_tier_rules(booked, case.tier, booked.binned[-1].window.end)
    return next(result for result in results if result.rule == rule)


def outcome(result: RuleResult) -> Wanted:
    """Status and certainty, or the gap. What fires says what to do, and nothing else does."""
    if isinstance(result, Unknown):
        return result.reason
    assert bool(result.actions) is (result.status is not Status.OK)
    return result.status, result.certainty


def words(result: RuleResult) -> str:
    return result.text if isinstance(result, Unknown) else explain(result)


def check_result(result: RuleResult, wanted: Wanted, text: str = "") -> None:
    """Compare a result with what is wanted, and its words with the text that they contain."""
    assert outcome(result) == wanted, result
    assert text in words(result)


def check_case(rule: str, case: Case) -> None:
    check_result(judge(rule, case), case.wanted, case.text)
