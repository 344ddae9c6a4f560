"""Pages of engines with one thing changed: what each renamed, missing, repeated or odd series comes to.

The pages as they are have golden files. TGI, Triton, TensorRT-LLM and Dynamo: values are made up, names are their sources'.
"""

import re
from typing import Any

import pytest
from making import START, page_text, read
from table_checks import TABLES, signals, with_value, without, without_lines

from agent.errors import ScrapeError
from rules.telemetry import windows
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import Snapshot

SGLANG_RELEASES = [page_text(f"sglang-{release}.prom") for release in ("0.4.6", "0.5.3", "0.5.10", "0.5.23")]
SGLANG_START, SGLANG = page_text("sglang_startup.prom"), page_text("sglang_after_load.prom")
SGLANG_OPENMETRICS = page_text("sglang-0.5.23.openmetrics.txt")
V0, V1, V1_OLD = map(page_text, ("vllm-0.6.6.post1.prom", "steady_after_load.prom", "vllm-0.8.5.prom"))
V1_ASLEEP = page_text("vllm-0.12.0.prom")
OFFLOAD = page_text("made-vllm-0.32.0-offload.prom")
LLAMACPP = page_text("llamacpp_after_load.prom")
FRONTEND, WORKER = page_text("made-dynamo-frontend.prom"), page_text("made-dynamo-worker.prom")
WITH_VLLM = page_text("made-dynamo-worker-vllm.prom")
TGI, TRITON = page_text("made-tgi.prom"), page_text("made-triton.prom")
TRTLLM_PLAIN, TRTLLM, TRTLLM_NEW = (page_text(f"made-trtllm-{name}.prom") for name in ("1.0", "1.3", "1.3-newer"))

RANKS = 'moe_ep_rank="0",pp_rank="0",tp_rank="0"'
LABELS = f'{{engine_type="unified",model_name="tiny",{RANKS}}}'
CHATS = 'endpoint="/v1/chat/completions",method="POST"'


def amounts(page: Snapshot) -> tuple[object, ...]:
    """What a page says, without when."""
    return page.counters, page.histograms, page.gauges


def told(page: Snapshot) -> dict[str, Any]:
    """Everything that a page says by name; of a histogram its count."""
    counts = {name: part.counts[-1] for name, part in page.histograms.items()}
    whole = {name: getattr(page, name) for name in ("engine", "generation", "counters", "gauges", "problems", "broken")}
    return {**page.facts, **page.counters, **page.gauges, **counts, **whole}


def zeros(*families: str) -> dict[str, float]:
    return dict.fromkeys(families, 0.0)


def with_priorities(name: str) -> str:
    """--enable-priority-scheduling: the total, 7, has priority="", each priority a series of its own."""
    series = r'\1priority="",\2 7\n\1priority="0",\2 4\n\1priority="1",\2 3'
    return re.sub(rf"(?m)^(sglang:{name}\{{.*)(pp_rank.*) \S+$", series, SGLANG)


def with_prefill(*modes: str) -> str:
    """SGLang's page with 100 tokens of each of these modes."""
    pattern = rf'(?m)^(sglang:prefill_effective_tokens_total\{{.*mode="(?:{"|".join(modes)})".*) \S+$'
    return re.sub(pattern, r"\1 100.0", SGLANG)


def answered(status: int) -> str:
    """SGLang's page with four such answers, and fifty to a probe of its health."""
    results = 'sglang:http_responses_total{%s,status_code="%d"} %d\n'
    return SGLANG + results % (CHATS, status, 4) + results % ('endpoint="/health",method="GET"', status, 50)


def balance(passes: float, total: float, forward_mode: str) -> str:
    """The summary as the engine prints it (metrics_collector.py 0.5.23)."""
    labels = f'{{engine_type="unified",forward_mode="{forward_mode}",model_name="tiny",{RANKS}}}'
    return f"sglang:eplb_balancedness_count{labels} {passes}\nsglang:eplb_balancedness_sum{labels} {total}\n"


def with_speculation() -> str:
    text = with_value(SGLANG, "sglang:spec_accept_length{", "2.5")
    text = with_value(text, "sglang:spec_accept_rate{", "0.5")
    return with_value(text, "sglang:spec_num_steps{", "3.0")


def without_types() -> str:
    """Dynamo's frontend of early 2026: no arrivals and rejections, errors without a type, the gauge under its old name."""
    names = ("requests_started_total", "active_requests", "model_rejection_total", "model_cancellation_total")
    text = without(FRONTEND, *(f"dynamo_frontend_{name}" for name in names))
    requests = re.findall(r'(?m)^dynamo_frontend_requests_total\{.*status="(\w+)"\} (\d+)$', text)
    text = re.sub(r"(?m)^dynamo_frontend_requests_total\{.*\n", "", text)
    for status in sorted({status for status, _ in requests}):
        count = sum(int(number) for printed, number in requests if printed == status)
        labels = f'endpoint="chat_completions",model="Qwen/Qwen3-8B",status="{status}"'
        text += f"dynamo_frontend_requests_total{{{labels}}} {count}\n"
    return text


def old_triton() -> str:
    """Before failures had a reason and the backend told who waits and the share of blocks in use."""
    text = re.sub(r'(?m)^nv_inference_request_failure\{.*reason="(CANCELED|REJECTED|OTHER)".*\n', "", TRITON)
    text = re.sub(r'(?m)^nv_trt_llm_.*"(waiting|fraction|reused)".*\n', "", text.replace(',reason="BACKEND"', ""))
    return without(
        text, "nv_llm_input_token_len", "nv_llm_output_token_len", "nv_inference_first_response_histogram_ms"
    )


NO_PREFILL = without_lines(SGLANG, "prefill_effective_tokens")
(CACHED,) = (line for line in SGLANG.splitlines() if line.startswith("sglang:cached_tokens_total{"))
RETRACTED = f"# TYPE sglang:num_retracted_requests_total counter\nsglang:num_retracted_requests_total{LABELS} 3.0\n"
BALANCE = "# TYPE sglang:eplb_balancedness summary\n" + balance(40, 30, "decode") + balance(10, 9, "extend")
SUMMARY = f"# TYPE sglang:y summary\nsglang:y{LABELS} 0.9\nsglang:y_count{LABELS} 4.0\nsglang:y_sum{LABELS} 3.5\n"
GROUPED = (
    f'# TYPE sglang:x gaugehistogram\nsglang:x_bucket{LABELS[:-1]},le="+Inf"}} 4.0\n'
    f"sglang:x_gcount{LABELS} 4.0\nsglang:x_gsum{LABELS} 3.5\n"
)
HICACHE = """\
sglang:hicache_host_used_tokens{L} 3000
sglang:hicache_host_total_tokens{L} 12000
sglang:load_back_bytes_total{L} 4e9
sglang:load_back_duration_seconds_bucket{L,le="0.1"} 8
sglang:load_back_duration_seconds_bucket{L,le="+Inf"} 8
sglang:load_back_duration_seconds_sum{L} 0.4
sglang:load_back_duration_seconds_count{L} 8
sglang:storage_prefetch_unfulfilled_tokens_total{L,reason="deadline"} 64
sglang:storage_prefetch_unfulfilled_tokens_total{L,reason="storage_transfer"} 256
""".replace("{L", '{model_name="tiny",tp_rank="0"').replace('"0"} ', '"0"} ')
HICACHE_LOADED = 'sglang:load_back_tokens_total{model_name="tiny",pool="kv",tp_rank="0"} 7301\n'
SGLANG_HICACHE = SGLANG + HICACHE + HICACHE_LOADED
V0_HTTP = """\
# TYPE http_requests_total counter
http_requests_total{handler="/v1/completions",method="POST",status="2xx"} 12.0
http_requests_total{handler="/v1/completions",method="POST",status="4xx"} 3.0
"""
V0_OFF = re.sub(r"(?m)^(vllm:[cg]pu_prefix_cache_hit_rate\{.*\}) \S+$", r"\1 -1.0", V0)
BLOCKS = with_value(V1_OLD, "vllm:gpu_prefix_cache_hits_total", "700.0")
BLOCK_SIZE = '# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{block_size="16",engine="0"} 1.0\n'
AWAKE = 'vllm:engine_sleep_state{engine="0",model_name="meta-llama/Llama-3.1-8B-Instruct",sleep_state="awake"'
OLD_OFFLOAD = without_lines(OFFLOAD, "kv_offload_load_", "kv_offload_store_")
LMCACHE = without_lines(OFFLOAD, "vllm:kv_offload", "vllm:external_prefix")
KVBM = without_lines(LMCACHE, "lmcache:", "mooncake").replace(
    "kvbm_object_write_failures 0", "kvbm_object_write_failures 2"
)
POSITIONS = """\
# TYPE llamacpp:spec_decode_num_accepted_tokens_per_pos_total counter
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="0"} 30
llamacpp:spec_decode_num_accepted_tokens_per_pos_total{position="1"} 20
"""
NOT_ENDED = re.compile(r'(?m)^\S*request_success_total\{.*"(cancelled|timeout)".*\n')
BEFORE_REQUESTS = re.compile(r"(?m)^(# TYPE )?dynamo_(?!frontend_(disconnected|model_(context|kv_|total|max))).*\n")
ERRORS = re.compile(r'(?m)^dynamo_frontend_requests_total\{.*status="error".*\n')
SPOKEN = ("dynamo_frontend_model_cancellation_total", "dynamo_frontend_model_rejection_total")
TRITON_PLAIN = without(TRITON, "nv_inference_first_response_histogram_ms")
NO_ARRIVALS = dict.fromkeys(("requests_arrived", "requests_aborted", "admission_rejections"))
ENDED, TOKENS = ("requests_finished", "requests_aborted", "requests_failed"), ("prompt_tokens", "generation_tokens")
REUSED, MISSED = "trtllm_kv_cache_reused_blocks_total", "trtllm_kv_cache_missed_blocks_total"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(
            (
                "".join(line for line in SGLANG_RELEASES[0].splitlines(True) if f"sglang:{only}" in line),
                {"engine": "sglang"},
            )
            for only in ("token_usage", "num_queue_reqs", "prompt_tokens_total", "e2e_request_latency_seconds")
        ),
        (SGLANG.replace('is_streaming="true"', 'is_streaming="no"'), {"ttft_seconds": None}),
        (with_priorities("num_running_reqs"), {"requests_running": 7}),
        (with_priorities("num_queue_reqs"), {"requests_waiting": 7}),
        # 73013 + 5 tokens by prefills, 73017 by finished requests (one prompt of one token never finished).
        (with_prefill("host_hit", "storage_hit"), {"prefix_hit_tokens": 205, "prefix_queried_tokens": 73218}),
        (NO_PREFILL, {"prefix_hit_tokens": 5, "prefix_queried_tokens": 73017}),
        # collector.py: a request adds to `total` only where it has no details by source.
        (NO_PREFILL + CACHED.replace('"device"', '"total"').rpartition(" ")[0] + " 7.0\n", {"prefix_hit_tokens": 12}),
        (without_lines(NO_PREFILL, "cached_tokens"), {"prefix_hit_tokens": 0}),
        (with_value(SGLANG + RETRACTED, "sglang:num_retracted_reqs{", "9.0"), {"preemptions": 3}),
        (with_value(SGLANG, "sglang:num_retracted_reqs{", "9.0"), {"preemptions": 0}),
        (
            without_lines(SGLANG_RELEASES[0], "num_requests_total", "spec_accept_length", "cached_tokens"),
            {"requests_finished": 40, "prefix_hit_tokens": None},
        ),
        (answered(400), {"http_requests_refused": 4, "http_requests_ok": 288}),
        (answered(503), {"http_requests_failed": 4, "admission_rejections": 4, "http_requests_ok": 288}),
        (answered(499), {"http_requests_refused": 0, "http_requests_failed": 0}),
        (without_lines(SGLANG_RELEASES[2], "num_transfer_failed"), {"kv_transfer_failures": 0}),
        (
            SGLANG_START.replace('phase="tokenizer_e2e"', 'phase="other"'),
            {"engine_startup_seconds": pytest.approx(3.2103, abs=1e-4)},
        ),
        (with_value(SGLANG_RELEASES[1], "sglang:engine_startup_time{", "27.5"), {"engine_startup_seconds": 27.5}),
        (with_speculation(), {"spec_accept_length": 2.5, "spec_accept_rate": 0.5, "spec_steps": 3.0}),
        (SGLANG + BALANCE, {"expert_balance_sum": 39, "expert_balance_passes": 50}),
        (SGLANG_OPENMETRICS.replace("# EOF", BALANCE + "# EOF"), {"expert_balance_passes": 50}),
        (
            SGLANG + f"# TYPE sglang:lora_pool_slots_used gauge\nsglang:lora_pool_slots_used{LABELS} 3.0\n",
            {"adapters_running": None},
        ),
        (SGLANG_HICACHE, {"kv_offload_load_seconds": 0.4, "kv_offload_load_transfers": 8, "kv_transfer_failures": 256}),
        (SGLANG_HICACHE, {"kv_transfer_seconds": 8}),
        (LMCACHE, {"kv_transfer_seconds": 20}),
        (SGLANG + HICACHE, {"external_prefix_hit_tokens": 0}),
        (V1_OLD.replace('engine="0",', ""), {"engine": "vllm", "generation": "v0"}),
        (V1_ASLEEP.replace('engine="0",', ""), {"engine": "vllm", "generation": "v1"}),
        (V0_OFF, {"prefix_hit_gauge": None, "kv_utilization": 0.395}),
        # The counter of finished requests appears with the first of them, the gauges with the first step.
        (without_lines(V0, "vllm:request_success"), {"requests_finished": 0, "requests_ended_by_length": 0}),
        (without_lines(V0, "request_success", "preemptions"), {"requests_finished": 40, "requests_aborted": None}),
        (
            without_lines(V0, 'finished_reason="length"', 'finished_reason="abort"'),
            {"requests_finished": 1916, "requests_aborted": 0},
        ),
        (V0 + V0_HTTP, {"http_requests_ok": 12, "http_requests_refused": 3, "http_requests_failed": 0}),
        (BLOCKS + BLOCK_SIZE, {"prefix_queried_tokens": 16 * 2828, "prefix_hit_tokens": 16 * 700, "problems": ()}),
        (BLOCKS, {"prefix_queried_tokens": 2828, "prefix_hit_tokens": 700}),
        (with_value(V1_ASLEEP, AWAKE, "0.0"), {"engine_awake": 0}),
        (LMCACHE, {"kv_offload_load_seconds": 0.5, "kv_offload_load_transfers": 20, "kv_offload_used_bytes": 4e9}),
        (KVBM, {"kv_transfer_failures": 2}),
        (with_value(LLAMACPP, "llamacpp:requests_processing", "4"), {"requests_running": 4}),
        (with_value(LLAMACPP, "llamacpp:requests_deferred", "8"), {"requests_waiting": 8}),
        # prompt_tokens_total is without them, as its help says.
        (
            with_value(LLAMACPP, "llamacpp:prompt_tokens_cached_total", "1000"),
            {"prompt_tokens": 59030, "prompt_tokens_computed": 58030, "prefix_hit_tokens": 1000},
        ),
        (LLAMACPP + POSITIONS, {"spec_accepted_at_position/0": 30, "spec_accepted_at_position/1": 20}),
        *(
            (
                with_value(LLAMACPP, "llamacpp:tokens_predicted_seconds_total", nan),
                {"broken": {"generation_seconds"}, "generation_tokens": 29144},
            )
            for nan in ("nan", "-nan", "NaN")
        ),
        (without_types(), {"requests_finished": 197, "requests_failed": 10, "requests_running": 5, **NO_ARRIVALS}),
        (
            BEFORE_REQUESTS.sub("", FRONTEND),
            {"counters": {"requests_finished": 0.0, "requests_failed": 0.0}, "num_gpu_blocks": "5943"},
        ),
        (
            without(ERRORS.sub("", FRONTEND), *SPOKEN),
            zeros("requests_failed", "requests_aborted", "admission_rejections"),
        ),
        (FRONTEND + 'dynamo_frontend_active_requests{model="other"} 1\n', {"model": "Qwen/Qwen3-8B,other"}),
        # The exporter of TGI prints a series with its first event.
        (
            without_lines(TGI, "tgi_request_failure"),
            {"requests_finished": 200, **zeros("requests_failed", "requests_aborted", "http_requests_refused")},
        ),
        (
            without_lines(TGI, "tgi_request_failure", "tgi_request_success"),
            {"requests_arrived": 220, "requests_finished": 0},
        ),
        # What stands on its page before the first request (backends/v3/src/lib.rs).
        (
            "# TYPE tgi_batch_max_total_tokens gauge\ntgi_batch_max_total_tokens 65536\n",
            {"engine": "tgi", "counters": {}, "gauges": {}, "max_batch_total_tokens": "65536"},
        ),
        (
            old_triton(),
            {"http_requests_failed": 1, "admission_rejections": None, "requests_waiting": None, "kv_utilization": None},
        ),
        (
            re.sub(r"(?m)^(# TYPE )?trtllm_(?!\w+_config_info).*\n", "", TRTLLM_NEW),
            {
                "engine": "trtllm",
                "gauges": {},
                "prefix_hit_tokens": None,
                "spec_drafts": None,
                **zeros(*ENDED, *TOKENS),
            },
        ),
        *((NOT_ENDED.sub("", text), {**zeros(*ENDED), "requests_finished": 197}) for text in (TRTLLM, TRTLLM_PLAIN)),
        (without(TRTLLM_NEW, "trtllm_spec_decode_accepted_tokens_total"), {"spec_accepted_tokens": 0}),
    ],
)
def test_changed_page_becomes_its_families(text: str, expected: dict[str, Any]) -> None:
    """None stands for a family that the page does not tell."""
    said = told(read(text))
    assert {name: said.get(name) for name in expected} == expected


PER_ROUND = "acceptance per token does not follow"


@pytest.mark.parametrize(
    ("text", "signal", "expected"),
    [
        # a + a^2 + a^3 of three drafts are 1.5 accepted.
        (with_speculation(), "speculative_acceptance", 0.6914),
        (SGLANG_HICACHE, "external_prefix_hit_ratio", 7301 / 73013),
        (SGLANG_HICACHE, "kv_offload_utilization", 0.25),
        (LMCACHE, "external_prefix_hit_ratio", 1 / 3),
        (KVBM, "external_prefix_hit_ratio", 0.1),
        (V0_OFF, "prefix_hit_ratio", ""),
        (FRONTEND, "tpot_p99_seconds", ""),
        (TRITON_PLAIN, "ttft_p99_seconds", ""),
        # Sums of microseconds give no quantile.
        (TRITON, "e2e_p99_seconds", ""),
        (without(TRTLLM, REUSED), "prefix_hit_ratio", 0.0),
        (without(TRTLLM, MISSED), "prefix_hit_ratio", 1.0),
        (without(TRTLLM, REUSED, MISSED), "prefix_hit_ratio", 0.25),
        (TRTLLM, "speculative_acceptance", PER_ROUND),
        (TRTLLM, "tokens_per_round", 1.75),
    ],
)
def test_changed_page_gives_its_signals(text: str, signal: str, expected: float | str) -> None:
    found = signals(read(text))[signal]
    if isinstance(expected, str):
        assert (found.gap, expected in found.text) == (Gap.NOT_EXPOSED, True)
    else:
        assert found.value == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize(
    ("table", "family", "words"),
    [
        ("dynamo/frontend", "requests_waiting", "no queue"),
        ("triton/trtllm", "ttft_seconds", "histogram_latencies=true"),
        ("vllm/v0", "prefix_hit_tokens", "-1 without prefix caching"),
    ],
)
def test_table_explains_a_missing_family(table: str, family: str, words: str) -> None:
    assert words in TABLES[table].explain_missing([family])


OLD_WORKER = re.sub(r"component_(total_blocks|gpu_cache_usage)", r"component_kvstats_\1", WORKER).replace(
    "component_kv_cache_hit_rate", "component_kvstats_gpu_prefix_cache_hit_rate"
)
CLEARED = re.sub(r'(?m)^(.*_requests(_total)?\{.*"clear_kv_blocks".*) \S+$', r"\1 50", WORKER)


@pytest.mark.parametrize(
    ("changed", "text"),
    [
        *((with_value(text, "sglang:cache_hit_rate{", "99.0"), text) for text in SGLANG_RELEASES),
        (SGLANG + SUMMARY, SGLANG),
        (SGLANG_OPENMETRICS.replace("# EOF", GROUPED + "# EOF"), SGLANG_OPENMETRICS),
        *((with_value(LLAMACPP, "llamacpp:predicted_tokens_seconds", nan), LLAMACPP) for nan in ("nan", "-nan", "NaN")),
        (without_lines(WITH_VLLM, "kvbm_"), "".join(line for line in WITH_VLLM.splitlines(True) if "vllm:" in line)),
        (OLD_WORKER, WORKER),
        *((re.sub(r"(_request_(count|success|failure))\b", r"\1_total", text), text) for text in (TGI, TRITON_PLAIN)),
        (CLEARED, WORKER),
        (TRITON.replace('model="ensemble"', 'model="tensorrt_llm_bls"'), TRITON),
        (TRITON.replace('model="tensorrt_llm"', 'model="llama"'), TRITON),
    ],
)
def test_changed_page_reads_alike(changed: str, text: str) -> None:
    assert changed != text
    assert amounts(read(changed)) == amounts(read(text))


FOREIGN = re.compile(r"(?m)^(# TYPE )?dynamo_(component|frontend_(worker|router|lora|stage))_.*\n")


@pytest.mark.parametrize(
    "text",
    [
        # DYN_METRICS_PREFIX; what the frontend prints of its router and of its workers keeps its name.
        FOREIGN.sub("", FRONTEND).replace("dynamo_frontend_", "nv_llm_http_service_"),
        "# TYPE tgi_unheard_of counter\ntgi_unheard_of 1\n",
        re.sub(r"(?m)^(# TYPE )?nv_trt_llm_.*\n", "", TRITON),
        *(
            re.sub(rf'(?m)^(request_success_total\{{.*){label}="', r'\1other="', TRTLLM_PLAIN)
            for label in ("model_name", "engine_type", "finished_reason")
        ),
        '# TYPE request_success_total counter\nrequest_success_total{service="shop"} 7\n',
    ],
)
def test_page_of_a_stranger_is_refused(text: str) -> None:
    with pytest.raises(ScrapeError, match="no page of an engine"):
        read(text)


def test_configured_engine_has_both_generations() -> None:
    assert read(V0, engine="vllm") == read(V0)
    with pytest.raises(ScrapeError, match="not a page of sglang"):
        read(V0, engine="sglang")


BARE = re.sub(r"(?m)^.*(_created|process_start_time_seconds).*\n", "", V1)


@pytest.mark.parametrize(
    ("before", "after", "family"),
    [
        (SGLANG, SGLANG_START, "requests_finished"),
        (LLAMACPP, page_text("llamacpp_startup.prom"), "generation_tokens"),
        # vLLM in multi-process mode.
        (BARE, re.sub(r"(?m)^(vllm:.*) \S+$", r"\1 0.0", BARE), "requests_finished"),
    ],
)
def test_restart_is_seen_without_start_time(before: str, after: str, family: str) -> None:
    earlier, later = read(before), read(after, START + 15)
    assert (earlier.started_at, earlier.ready_at, later.started_at) == (None, None, None)
    assert windows.diff_snapshots(earlier, later).explain_missing(family) is Gap.RESTARTED


def test_sglang_counts_first_requests_from_zero() -> None:
    """Two pages of one process; histograms that were not there are a gap and no increase."""
    window = windows.diff_snapshots(read(SGLANG_START), read(SGLANG, START + 15))
    assert (window.counters["requests_finished"], window.counters["generation_tokens"]) == (289, 36786)
    assert window.explain_missing("e2e_seconds") is not Gap.NO_TRAFFIC


def test_created_series_tell_readiness() -> None:
    whole, bare = read(V1), read(without_lines(V1, "_created"))
    assert whole.started_at == bare.started_at == pytest.approx(1795198622.03)
    assert (whole.ready_at, bare.ready_at) == (pytest.approx(1795198646.794), None)
    assert amounts(bare) == amounts(whole)


@pytest.mark.parametrize("wrong", ["-1795198622.0", "NaN"])
def test_wrong_queue_sum_keeps_buckets(wrong: str) -> None:
    """vLLM issue 49135: `_sum` of the request times takes negative or uptime-sized values; `_count` goes on."""
    after = read(with_value(V1, "vllm:request_queue_time_seconds_sum{", wrong), START + 15)
    part = windows.diff_snapshots(read(V1), after).histograms["queue_seconds"][0]
    assert (part.total, part.n) == (None, 0)


def test_only_the_newest_set_of_adapters_counts() -> None:
    """Three label sets on the page, each once the newest; they never go away."""
    text = page_text("lora_mixed.prom")
    page = read(text, 1795200176.0)
    assert (page.gauges["adapters_running"], page.gauges["adapters_waiting"]) == (1.0, 1.0)
    idle = with_value(text, 'vllm:lora_requests_info{max_lora="1",running_lora_adapters="",', "1.7952001753e+09")
    assert read(idle, 1795200176.0).gauges["adapters_running"] == 0.0


def test_deprecated_offload_names_read_alike() -> None:
    old, new = read(OLD_OFFLOAD).counters, read(OFFLOAD).counters
    names = [name for name in new if name.startswith(("kv_offload_load", "kv_offload_store"))]
    assert len(names) == 6
    assert [old[name] for name in names] == [new[name] for name in names]
