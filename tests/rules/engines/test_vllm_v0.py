"""vLLM's V0 engine as its pages are, 0.5.0 to 0.8; and that wrapped names, of V0 and V1, read the same."""

from __future__ import annotations

import re

import pytest
from making import PAGES, START, page_text, read
from paths import SHARED
from table_checks import TABLES, unexplained

from agent.errors import ScrapeError
from agent.scrape.scrapers import PageReader
from rules.engines.coverage import FamilyUse, explain_families
from rules.engines.registry import ENGINES, detect_engine
from rules.telemetry import windows
from rules.telemetry.families import BY_NAME, stem
from rules.telemetry.readings import read_all
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.snapshots import Snapshot

VLLM_V0 = TABLES["vllm/v0"]

PAGE, TWIN = "vllm-0.6.6.post1.prom", "vllm-0.6.6.post1.openmetrics.txt"
SHARED_PAGES = SHARED / "pages"
OLD = SHARED_PAGES / "vllm-0.5.0-v0-opt125m-datadog.prom"
REAL = next(SHARED_PAGES.glob("vllm-0.6.x-v0-qwen-coder-*.prom"), SHARED_PAGES / "vllm-0.6.x-v0-qwen-coder.prom")
CAPTURED = pytest.mark.skipif(not REAL.exists(), reason="../shared is absent: the captured V0 pages were not tried")

HTTP = """
# TYPE http_requests_total counter
http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 12.0
http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 3.0
"""


def of(text: str, t: float = START) -> Snapshot:
    page = read(text, t)
    assert (page.engine, page.generation) == ("vllm", "v0")
    return page


def printed(name: str) -> float:
    """The only value of a name on the page."""
    (value,) = re.findall(rf"(?m)^vllm:{name}(?:\{{.*\}})? (\S+)$", page_text(PAGE))
    return float(value)


def without(text: str, *names: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not any(name in line for name in names))


def with_one_more(text: str, name: str, value: float) -> str:
    """The page after one more observation, above all edges, in a histogram."""

    def grown(found: re.Match[str]) -> str:
        return f"{found[1]} {float(found[2]) + (value if '_sum' in found[1] else 1)}"

    return re.sub(rf'(?m)^(vllm:{name}_(?:sum|count|bucket\{{le="\+Inf").*) (\S+)$', grown, text)


def uses(text: str) -> dict[str, FamilyUse]:
    reader = PageReader("vllm")
    reader.read(text.encode(), START)
    return {use.name: use for use in explain_families(reader.engine, reader.families)}


# --- whose page it is


def test_what_tells_v0_from_v1_is_the_missing_engine_label() -> None:
    of(page_text(PAGE))
    assert read(page_text("vllm-0.8.5.prom")).generation == "v1"
    assert read(page_text("vllm-0.8.5.prom").replace('engine="0",', "")).generation == "v0"


@pytest.mark.parametrize("name", sorted(page.name for page in PAGES.glob("vllm-*.prom")))
def test_no_page_of_v1_is_taken_for_v0_and_none_of_v0_for_v1(name: str) -> None:
    assert read(page_text(name)).generation == ("v0" if name == PAGE else "v1")


def test_the_configured_engine_has_both_generations() -> None:
    assert read(page_text(PAGE), engine="vllm") == of(page_text(PAGE))
    with pytest.raises(ScrapeError, match="not a page of sglang"):
        read(page_text(PAGE), engine="sglang")


# --- spelling


def test_the_openmetrics_twin_says_the_same() -> None:
    assert of(page_text(TWIN)) == of(page_text(PAGE))


@pytest.mark.parametrize("prefix", ["vllm_", "ray_vllm_", "ray_vllm:", "kserve_vllm_", "kserve_vllm:"])
@pytest.mark.parametrize("name", [PAGE, "vllm-0.8.5.prom", "vllm-0.33.0.prom", "steady_after_load.prom"])
def test_whoever_rewrites_the_names_the_page_says_the_same(prefix: str, name: str) -> None:
    """Ray (`ray_vllm_`, formerly `ray_vllm:`), KServe, and those who write '_' for ':'."""
    plain, wrapped = page_text(name), page_text(name).replace("vllm:", prefix)
    assert wrapped != plain
    assert read(wrapped) == read(plain)
    assert read_all(windows.diff_snapshots(read(wrapped), read(wrapped, START + 15))) == read_all(
        windows.diff_snapshots(read(plain), read(plain, START + 15))
    )


@pytest.mark.parametrize("prefix", ["ray_vllm_", "kserve_vllm:"])
def test_wrapped_families_are_explained_as_plain_ones(prefix: str) -> None:
    plain, wrapped = uses(page_text(PAGE)), uses(page_text(PAGE).replace("vllm:", prefix))
    assert [(use.is_read, use.families, use.text) for use in wrapped.values()] == [
        (use.is_read, use.families, use.text) for use in plain.values()
    ]


# --- what is read


def test_the_page_is_whole_and_its_facts_are_the_models() -> None:
    page = of(page_text(PAGE))
    assert (page.problems, page.broken) == ((), frozenset())
    assert page.facts["model"] == "meta-llama/Llama-3.1-8B-Instruct"
    assert (page.facts["block_size"], page.facts["num_gpu_blocks"]) == ("16", "27000")
    assert page.facts["engine_versions"] == "after 0.5.0"


def test_each_counter_is_the_one_that_the_page_prints() -> None:
    counters = of(page_text(PAGE)).counters
    assert counters == {
        "requests_finished": 1916 + 3912 + 948,
        "requests_aborted": 948,
        "requests_ended_by_length": 3912,
        "prompt_tokens": printed("prompt_tokens_total"),
        "generation_tokens": printed("generation_tokens_total"),
        "preemptions": printed("num_preemptions_total"),
        "engine_steps": printed("iteration_tokens_total_count"),
    }


def test_each_gauge_is_the_one_that_the_page_prints() -> None:
    gauges = of(page_text(PAGE)).gauges
    assert gauges == {
        "requests_running": 20,
        "requests_waiting": 60,
        "kv_utilization": 0.395,
        "kv_utilization_max": 0.395,
        "prefix_hit_gauge": 0.094,
        "spec_accept_rate": 0.628,
        "adapters_running": 2,
        "adapters_waiting": 0,
    }


@pytest.mark.parametrize(
    ("family", "name", "last"),
    [
        ("ttft_seconds", "time_to_first_token_seconds", 10.0),
        ("itl_seconds", "time_per_output_token_seconds", 2.5),
        ("e2e_seconds", "e2e_request_latency_seconds", None),
        ("queue_seconds", "request_queue_time_seconds", None),
        ("prefill_seconds", "request_prefill_time_seconds", None),
        ("decode_seconds", "request_decode_time_seconds", None),
        ("inference_seconds", "request_inference_time_seconds", None),
        ("prompt_tokens_per_request", "request_prompt_tokens", None),
        ("generation_tokens_per_request", "request_generation_tokens", None),
    ],
)
def test_each_histogram_is_the_one_of_its_name_with_the_edges_of_its_release(
    family: str, name: str, last: float | None
) -> None:
    """TTFT ended at 10 s until spring 2025; prefill and decode are not each other's any more (vLLM PR 10853)."""
    found = of(page_text(PAGE)).histograms[family]
    assert found.total == printed(f"{name}_sum")
    assert found.counts[-1] == printed(f"{name}_count")
    assert last is None or found.edges[-2] == last


def test_beyond_the_last_edge_of_ttft_there_is_only_a_bound() -> None:
    text = page_text(PAGE)
    late = re.sub(
        r"(?m)^(vllm:time_to_first_token_seconds_(bucket\{le=\"\+Inf\".*\}|count\{.*\})) \S+$", r"\1 1000.0", text
    )
    found = read_all(windows.diff_snapshots(of(text), of(late, START + 15)))["ttft_p99_seconds"]
    assert found == Reading(value=None, low=10.0, high=None, n=960.0)


def test_the_histogram_called_time_per_output_token_is_not_read_as_that() -> None:
    page = of(page_text(PAGE))
    assert "tpot_seconds" not in page.histograms
    found = read_all(windows.diff_snapshots(page, of(page_text(PAGE), START + 15)))
    assert found["tpot_p99_seconds"] == Missing(gap=Gap.NOT_EXPOSED)


def test_the_mean_time_per_output_token_comes_from_the_decode_time() -> None:
    text = page_text(PAGE)
    more = with_one_more(text, "request_decode_time_seconds", 2.7)
    more = with_one_more(more, "request_generation_tokens", 28.0)
    found = read_all(windows.diff_snapshots(of(text), of(more, START + 15)))["tpot_mean_seconds"]
    assert isinstance(found, Reading)
    assert found.value == pytest.approx(2.7 / (28 - 1))


def test_sums_of_running_totals_are_no_counters() -> None:
    """vLLM PR 15415: each log adds the totals since the start once more to spec_decode_num_*."""
    found = uses(page_text(PAGE))
    for name in ("draft", "accepted", "emitted"):
        assert found[f"vllm:spec_decode_num_{name}_tokens_total"].is_read is False
    assert not any(family.startswith("spec_") for family in of(page_text(PAGE)).counters)


def test_the_hit_rate_is_the_gauge_of_the_gpu_where_there_are_no_counters() -> None:
    found = read_all(
        windows.diff_snapshots(of(page_text(PAGE)), of(page_text(PAGE).replace("4157.0", "9999.0"), START + 15))
    )
    hits = found["prefix_hit_ratio"]
    assert isinstance(hits, Reading)
    assert hits.value == pytest.approx(0.094)


def test_without_prefix_caching_its_rate_of_minus_one_is_no_rate() -> None:
    off = re.sub(r"(?m)^(vllm:[cg]pu_prefix_cache_hit_rate\{.*\}) \S+$", r"\1 -1.0", page_text(PAGE))
    page = of(off)
    assert "prefix_hit_gauge" not in page.gauges
    assert page.gauges["kv_utilization"] == 0.395
    assert isinstance(read_all(windows.diff_snapshots(page, of(off, START + 15)))["prefix_hit_ratio"], Missing)
    assert "-1 without prefix caching" in VLLM_V0.explain_missing(["prefix_hit_tokens"])


def test_a_server_that_finished_nothing_yet_says_zero_and_not_nothing() -> None:
    """The counter of finished requests appears with the first of them, the gauges with the first step."""
    text = without(page_text(PAGE), "vllm:request_success")
    counters = of(text).counters
    assert (counters["requests_finished"], counters["requests_ended_by_length"]) == (0, 0)
    with_stops = without(page_text(PAGE), 'finished_reason="length"', 'finished_reason="abort"')
    assert (of(with_stops).counters["requests_finished"], of(with_stops).counters["requests_aborted"]) == (1916, 0)


def test_answers_by_http_status_are_told_where_the_server_counts_them() -> None:
    counters = of(page_text(PAGE) + HTTP.lstrip()).counters
    assert [counters[f"http_requests_{what}"] for what in ("ok", "refused", "failed")] == [12, 3, 0]
    assert "http_requests_ok" not in of(page_text(PAGE)).counters


# --- table and pages hold each other


def test_every_family_of_the_page_is_read_or_left_alone_for_a_reason() -> None:
    for name in (PAGE, TWIN):
        assert unexplained(VLLM_V0, uses(page_text(name)).values()) == []


def test_every_row_is_met_on_the_page_or_says_where_it_is_declared() -> None:
    met = {(use.name.replace(":", "_"), family) for use in uses(page_text(PAGE)).values() for family in use.families}
    for row in VLLM_V0.rows:
        assert (row.source, row.family) in met or ".py" in row.note, row
        assert BY_NAME[row.family].kind is row.kind


def test_what_is_called_read_is_read() -> None:
    said = {family for use in uses(page_text(PAGE)).values() for family in use.families}
    page = of(page_text(PAGE))
    assert {stem(family) for family in (*page.counters, *page.histograms, *page.gauges)} == said


@CAPTURED
def test_the_captured_page_of_january_2025_is_read() -> None:
    page = of(REAL.read_text(encoding="utf-8"))
    assert page.facts["model"] == "Qwen/Qwen2.5-Coder-1.5B-Instruct"
    assert page.facts["num_gpu_blocks"] == "81767"
    assert (page.counters["requests_finished"], page.counters["requests_ended_by_length"]) == (4, 0)
    assert (page.counters["prompt_tokens"], page.counters["generation_tokens"]) == (148, 955)
    assert "prefix_hit_gauge" not in page.gauges
    assert unexplained(VLLM_V0, uses(REAL.read_text(encoding="utf-8")).values()) == []


@CAPTURED
def test_the_captured_page_of_0_5_is_read_as_far_as_it_goes() -> None:
    page = of(OLD.read_text(encoding="utf-8"))
    assert (page.problems, page.facts["engine_versions"]) == ((), "")
    assert page.counters == {
        "requests_finished": 1,
        "requests_aborted": 0,
        "requests_ended_by_length": 1,
        "prompt_tokens": 5,
        "generation_tokens": 7,
        "preemptions": 0,
    }
    assert page.histograms["ttft_seconds"].total == pytest.approx(0.31326723098754883)
    assert page.histograms["itl_seconds"].counts[-1] == 6
    assert page.histograms["e2e_seconds"].edges[0] == 1.0
    assert page.histograms["e2e_seconds"].edges[-2] == 60.0
    assert page.started_at == pytest.approx(1718140558.3)
    assert unexplained(VLLM_V0, uses(OLD.read_text(encoding="utf-8")).values()) == []


def test_both_generations_stand_in_the_registry_and_a_page_is_of_one() -> None:
    assert [e.generation for e in ENGINES if e.name == "vllm"] == ["v1", "v0"]
    series = [("vllm_num_requests_running", {"model_name": "m"})]
    assert detect_engine(series) is VLLM_V0
    assert detect_engine([("vllm_num_requests_running", {"model_name": "m", "engine": "0"})], (VLLM_V0,)) is None
    assert not explain_families(VLLM_V0, {"vllm:tokens": "counter"})[0].is_read
