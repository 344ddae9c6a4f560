"""TensorRT-LLM behind trtllm-serve and behind Dynamo. No page of a real 1.3 was at hand: values are made up, names are not."""

import re

import pytest
from making import page_text, read
from table_checks import signals, without

from agent.errors import ScrapeError
from rules.telemetry.signals import Missing
from rules.telemetry.snapshots import Snapshot

PLAIN = "made-trtllm-1.0.prom"
FIRST, NEWER = "made-trtllm-1.3.prom", "made-trtllm-1.3-newer.prom"
CONFIG_ONLY = re.compile(r"(?m)^(# TYPE )?trtllm_(?!\w+_config_info).*\n")


def page(name: str) -> Snapshot:
    return read(page_text(name))


@pytest.mark.parametrize("label", ["model_name", "engine_type", "finished_reason"])
def test_plain_names_need_all_labels(label: str) -> None:
    with pytest.raises(ScrapeError, match="no page of an engine"):
        read(re.sub(rf'(?m)^(request_success_total\{{.*){label}="', r'\1other="', page_text(PLAIN)))


def test_shop_with_same_names_is_a_stranger() -> None:
    text = '# TYPE request_success_total counter\nrequest_success_total{service="shop"} 7\n'
    with pytest.raises(ScrapeError, match="no page of an engine"):
        read(text)


def test_trtllm_without_requests_is_known() -> None:
    found = read(CONFIG_ONLY.sub("", page_text(NEWER)))
    assert (found.engine, found.histograms, found.gauges) == ("trtllm", {}, {})
    zeros = ("requests_finished", "requests_aborted", "requests_failed", "prompt_tokens", "generation_tokens")
    assert {name: found.counters[name] for name in zeros} == dict.fromkeys(zeros, 0.0)
    assert not {"prefix_hit_tokens", "spec_drafts", "http_requests_failed"} & found.counters.keys()


@pytest.mark.parametrize("name", [FIRST, PLAIN])
def test_unseen_ending_is_zero_beside_others(name: str) -> None:
    text = re.sub(r'(?m)^\S*request_success_total\{.*"(cancelled|timeout)".*\n', "", page_text(name))
    counters = read(text).counters
    assert [counters[family] for family in ("requests_finished", "requests_aborted", "requests_failed")] == [197, 0, 0]


def test_cache_extremes_are_zero_and_one() -> None:
    counters = read(without(page_text(FIRST), "trtllm_kv_cache_reused_blocks_total")).counters
    assert counters["prefix_hit_tokens"] == 0.0
    assert counters["prefix_queried_tokens"] > 0
    counters = read(without(page_text(FIRST), "trtllm_kv_cache_missed_blocks_total")).counters
    assert counters["prefix_hit_tokens"] == counters["prefix_queried_tokens"] > 0


def test_average_hit_rate_without_counters() -> None:
    text = without(page_text(FIRST), "trtllm_kv_cache_reused_blocks_total", "trtllm_kv_cache_missed_blocks_total")
    found = signals(read(text))["prefix_hit_ratio"]
    assert found.value == 0.25


def test_refused_drafts_are_zero_accepted() -> None:
    counters = read(without(page_text(NEWER), "trtllm_spec_decode_accepted_tokens_total")).counters
    assert counters["spec_accepted_tokens"] == 0.0


def test_step_counters_give_no_acceptance() -> None:
    found = signals(page(FIRST))
    acceptance, length = found["speculative_acceptance"], found["tokens_per_round"]
    assert isinstance(acceptance, Missing)
    assert "acceptance per token does not follow" in acceptance.text
    assert length.value == 1.75
