"""The HorizontalPodAutoscaler on the external metric, and the adapter's rule that it needs."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import promql_parser
import pytest
import yaml
from scaling_samples import CHAT, HOSTILE, UNSCHEDULED, objects

from exporters.autoscaling.manifests import adapter_rule, manifest_text, metric_name


def test_it_asks_for_as_many_replicas_as_the_gauge_says() -> None:
    (one,) = objects(CHAT, "hpa")
    assert (one["apiVersion"], one["kind"]) == ("autoscaling/v2", "HorizontalPodAutoscaler")
    spec = one["spec"]
    assert spec["metrics"] == [
        {
            "type": "External",
            "external": {
                "metric": {"name": "sizewatch_recommended_replicas_chat"},
                "target": {"type": "AverageValue", "averageValue": "1"},
            },
        }
    ]
    assert spec["scaleTargetRef"] == {"apiVersion": "apps/v1", "kind": "Deployment", "name": "vllm-chat"}
    assert (spec["minReplicas"], spec["maxReplicas"]) == (2, 14)
    assert spec["behavior"]["scaleDown"]["stabilizationWindowSeconds"] == 600


def test_it_never_goes_to_none_and_says_so() -> None:
    none = replace(UNSCHEDULED, minimum_warm=0)
    assert objects(none, "hpa")[0]["spec"]["minReplicas"] == 1
    assert "does not scale to none" in manifest_text(none, "hpa")
    assert "does not scale to none" not in manifest_text(CHAT, "hpa")


@pytest.mark.parametrize("tier", ["chat", *HOSTILE])
def test_the_adapter_serves_the_metric_of_that_tier_under_the_name_that_the_hpa_asks_for(tier: str) -> None:
    (rule,) = yaml.safe_load(adapter_rule(tier))["externalRules"]
    for query in (rule["seriesQuery"], rule["metricsQuery"]):
        tree: Any = promql_parser.parse(query)
        selector = getattr(tree, "expr", tree)
        assert [(m.name, m.value) for m in selector.matchers.matchers] == [("tier", tier)]
        assert "<<" not in query, "the adapter would expand it"
    assert rule["resources"] == {"namespaced": False}
    assert re.fullmatch(rule["name"]["matches"].strip("^$"), "sizewatch_recommended_replicas")
    assert (
        rule["name"]["as"]
        == objects(replace(CHAT, tier=tier), "hpa")[0]["spec"]["metrics"][0]["external"]["metric"]["name"]
    )
    assert re.fullmatch("[a-z0-9_]+", metric_name(tier))


def test_two_tiers_have_two_metrics() -> None:
    assert len({metric_name(tier) for tier in ("a b", "a-b", "a_b", "A-B", *HOSTILE)}) == 4 + len(HOSTILE)


def test_the_rule_stands_in_the_comment_and_reads_back() -> None:
    for tier in ("chat", *HOSTILE[:2]):
        head, _, _ = manifest_text(replace(CHAT, tier=tier), "hpa").partition("\n---\n")
        _, _, rule = head.partition("Add to its configuration:\n#\n")
        told = "\n".join(line.removeprefix("# ") for line in rule.splitlines())
        assert yaml.safe_load(told) == yaml.safe_load(adapter_rule(tier))
