"""Pages of several engines, of routers, and of one engine that only look like several."""

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from making import START, page_text, read
from paths import TESTS
from table_checks import with_value

from agent.errors import ScrapeError, ScrapeFailure
from agent.scrape.scrapers import PageReader
from rules.engines.several import MODELS
from rules.telemetry.snapshots import Snapshot

T = 1_790_000_000.0
CASES = TESTS / "cases"
V1 = ("vllm:num_requests_running", "vllm:num_requests_waiting", "vllm:kv_cache_usage_perc")
SGLANG = ("sglang:num_running_reqs", "sglang:num_queue_reqs", "sglang:token_usage")
QUEUES = b'vllm:num_requests_running{backend="a"} 1\nvllm:num_requests_running{backend="b"} 2\n'


def page(names: tuple[str, str, str], *engines: str, prefix: str = "", more: str = "") -> bytes:
    """The running, waiting and KV gauges of engines, each given by its labels; the n-th has n running and n tenths KV."""
    lines = []
    for place, name in enumerate(names):
        lines.append(f"# TYPE {prefix}{name} gauge")
        for number, labels in enumerate(engines, 1):
            lines.append(f"{prefix}{name}{{{labels}}} {number / 10 if place == 2 else number}")
    return ("\n".join([*lines, more]).strip() + "\n").encode()


def engines_of(body: bytes) -> dict[str, Snapshot]:
    return PageReader().read_engines(body, T)


def running(found: Mapping[str, Snapshot]) -> dict[str, tuple[float, float]]:
    return {name: (one.gauges["requests_running"], one.gauges["kv_utilization"]) for name, one in found.items()}


def test_page_of_two_workers_is_two_replicas() -> None:
    times = b"".join(b'vllm:time_to_first_token_seconds_bucket{backend="%c",le="+Inf"} 1\n' % name for name in b"ab")
    assert list(engines_of(QUEUES + times)) == ["a", "b"]
    found = engines_of((CASES / "04-sidecar-two-workers" / "page.prom").read_bytes())
    assert running(found) == {"127.0.0.1:8001": (4.0, 0.11), "127.0.0.1:8002": (9.0, 0.93)}
    assert [one.counters["requests_finished"] for one in found.values()] == [55.0, 800.0]
    assert [one.facts["model"] for one in found.values()] == ["llama-8b", "llama-8b"]
    assert all(one.histograms["ttft_seconds"].counts for one in found.values())


@pytest.mark.parametrize(
    ("names", "prefix", "labels", "expected"),
    [
        (V1, "", ('engine="0",server="http://10.0.0.1:8000"', 'engine="0",server="http://10.0.0.2:8000"'), "10.0.0."),
        (V1, "", ('engine="0",backend="b1"', 'engine="0",backend="b2"'), "b"),
        (V1, "", ('engine="0",instance="h:1",pod="p"', 'engine="0",instance="h:2",pod="p"'), "h:"),
        (V1, "", ('engine="0",exported_pod="p1",node="n"', 'engine="0",exported_pod="p2",node="n"'), "p"),
        (V1, "", ('engine="0",k8s_pod_name="p1"', 'engine="0",k8s_pod_name="p2"'), "p"),
        (V1, "", ('engine="0",kubernetes_pod_name="p1"', 'engine="0",kubernetes_pod_name="p2"'), "p"),
        (V1, "ray_", ('ReplicaId="r",WorkerId="w1",engine="0"', 'ReplicaId="r",WorkerId="w2",engine="0"'), "w"),
        (V1, "", ('engine="0",model_name="a1"', 'engine="0",model_name="a2"'), "a"),
        (SGLANG, "", ('tp_rank="0",worker="w1"', 'tp_rank="0",worker="w2"'), "w"),
        (SGLANG, "", ('api_base="http://a1/v1"', 'api_base="http://a2/v1"'), "a"),
    ],
)
def test_labels_of_public_deployments_tell_engines_apart(
    names: tuple[str, str, str], prefix: str, labels: tuple[str, ...], expected: str
) -> None:
    found = engines_of(page(names, *labels, prefix=prefix))
    assert list(running(found).values()) == [(1.0, 0.1), (2.0, 0.2)]
    assert all(name.startswith(expected) for name in found)
    problems = [problem for one in found.values() for problem in one.problems]
    assert problems == [MODELS.format("a1 and a2")] * ("model_name" in labels[0])


def test_data_parallel_ranks_stay_one_engine() -> None:
    ranks = [f'engine="{rank}",worker_addr="w{worker}"' for worker in (1, 2) for rank in (0, 1)]
    for names in (V1, (*V1[:2], "vllm:gpu_cache_usage_perc")):
        found = running(engines_of(page(names, *ranks)))
        assert {name: of[0] for name, of in found.items()} == {"w1": 3.0, "w2": 7.0}
        assert [of[1] for of in found.values()] == pytest.approx([0.15, 0.35])


@pytest.mark.parametrize(
    ("names", "labels"),
    [
        (V1, ('engine="0",model_name="m"', 'engine="1",model_name="m"')),
        (V1, ('engine="0",instance="h:1"', 'engine="1",instance="h:1"')),
        (SGLANG, ('dp_rank="0",tp_rank="0"', 'dp_rank="1",tp_rank="0"')),
        (SGLANG, ('tp_rank="0",moe_ep_rank="0"', 'tp_rank="1",moe_ep_rank="1"')),
        (V1, ('engine="0",pid="1"', 'engine="0",pid="2"')),
        (V1, tuple(f'engine="a",exported_engine="b",exported_exported_engine="{rank}"' for rank in (0, 1))),
    ],
)
def test_parts_of_one_engine_are_one_replica(names: tuple[str, str, str], labels: tuple[str, ...]) -> None:
    assert list(engines_of(page(names, *labels))) == [""]
    for label in ("worker_addr", "model_name"):
        total = engines_of(page(V1, f'engine="0",{label}="w1"', 'engine="0"'))
        assert running(total) == {"": (1.0, 0.1)}, "a total beside its worker is not added"


def with_labels(text: str, more: str) -> str:
    """The page with these labels on each series."""
    return re.sub(r"(?m)^([a-z]\S*?)(?:{(.*)})? (\S+)$", rf"\1{{{more},\2}} \3", text)


@pytest.mark.parametrize("path", sorted((TESTS / "pages").glob("*.prom")), ids=lambda path: path.name)
def test_labels_of_a_target_hide_none_of_its_page(path: Path) -> None:
    """honor_labels: false, with labels that an engine's table asks for."""
    target = {"engine": "a", "endpoint": "http", "model_name": "b", "dp_rank": "c", "status": "up"}
    renamed = re.sub(rf'([{{,])(?=({"|".join(target)})=")', r"\1exported_", path.read_text())
    more = ",".join(f'{name}="{value}"' for name, value in target.items())
    alone, behind = read(path.read_text()), read(with_labels(renamed, more))
    assert {**behind.facts, **alone.facts} == behind.facts
    assert replace(behind, facts=alone.facts) == alone


def test_page_series_belong_to_no_engine() -> None:
    more = "# TYPE process_start_time_seconds gauge\nprocess_start_time_seconds 1.7e9\n"
    more += '# TYPE vllm:cache_config_info gauge\nvllm:cache_config_info{engine="0",block_size="16"} 1\n'
    body = page(V1, 'engine="0",server="a"', 'engine="0",server="b"', more=more)
    for one in engines_of(body).values():
        assert one.started_at is None
        assert one.facts["block_size"] == "16"


TRITON = b'nv_trt_llm_request_metrics{model="m",request_type="scheduled",zone="a"} 1\n'


def refusal(body: bytes, engine: str | None = None) -> str:
    with pytest.raises(ScrapeError) as caught:
        PageReader(engine).read_engines(body, T)
    assert caught.value.kind is ScrapeFailure.NOT_ONE_ENGINE
    return caught.value.text


@pytest.mark.parametrize(
    ("body", "words"),
    [
        (page(V1, 'engine="0",flavour="x"', 'engine="0",flavour="y"'), "is one engine's"),
        (page(SGLANG, 'tp_rank="0",attn_cp_rank="0"', 'tp_rank="0",attn_cp_rank="1"'), "attn_cp_rank differs"),
        (
            page(V1, 'engine="0"') + b"".join(b'vllm:prompt_tokens_total{rank="%d"} 1\n' % n for n in (0, 1)),
            "label rank",
        ),
        (page(V1, 'engine="a",exported_engine="0"', 'engine="b",exported_engine="0"'), "engine of the target differs"),
        (page(V1, 'engine="0"') + page(SGLANG, 'tp_rank="0"'), "mixed origin: it has names of SGLang and of vLLM"),
        ((CASES / "02-shim" / "page.prom").read_bytes(), "mixed origin"),
        (page(V1, 'engine="0"') + b"tgi_queue_size 0\n", "mixed origin: it has names of TGI and of vLLM"),
        (TRITON + TRITON.replace(b'zone="a"', b'zone="b"'), "its label zone differs"),
        (QUEUES, "queues of 2 backends"),
        (page(V1, *(f'engine="0",worker="{n}"' for n in range(300))), "300 engines by their label worker, more than"),
    ],
)
def test_indistinguishable_engines_are_refused(body: bytes, words: str) -> None:
    with pytest.raises(ScrapeError, match=words) as caught:
        engines_of(body)
    assert caught.value.kind is ScrapeFailure.NOT_ONE_ENGINE


@pytest.mark.parametrize(
    "body",
    [
        (CASES / "01-router" / "page.prom").read_bytes(),
        b'vllm:num_requests_running{server="a"} 1\nvllm:num_incoming_requests_total{model="m"} 2\n',
        b"router_cpu_usage_percent 3\nrouter_memory_usage_percent 4\n",
    ],
)
def test_router_page_is_no_engine(body: bytes) -> None:
    said = refusal(body)
    assert said == "a router's page (the vLLM production-stack router): no engine"
    assert refusal(body, "vllm") == said


@pytest.mark.parametrize(
    "body",
    [
        b"".join(b'inference_pool_per_pod_queue_size{name="p",model_server_pod="%d"} 1\n' % n for n in range(3)),
        b'sgl_router_active_load{worker_url="http://w",kind="decode"} 3\n',
        b'litellm_deployment_state{api_base="http://a",model_id="1"} 0\n',
    ],
)
def test_other_router_page_is_refused(body: bytes) -> None:
    with pytest.raises(ScrapeError, match="no page of an engine that sizewatch reads"):
        PageReader().read_engines(body, T)


def test_triton_models_are_replicas() -> None:
    text = (TESTS / "pages" / "made-triton.prom").read_text()
    alone = PageReader().read(text.encode(), T)
    lines = [line for line in text.splitlines() if 'model="tensorrt_llm"' in line]
    both = text + "\n".join(line.replace('model="tensorrt_llm"', 'model="other"') for line in lines) + "\n"
    found = engines_of(both.encode())
    assert list(found) == ["other", "tensorrt_llm"]
    assert [one.gauges for one in found.values()] == [alone.gauges, alone.gauges]
    assert list(engines_of(text.encode())) == [""], "its pipeline around one model is no engine"


def test_engines_of_a_page_may_change() -> None:
    body = page(V1, 'engine="0"', more="smg_http_requests_total 1\nlitellm_requests_metric_total 2")
    assert list(engines_of(body)) == [""], "names of a router beside an engine's"
    reader, both = PageReader(), page(V1, 'engine="0",server="a"', 'engine="0",server="b"')
    pages = (both, page(V1, 'engine="0",server="a"'), both)
    assert [list(reader.read_engines(body, T + 15 * n)) for n, body in enumerate(pages)] == [
        ["a", "b"],
        [""],
        ["a", "b"],
    ]
    with pytest.raises(ScrapeError, match="holds 2 engines by their label server, and one is needed"):
        PageReader().read(both, T)
    # The label with most values decides, and engines may be of several kinds.
    labels = (f'engine="0",node="n{number % 2}",instance="n{number % 2}:{number}"' for number in range(4))
    assert list(engines_of(page(V1, *labels))) == ["n0:0", "n0:2", "n1:1", "n1:3"]
    info = b'vllm:cache_config_info{block_size="16"} 1\n'
    mixed = engines_of(page(V1, 'engine="0",server="b"') + page(SGLANG, 'server="a"') + info)
    assert {name: one.engine for name, one in mixed.items()} == {"a": "sglang", "b": "vllm"}
    assert mixed["b"].facts["block_size"] == "16"


LOADED = "sglang_after_load.prom"
SGLANG_LOADED, VLLM = page_text(LOADED), page_text("vllm-0.33.0.prom")
RANKS = 'moe_ep_rank="0",pp_rank="0",tp_rank="0"'


def of_ranks(text: str, label: str, count: int) -> str:
    """SGLang's page once more for every other rank: series with rank labels get that label with 0, 1, ..."""
    lines = text.splitlines(keepends=True)
    ranked = [line for line in lines if RANKS in line and not line.startswith("#")]
    for rank in range(1, count):
        again = f'{label}="{rank}"' if label != "dp_rank" else f'tp_rank="{rank}",dp_rank="{rank}"'
        once = f'{label}="0"' if label != "dp_rank" else 'tp_rank="0"'
        lines += [line.replace(once, again) for line in ranked]
    return "".join(lines)


@pytest.mark.parametrize("name", ["sglang-0.5.23.prom", "sglang-0.5.3.prom", "sglang_after_load.prom"])
@pytest.mark.parametrize("rank", ["tp_rank", "pp_rank", "moe_ep_rank"])
def test_ranks_of_one_engine_repeat_one_number(name: str, rank: str) -> None:
    """--enable-metrics-for-all-schedulers."""
    assert read(of_ranks(page_text(name), rank, 3)) == read(page_text(name))


def test_data_parallel_sglang_adds_up() -> None:
    text = with_value(SGLANG_LOADED, "sglang:token_usage{", "0.5")
    second = 'sglang:token_usage{engine_type="unified",model_name="tiny",' + RANKS.replace('tp_rank="0', 'tp_rank="1')
    one, both = read(text), read(with_value(of_ranks(text, "dp_rank", 2), second, "0.9"))
    assert both.gauges["kv_utilization"] == pytest.approx(0.7)
    assert both.gauges["kv_utilization_max"] == 0.9
    for family in ("engine_steps", "prefix_queried_tokens", "prefix_hit_tokens"):
        assert both.counters[family] == 2 * one.counters[family], family
    assert both.counters["requests_finished"] == one.counters["requests_finished"]
    assert both.histograms["queue_seconds"].counts[-1] == 2 * one.histograms["queue_seconds"].counts[-1]


def in_two_engines(text: str) -> str:
    """vLLM's page with data-parallel size 2: every series with an engine label once more as engine 1."""
    lines = text.splitlines(keepends=True)
    second = (line.replace('engine="0"', 'engine="1"') for line in lines if 'engine="0"' in line)
    return "".join([*lines, *second])


def test_data_parallel_vllm_adds_up() -> None:
    one, two = read(VLLM), read(in_two_engines(VLLM))
    for family, value in one.counters.items():
        assert two.counters[family] == (value if family == "admission_rejections" else 2 * value), family
    for family, whole in one.histograms.items():
        assert two.histograms[family].counts == tuple(2 * count for count in whole.counts), family
        assert two.histograms[family].total == 2 * (whole.total or 0.0)
    for family, value in one.gauges.items():
        twice = family.startswith("requests_")
        assert two.gauges[family] == (2 * value if twice else value), family
    facts = one.facts | {"data_parallel_ranks": "2"}
    assert (two.facts, two.contradictory, two.broken) == (facts, one.contradictory, one.broken)


def through_router(text: str, *workers: str) -> str:
    """As sgl-router's /engine_metrics prints it: every ':' of the page is '_', each worker's series have its address."""
    return "".join(with_labels(text.replace(":", "_"), f'worker_addr="{worker}"') for worker in workers)


@pytest.mark.parametrize(
    "name",
    [*(f"sglang-{release}.prom" for release in ("0.4.6", "0.5.3", "0.5.10", "0.5.23")), "sglang_startup.prom", LOADED],
)
def test_workers_of_a_router_read_alike(name: str) -> None:
    addresses, alone = ("http://10.0.0.1:30000", "http://10.0.0.2:30000"), read(page_text(name))
    routed = [read(through_router(page_text(name), addresses[0]))]
    both = PageReader("sglang").read_engines(through_router(page_text(name), *addresses).encode(), START)
    assert list(both) == ["10.0.0.1:30000", "10.0.0.2:30000"]
    for page in (*routed, *both.values()):
        assert (page.counters, page.histograms, page.gauges) == (alone.counters, alone.histograms, alone.gauges)
        assert page.problems == alone.problems
