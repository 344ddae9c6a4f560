"""The files that hold expressions: rule files, PrometheusRule objects, dashboards; and what is none."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from linted import VLLM
from linted import page as saved

from agent.lint.catalogue import catalogue
from agent.lint.findings import Linted
from agent.lint.linting import lint
from agent.lint.rule_files import BadRuleFile, read_rules

RULES = """# a comment
groups:
  - name: engine
    rules:
      - alert: KvFull
        expr: vllm:gpu_cache_usage_perc > 0.9
        for: 5m
      - record: model:hits:ratio
        expr: |
          # how much of the prompts was cached
          sum(rate(vllm:prefix_cache_hits[5m]))
            /
          sum(rate(vllm:prefix_cache_queries[5m]))
      - alert: Queue
        expr: >-
          max by (pod)
          (vllm:num_requests_waitin) > 10
"""

OBJECTS = """apiVersion: monitoring.coreos.com/v1
kind: PrometheusRule
metadata: {name: one}
spec:
  groups:
    - name: a
      rules: [{alert: First, expr: "vllm:gpu_cache_usage_perc > 0.9"}]
---
---
kind: List
items:
  - kind: PrometheusRule
    spec:
      groups:
        - name: b
          rules:
            - alert: Second
              expr: vllm:kv_cache_usage_perc > 0.9
            - alert: Third
              expr: vllm:kv_cache_usage_perc > 90
"""


def written(folder: Path, text: str, name: str = "rules.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def linted(*paths: Path) -> Linted:
    return lint(paths, catalogue((saved(VLLM),)))


def test_every_finding_has_the_line_its_name_stands_in(tmp_path: Path) -> None:
    found = linted(written(tmp_path, RULES))
    assert [(one.line, one.rule) for one in found.findings] == [
        (6, "KvFull"),
        (11, "model:hits:ratio"),
        (13, "model:hits:ratio"),
        (17, "Queue"),
    ]
    assert (found.expressions, found.files, found.broken) == (3, 1, ())


def test_objects_of_the_operator_in_several_documents_are_read(tmp_path: Path) -> None:
    found = linted(written(tmp_path, OBJECTS))
    assert [(one.line, one.rule, one.fix) for one in found.findings] == [
        (7, "First", "vllm:kv_cache_usage_perc"),
        (20, "Third", "vllm:kv_cache_usage_perc > 0.9"),
    ]
    assert found.expressions == 3


def test_a_name_recorded_in_one_file_is_known_in_another(tmp_path: Path) -> None:
    recording = "groups: [{name: a, rules: [{record: 'vllm:worst_queue', expr: 'max(vllm:num_requests_waiting)'}]}]"
    alerting = "groups: [{name: a, rules: [{alert: A, expr: 'vllm:worst_queue > 9'}]}]"
    paths = (written(tmp_path, alerting, "a.yaml"), written(tmp_path, recording, "b.yaml"))
    assert linted(*paths).findings == ()
    assert [one.kind for one in linted(paths[0]).findings] == ["dead-name"]


def test_a_part_used_twice_by_an_anchor_is_read_once(tmp_path: Path) -> None:
    text = "a: &r [{alert: A, expr: 'vllm:gpu_cache_usage_perc > 1'}]\nb: *r\n"
    assert linted(written(tmp_path, text)).expressions == 1


DASHBOARD = {
    "title": "vLLM",
    "panels": [
        {
            "title": "TTFT",
            "targets": [
                {
                    "expr": "histogram_quantile(0.99, sum by (le) (rate("
                    'vllm:time_to_first_token_seconds_bucket{model_name="$model_name"}[$__rate_interval])))'
                },
                {"refId": "B"},
            ],
        },
        {
            "type": "row",
            "panels": [
                {
                    "title": "Cache",
                    "targets": [
                        {"expr": 'vllm:gpu_cache_usage_perc{model_name=~"${model:regex}"}'},
                        {"expr": "topk($n, vllm:num_requests_waiting)"},
                        {"expr": "sum by ($by) (max_over_time(vllm:num_requests_running[$__range:$__interval]))"},
                        {"expr": 'vllm:request_success_total{finished_reason="$reason"}'},
                        {"expr": "$function(vllm:num_requests_running[5m])$rest"},
                        {"expr": ""},
                    ],
                }
            ],
        },
    ],
}


def test_a_dashboards_panels_are_read_with_their_variables(tmp_path: Path) -> None:
    found = linted(written(tmp_path, json.dumps(DASHBOARD, indent="\t"), "dashboard.json"))
    assert [(one.rule, one.fix) for one in found.findings] == [
        ("Cache", 'vllm:kv_cache_usage_perc{model_name=~"${model:regex}"}')
    ]
    assert found.expressions == 6
    assert found.broken == ()
    (remark,) = found.remarks
    assert "cannot be read with its variables" in remark.text


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("rules.yaml", "groups: [", "is not YAML"),
        ("rules.yaml", "{{- if .Values.on }}\ngroups: []\n{{- end }}\n", "render the template first"),
        ("rules.yaml", "groups: []\n", "holds no rules"),
        ("rules.yaml", "", "holds no rules"),
        ("rules.yaml", "- alert: A\n  for: 5m\n", "A: has no expr"),
        ("rules.yaml", "- alert: A\n  expr: [1]\n", "A: has no expr"),
        ("rules.yaml", "a: \x00\n", "is not YAML"),
        ("rules.yaml", "[" * 20_000, "is nested too deeply"),
        ("board.json", '{"panels": [}', "is not JSON"),
        ("board.json", "[" * 100_000, "is not JSON"),
    ],
)
def test_a_file_that_cannot_be_read_is_told_with_its_line(name: str, text: str, says: str, tmp_path: Path) -> None:
    path = written(tmp_path, text, name)
    with pytest.raises(BadRuleFile) as caught:
        read_rules(path)
    assert str(caught.value).startswith(f"{path}:")
    assert says in str(caught.value)
    (one,) = linted(path).broken
    assert says in one.text


def test_a_broken_file_does_not_hide_the_others(tmp_path: Path) -> None:
    good, bad = written(tmp_path, RULES), written(tmp_path, "groups:\n  - [\n", "bad.yaml")
    found = linted(bad, good, tmp_path / "none.yaml")
    assert len(found.findings) == 4
    assert [(one.file, one.line) for one in found.broken] == [(str(bad), 3), (str(tmp_path / "none.yaml"), 0)]


def test_an_expression_that_does_not_parse_is_told_and_the_others_are_judged(tmp_path: Path) -> None:
    text = "- alert: A\n  expr: sum(rate(x[5m]) > 1\n- alert: B\n  expr: vllm:kv_cache_usage_perc > 90\n"
    found = linted(written(tmp_path, text))
    assert [(one.line, one.rule) for one in found.broken] == [(2, "A")]
    assert "is no PromQL" in found.broken[0].text
    assert [one.rule for one in found.findings] == ["B"]


def test_a_file_beyond_reason_is_not_read(tmp_path: Path) -> None:
    (one,) = linted(written(tmp_path, "#" * (4 * 1024 * 1024 + 1))).broken
    assert "is larger than" in one.text
