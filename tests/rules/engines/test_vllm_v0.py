"""vLLM's V0 engine as its pages are, 0.5.0 to 0.8; and that wrapped names, of V0 and V1, read the same."""

import re

import pytest
from making import START, page_text, read
from table_checks import TABLES, without_lines

from agent.errors import ScrapeError
from rules.telemetry import windows
from rules.telemetry.readings import read_all
from rules.telemetry.signals import Missing
from rules.telemetry.snapshots import Snapshot

VLLM_V0 = TABLES["vllm/v0"]
PAGE = "vllm-0.6.6.post1.prom"


HTTP = """
# TYPE http_requests_total counter
http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 12.0
http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 3.0
"""


def of(text: str, t: float = START) -> Snapshot:
    page = read(text, t)
    assert (page.engine, page.generation) == ("vllm", "v0")
    return page


def test_engine_label_tells_v1() -> None:
    of(page_text(PAGE))
    assert read(page_text("vllm-0.8.5.prom")).generation == "v1"
    assert read(page_text("vllm-0.8.5.prom").replace('engine="0",', "")).generation == "v0"


def test_the_configured_engine_has_both_generations() -> None:
    assert read(page_text(PAGE), engine="vllm") == of(page_text(PAGE))
    with pytest.raises(ScrapeError, match="not a page of sglang"):
        read(page_text(PAGE), engine="sglang")


def test_rate_of_minus_one_is_none() -> None:
    off = re.sub(r"(?m)^(vllm:[cg]pu_prefix_cache_hit_rate\{.*\}) \S+$", r"\1 -1.0", page_text(PAGE))
    page = of(off)
    assert "prefix_hit_gauge" not in page.gauges
    assert page.gauges["kv_utilization"] == 0.395
    assert isinstance(read_all(windows.diff_snapshots(page, of(off, START + 15)))["prefix_hit_ratio"], Missing)
    assert "-1 without prefix caching" in VLLM_V0.explain_missing(["prefix_hit_tokens"])


def test_v0_without_finished_requests_is_zero() -> None:
    """The counter of finished requests appears with the first of them, the gauges with the first step."""
    text = without_lines(page_text(PAGE), "vllm:request_success")
    counters = of(text).counters
    assert (counters["requests_finished"], counters["requests_ended_by_length"]) == (0, 0)
    with_stops = without_lines(page_text(PAGE), 'finished_reason="length"', 'finished_reason="abort"')
    assert (of(with_stops).counters["requests_finished"], of(with_stops).counters["requests_aborted"]) == (1916, 0)


def test_v0_counts_http_status_where_told() -> None:
    counters = of(page_text(PAGE) + HTTP.lstrip()).counters
    assert [counters[f"http_requests_{what}"] for what in ("ok", "refused", "failed")] == [12, 3, 0]
    assert "http_requests_ok" not in of(page_text(PAGE)).counters
