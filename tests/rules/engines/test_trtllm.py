"""TensorRT-LLM behind trtllm-serve and behind Dynamo. No page of a real 1.3 was at hand: values are made up, names are not."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from making import page_text, read
from table_checks import TABLES, misread, never_met, openmetrics, unknown, uses, without

from agent.errors import ScrapeError
from rules.engines.table import EngineTable
from rules.telemetry.readings import read_all, window_since_start
from rules.telemetry.signals import Gap, Missing, Reading, SignalValue
from rules.telemetry.snapshots import Snapshot

TRTLLM = TABLES["trtllm/v1.3"]
TRTLLM_PLAIN = TABLES["trtllm/v1.0"]

FIRST, NEWER = "made-trtllm-1.3.prom", "made-trtllm-1.3-newer.prom"
PLAIN, THROUGH_DYNAMO = "made-trtllm-1.0.prom", "made-dynamo-worker-trtllm.prom"
PREFIXED = (FIRST, NEWER, THROUGH_DYNAMO)
CONFIG_ONLY = re.compile(r"(?m)^(# TYPE )?trtllm_(?!\w+_config_info).*\n")


def page(name: str) -> Snapshot:
    return read(page_text(name))


def signals(found: Snapshot) -> dict[str, SignalValue]:
    return dict(read_all(window_since_start(found)))


def amounts(found: Snapshot) -> tuple[object, ...]:
    return found.counters, found.histograms, found.gauges


# --- whose page it is


@pytest.mark.parametrize(
    ("name", "generation", "model"),
    [
        (FIRST, "v1.3", "Llama-3.1-8B-Instruct"),
        (NEWER, "v1.3", "Llama-3.1-8B-Instruct"),
        (THROUGH_DYNAMO, "v1.3", "Qwen/Qwen3-0.6B"),
        (PLAIN, "v1.0", None),
    ],
)
def test_pages_with_and_without_prefix_are_recognised_and_whole(name: str, generation: str, model: str | None) -> None:
    found = page(name)
    assert (found.engine, found.generation, found.broken) == ("trtllm", generation, frozenset())
    assert found.facts.get("model") == model


@pytest.mark.parametrize("label", ["model_name", "engine_type", "finished_reason"])
def test_names_without_a_prefix_are_anyones_unless_all_three_labels_are_there(label: str) -> None:
    with pytest.raises(ScrapeError, match="no page of an engine"):
        read(re.sub(rf'(?m)^(request_success_total\{{.*){label}="', r'\1other="', page_text(PLAIN)))


def test_a_server_that_prints_the_same_names_for_something_else_is_a_stranger() -> None:
    text = '# TYPE request_success_total counter\nrequest_success_total{service="shop"} 7\n'
    with pytest.raises(ScrapeError, match="no page of an engine"):
        read(text)


def test_before_the_first_request_the_configuration_tells_whose_page_it_is_and_nothing_has_happened_yet() -> None:
    found = read(CONFIG_ONLY.sub("", page_text(NEWER)))
    assert (found.engine, found.histograms, found.gauges) == ("trtllm", {}, {})
    zeros = ("requests_finished", "requests_aborted", "requests_failed", "prompt_tokens", "generation_tokens")
    assert {name: found.counters[name] for name in zeros} == dict.fromkeys(zeros, 0.0)
    assert not {"prefix_hit_tokens", "spec_drafts", "http_requests_failed"} & found.counters.keys()


# --- spelling


@pytest.mark.parametrize("name", [FIRST, NEWER, PLAIN, THROUGH_DYNAMO])
def test_the_openmetrics_spelling_says_the_same(name: str) -> None:
    assert amounts(read(openmetrics(page_text(name)))) == amounts(page(name))


@pytest.mark.parametrize("name", PREFIXED)
@pytest.mark.parametrize("prefix", ["trtllm:", "ray_trtllm_", "kserve_trtllm:"])
def test_whoever_rewrites_the_names_the_page_says_the_same(name: str, prefix: str) -> None:
    assert read(page_text(name).replace("trtllm_", prefix)) == page(name)


# --- requests and tokens


@pytest.mark.parametrize("name", [FIRST, NEWER, PLAIN, THROUGH_DYNAMO])
def test_requests_are_told_by_how_they_ended(name: str) -> None:
    counters = page(name).counters
    ended = ("requests_finished", "requests_aborted", "requests_failed", "requests_ended_by_length")
    assert [counters[family] for family in ended] == [199, 2, 1, 72]


@pytest.mark.parametrize("name", [FIRST, PLAIN])
def test_a_way_to_end_that_has_not_been_seen_yet_is_zero_beside_others(name: str) -> None:
    text = re.sub(r'(?m)^\S*request_success_total\{.*"(cancelled|timeout)".*\n', "", page_text(name))
    counters = read(text).counters
    assert [counters[family] for family in ("requests_finished", "requests_aborted", "requests_failed")] == [197, 0, 0]


def test_errors_are_told_by_the_first_digit_of_their_status() -> None:
    assert (page(NEWER).counters["http_requests_refused"], page(NEWER).counters["http_requests_failed"]) == (3, 1)
    assert "http_requests_failed" not in page(FIRST).counters


@pytest.mark.parametrize("name", [FIRST, NEWER])
def test_tokens_are_counted_in_sum_only(name: str) -> None:
    found = page(name)
    assert (found.counters["prompt_tokens"], found.counters["generation_tokens"]) == (143344, 25893)
    assert signals(found)["prompt_tokens_p50"] == Missing(gap=Gap.NOT_EXPOSED)


# --- times


@pytest.mark.parametrize("name", [FIRST, NEWER, PLAIN, THROUGH_DYNAMO])
def test_a_time_of_zero_was_dropped_so_counts_differ(name: str) -> None:
    histograms = page(name).histograms
    requests = {family: histograms[family].counts[-1] for family in ("ttft_seconds", "e2e_seconds", "tpot_seconds")}
    assert requests == {"ttft_seconds": 200, "e2e_seconds": 200, "tpot_seconds": 163}
    assert (histograms["queue_seconds"].counts[-1] < 200) is (name == PLAIN)


def test_the_time_per_output_token_is_of_a_request_and_no_gap_between_tokens() -> None:
    found = page(FIRST)
    assert found.histograms["tpot_seconds"].edges[:3] == (0.01, 0.025, 0.05)
    assert found.histograms["tpot_seconds"].total == pytest.approx(2.499, abs=0.001)
    assert "itl_seconds" not in found.histograms
    assert isinstance(signals(found)["tpot_p99_seconds"], Reading)


def test_prefill_has_finer_edges_than_the_other_phases() -> None:
    histograms = page(FIRST).histograms
    assert histograms["prefill_seconds"].edges[0] == 0.001
    assert histograms["decode_seconds"].edges[0] == histograms["inference_seconds"].edges[0] == 0.3
    whole = histograms["prefill_seconds"].total, histograms["decode_seconds"].total
    assert histograms["inference_seconds"].total == pytest.approx(sum(part or 0.0 for part in whole))


# --- the KV cache


def test_hits_are_counted_in_blocks_and_queries_are_hits_and_misses() -> None:
    counters = page(FIRST).counters
    assert counters["prefix_hit_tokens"] / counters["prefix_queried_tokens"] == 1200 / (1200 + 3600)


def test_where_cached_tokens_are_counted_they_are_used_against_all_prompt_tokens() -> None:
    text = page_text(NEWER)
    cached = float(re.findall(r"(?m)^trtllm_prompt_cached_tokens_total\{.* (\S+)$", text)[0])
    counters = read(text).counters
    assert (counters["prefix_hit_tokens"], counters["prefix_queried_tokens"]) == (cached, 143344)
    assert read(text).problems == ()


def test_a_cache_that_never_hit_has_a_hit_rate_of_zero() -> None:
    counters = read(without(page_text(FIRST), "trtllm_kv_cache_reused_blocks_total")).counters
    assert counters["prefix_hit_tokens"] == 0.0
    assert counters["prefix_queried_tokens"] > 0


def test_a_cache_that_never_missed_has_a_hit_rate_of_one() -> None:
    counters = read(without(page_text(FIRST), "trtllm_kv_cache_missed_blocks_total")).counters
    assert counters["prefix_hit_tokens"] == counters["prefix_queried_tokens"] > 0


def test_without_counters_the_engines_own_average_is_the_hit_rate() -> None:
    text = without(page_text(FIRST), "trtllm_kv_cache_reused_blocks_total", "trtllm_kv_cache_missed_blocks_total")
    found = signals(read(text))["prefix_hit_ratio"]
    assert isinstance(found, Reading)
    assert found.value == 0.25


def test_every_process_prints_its_gauges_and_the_largest_counts() -> None:
    text = page_text(FIRST)
    idle = re.sub(r'(?m)^(trtllm_(?:num_requests|kv_cache_util)\w+\{.*)pid="112"\} \S+$', r'\1pid="113"} 0.0', text)
    both = text + "".join(line for line in idle.splitlines(keepends=True) if 'pid="113"' in line)
    assert 'pid="113"' in both
    assert read(both).gauges == read(text).gauges
    assert read(text).gauges["requests_running"] == 9
    assert read(text).gauges["requests_waiting"] == 4
    assert read(text).gauges["kv_utilization"] == read(text).gauges["kv_utilization_max"] == 0.4375


def test_the_size_of_the_cache_is_a_fact() -> None:
    facts = page(FIRST).facts
    assert (facts["num_gpu_blocks"], facts["block_size"], facts["max_model_len"]) == ("6400", "32", "8192")


# --- speculation


def test_drafted_tokens_by_position_give_rounds_and_acceptance() -> None:
    text = page_text(NEWER)
    at = [float(v) for v in re.findall(r"(?m)^trtllm_spec_decode_accepted_tokens_total\{.* (\S+)$", text)]
    drafted = [float(v) for v in re.findall(r"(?m)^trtllm_spec_decode_drafted_tokens_total\{.* (\S+)$", text)]
    counters = read(text).counters
    assert [counters[f"spec_accepted_at_position/{place}"] for place in range(3)] == at
    assert (counters["spec_drafts"], counters["spec_draft_tokens"]) == (drafted[0], sum(drafted))
    assert counters["spec_accepted_tokens"] == sum(at)
    found = signals(read(text))["tokens_per_round"]
    assert isinstance(found, Reading)
    assert found.value == pytest.approx(1 + sum(at) / drafted[0])


def test_drafts_that_were_all_refused_are_zero_accepted() -> None:
    counters = read(without(page_text(NEWER), "trtllm_spec_decode_accepted_tokens_total")).counters
    assert counters["spec_accepted_tokens"] == 0.0


def test_step_by_step_counters_tell_no_rounds_so_acceptance_does_not_follow() -> None:
    found = signals(page(FIRST))
    assert (page(FIRST).counters["spec_draft_tokens"], page(FIRST).counters["spec_accepted_tokens"]) == (24000, 9600)
    acceptance, length = found["speculative_acceptance"], found["tokens_per_round"]
    assert isinstance(acceptance, Missing)
    assert "acceptance per token does not follow" in acceptance.text
    assert isinstance(length, Reading)
    assert length.value == 1.75


# --- through Dynamo


def test_a_dynamo_worker_is_read_as_its_engine_and_what_dynamo_adds_is_left_alone() -> None:
    found = uses(TRTLLM, page_text(THROUGH_DYNAMO))
    added = [use for name, use in found.items() if name.startswith(("dynamo_", "kvbm_"))]
    assert len(added) > 10
    assert {use.name for use in added if use.is_read} == {
        "kvbm_host_cache_hit_rate",
        "kvbm_matched_tokens",
    }


def test_only_dynamo_times_the_transfer_of_kv_blocks() -> None:
    found = page(THROUGH_DYNAMO)
    assert found.histograms["kv_transfer_seconds"].counts[-1] == 190
    assert found.counters["kv_transfer_failures"] == 3
    assert "kv_transfer_seconds" not in page(NEWER).histograms


def test_without_iteration_statistics_nothing_is_known_of_queue_and_cache() -> None:
    assert page(THROUGH_DYNAMO).gauges.keys() == {"external_prefix_hit_gauge"}
    assert signals(page(THROUGH_DYNAMO))["requests_waiting"] == Missing(gap=Gap.NOT_EXPOSED)


# --- table and pages


@pytest.mark.parametrize("name", PREFIXED)
def test_every_family_is_read_or_left_alone_for_a_reason(name: str) -> None:
    assert unknown(TRTLLM, page_text(name)) == []
    assert misread(TRTLLM, page_text(name)) == set()


def test_so_it_is_without_a_prefix() -> None:
    assert unknown(TRTLLM_PLAIN, page_text(PLAIN)) == []
    assert misread(TRTLLM_PLAIN, page_text(PLAIN)) == set()


STORES = "# TYPE kvbm_object_read_failures counter\nkvbm_object_read_failures 0\n"


def test_every_row_is_met_on_some_page() -> None:
    assert never_met(TRTLLM, *(page_text(name) + STORES for name in PREFIXED)) == set()
    assert never_met(TRTLLM_PLAIN, page_text(PLAIN)) == set()


def test_a_row_that_no_page_has_is_seen() -> None:
    more = replace(TRTLLM.rows[0], source="trtllm_nothing_total")
    longer = replace(TRTLLM, rows=(*TRTLLM.rows, more))
    assert never_met(longer, *(page_text(name) + STORES for name in PREFIXED)) == {
        ("trtllm_nothing_total", more.family)
    }


def test_names_of_a_single_scan_tell_no_release() -> None:
    assert [page(name).facts["engine_versions"] for name in (FIRST, THROUGH_DYNAMO)] == ["", ""]


@pytest.mark.parametrize(("table", "name"), [(TRTLLM, FIRST), (TRTLLM_PLAIN, PLAIN)], ids=["v1.3", "v1.0"])
def test_what_is_not_exposed_says_so_with_the_engines_name_and_is_not_read(table: EngineTable, name: str) -> None:
    missing = {signal for signal, value in signals(page(name)).items() if value == Missing(gap=Gap.NOT_EXPOSED)}
    assert missing >= {"itl_p99_seconds", "eviction_rate", "prefix_reuse_ratio", "adapters_active"}
