"""What is claimed of engines in the documentation: families and releases of their own tables."""

import pytest

from exporters.docs.reference_pages import engines_page
from rules.engines.coverage import engine_signals
from rules.engines.registry import ENGINES, EngineTable
from rules.telemetry.families import BY_NAME, FamilyKind


def test_family_tells_first_and_last_release() -> None:
    page = engines_page()
    head = [line.strip("| ").split(" | ") for line in page.partition("## ")[0].splitlines() if line.startswith("| `")]
    matrix = {name.strip("`"): columns for name, *columns in head}
    place = [f"{engine.name}/{engine.generation}" for engine in ENGINES].index
    assert matrix["tpot_seconds"][place("vllm/v1")] == "from 0.11.0"
    assert matrix["tpot_seconds"][place("vllm/v0")] == "-"
    assert matrix["kv_utilization"][place("llamacpp/server")] == "to 2024.9"
    assert matrix["kv_utilization"][place("vllm/v1")] == "yes", "under two names, one after the other"
    assert "| `preemptions` | llama.cpp does not preempt: a slot keeps its cache until the request ends |" in page


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: f"{e.name}-{e.generation}")
def test_engine_families_are_unique_and_typed(engine: EngineTable) -> None:
    for row in engine.rows:
        assert BY_NAME[row.family].kind is row.kind or row.part, f"{row.family} from {row.source}"
        assert row.kind is not FamilyKind.HISTOGRAM or not row.part
    keys = [(r.family, r.sample, *r.where.items(), *r.unless.items()) for r in engine.rows]
    assert len(keys) == len(set(keys))


def test_signals_of_the_gpu_are_no_engines() -> None:
    names = {signal.name for signal in engine_signals()}
    assert "gpu_utilization" not in names
    assert {"ttft_p99_seconds", "kv_utilization", "cold_start_seconds"} <= names
