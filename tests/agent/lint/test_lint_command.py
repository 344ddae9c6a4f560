"""`sizewatch lint`: files, output and exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from paths import ROOT
from waiting import CEILING_SECONDS

from agent.cli import main
from agent.lint.linting import LintResult, lint_files

RULES = """# a comment
groups:
  - name: engine
    rules:
      - alert: KvFull
        expr: vllm:gpu_cache_usage_perc > 0.9
        for: 5m
      - record: vllm:worst_queue
        expr: max(vllm:num_requests_waiting)
      - alert: Queue
        expr: vllm:worst_queue > 10
"""
OBJECTS = """kind: PrometheusRule
spec: {groups: [{name: a, rules: [{alert: First, expr: "vllm:gpu_cache_usage_perc > 0.9"}]}]}
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
              expr: vllm:kv_cache_usage > 0.9
"""
DASHBOARD = {
    "title": "vLLM",
    "panels": [
        {
            "type": "row",
            "panels": [
                {
                    "title": "Cache",
                    "targets": [
                        {"expr": 'vllm:gpu_cache_usage_perc{model_name=~"${model:regex}"}'},
                        {"expr": "topk($n, vllm:num_requests_waiting)"},
                        {"expr": "sum by ($by) (max_over_time(vllm:num_requests_running[$__range:$__interval]))"},
                        {"expr": "$function(vllm:num_requests_running[5m])$rest"},
                        {"expr": ""},
                        {"refId": "B"},
                    ],
                }
            ],
        },
    ],
}
OWN = sorted((ROOT / "rules" / "prometheus").glob("sizewatch-*.yaml"))


def written(folder: Path, text: str, name: str = "rules.yaml") -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def linted(capsys: pytest.CaptureFixture[str], *words: object) -> tuple[int, str, str]:
    code = main.main(["lint", *map(str, words)])
    return code, *capsys.readouterr()


def places(result: LintResult) -> list[tuple[int, str, str]]:
    return [(one.line, one.rule, one.fix) for one in result.findings]


def test_a_finding_is_one_line_with_place_rule_and_fix(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = written(tmp_path, RULES)
    line = f"{path}:6: KvFull: no current release prints vllm:gpu_cache_usage_perc; write: vllm:kv_cache_usage_perc\n"
    assert linted(capsys, path) == (1, line + "3 expressions in 1 file: 1 finding\n", "")


def test_json_has_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, out, _ = linted(capsys, "--format", "json", written(tmp_path, RULES))
    document = json.loads(out)
    assert code == 1
    assert (document["schema"], document["files"], document["expressions"], document["broken"]) == (1, 1, 3, [])
    (one,) = document["findings"]
    assert (one["line"], one["rule"], one["kind"], one["fix"]) == (6, "KvFull", "renamed", "vllm:kv_cache_usage_perc")


def test_a_label_of_targets_is_right(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = written(tmp_path, "- {alert: A, expr: 'sum by (model) (vllm:num_requests_running) > 5'}")
    assert linted(capsys, path)[0] == 1
    assert linted(capsys, path, "--target-label", "model") == (0, "1 expression in 1 file: 0 findings\n", "")


def test_every_problem_of_the_input_is_on_stderr(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = written(tmp_path, "- {alert: Half, expr: 'sum(x'}\n- {alert: A, expr: 'vllm:num_request_waiting > 1'}\n")
    code, out, err = linted(capsys, path, tmp_path / "none.yaml")
    assert (code, len(out.splitlines())) == (2, 2)
    assert err.splitlines() == [
        f"sizewatch lint: {tmp_path}/none.yaml: cannot be read: No such file or directory",
        f"sizewatch lint: {path}:1: Half: is no PromQL: unclosed left parenthesis",
    ]


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_our_own_rules_are_clean(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = linted(capsys, path)
    assert code == 0, out + err


def test_objects_in_several_documents_are_read(tmp_path: Path) -> None:
    assert places(lint_files([written(tmp_path, OBJECTS)])) == [
        (2, "First", "vllm:kv_cache_usage_perc"),
        (13, "Second", "vllm:kv_cache_usage_perc"),
    ]


def test_a_name_recorded_in_one_file_is_known_in_another(tmp_path: Path) -> None:
    alerting = written(tmp_path, "- {alert: A, expr: 'vllm:worst_queue > 9'}", "a.yaml")
    recording = written(tmp_path, RULES)
    assert [one.rule for one in lint_files([alerting]).findings] == ["A"]
    assert [one.rule for one in lint_files([alerting, recording]).findings] == ["KvFull"]


def test_a_rule_behind_two_anchors_is_read_once(tmp_path: Path) -> None:
    text = "a: &r [{alert: A, expr: 'vllm:gpu_cache_usage_perc > 1'}]\nb: *r\n"
    assert lint_files([written(tmp_path, text)]).expressions == 1


def test_panels_are_read_with_their_variables(tmp_path: Path) -> None:
    result = lint_files([written(tmp_path, json.dumps(DASHBOARD, indent="\t"), "dashboard.json")])
    assert [(one.rule, one.fix) for one in result.findings] == [("Cache", "vllm:kv_cache_usage_perc")]
    assert (result.expressions, result.broken) == (4, ())


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
        ("rules.yaml", "#" * (4 * 1024 * 1024 + 1), "is larger than"),
        ("board.json", '{"panels": [}', "is not YAML or JSON"),
    ],
    ids=lambda text: text[:20],
)
def test_a_file_that_cannot_be_read_is_broken(name: str, text: str, says: str, tmp_path: Path) -> None:
    (one,) = lint_files([written(tmp_path, text, name)]).broken
    assert says in str(one)
    assert str(one).startswith(str(tmp_path / name))


def test_a_file_without_an_end_is_read_up_to_the_limit() -> None:
    (one,) = lint_files([Path("/dev/zero")]).broken
    assert "is larger than" in str(one)


def test_a_rule_without_an_expression_does_not_hide_the_others(tmp_path: Path) -> None:
    text = "- {alert: A, for: 5m}\n- {alert: B, expr: 'vllm:gpu_cache_usage_perc > 1'}\n- {record: C}\n"
    result = lint_files([path := written(tmp_path, text)])
    assert list(map(str, result.broken)) == [f"{path}:1: A: has no expr", f"{path}:3: C: has no expr"]
    assert [one.rule for one in result.findings] == ["B"]
    assert result.expressions == 1


def test_only_this_command_loads_the_parser_of_promql() -> None:
    script = """
import sys
import agent.daemon
from agent.cli import main as cli
cli.parser(["run", "check", "inspect", "doctor"])
assert "promql_parser" not in sys.modules
cli.main(["lint", "/nowhere"])
assert "promql_parser" in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=CEILING_SECONDS
    )
    assert done.returncode == 0, done.stderr
