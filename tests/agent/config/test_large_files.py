"""Large configurations and plans: work that grows with the file, not its square, clear limits, any threshold."""

import difflib
import itertools
import json
from pathlib import Path
from typing import Any
from unittest import mock

import days_samples
import judging_samples
import pytest

from agent.config import files, sections
from agent.config.load import build_tier_contexts, load
from agent.errors import ConfigError
from rules.catalogue.overrides import wrong_thresholds
from rules.evaluator import rule_evaluation, tier_minutes
from rules.plan.load_bins import TierContext, build_tier_context
from rules.problems import FURTHER, MOST_COMPARED, MOST_PROBLEMS, cap_problems
from rules.verdicts.rule import Rule

MANY = 3_000
TARGET = {"url": "http://127.0.0.1:1/metrics", "tier": "t"}


class Counting(str):
    """Text that counts how often it is compared."""

    compared = 0

    def __eq__(self, other: object) -> bool:
        Counting.compared += 1
        return str.__eq__(self, other)

    __hash__ = str.__hash__


@pytest.fixture
def suggestions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Numbers of known names that each unknown name was compared with."""
    compared: list[int] = []
    find = difflib.get_close_matches

    def counted(word: str, several: Any, **more: Any) -> list[str]:
        compared.append(len(several))
        return find(word, several, **more)

    monkeypatch.setattr(difflib, "get_close_matches", counted)
    return compared


@pytest.mark.parametrize("name", ["sizewatch.json", "sizewatch.yaml"])
@pytest.mark.parametrize(
    "data",
    [
        {f"targetz{n}": n for n in range(MANY)},
        {"targets": [{**TARGET, "replica": f"r{n}", f"enginee{n}": "vllm"} for n in range(MANY)]},
        {"targets": [TARGET], "thresholds": {"t": {f"KvCacheNearCeilin{n}": {} for n in range(MANY)}}},
        {
            "targets": [{**TARGET, "tier": f"t{n}"} for n in range(MANY)],
            "thresholds": {f"unknown{n}": {} for n in range(MANY)},
        },
        {"schema": 1, "tiers": {f"t{n}": {f"enginee{n}": "vllm"} for n in range(MANY)}},
    ],
    ids=["keys", "keys of targets", "rules", "tiers", "plan"],
)
def test_suggestions_are_limited_to_those_told(
    data: dict[str, Any], name: str, tmp_path: Path, suggestions: list[int]
) -> None:
    (tmp_path / name).write_text(json.dumps(data))
    read = files.load_plan if "schema" in data else load
    with pytest.raises(ConfigError) as refused:
        read(tmp_path / name)
    problems = refused.value.problems
    assert len(problems) == MOST_PROBLEMS + 1
    assert problems[-1] == FURTHER
    assert len(suggestions) <= 2 * MOST_PROBLEMS
    assert max(suggestions, default=0) <= MOST_COMPARED
    assert max(map(len, problems)) < 2_000


def test_repeated_names_are_found_fast() -> None:
    keys = [Counting(f"key{n}") for n in range(MANY)]
    assert list(sections.repeats([*keys, keys[1]])) == [(MANY, 1)]
    # Beside each repeated key, only keys of one place in the table are compared.
    assert Counting.compared < 20 * MANY


def test_pools_are_sorted_in_one_pass(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "sizewatch.json"
    path.write_text(json.dumps({"targets": [{**TARGET, "tier": f"t{n}"} for n in range(200)]}))
    loaded, read = load(path), mock.Mock(return_value="127.0.0.1:1")
    monkeypatch.setattr(type(loaded.config.targets[0]), "name", property(read))
    assert len(build_tier_contexts(loaded)) == 200
    assert read.call_count == 200
    assert build_tier_context("t0", None, True, None, {"127.0.0.1:1": "mixed"}) == build_tier_contexts(loaded)["t0"]


def test_problems_are_capped_once() -> None:
    endless = itertools.count()
    told = cap_problems("a: is wrong" for _ in endless)
    assert told == ("a: is wrong",) * MOST_PROBLEMS + (FURTHER,)
    assert next(endless) <= MOST_PROBLEMS + 2
    assert cap_problems([f"file:1: {FURTHER}", *told]) == told
    assert cap_problems(["a"] * MOST_PROBLEMS) == ("a",) * MOST_PROBLEMS


# ---- whatever a configuration may say as a threshold, no rule fails by it ----


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


@pytest.mark.parametrize("rule", rule_evaluation.LONG, ids=lambda rule: rule.name)
def test_daily_rules_accept_any_threshold(rule: Rule) -> None:
    made = days_samples.hours(336, lambda n: days_samples.hour(n, used=0.3 if n % 3 else 0.97))
    for name, value in allowed(rule):
        assert days_samples.answered(rule.name, limited(rule, name, value), made).rule == rule.name
