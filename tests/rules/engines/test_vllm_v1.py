"""vLLM V1 as its pages are: every rename, unit, label and trap of 0.8.5 to 0.33."""

from __future__ import annotations

import re

import pytest
from making import START, page_text, read
from paths import SHARED
from table_checks import TABLES

from rules.telemetry import windows
from rules.telemetry.readings import read_all, window_since_start
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.snapshots import Snapshot

VLLM_V1 = TABLES["vllm/v1"]

OLDEST, NEWEST, REAL = "vllm-0.8.5.prom", "vllm-0.33.0.prom", "steady_after_load.prom"
RELEASES = ("0.8.5", "0.9.2", "0.11.0", "0.12.0", "0.15.1", "0.20.2", "0.29.0", "0.33.0")
V0_PAGE = next((SHARED / "pages").glob("vllm-0.6.x-v0-qwen-coder-*.prom"), SHARED / "pages" / "vllm-0.6.x-v0.prom")


def of_release(release: str) -> Snapshot:
    return read(page_text(f"vllm-{release}.prom"))


def amounts(page: Snapshot) -> tuple[object, ...]:
    """What a page says, without when."""
    return page.counters, page.histograms, page.gauges, page.problems


def in_two_engines(text: str) -> str:
    """The page of a server with data-parallel size 2: every series with an engine label once more as engine 1."""
    lines = text.splitlines(keepends=True)
    second = (line.replace('engine="0"', 'engine="1"') for line in lines if 'engine="0"' in line)
    return "".join([*lines, *second])


def with_value(text: str, name: str, value: str) -> str:
    """The page with another value in the series of a name (and labels as far as given)."""
    changed, times = re.subn(rf"(?m)^({re.escape(name)}.*) \S+$", rf"\g<1> {value}", text)
    assert times == 1, f"{name}: {times} series"
    return changed


# --- whose page it is


@pytest.mark.parametrize("release", RELEASES)
def test_pages_of_every_scanned_release_are_recognised_and_whole(release: str) -> None:
    page = of_release(release)
    assert (page.engine, page.generation) == ("vllm", "v1")
    # The numbers of these pages are made up, and some of them cannot be.
    assert page.broken <= page.contradictory
    assert page.facts["model"] == "meta-llama/Llama-3.1-8B-Instruct"


def test_a_page_of_the_first_generation_is_not_taken_for_v1() -> None:
    """V0 has the same names without an `engine` label; its numbers mean something else."""
    assert read(page_text(OLDEST)).generation == "v1"
    assert read(page_text(OLDEST).replace('engine="0",', "")).generation == "v0"


@pytest.mark.skipif(not V0_PAGE.exists(), reason="../shared is absent: the captured V0 page was not tried")
@pytest.mark.parametrize("engine", [None, "vllm"])
def test_a_captured_page_of_the_first_generation_is_not_taken_for_v1_even_if_vllm_is_configured(
    engine: str | None,
) -> None:
    assert read(V0_PAGE.read_text(encoding="utf-8"), engine=engine).generation == "v0"


def test_an_engine_may_be_configured_instead_of_recognised() -> None:
    assert read(page_text(NEWEST), engine="vllm") == read(page_text(NEWEST))


# --- spelling


def test_the_openmetrics_twin_says_the_same() -> None:
    """There, samples are `vllm_x` under `# TYPE vllm:x`, counters lose `_total` in TYPE, `_created` joins its family."""
    assert read(page_text("vllm-0.33.0.openmetrics.txt")) == read(page_text(NEWEST))


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("prefix", ["vllm_", "ray_vllm_", "ray_vllm:", "kserve_vllm_"])
def test_whoever_rewrites_the_names_the_page_says_the_same(release: str, prefix: str) -> None:
    text = page_text(f"vllm-{release}.prom")
    assert read(text.replace("vllm:", prefix)) == read(text)


def test_created_series_are_no_counters_but_tell_when_the_engine_was_ready() -> None:
    text = page_text(REAL)
    whole = read(text)
    assert whole.started_at == pytest.approx(1795198622.03)
    assert whole.ready_at == pytest.approx(1795198646.794)
    bare = read("".join(line for line in text.splitlines(keepends=True) if "_created" not in line))
    assert amounts(bare) == amounts(whole)
    assert (bare.started_at, bare.ready_at) == (whole.started_at, None)


def test_in_multiprocess_mode_nothing_tells_the_start_and_counters_still_do_not_cross_a_restart() -> None:
    bare = re.sub(r"(?m)^.*(_created|process_start_time_seconds).*\n", "", page_text(REAL))
    before = read(bare, START)
    assert (before.started_at, before.ready_at) == (None, None)
    after = read(re.sub(r"(?m)^(vllm:.*) \S+$", r"\1 0.0", bare), START + 15)
    assert windows.diff_snapshots(before, after).explain_missing("requests_finished") is Gap.RESTARTED


# --- more than one process or engine


def test_one_series_a_process_is_their_maximum_and_not_their_sum() -> None:
    """`pid` label of kv_cache_usage_perc in 0.9 to 0.11 with several API servers."""
    text = page_text("vllm-0.11.0.prom")
    line = next(line for line in text.splitlines() if line.startswith("vllm:kv_cache_usage_perc{"))
    of_processes = "\n".join(
        line.rpartition(" ")[0].replace("}", f',pid="{pid}"}}') + f" {value}"
        for pid, value in ((7, 0.2), (8, 0.7), (9, 0.1))
    )
    page = read(text.replace(line, of_processes))
    assert page.gauges["kv_utilization"] == page.gauges["kv_utilization_max"] == 0.7


def test_data_parallel_engines_are_summed_but_for_what_is_no_amount() -> None:
    one, two = read(page_text(NEWEST)), read(in_two_engines(page_text(NEWEST)))
    for family, value in one.counters.items():
        assert two.counters[family] == (value if family == "admission_rejections" else 2 * value), family
    for family, whole in one.histograms.items():
        assert two.histograms[family].counts == tuple(2 * count for count in whole.counts), family
        assert two.histograms[family].total == 2 * (whole.total or 0.0)
    for family, value in one.gauges.items():
        twice = family.startswith("requests_")
        assert two.gauges[family] == (2 * value if twice else value), family
    assert (two.facts, two.contradictory, two.broken) == (one.facts, one.contradictory, one.broken)


@pytest.mark.parametrize(("page", "name"), [(NEWEST, "kv_cache_usage_perc"), (OLDEST, "gpu_cache_usage_perc")])
def test_of_data_parallel_engines_the_kv_cache_is_averaged_and_the_fullest_is_told(page: str, name: str) -> None:
    text = in_two_engines(page_text(page))
    for engine, value in (("0", "0.5"), ("1", "0.9")):
        text = with_value(text, f'vllm:{name}{{engine="{engine}"', value)
    found = read(text)
    assert found.gauges["kv_utilization"] == pytest.approx(0.7)
    assert found.gauges["kv_utilization_max"] == 0.9


def test_rejections_have_no_engine_label_and_are_counted_once() -> None:
    text = page_text(REAL)
    text = with_value(
        text, 'vllm:admission_rejections_total{model_name="small-llama",reason="max_num_queued_reqs"}', "3.0"
    )
    assert read(in_two_engines(text)).counters["admission_rejections"] == 3.0


# --- values that are none


def later(text: str, **values: str) -> str:
    """The page a while on: the value of some series changed."""
    for name, value in values.items():
        text = with_value(text, f"vllm:{name}{{", value)
    return text


def test_a_queue_sum_gone_wrong_is_dropped_and_its_buckets_stand() -> None:
    """vLLM issue 49135: `_sum` of the request times takes negative or uptime-sized values; `_count` goes on."""
    text = page_text(REAL)
    before = read(text, START)
    for wrong in ("-1795198622.0", "NaN"):
        after = read(later(text, request_queue_time_seconds_sum=wrong), START + 15)
        part = windows.diff_snapshots(before, after).histograms["queue_seconds"][0]
        assert part.total is None
        assert part.n == 0


def test_changed_edges_after_an_upgrade_cost_that_family_one_window() -> None:
    """TTFT ended at 10 s until spring 2025; here without its process start, as behind a proxy that hides it."""
    text = re.sub(r"(?m)^.*(_created|process_start_time_seconds).*\n", "", page_text(REAL))
    longer = r'(?m)^vllm:time_to_first_token_seconds_bucket.*le="(20|40|80|160|640|2560)\.0".*\n'
    old, new = read(re.sub(longer, "", text), START), read(text, START + 15)
    found = windows.diff_snapshots(old, new)
    assert found.explain_missing("ttft_seconds") is Gap.RESTARTED
    assert "e2e_seconds" in found.histograms
    assert "ttft_seconds" in windows.diff_snapshots(new, read(text, START + 30)).histograms


@pytest.mark.parametrize("value", ["-1.0", "NaN"])
def test_a_gauge_of_minus_one_or_nan_is_a_gap(value: str) -> None:
    page = read(with_value(page_text(REAL), "vllm:kv_cache_usage_perc{", value))
    assert not {"kv_utilization", "kv_utilization_max"} & page.gauges.keys()
    assert page.broken == {"kv_utilization", "kv_utilization_max"}
    assert page.gauges["requests_running"] == 0.0


def test_falling_buckets_break_their_family_only() -> None:
    bucket = 'vllm:time_to_first_token_seconds_bucket{engine="0",le="1.0",model_name="small-llama"}'
    page = read(with_value(page_text(REAL), bucket, "1.0"))
    assert page.broken == {"ttft_seconds"}
    assert "below the one before it" in page.problems[0]
    assert "e2e_seconds" in page.histograms


# --- renames, units and meanings


def test_iteration_tokens_total_is_a_histogram_and_its_count_the_engines_steps() -> None:
    page = read(page_text(REAL))
    assert page.counters["engine_steps"] == 9930.0
    assert "engine_steps" not in page.histograms


def test_in_0_8_the_prefix_cache_counts_blocks() -> None:
    text = with_value(page_text(OLDEST), "vllm:gpu_prefix_cache_hits_total", "700.0")
    info = 'vllm:cache_config_info{block_size="16",engine="0"} 1.0\n'
    page = read(text + "# TYPE vllm:cache_config_info gauge\n" + info)
    blocks = read(text)
    assert page.problems == ()
    assert page.counters["prefix_queried_tokens"] == 16 * 2828.0
    assert page.counters["prefix_hit_tokens"] == 16 * blocks.counters["prefix_hit_tokens"]
    assert len(blocks.problems) == 2


@pytest.mark.parametrize("release", RELEASES[1:3])
def test_from_0_9_it_counts_tokens_and_the_old_name_is_not_read(release: str) -> None:
    text = page_text(f"vllm-{release}.prom")
    assert "vllm:gpu_prefix_cache_queries_total{" in text
    tokens = float(re.findall(r"(?m)^vllm:prefix_cache_queries_total\{.* (\S+)$", text)[0])
    assert read(text).counters["prefix_queried_tokens"] == tokens


@pytest.mark.parametrize(
    ("release", "name"),
    [(r, "gpu_cache_usage_perc" if r == "0.8.5" else "kv_cache_usage_perc") for r in RELEASES],
)
def test_the_kv_cache_is_a_ratio_under_either_name(release: str, name: str) -> None:
    text = with_value(page_text(f"vllm-{release}.prom"), f"vllm:{name}{{", "0.125")
    assert read(text).gauges["kv_utilization"] == 0.125


@pytest.mark.parametrize(
    ("release", "name"),
    [
        (r, "time_per_output_token_seconds" if r in ("0.8.5", "0.9.2") else "inter_token_latency_seconds")
        for r in RELEASES
    ],
)
def test_the_time_between_tokens_was_called_time_per_output_token(release: str, name: str) -> None:
    text = page_text(f"vllm-{release}.prom")
    printed = float(re.findall(rf"(?m)^vllm:{name}_sum\{{.* (\S+)$", text)[0])
    assert read(text).histograms["itl_seconds"].total == printed


@pytest.mark.parametrize("release", RELEASES)
def test_the_time_per_output_token_of_requests_is_exposed_from_0_11_on(release: str) -> None:
    page = of_release(release)
    exposed = release not in ("0.8.5", "0.9.2")
    assert ("tpot_seconds" in page.histograms) is exposed
    if not exposed:
        assert read_all(window_since_start(page))["tpot_p99_seconds"] == Missing(gap=Gap.NOT_EXPOSED)


def test_waiting_by_reason_is_not_added_to_waiting() -> None:
    page = of_release("0.20.2")
    total = float(re.findall(r"(?m)^vllm:num_requests_waiting\{.* (\S+)$", page_text("vllm-0.20.2.prom"))[0])
    assert page.gauges["requests_waiting"] == total
    assert {"requests_waiting_capacity", "requests_waiting_deferred"} <= page.gauges.keys()
    assert not {"requests_waiting_capacity", "requests_waiting_deferred"} & of_release("0.15.1").gauges.keys()


def test_of_prompt_tokens_by_source_only_those_that_were_computed_count() -> None:
    counters = of_release("0.33.0").counters
    assert (counters["prompt_tokens"], counters["prompt_tokens_computed"]) == (4657, 132)
    assert "prompt_tokens_computed" not in of_release("0.15.1").counters


def test_an_engine_in_sleep_mode_is_not_awake() -> None:
    text = page_text("vllm-0.12.0.prom")
    asleep = with_value(
        text,
        'vllm:engine_sleep_state{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct",sleep_state="awake"',
        "0.0",
    )
    assert (read(text).gauges["engine_awake"], read(asleep).gauges["engine_awake"]) == (1, 0)
    assert "engine_awake" not in of_release("0.11.0").gauges


def test_a_finish_reason_that_a_release_does_not_know_is_not_counted_as_zero() -> None:
    assert "requests_failed" not in of_release("0.12.0").counters
    real = read(page_text(REAL)).counters
    assert (real["requests_finished"], real["requests_ended_by_length"], real["requests_failed"]) == (499, 499, 0)


def test_an_http_status_that_was_never_answered_is_zero_but_only_beside_others() -> None:
    real = read(page_text(REAL)).counters
    assert (real["http_requests_ok"], real["http_requests_failed"]) == (500, 0)
    assert not {"http_requests_ok", "http_requests_failed"} & of_release("0.33.0").counters.keys()


def test_only_the_newest_set_of_adapters_counts() -> None:
    """Three label sets on the page, each once the newest; they never go away."""
    text = page_text("lora_mixed.prom")
    assert text.count("vllm:lora_requests_info{") == 3
    page = read(text, 1795200176.0)
    assert (page.gauges["adapters_running"], page.gauges["adapters_waiting"]) == (1.0, 1.0)
    idle = with_value(text, 'vllm:lora_requests_info{max_lora="1",running_lora_adapters="",', "1.7952001753e+09")
    assert read(idle, 1795200176.0).gauges["adapters_running"] == 0.0


def test_adapters_are_names_in_a_label_and_not_counts() -> None:
    assert of_release("0.33.0").gauges["adapters_running"] == 2.0


def test_accepted_tokens_are_told_by_position() -> None:
    counters = read(page_text("specdecode_after_load.prom")).counters
    at = [counters[f"spec_accepted_at_position/{place}"] for place in range(4)]
    assert at == [3136, 1821, 1623, 1605]
    assert sum(at) == counters["spec_accepted_tokens"]


def test_a_fresh_engine_has_all_its_families_and_no_traffic() -> None:
    text = re.sub(r"(?m)^(vllm:\S+(_total|_bucket|_sum|_count)\{.*) \S+$", r"\1 0.0", page_text(REAL))
    found = read_all(windows.diff_snapshots(read(text, START), read(text, START + 15)))
    assert found["ttft_p99_seconds"] == Missing(gap=Gap.NO_TRAFFIC)
    assert found["eviction_rate"] == Missing(gap=Gap.NO_TRAFFIC)
    assert found["completed_rps"] == Reading(value=0.0, low=0.0, high=0.0, n=0)
    assert found["speculative_acceptance"] == Missing(gap=Gap.NOT_EXPOSED)


def test_what_vllm_does_not_count_is_declared_with_its_reason() -> None:
    assert {*VLLM_V1.not_exposed} == {"adapter_evictions"}
    assert not {*VLLM_V1.not_exposed} & {row.family for row in VLLM_V1.rows}
