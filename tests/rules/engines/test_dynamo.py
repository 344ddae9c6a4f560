"""NVIDIA Dynamo: its frontend, a worker that says only its own, and workers that pass their engine's page through."""

import re

import pytest
from making import page_text, read
from table_checks import TABLES, signals, uses, without

from agent.errors import ScrapeError
from rules.engines.registry import itl_comparable
from rules.telemetry.signals import Gap, Missing
from rules.telemetry.snapshots import Snapshot

DYNAMO_FRONTEND = TABLES["dynamo/frontend"]

FRONTEND, WORKER, WITH_VLLM = "made-dynamo-frontend.prom", "made-dynamo-worker.prom", "made-dynamo-worker-vllm.prom"


def page(name: str) -> Snapshot:
    return read(page_text(name))


def old_frontend() -> str:
    """Early 2026: nothing of arrivals and rejections, errors without a type, the gauge under its old name."""
    text = without(
        page_text(FRONTEND),
        "dynamo_frontend_requests_started_total",
        "dynamo_frontend_active_requests",
        "dynamo_frontend_model_rejection_total",
        "dynamo_frontend_model_cancellation_total",
    )
    requests = re.findall(r'(?m)^dynamo_frontend_requests_total\{.*status="(\w+)"\} (\d+)$', text)
    told = {status: sum(int(n) for s, n in requests if s == status) for status, _ in requests}
    text = re.sub(r"(?m)^dynamo_frontend_requests_total\{.*\n", "", text)
    lines = (
        f'dynamo_frontend_requests_total{{endpoint="chat_completions",model="Qwen/Qwen3-8B",status="{status}"}} {n}\n'
        for status, n in told.items()
    )
    return text + "".join(lines)


def old_worker() -> str:
    text = page_text(WORKER).replace("component_total_blocks", "component_kvstats_total_blocks")
    text = text.replace("component_gpu_cache_usage", "component_kvstats_gpu_cache_usage")
    return text.replace("component_kv_cache_hit_rate", "component_kvstats_gpu_prefix_cache_hit_rate")


def before_requests() -> str:
    return re.sub(
        r"(?m)^(# TYPE )?dynamo_(?!frontend_(disconnected|model_(context|kv_|total|max))).*\n", "", page_text(FRONTEND)
    )


def test_dynamo_around_an_engine_changes_nothing() -> None:
    text = page_text(WITH_VLLM)
    alone = read("".join(line for line in text.splitlines(keepends=True) if "vllm:" in line))
    around = read("".join(line for line in text.splitlines(keepends=True) if "kvbm_" not in line))
    assert (around.counters, around.histograms, around.gauges) == (alone.counters, alone.histograms, alone.gauges)
    assert around.counters["requests_finished"] == 499


def test_names_under_another_prefix_are_a_strangers() -> None:
    """DYN_METRICS_PREFIX; what the frontend prints of its router and of its workers keeps its name."""
    text = re.sub(
        r"(?m)^(# TYPE )?dynamo_(component|frontend_(worker|router|lora|stage))_.*\n", "", page_text(FRONTEND)
    )
    with pytest.raises(ScrapeError, match="no page of an engine"):
        read(text.replace("dynamo_frontend_", "nv_llm_http_service_"))


def test_old_frontend_tells_no_arrivals() -> None:
    found = read(old_frontend())
    assert (found.counters["requests_finished"], found.counters["requests_failed"]) == (197, 10)
    assert not {"requests_arrived", "requests_aborted", "admission_rejections"} & found.counters.keys()
    assert found.gauges["requests_running"] == 5


def test_first_request_and_first_error_missing() -> None:
    found = read(before_requests())
    assert (found.engine, found.generation) == ("dynamo", "frontend")
    assert found.counters == {"requests_finished": 0.0, "requests_failed": 0.0}
    assert found.facts["num_gpu_blocks"] == "5943"
    text = re.sub(r'(?m)^dynamo_frontend_requests_total\{.*status="error".*\n', "", page_text(FRONTEND))
    text = without(text, "dynamo_frontend_model_cancellation_total", "dynamo_frontend_model_rejection_total")
    counters = read(text).counters
    assert [counters[name] for name in ("requests_failed", "requests_aborted", "admission_rejections")] == [0, 0, 0]


def test_requests_without_token_are_no_queue() -> None:
    found = page(FRONTEND)
    assert found.gauges == {"requests_running": 5}
    assert uses(DYNAMO_FRONTEND, page_text(FRONTEND))["dynamo_frontend_queued_requests"].is_read is False
    assert "no queue" in DYNAMO_FRONTEND.explain_missing(["requests_waiting"])


def test_edges_may_begin_at_zero() -> None:
    found = page(FRONTEND).histograms
    assert {found[name].edges[0] for name in ("ttft_seconds", "itl_seconds", "e2e_seconds")} == {0.0}
    assert found["ttft_seconds"].counts[0] == 0
    value = signals(page(FRONTEND))["ttft_p50_seconds"]
    assert (value.low, value.high) == (0.047, 0.1)


def test_dynamo_gaps_match_no_benchmark() -> None:
    found = page(FRONTEND)
    assert found.histograms["itl_seconds"].counts[-1] == found.counters["generation_tokens"] - 200
    assert not itl_comparable("dynamo")
    assert signals(found)["tpot_p99_seconds"] == Missing(gap=Gap.NOT_EXPOSED)


def test_several_models_behind_one_frontend_are_told() -> None:
    more = 'dynamo_frontend_active_requests{model="other"} 1\n'
    found = read(page_text(FRONTEND) + more)
    assert found.facts["model"] == "Qwen/Qwen3-8B,other"
    assert any("a tier is one model" in problem for problem in found.problems)


def test_old_worker_names_read_alike() -> None:
    old, new = read(old_worker()), page(WORKER)
    assert (old.counters, old.histograms, old.gauges, old.facts) == (
        new.counters,
        new.histograms,
        new.gauges,
        new.facts,
    )


def test_only_the_generating_endpoint_counts() -> None:
    busy = re.sub(r'(?m)^(.*_requests(_total)?\{.*"clear_kv_blocks".*) \S+$', r"\1 50", page_text(WORKER))
    assert busy != page_text(WORKER)
    assert read(busy) == page(WORKER)
