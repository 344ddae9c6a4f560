from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from gpu_pages import readout
from paths import TESTS

from agent.config.files import load_plan
from agent.config.load import LoadedConfig, parse_config
from agent.config.peer import Peer
from agent.doctor import engine_hosts
from agent.doctor.check_result import CheckLevel, CheckResult
from agent.doctor.configuration import check_gpus
from agent.doctor.engine_hosts import OF_HOST, Candidate, find_gpus
from agent.doctor.targets import TargetPage, check_page, check_plan_match, check_signals
from agent.gpu.owners import GpuAssignment
from agent.scrape.engine_probe import EngineProbe
from agent.scrape.scrapers import PageReader, Target
from rules.plan.schema import Plan, TierPlan, parse_plan
from rules.telemetry.snapshots import GpuReadout, Snapshot

PAGE = (TESTS / "pages" / "steady_after_load.prom").read_bytes()
GUIDE = load_plan(TESTS / "plans" / "guide-h100.yaml")
NOW = 1_790_000_000.0
H100 = "NVIDIA H100 80GB HBM3"


@cache
def read(body: bytes) -> tuple[PageReader, Snapshot]:
    reader = PageReader()
    return reader, reader.read(body, NOW)


def page(body: bytes = PAGE, **changes: Any) -> TargetPage:
    """A target whose page was read at NOW; `target` keys go to the target."""
    reader, snapshot = read(body)
    keys = changes.pop("target", {})
    target = Target(tier="t", replica="r", pool="mixed", peer=Peer(url="http://x/metrics"), **keys)
    parts = {"page_bytes": len(body), "seconds": 0.01, "snapshot": snapshot, "clock_ahead_seconds": 0.0}
    return TargetPage(**{"target": target, "families": dict(reader.families), **parts, **changes})


def with_gpus(
    tier: TierPlan, gpus: tuple[str, ...], owned: int, *readouts: GpuReadout, missing: str = ""
) -> TargetPage:
    """A target with these `gpus` in the configuration, that owns the first `owned` of all readouts."""
    assigned = GpuAssignment(gpus=tuple(readout.gpu for readout in readouts[:owned]), missing=missing)
    return page(target={"gpus": gpus}, tier=tier, gpus=assigned, readouts=readouts)


def tier(**parts: Any) -> TierPlan:
    bare = {"model": "small-llama", "engine": "vllm", "gpu": {"product": "CPU", "per_replica": 1}}
    return parse_plan({"schema": 1, "tiers": {"t": {**bare, "slo": {"ttft_p99_seconds": 2}, **parts}}}).tiers["t"]


def gpu(index: int, product: str = H100, **changes: Any) -> GpuReadout:
    return replace(readout(f"GPU-{index}", index, (4242,), NOW), **{"product": product, "gauges": {}, **changes})


def loaded(plan: Plan | None = None, **keys: Any) -> LoadedConfig:
    return LoadedConfig(path=Path("c.yaml"), config=parse_config(keys), plan=plan, warnings=())


GIANT = "acme/giant-405b"
UNTOLD = f"the page tells no model, {GIANT} is the plan's alone"
LLAMACPP, TGI = (TESTS / "cases" / "33-doctor-model" / name for name in ("llamacpp.prom", "tgi.prom"))
STEADY = TESTS / "pages" / "steady_after_load.prom"
GPUS = f"2 x {H100}"
WHICH = "which of the GPUs GPU-0, GPU-1 belong to it is not known; the plan says 2"
OTHER_PRODUCT = "runs on NVIDIA A100-SXM4-80GB, the plan was measured on H100 80GB HBM3"


def planned(path: Path = STEADY, **parts: Any) -> TargetPage:
    return page(path.read_bytes(), tier=tier(**parts))


def cached(runs: str, plan: str) -> TargetPage:
    """A KV cache of one format, and another in the plan."""
    assert b'cache_dtype="auto"' in PAGE
    body = PAGE.replace(b'cache_dtype="auto"', f'cache_dtype="{runs}"'.encode())
    return page(body, tier=tier(precision={"kv": plan}))


def owning(configured: tuple[str, ...], owned: int, missing: str = "", **parts: Any) -> TargetPage:
    plan = tier(gpu={"product": H100, "per_replica": 2}, **parts)
    return with_gpus(plan, configured, owned, gpu(0), gpu(1), missing=missing)


def running_on(product: str) -> TargetPage:
    plan = tier(gpu={"product": "H100 80GB HBM3", "per_replica": 1})
    return with_gpus(plan, ("0",), 1, gpu(0, product))


def full_of(c_max: int) -> TargetPage:
    """The engine's cache has 1,024 blocks of 32 tokens: 32,768."""
    lengths = {"prompt_tokens": {"p95": 300}}
    return planned(workload=lengths, operating_point={"c_max": c_max, "usable_rps": 5})


@pytest.mark.parametrize(
    ("target", "level", "text"),
    [
        (planned(model="llama-3.3-70b"), "fail", "serves small-llama, the plan's tier is for llama-3.3-70b"),
        (planned(engine="sglang"), "fail", "vllm runs, the plan was measured with sglang: latencies mean "),
        (planned(LLAMACPP, engine="llamacpp", model=GIANT), "ok", f"as planned: engine llamacpp; {UNTOLD}"),
        (planned(TGI, engine="tgi", model=GIANT), "ok", f"as planned: engine tgi; {UNTOLD}"),
        (planned(TGI, model=GIANT), "fail", "tgi runs, "),
        (planned(model="small-llama"), "ok", "as planned: model small-llama, "),
        (planned(model="Small-Llama"), "ok", "as planned: model Small-Llama, "),
        (planned(model="org/small-llama"), "ok", "as planned: model org/small-llama, "),
        (planned(model="/models/small-llama/"), "ok", "as planned: model /models/small-llama/, "),
        (cached("auto", "bf16"), "ok", ""),
        (cached("auto", "fp8"), "warn", ""),
        (cached("fp8", "fp8"), "ok", ""),
        (cached("fp8_e4m3", "fp8"), "ok", ""),
        (cached("bfloat16", "bf16"), "ok", ""),
        (cached("fp8_e5m2", "bf16"), "fail", ""),
        (cached("bfloat16", "fp8"), "fail", ""),
        (cached("half", "fp16"), "ok", ""),
        (
            owning(("0", "1"), 2, precision={"kv": "bf16"}),
            "ok",
            f"as planned: model small-llama, KV cache auto, {GPUS}",
        ),
        (owning(("0",), 1), "fail", f"GPUs that it owns: 1; the plan says {GPUS} a replica"),
        (owning(("0", "7"), 1, "GPU 7 has never been read"), "fail", "GPU 7 has never been read"),
        (owning(("auto",), 0), "warn", WHICH),
        (owning(("auto",), 0, "no pid"), "warn", "no pid"),
        (owning((), 0), "warn", "which of the GPUs"),
        (running_on(H100), "ok", "as planned"),
        (running_on("NVIDIA A100-SXM4-80GB"), "fail", OTHER_PRODUCT),
        # A GPU that was not read is not missed.
        (planned(gpu={"product": H100, "per_replica": 4}), "ok", "as planned"),
        (full_of(109), "ok", "as planned"),
        (full_of(110), "warn", ""),
    ],
)
def test_target_is_compared_with_its_plan(target: TargetPage, level: str, text: str) -> None:
    (found,) = check_plan_match(target)
    assert found.level == level
    assert found.text.startswith(text)
    assert ("needs 33,000" in found.text) is (target.tier == full_of(110).tier)
    precision = target.tier.precision
    if precision is not None and found.level != "ok":
        assert found.advice.startswith(f"start the engine with --kv-cache-dtype {precision.kv}")


def names(body: bytes, **target: Any) -> list[CheckResult]:
    return list(check_signals(page(body, target=target)))


def test_rules_without_data_are_named() -> None:
    old = (TESTS / "pages" / "vllm-0.8.5.prom").read_bytes()
    engine, mute, *_ = names(old, engine_version="0.8.5")
    assert engine.text.startswith("vLLM v1 (0.8.5 by the configuration, before 0.9.2 by its names): ")
    assert (mute.level, mute.text) == (
        CheckLevel.WARN,
        "TpotDivergence, TpotSloBurn, AvailabilityBurn will say not_exposed",
    )


@pytest.mark.parametrize("name", ["vllm-0.33.0.prom", "vllm-0.33.0.openmetrics.txt"])
def test_newest_release_feeds_most_rules(name: str) -> None:
    found, mute, *_ = names((TESTS / "pages" / name).read_bytes())
    assert found.text.startswith("vLLM v1 (after 0.29.0 by its names): 34 of 42 signals")
    assert mute.text == "AvailabilityBurn will say not_exposed", "no reason error on this page, and no HTTP answers"


RUNNING = b'vllm:num_requests_running{engine="0",model_name="small-llama"} '
TOO_MANY = "tokens found in the prefix cache, 471,978, of 40,340 looked up (1170%)"
HITS = b'vllm:prefix_cache_hits_total{engine="0",model_name="small-llama"} '


@pytest.mark.parametrize(
    ("series", "value", "level", "text"),
    [
        (RUNNING, b"-1", CheckLevel.WARN, "requests_running: a gauge of -1.0"),
        (HITS, b"471978.0", CheckLevel.FAIL, f"prefix_hit_tokens: {TOO_MANY}: cannot be, neither counter is used"),
    ],
)
def test_impossible_family_is_named(series: bytes, value: bytes, level: CheckLevel, text: str) -> None:
    assert series + b"0.0" in PAGE
    found = names(PAGE.replace(series + b"0.0", series + value))
    assert [line.text for line in found if line.level is level] == [f"trouble on its page: {text}"]


def test_slow_page_is_a_warning() -> None:
    _, slow = check_page(page(seconds=6.0))
    assert (slow.level, slow.text) == (CheckLevel.WARN, "53.7 kB in 6000 ms nears its timeout of 10 s")


ON_H100 = {"targets": [{"url": "http://a/", "tier": "h100-llama70b-fp8"}]}
NO_NVML = "NVML: the NVIDIA driver is not loaded (nvmlInit); no GPU is read, next try after 10 s"


@pytest.mark.parametrize(
    ("keys", "plan", "level"),
    [
        ({}, None, CheckLevel.OK),
        (ON_H100, None, CheckLevel.OK),
        (ON_H100, GUIDE, CheckLevel.WARN),
        ({**ON_H100, "gpus": {"source": "nvml"}}, GUIDE, CheckLevel.FAIL),
        ({"gpus": {"source": "nvml"}}, None, CheckLevel.FAIL),
    ],
)
def test_missing_gpus_weigh_as_they_were_asked(keys: dict[str, Any], plan: Plan | None, level: CheckLevel) -> None:
    (found,) = check_gpus(((), (NO_NVML,)), loaded(plan, **keys))
    assert found.level is level
    assert found.text.startswith(NO_NVML)


def test_lost_gpu_is_a_warning() -> None:
    lost, *rest = check_gpus(((gpu(0),), ("GPU 1: it is lost; tried again next turn",)), loaded())
    assert (lost.level, lost.text) == (CheckLevel.WARN, "GPU 1: it is lost; tried again next turn")
    assert [finding.level for finding in rest] == [CheckLevel.OK, CheckLevel.OK]


HERE, ELSEWHERE = "http://127.0.0.1:8000/metrics", "http://other:8000/metrics"
SHARED = "which engine owns which of them is not known"


def probe(url: str, **facts: str) -> EngineProbe:
    reader, page = read((TESTS / "pages" / "vllm-0.33.0.prom").read_bytes())
    page = replace(page, facts={**page.facts, **facts})
    return EngineProbe(url=url, engine=reader.engine, page=page, model="m", context_tokens=None)


@pytest.fixture(autouse=True)
def processes(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 70 serves port 8000; its worker 71 and the worker 91 of another program are on GPUs."""
    monkeypatch.setattr(engine_hosts, "find_candidates", lambda: (Candidate(port=8000, pid=70, parallel=2),))
    monkeypatch.setattr(engine_hosts, "lineage", lambda pid: frozenset((pid, pid // 10 * 10)))


@pytest.mark.parametrize(
    ("engines", "pids", "gpus", "doubt"),
    [
        ([probe(HERE)], [(71,), (), (91,)], "a", ""),
        ([probe(HERE)], [(71,), (72, 91), ()], "ab", ""),
        ([probe(HERE), probe(HERE.replace("8000", "30000"))], [(71,), (), ()], "a", ""),
        ([probe(HERE), probe(HERE.replace("8000", "30000"))], [(91,), (), ()], "abc", SHARED),
        # The command line has two GPUs, and no process is seen on them, or those of a container.
        ([probe(HERE)], [(), (), ()], "abc", "the engine uses 2 of them, which is not known"),
        ([probe(HERE)], [(5,), (6,), ()], "ab", ""),
        ([probe(HERE, tensor_parallel_size="3")], [(), (), ()], "abc", ""),
        ([probe(ELSEWHERE)], [(71,), (), ()], "abc", OF_HOST),
        ([probe(ELSEWHERE)], [()], "a", ""),
        ([probe(ELSEWHERE, tensor_parallel_size="1", pipeline_parallel_size="1")], [(), (4,), ()], "b", ""),
        ([probe(ELSEWHERE, tensor_parallel_size="many")], [(), (4,), ()], "abc", OF_HOST),
        ([replace(probe(ELSEWHERE, tensor_parallel_size="1"), holds="3 engines")], [(), (4,), ()], "abc", OF_HOST),
    ],
)
def test_engine_gets_its_own_gpus_only(
    engines: list[EngineProbe], pids: list[tuple[int, ...]], gpus: str, doubt: str
) -> None:
    latest = {name: readout(name, pids=seen) for name, seen in zip("abc", pids, strict=False)}
    hosts = dict.fromkeys(latest, "" if engines[0].url == HERE else "other")
    seen = find_gpus(engines[0], engines, hosts, latest)
    assert ("".join(seen.gpus), seen.doubt) == (gpus, doubt)
    assert (seen.measured == seen.gpus) == (doubt in ("", OF_HOST))


def test_gpus_of_another_host_are_none() -> None:
    engines = [probe(HERE), probe(ELSEWHERE)]
    latest = {"a": readout("a"), "b": readout("b")}
    assert find_gpus(engines[1], engines, {"a": "", "b": "other"}, latest).gpus == ("b",)
    latest = {name: replace(gpu, host=name) for name, gpu in latest.items()}
    assert find_gpus(engines[1], engines[1:], {"a": "", "b": ""}, latest) == (("a", "b"), "they are of a or b")


def test_no_gpu_leaves_no_doubt() -> None:
    assert find_gpus(probe(HERE), [probe(HERE)] * 2, {}, {}) == ((), "")
