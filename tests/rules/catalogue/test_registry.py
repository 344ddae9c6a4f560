from typing import Any, get_args

import pytest
from rule_cases import rule_faults

from rules.catalogue import registry
from rules.catalogue.registry import ACTIONS, BY_NAME, RULES, load_rows
from rules.evaluator.rule_evaluation import evaluate_replica_rules, evaluate_tier_availability
from rules.methods.bands import judge_band, judge_excess
from rules.methods.divergence import MEANS, judge_mean, judge_tail
from rules.plan.load_bins import build_tier_context
from rules.plan.schema import Point, TierPlan
from rules.replicas.state import ReplicaState
from rules.telemetry.families import BY_NAME as FAMILIES
from rules.telemetry.signals import BY_NAME as SIGNALS
from rules.verdicts.rule import Rule, Scope, Severity

every = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)


@every
def test_rules_say_meaning_and_action(rule: Rule) -> None:
    assert BY_NAME[rule.name] is rule
    assert rule.title
    assert rule.meaning.endswith(".")
    assert len(rule.actions) >= 2
    assert all(action[0].isupper() or action[0] == "`" for action in rule.actions)
    assert not rule_faults(rule)
    assert rule.thresholds
    for name, threshold in rule.thresholds.items():
        assert threshold.value > 0, name
        assert threshold.unit, name
        assert len(threshold.source) > 5, name


BARE = build_tier_context("t", None)
OF_REPLICAS = {result.rule for result in evaluate_replica_rules(ReplicaState(tier="t", name="a"), BARE, 0.0)}
OF_TIERS = {result.rule for result in evaluate_tier_availability((), (), BARE, 0.0)}


@every
def test_a_rule_is_judged_by_some_way(rule: Rule) -> None:
    assert [not rule.per_scrape, rule.name in OF_REPLICAS, rule.name in OF_TIERS].count(True) == 1
    assert (0 < rule.minimum_seconds < rule.window_seconds) is not rule.per_scrape
    assert (rule.scope is Scope.TIER) == (rule.name not in OF_REPLICAS)


@every
def test_what_a_rule_reads_exists(rule: Rule) -> None:
    assert rule.signal in SIGNALS or rule.signal in ("coverage", rule.family)
    if rule.method in (judge_tail, judge_mean, judge_excess):
        assert rule.signal in Point.model_fields
    if rule.method is judge_band:
        assert {"above", "below"} & rule.thresholds.keys()
    if rule.method is judge_tail:
        assert rule.family in FAMILIES
    if rule.method is judge_mean:
        assert rule.signal in MEANS


@every
def test_needs_of_rules_are_plan_keys(rule: Rule) -> None:
    section: Any = TierPlan
    for key in filter(None, rule.needs.split(".")):
        assert key in getattr(section, "model_fields", ()), f"{rule.needs} is no path below a tier of the plan"
        kind = section.model_fields[key].annotation
        section = next((part for part in (kind, *get_args(kind)) if hasattr(part, "model_fields")), None)


OF_BUDGET = {"TtftSloBurn", "TpotSloBurn", "ItlSloBurn", "E2eSloBurn", "AvailabilityBurn"}
PAGES = {"KvCacheCascade", "TierDown", "EngineStalled", *OF_BUDGET}
"""DESIGN 3.10: an objective that burns (latency, availability), a cascade, a whole tier down or stalled."""


def test_only_what_users_feel_pages() -> None:
    assert {rule.name for rule in RULES if rule.severity is Severity.PAGE} == PAGES


def test_tier_replaces_a_threshold() -> None:
    rule = BY_NAME["TargetDown"]
    assert rule.limit("misses", {}) == 3
    assert rule.limit("misses", {"TargetDown": {"misses": 5}}) == 5
    assert rule.limit("misses", {"KvEviction": {"warning": 5}}) == 3
    with pytest.raises(KeyError):
        rule.limit("mises", {})


def test_no_action_shrinks_cache_against_evictions() -> None:
    for name in ("EvictionDivergence", "KvEviction", "KvCacheCascade"):
        assert any("Never lower --gpu-memory-utilization" in action for action in BY_NAME[name].actions)


ROW: dict[str, Any] = {
    "method": "bands.judge_band",
    "signal": "kv_utilization",
    "title": "KV cache under half full",
    "meaning": "The KV cache is larger\nthan what the traffic needs.",
    "actions": ["spread", "Serve more requests at once"],
    "thresholds": {"below": [0.5, "ratio", "the guide"], "minimum_requests": "enough_for_p99"},
}


def load(monkeypatch: pytest.MonkeyPatch, tables: dict[str, Any]) -> tuple[Any, ...]:
    monkeypatch.setattr(registry, "read_table", lambda package, name: tables)
    return load_rows("toy")


def test_a_row_is_a_whole_rule(monkeypatch: pytest.MonkeyPatch) -> None:
    other = {"like": "KvCacheUnderHalf", "severity": "info", "thresholds": {"below": [0.4, "ratio", "the guide"]}}
    rule, alike = load(monkeypatch, {"KvCacheUnderHalf": ROW, "KvCacheUnderTwoFifths": other})
    assert (rule.name, rule.severity, alike.severity) == ("KvCacheUnderHalf", Severity.TICKET, Severity.REPORT)
    assert rule.meaning == alike.meaning == "The KV cache is larger than what the traffic needs."
    assert rule.actions == (ACTIONS["spread"], "Serve more requests at once")
    assert [(r.limit("below", {}), r.limit("minimum_requests", {})) for r in (rule, alike)] == [(0.5, 100), (0.4, 100)]


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"method": "bands.judge_bands"}, "methods.bands.judge_bands: is no MODULE.NAME"),
        ({"method": "judge_band"}, "methods.judge_band: is no MODULE.NAME"),
        ({"severity": "page"}, "severity: Input should be 'critical', 'warning' or 'info'"),
        ({"stages": 3}, "stages: Unexpected keyword"),
        ({"stage": "first"}, "stage: Input should be a valid integer"),
        ({"signal": "kv_utilisation"}, "signal: kv_utilisation is no row of rules/telemetry/signals.toml"),
        ({"levers": {"cliff": ["spread"]}}, "levers: Input should be 'knee'"),
        ({"thresholds": {"below": "enough"}}, "thresholds.below: is no .*: enough"),
        ({"thresholds": {"below": [0.5, "ratio"]}}, "thresholds.below: is no .value, unit, source."),
        ({"thresholds": {"below": ["0.5", "ratio", "the guide"]}}, "0.5: is no MODULE.NAME"),
    ],
)
def test_wrong_row_names_file_and_key(monkeypatch: pytest.MonkeyPatch, keys: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=rf"rules/catalogue/toy\.toml: KvCacheUnderHalf: {words}"):
        load(monkeypatch, {"KvCacheUnderHalf": ROW | keys})


@pytest.mark.parametrize(
    ("tables", "words"),
    [
        ({"Second": {"like": "First"}, "First": ROW}, "Second: like: First is no rule above it"),
        *(({"Bare": {**ROW, key: None}}, f"Bare: {key}: Field required") for key in ("title", "signal")),
    ],
)
def test_rule_without_a_key_is_refused(monkeypatch: pytest.MonkeyPatch, tables: dict[str, Any], words: str) -> None:
    rows = {name: {key: value for key, value in row.items() if value is not None} for name, row in tables.items()}
    with pytest.raises(ValueError, match=rf"toy\.toml: {words}"):
        load(monkeypatch, rows)
