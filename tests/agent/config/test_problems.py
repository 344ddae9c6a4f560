"""Whatever a configuration may say as a threshold, no rule fails by it."""

import days_samples
import judging_samples
import pytest

from rules.catalogue.overrides import wrong_thresholds
from rules.evaluator import long_rules, tier_minutes
from rules.plan.load_bins import TierContext
from rules.verdicts.rule import Rule

ODD = (0.0, 1e-9, 0.5, 1.0, 3.0, 1e9)
WORKLOAD = {"prompt_tokens": {"p50": 80, "p95": 120, "p99": 128}, "generation_tokens": {"p50": 44, "p99": 64}}


def limited(rule: Rule, threshold: str, value: float) -> TierContext:
    return days_samples.context(workload=WORKLOAD, limits={rule.name: {threshold: value}})


def allowed(rule: Rule) -> list[tuple[str, float]]:
    every = [(name, value) for name in rule.thresholds for value in ODD]
    return [(name, value) for name, value in every if not list(wrong_thresholds({rule.name: {name: value}}))]


@pytest.mark.parametrize("rule", tier_minutes.LIVE, ids=lambda rule: rule.name)
def test_live_rules_accept_any_threshold(rule: Rule) -> None:
    lengths = {"prompt_tokens_per_request": judging_samples.seen({0.4: 90, 0.08: 90})}
    made = judging_samples.each(12, lambda n: judging_samples.minute(n, rps=7.0, slow=60, histograms=lengths))
    tried = allowed(rule)
    assert tried
    for name, value in tried:
        assert judging_samples.answered(rule.name, limited(rule, name, value), made).rule == rule.name


@pytest.mark.parametrize("rule", long_rules.LONG, ids=lambda rule: rule.name)
def test_daily_rules_accept_any_threshold(rule: Rule) -> None:
    made = days_samples.hours(336, lambda n: days_samples.hour(n, used=0.3 if n % 3 else 0.97))
    for name, value in allowed(rule):
        assert days_samples.answered(rule.name, limited(rule, name, value), made).rule == rule.name
