"""`sizewatch lint`: pages from addresses and files, what is printed, exit codes."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from engine_server import Handler, answers_500, engines, give
from linted import DCGM_PAGE, PAGES, rule_file
from paths import ROOT, SHARED
from waiting import CEILING_SECONDS

from agent.cli import main

SHARED_DCGM = SHARED / "pages" / "dcgm-exporter-t4-datadog.prom"
VLLM_PAGE = str(PAGES / "vllm-0.33.0.prom")

CLEAN: tuple[dict[str, object], ...] = (
    {
        "record": "model:ttft_seconds:p99",
        "expr": "histogram_quantile(0.99, sum by (le, model_name) (rate(vllm:time_to_first_token_seconds_bucket[5m])))",
    },
    {"alert": "SlowFirstToken", "expr": "model:ttft_seconds:p99 > 2", "for": "10m"},
    {"alert": "KvNearlyFull", "expr": "max by (pod) (vllm:kv_cache_usage_perc) > 0.95", "for": "5m"},
    {"alert": "Preemptions", "expr": "sum by (pod) (increase(vllm:num_preemptions_total[5m])) > 0"},
    {
        "alert": "HighErrorRate",
        "expr": 'sum(rate(vllm:request_success_total{finished_reason=~"abort|error"}[5m]))'
        " / sum(rate(vllm:request_success_total[5m])) > 0.05",
    },
    {"alert": "NoMetrics", "expr": 'absent(vllm:num_requests_running) or up{job="vllm"} == 0', "for": "5m"},
    {"alert": "GpuHot", "expr": "max by (gpu, Hostname) (DCGM_FI_DEV_GPU_TEMP) > 85", "for": "5m"},
    {"alert": "GpuMemoryFull", "expr": "DCGM_FI_DEV_FB_USED / (DCGM_FI_DEV_FB_USED + DCGM_FI_DEV_FB_FREE) > 0.97"},
    {"alert": "GpuXid", "expr": "changes(DCGM_FI_DEV_XID_ERRORS[5m]) > 0 and DCGM_FI_DEV_XID_ERRORS > 0"},
)
FULL: dict[str, object] = {"alert": "KvFull", "expr": "vllm:gpu_cache_usage_perc > 90"}


def linted(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main.main(["lint", *words])
    return code, *capsys.readouterr()


@pytest.fixture
def dcgm(tmp_path: Path) -> str:
    path = tmp_path / "dcgm.prom"
    path.write_text(DCGM_PAGE, encoding="utf-8")
    return str(path)


def test_a_clean_file_gives_nothing(capsys: pytest.CaptureFixture[str], tmp_path: Path, dcgm: str) -> None:
    path = rule_file(tmp_path, *CLEAN)
    assert linted(capsys, "--page", VLLM_PAGE, "--page", dcgm, str(path)) == (
        0,
        "9 expressions in 1 file: nothing wrong was found\n",
        "",
    )


OWN = sorted((ROOT / "rules" / "prometheus").glob("*rule*.yaml"))
OWN += sorted((ROOT / "rules" / "prometheus").glob("sizewatch-*.yaml"))


@pytest.mark.parametrize("path", OWN, ids=lambda path: path.name)
def test_our_own_rules_are_clean(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = linted(capsys, "--page", VLLM_PAGE, str(path))
    assert code == 0, out


@pytest.mark.parametrize("page", ["vllm-0.12.0", "vllm-0.20.2", "vllm-0.29.0", "steady_after_load", "lora_mixed"])
def test_a_clean_file_is_clean_by_every_page_of_its_releases(
    page: str, capsys: pytest.CaptureFixture[str], tmp_path: Path, dcgm: str
) -> None:
    path = rule_file(tmp_path, *CLEAN)
    code, out, _ = linted(capsys, "--page", str(PAGES / f"{page}.prom"), "--page", dcgm, str(path))
    assert (code, out.splitlines()[-1]) == (0, "9 expressions in 1 file: nothing wrong was found")


def test_a_finding_is_one_line_with_place_rule_and_fix(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = rule_file(tmp_path, FULL)
    code, out, err = linted(capsys, "--page", VLLM_PAGE, str(path))
    dead, unit, summary = out.splitlines()
    assert (code, err) == (1, "")
    assert dead == (
        f"{path}:8: KvFull: no page prints vllm:gpu_cache_usage_perc: vLLM after 0.29.0 has vllm:kv_cache_usage_perc,"
        " seen from 0.9.2 on; write: vllm:kv_cache_usage_perc"
    )
    assert unit == (
        f"{path}:8: KvFull: vllm:gpu_cache_usage_perc is a ratio from 0 to 1, and is compared with > 90;"
        " write: vllm:gpu_cache_usage_perc > 0.9"
    )
    assert summary == "1 expression in 1 file: 2 findings"


def test_programs_get_the_same(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = rule_file(tmp_path, FULL, {"alert": "Hot", "expr": "DCGM_FI_DEV_GPU_TEMP > 90"})
    code, out, _ = linted(capsys, "--page", VLLM_PAGE, "--format", "json", str(path))
    told = json.loads(out)
    assert code == 1
    assert (told["schema"], told["files"], told["expressions"], told["broken"]) == (1, 1, 2, [])
    assert [(one["line"], one["rule"], one["kind"], one["fix"]) for one in told["findings"]] == [
        (8, "KvFull", "renamed", "vllm:kv_cache_usage_perc"),
        (8, "KvFull", "range", "vllm:gpu_cache_usage_perc > 0.9"),
    ]
    assert [one["name"] for one in told["not_judged"]] == ["DCGM_FI_DEV_GPU_TEMP"]


def test_a_page_that_is_missing_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = rule_file(tmp_path, *CLEAN)
    code, out, _ = linted(capsys, "--page", VLLM_PAGE, str(path))
    assert code == 0
    assert out.startswith("not judged: DCGM_FI_DEV_FB_FREE, DCGM_FI_DEV_FB_USED, DCGM_FI_DEV_GPU_TEMP")
    assert "no page given prints names beginning with DCGM_: give its page" in out


def test_live_pages_of_several_targets_are_asked(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = rule_file(tmp_path, *CLEAN, FULL)
    with engines(2) as (vllm, gpus):
        gpus.pages = (DCGM_PAGE.encode(),) * 2
        code, out, err = linted(capsys, "--url", vllm.url, "--url", gpus.url, str(path))
    assert (code, err) == (1, "")
    assert [line.split(": ")[1] for line in out.splitlines()[:-1]] == ["KvFull", "KvFull"]
    assert "application/openmetrics-text" in vllm.headers["Accept"]
    assert "application/openmetrics-text" not in gpus.headers["Accept"]


def negotiates(handler: Handler) -> None:
    """As prometheus_client 0.23 to 0.26 mounted by SGLang: the names depend on what is asked for."""
    openmetrics = "openmetrics" in handler.headers.get("Accept", "")
    give(handler, (PAGES / f"sglang-0.5.23.{'openmetrics.txt' if openmetrics else 'prom'}").read_bytes())


def test_both_spellings_of_a_server_that_negotiates_are_right(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    expressions = ("sglang:token_usage > 0.9", "sglang_token_usage > 0.9", "sglang_token_usage > 90")
    path = rule_file(tmp_path, *({"alert": f"A{n}", "expr": text} for n, text in enumerate(expressions)))
    with engines() as (engine,):
        engine.act = negotiates
        code, out, _ = linted(capsys, "--url", engine.url, str(path))
    assert code == 1
    assert [line.split(": ")[1] for line in out.splitlines()[:-1]] == ["A2"]
    assert "not judged" not in out


def answers_only_plain_text(handler: Handler) -> None:
    if "openmetrics" in handler.headers.get("Accept", ""):
        answers_500(handler)
    else:
        give(handler, handler.server.pages[0])


def test_a_server_that_fails_at_what_prometheus_2_asks_for_is_told_of(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = rule_file(tmp_path, {"alert": "A", "expr": "vllm:kv_cache_usage_perc > 0.9"})
    with engines() as (engine,):
        engine.act = answers_only_plain_text
        code, out, err = linted(capsys, "--url", engine.url, str(path))
    assert (code, out) == (0, "1 expression in 1 file: nothing wrong was found\n")
    assert "cannot be read as Prometheus 2 asks for it" in err


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ((), "give the address of a page"),
        (("--page", "/no/such/page"), "/no/such/page: cannot be read"),
        (("--url", "ftp://host/metrics"), "must begin with http"),
        (("--url", "http://127.0.0.1:1/metrics"), "connect"),
    ],
)
def test_without_a_page_there_is_nothing_to_lint_by(
    words: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, out, err = linted(capsys, *words, str(rule_file(tmp_path, FULL)))
    assert (code, out) == (2, "")
    assert says in err


def test_input_that_cannot_be_read_ends_with_2_after_everything_else_was_said(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    path = rule_file(tmp_path, {"alert": "Half", "expr": "sum(x"}, FULL)
    code, out, err = linted(capsys, "--page", VLLM_PAGE, str(path), str(tmp_path / "none.yaml"))
    lines = out.splitlines()
    assert (code, err) == (2, "")
    assert lines[0] == f"{tmp_path}/none.yaml: cannot be read: No such file or directory"
    assert lines[1] == f"{path}:8: Half: is no PromQL: unclosed left parenthesis"
    assert lines[-1] == "2 expressions in 2 files: 4 findings"


def test_a_page_that_is_no_page_ends_with_2(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wrong = tmp_path / "page"
    wrong.write_text("[]\n", encoding="utf-8")
    code, _, err = linted(capsys, "--page", str(wrong), str(rule_file(tmp_path, FULL)))
    assert code == 2
    assert err


def test_of_several_pages_the_one_that_is_no_page_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    wrong = tmp_path / "rules.yaml"
    wrong.write_text("groups: []\n", encoding="utf-8")
    code, _, err = linted(capsys, "--page", VLLM_PAGE, "--page", str(wrong), str(rule_file(tmp_path, FULL)))
    assert (code, err.startswith(f"sizewatch lint: {wrong}: is no metrics page: ")) == (2, True)


def test_only_this_command_loads_the_parser_of_promql() -> None:
    script = """
import sys
import agent.daemon
from agent.cli import main as cli
cli.parser(["run", "check", "inspect", "doctor"])
assert "promql_parser" not in sys.modules
cli.parser(["lint"])
assert "promql_parser" in sys.modules
"""
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False, timeout=CEILING_SECONDS
    )
    assert (done.returncode, done.stderr) == (0, "")


def test_a_real_page_of_dcgm_exporter_tells_the_same_faults(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    if not SHARED_DCGM.is_file():
        pytest.skip(f"{SHARED_DCGM} is not there: the made page alone is linted against")
    path = rule_file(
        tmp_path,
        {"alert": "Busy", "expr": "DCGM_FI_DEV_GPU_UTIL > 0.9"},
        {"alert": "Full", "expr": "DCGM_FI_DEV_FB_USED / DCGM_FI_DEV_FB_FREE > 0.9"},
        {"alert": "Codes", "expr": "avg(DCGM_FI_DEV_XID_ERRORS) > 5"},
        {"alert": "GpuMemoryUsage", "expr": "DCGM_FI_DEV_MEM_COPY_UTIL > 90"},
    )
    code, out, _ = linted(capsys, "--page", str(SHARED_DCGM), "--format", "json", str(path))
    kinds = [one["kind"] for one in json.loads(out)["findings"]]
    assert (code, kinds) == (1, ["range", "not-a-share", "error-code", "memory-busy"])
