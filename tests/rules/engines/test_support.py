"""What is claimed of engines: by the same readings as a page's, so the claim and the reading cannot differ."""

from __future__ import annotations

import pytest

from exporters.documents.signal_exposure import matrix
from rules.engines.coverage import Support, engine_signals, exposures
from rules.engines.registry import BY_NAME as TABLES
from rules.engines.registry import ENGINES
from rules.engines.table import EngineTable, SourceRow
from rules.telemetry.families import BY_NAME, FamilyKind

SGLANG = TABLES["sglang/srt"]
VLLM_V0 = TABLES["vllm/v0"]
VLLM_V1 = TABLES["vllm/v1"]

COMMON = ("completed_rps", "requests_running")


def toy(*rows: SourceRow, **more: object) -> EngineTable:
    fields = {"scanned": ("1.0", "1.5", "2.0"), **more}
    return EngineTable(name="toy", generation="v1", title="Toy", signatures=("toy",), rows=rows, **fields)  # type: ignore[arg-type]


def row(family: str, since: str = "1.0", until: str = "") -> SourceRow:
    return SourceRow(family=family, source=f"toy_{family}", since=since, until=until)


def spans(engine: EngineTable, signal: str) -> list[tuple[str, str, str]]:
    found = next(e for e in exposures(engine) if e.signal == signal)
    return [(support.value, first, last) for support, first, last in found.spans]


def test_a_signal_is_known_from_the_release_that_prints_all_it_needs() -> None:
    engine = toy(row("preemptions", "1.5"), row("requests_finished"))
    assert spans(engine, "eviction_rate") == [("not exposed", "1.0", "1.0"), ("known", "1.5", "2.0")]
    assert spans(engine, "completed_rps") == [("known", "1.0", "2.0")]
    assert next(e.why for e in exposures(engine) if e.signal == "eviction_rate") == "not before 1.5"


def test_a_family_that_was_dropped_ends_its_signal() -> None:
    engine = toy(row("kv_utilization", until="1.5"))
    assert spans(engine, "kv_utilization") == [("known", "1.0", "1.5"), ("not exposed", "2.0", "2.0")]
    _, rows = matrix([engine])
    assert ("kv_utilization", "known to 1.5") in rows


def test_what_is_only_bracketed_is_bounded() -> None:
    engine = toy(row("queue_seconds"), row("e2e_seconds"))
    assert spans(engine, "ttft_p99_seconds") == [("bounded", "1.0", "2.0")]
    _, rows = matrix([engine])
    assert ("ttft_p99_seconds", "bounded") in rows


def test_what_is_missing_has_its_reason_from_the_table() -> None:
    engine = toy(row("requests_finished"), not_exposed={"preemptions": "Toy never preempts"})
    found = {e.signal: e for e in exposures(engine)}
    assert found["eviction_rate"].why == "Toy never preempts"
    assert found["completed_rps"].why == ""


def test_the_reason_is_the_family_that_never_comes_and_not_one_that_is_still_to_come() -> None:
    """Goodput needs TTFT, which V0 prints from the first request on, and TPOT, which it never prints."""
    goodput = next(found for found in exposures(VLLM_V0) if found.signal == "goodput_rps")
    assert "no time per output token" in goodput.why


def test_a_start_that_the_page_times_is_a_cold_start() -> None:
    assert spans(toy(born="toy_created"), "cold_start_seconds") == [("known", "1.0", "2.0")]
    assert spans(toy(), "cold_start_seconds") == [("not exposed", "1.0", "2.0")]
    assert spans(toy(row("engine_startup_seconds")), "cold_start_seconds") == [("bounded", "1.0", "2.0")]


def test_what_vllm_learned_is_told_by_release() -> None:
    assert spans(VLLM_V1, "tpot_p99_seconds") == [("not exposed", "0.8.5", "0.10.2"), ("known", "0.11.0", "0.33.0")]
    assert spans(VLLM_V1, "itl_p99_seconds") == [("known", "0.8.5", "0.33.0")]


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: f"{e.name}-{e.generation}")
def test_every_engine_says_why_a_signal_is_missing(engine: EngineTable) -> None:
    for exposure in exposures(engine):
        if any(support is Support.NOT_EXPOSED for support, _, _ in exposure.spans):
            assert exposure.why, f"{engine.title}: {exposure.signal} is not exposed, and its table does not say why"


@pytest.mark.parametrize("engine", ENGINES, ids=lambda e: f"{e.name}-{e.generation}")
def test_every_engine_maps_to_families_of_their_kind_once(engine: EngineTable) -> None:
    for one in engine.rows:
        assert BY_NAME[one.family].kind is one.kind or one.part, f"{one.family} from {one.source}"
        assert one.kind is not FamilyKind.HISTOGRAM or not one.part
    keys = [(r.family, r.sample, *r.where.items(), *r.unless.items()) for r in engine.rows]
    assert len(keys) == len(set(keys))


def test_signals_of_the_gpu_are_no_engines() -> None:
    names = {signal.name for signal in engine_signals()}
    assert "gpu_utilization" not in names
    assert {"ttft_p99_seconds", "kv_utilization", "cold_start_seconds"} <= names


def test_the_matrix_has_a_row_a_signal_and_a_column_an_engine() -> None:
    head, rows = matrix(ENGINES)
    assert len(head) == 1 + len(ENGINES)
    assert [r[0] for r in rows] == [signal.name for signal in engine_signals()]
    assert all(len(r) == len(head) for r in rows)
