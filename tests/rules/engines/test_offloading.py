"""KV cache beyond the GPU: what the pages of vLLM, SGLang, TensorRT-LLM, LMCache and Dynamo's KVBM tell of it (guide 7.6)."""

from making import START, page_text
from table_checks import without_lines

from agent.scrape.scrapers import PageReader
from rules.telemetry.readings import read, window_since_start
from rules.telemetry.signals import BY_NAME, Reading, SignalValue
from rules.telemetry.snapshots import Snapshot

VLLM = "made-vllm-0.32.0-offload.prom"
"""A real page of 0.32.0 on a CPU, with the families of connectors that need a GPU: names and types of the wheel."""


def snapshot(text: str, engine: str = "") -> Snapshot:
    found = PageReader(engine or None).read(text.encode(), START)
    assert not found.problems
    return found


def signal(page: Snapshot, name: str) -> SignalValue:
    return read(BY_NAME[name], window_since_start(page))


def test_deprecated_offload_names_read_alike() -> None:
    new = snapshot(page_text(VLLM))
    old = snapshot(without_lines(page_text(VLLM), *(f"kv_offload_{way}_" for way in ("load", "store"))))
    names = [name for name in new.counters if name.startswith(("kv_offload_load", "kv_offload_store"))]
    assert len(names) == 6
    assert {name: old.counters[name] for name in names} == {name: new.counters[name] for name in names}


def test_lmcache_times_a_silent_engine() -> None:
    page = snapshot(without_lines(page_text(VLLM), "vllm:kv_offload", "vllm:external_prefix"))
    assert signal(page, "external_prefix_hit_ratio") == Reading(value=1 / 3, low=1 / 3, high=1 / 3, n=9000)
    assert (page.counters["kv_offload_load_seconds"], page.counters["kv_offload_load_transfers"]) == (0.5, 20)
    assert page.gauges["kv_offload_used_bytes"] == 4e9
    assert page.histograms["kv_transfer_seconds"].counts[-1] == 20


def test_kvbm_tells_average_hits_and_failures() -> None:
    text = without_lines(page_text(VLLM), "vllm:kv_offload", "vllm:external_prefix", "lmcache:", "mooncake")
    page = snapshot(text.replace("kvbm_object_write_failures 0", "kvbm_object_write_failures 2"))
    assert signal(page, "external_prefix_hit_ratio") == Reading(value=0.1, low=0.1, high=0.1, n=1)
    assert page.counters["kv_transfer_failures"] == 2


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
LOADED = 'sglang:load_back_tokens_total{model_name="tiny",pool="kv",tp_rank="0"} 7301\n'


def test_sglang_tells_all_of_its_hierarchical_cache() -> None:
    page = snapshot(page_text("sglang_after_load.prom") + HICACHE + LOADED)
    assert signal(page, "external_prefix_hit_ratio") == Reading(
        value=7301 / 73013, low=7301 / 73013, high=7301 / 73013, n=73013
    )
    assert signal(page, "kv_offload_utilization") == Reading(value=0.25, low=0.25, high=0.25, n=1)
    assert (page.counters["kv_offload_load_seconds"], page.counters["kv_offload_load_transfers"]) == (0.4, 8)
    assert page.histograms["kv_transfer_seconds"].counts[-1] == 8
    assert page.counters["kv_transfer_failures"] == 256
    idle = snapshot(page_text("sglang_after_load.prom") + HICACHE)
    assert idle.counters["external_prefix_hit_tokens"] == 0
