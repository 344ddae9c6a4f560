"""docs/scaling.md: how many series a node agent exports for a replica, a GPU and itself, counted on its own page."""

from __future__ import annotations

import re
import sys

import pytest
from nvml_fixture import Machine, nvml_library, nvml_state, read_machine  # noqa: F401 - fixtures
from paths import ROOT

from agent.config.files import load_plan
from agent.gpu.collector import GpuCollector
from rules.plan.load_bins import build_tier_context
from rules.telemetry.snapshots import GpuReadout

sys.path.append(str(ROOT / "benchmarks"))
from fleet import PLAN, recorded_pages, series_of_a_replica
from fleet_replica import GPU_COUNTERS, GPU_GAUGES, StandInGpus, exported, samples

PAGES = {
    "vLLM 0.32": "steady_after_load.prom",
    "vLLM 0.32 with speculative decoding": "specdecode_after_load.prom",
    "vLLM 0.33": "vllm-0.33.0.prom",
    "SGLang 0.5": "sglang_after_load.prom",
    "TensorRT-LLM 1.3": "made-trtllm-1.3-newer.prom",
    "TGI": "made-tgi.prom",
    "NVIDIA Dynamo worker (vLLM)": "made-dynamo-worker-vllm.prom",
    "llama.cpp": "llamacpp_after_load.prom",
}
BEGIN = 1_790_000_000.0
TURNS = 4


def stated(what: str) -> int:
    """The number in the row of the document that begins with these words."""
    text = (ROOT / "docs" / "scaling.md").read_text(encoding="utf-8")
    (found,) = re.findall(rf"^\| {re.escape(what)} \| (\d+) \|", text, re.MULTILINE)
    return int(found)


def page_of(name: str, gpus: GpuCollector | None = None) -> dict[tuple[tuple[str, str], ...], float]:
    """The agent's page after some turns over one engine's page, by labels."""
    body = (ROOT / "tests" / "pages" / name).read_bytes()
    told = list(
        exported([(BEGIN + 15.0 * n, body) for n in range(TURNS)], build_tier_context("tier", None), "replica", gpus)
    )
    return {labels: value for labels, (value, _) in samples(told[-1][1]).items()}


def has(labels: tuple[tuple[str, str], ...], name: str) -> bool:
    return bool(dict(labels).get(name))


@pytest.mark.parametrize("engine", PAGES)
def test_the_series_of_a_replica_are_as_many_as_the_document_says(engine: str) -> None:
    page = page_of(PAGES[engine])
    assert sum(has(labels, "replica") for labels in page) == stated(engine)


def test_the_series_of_a_gpu_are_as_many_as_the_document_says(machine: Machine) -> None:
    first = machine.standin.add_gpu()
    machine.turn()
    page = page_of(PAGES["vLLM 0.32"], GpuCollector(AsMachine(machine)))
    of_gpu = [labels for labels in page if has(labels, "gpu")]
    assert {dict(labels)["gpu"] for labels in of_gpu} == {first}
    assert len(of_gpu) == stated("GPU (NVML, H100)")


class AsMachine:
    """The stand-in machine's reader as a source: GPM sums move on, 15 s a turn."""

    def __init__(self, machine: Machine) -> None:
        self._machine = machine
        self._clock = 100.0

    def read(self, now: float) -> tuple[tuple[GpuReadout, ...], tuple[str, ...]]:
        self._clock += 15.0
        self._machine.standin.set({"0.gpm.clock": self._clock})
        self._machine.clock.now += 15.0
        return self._machine.reader.read(now)

    def close(self) -> None:
        """The fixture's to close."""


def test_the_gpus_of_the_benchmark_say_what_nvml_says(machine: Machine) -> None:
    machine.standin.add_gpu()
    machine.turn()
    machine.standin.set({"0.gpm.clock": 130})
    readout = machine.only()
    assert set(readout.counters) == set(GPU_COUNTERS)
    assert set(readout.gauges) | set(readout.gaps) == set(GPU_GAUGES)


def test_the_series_of_an_agent_and_of_a_tier_on_it_are_as_many_as_the_document_says() -> None:
    plan = load_plan(PLAN)
    (tier,) = plan.tiers
    *_, (_, told) = exported(recorded_pages(), build_tier_context(tier, plan.tiers[tier]), "replica")
    page = samples(told)
    rest = [labels for labels in page if not has(labels, "replica")]
    assert sum(has(labels, "tier") for labels in rest) == stated("tier, on every agent that has a replica of it")
    assert sum(not has(labels, "tier") for labels in rest) == stated("agent")


def test_the_replica_of_the_benchmark_has_all_of_them() -> None:
    gpus = 2
    found = series_of_a_replica(gpus)
    assert len(found) == stated("vLLM 0.32") + gpus * stated("GPU (NVML, H100)")
    assert len(StandInGpus(gpus, 0.0).read(1.0)[0]) == gpus
