"""Telemetry from recordings of the same span, against their pages read by hand and what their clients measured."""

import functools
import gzip
import itertools
import json
import math
import re
import shutil
from pathlib import Path

import pytest
import recorded
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry_samples import run
from thinned import thin

from agent.benchmarks.points import BenchmarkMeasurement
from agent.benchmarks.telemetry import open_telemetry
from agent.benchmarks.telemetry_merge import Telemetry
from agent.errors import BenchmarkError
from rules.plan.schema import Point


@functools.cache
def steady() -> Telemetry:
    return open_telemetry(str(recorded.folder("steady")))


def ended_in(name: str, start: float, end: float, replica: str | None = None) -> int:
    """How many requests the clients saw end in a span."""
    rows = (row for row in recorded.requests(name) if replica is None or row["replica"] == replica)
    return sum(not row["error"] and start < float(row["t_start"]) + float(row["e2e"]) <= end for row in rows)


def pages_of(name: str, file: str = "metrics.jsonl.gz") -> list[tuple[float, str]]:
    with gzip.open(recorded.folder(name) / file, "rt") as lines:
        told = [json.loads(line) for line in lines]
    return [(line["t"], line["text"]) for line in told if "text" in line]


def value(page: str, name: str) -> float:
    return sum(float(n) for n in re.findall(rf"^{re.escape(name)}\{{[^}}]*\}} (\S+)$", page, re.M))


def test_a_run_of_a_recording_is_read_as_its_pages_by_hand() -> None:
    pages = pages_of("prefix")
    (start, first), (end, last) = pages[10], pages[40]
    found = open_telemetry(str(recorded.folder("prefix"))).read_run(
        run(requests=ended_in("prefix", start, end), started_at=start, ended_at=end)
    )
    hits, asked = (
        value(last, f"vllm:prefix_cache_{what}_total") - value(first, f"vllm:prefix_cache_{what}_total")
        for what in ("hits", "queries")
    )
    levels = [(t, value(page, "vllm:kv_cache_usage_perc")) for t, page in pages[10:41]]
    area = sum((b - a) * (x + y) / 2 for (a, x), (b, y) in itertools.pairwise(levels))
    assert found.values["prefix_hit_ratio"] == pytest.approx(hits / asked)
    assert found.values["kv_utilization"] == pytest.approx(area / (end - start))
    assert found.values["eviction_rate"] == 0.0


def test_scrapes_too_far_apart_tell_no_mean_of_a_gauge_and_say_so(tmp_path: Path) -> None:
    folder = thin("prefix", 120.0, tmp_path)
    with gzip.open(folder / "metrics.jsonl.gz", "rt") as lines:
        times = [json.loads(line)["t"] for line in lines]
    found = open_telemetry(str(folder)).read_run(run(started_at=times[0], ended_at=times[-1]))
    assert "prefix_hit_ratio" in found.values
    assert "kv_utilization" not in found.values
    assert any("kv_utilization: is a gauge of this engine, and scrapes too far" in remark for remark in found.remarks)


def test_the_drafts_of_a_speculating_engine_give_its_acceptance() -> None:
    pages = pages_of("specdecode")
    found = open_telemetry(str(recorded.folder("specdecode"))).read_run(
        run(started_at=pages[0][0], ended_at=pages[-1][0])
    )
    assert 0 < found.values["speculative_acceptance"] < 1


def test_a_run_that_begins_before_the_recording_gets_nothing_and_both_spans() -> None:
    pages = pages_of("steady")
    begin = pages[0][0]
    found = open_telemetry(str(recorded.folder("steady"))).read_run(run(started_at=begin - 300, ended_at=begin + 200))
    assert found.values == {}
    assert "covers 40% of this run" in found.remarks[0]
    assert "UTC" in found.remarks[0]
    assert "it spans 2026-11-20 18:17:" in found.remarks[0]


def test_a_run_in_another_time_zone_gets_nothing() -> None:
    pages = pages_of("steady")
    found = open_telemetry(str(recorded.folder("steady"))).read_run(
        run(started_at=pages[0][0] + 7200, ended_at=pages[-1][0] + 7200)
    )
    assert found.values == {}
    assert "covers 0% of this run (2026-11-20 20:17:" in found.remarks[0]


def test_other_traffic_in_the_span_is_refused() -> None:
    pages = pages_of("steady")
    found = open_telemetry(str(recorded.folder("steady"))).read_run(
        run(requests=10, started_at=pages[5][0], ended_at=pages[-5][0])
    )
    assert found.values == {}
    assert "not of this run alone" in found.remarks[0]


def test_an_engine_that_served_nothing_in_the_run_tells_nothing(tmp_path: Path) -> None:
    page = pages_of("steady")[20][1]
    folder = written(tmp_path / "idle", [page] * 10)
    found = open_telemetry(str(folder)).read_run(run(started_at=1000.0, ended_at=1045.0))
    assert found.values == {}
    assert found.remarks == ("the engine finished no request in this run: nothing was taken from its telemetry",)


def test_a_run_without_times_gets_nothing() -> None:
    found = open_telemetry(str(recorded.folder("steady"))).read_run(run(requests=10))
    assert found.values == {}
    assert "does not tell when" in found.remarks[0]


def test_three_replicas_that_served_must_be_chosen_from() -> None:
    pages = pages_of("routing", "cpu-small-0.jsonl.gz")
    measured = run(started_at=pages[5][0], ended_at=pages[25][0])
    with pytest.raises(
        BenchmarkError, match=r"cpu-small-0, cpu-small-1, cpu-small-2 all served .*--telemetry-selector"
    ):
        open_telemetry(str(recorded.folder("routing"))).read_run(measured)


@pytest.mark.parametrize("selector", ["cpu-small-1", '{replica="cpu-small-1"}', ' replica = "cpu-small-1" '])
def test_the_chosen_replica_alone_is_read(selector: str) -> None:
    pages = pages_of("routing", "cpu-small-1.jsonl.gz")
    (start, first), (end, last) = pages[5], pages[25]
    asked = ended_in("routing", start, end, "cpu-small-1")
    found = open_telemetry(str(recorded.folder("routing")), selector=selector).read_run(
        run(requests=asked, started_at=start, ended_at=end)
    )
    hits, queried = (
        value(last, f"vllm:prefix_cache_{what}_total") - value(first, f"vllm:prefix_cache_{what}_total")
        for what in ("hits", "queries")
    )
    assert asked > 20
    assert found.values["prefix_hit_ratio"] == pytest.approx(hits / queried)


def test_a_replica_that_is_not_there_is_said_with_those_that_are() -> None:
    with pytest.raises(BenchmarkError, match=r"no replica 'x'; there is cpu-small-0, cpu-small-1, cpu-small-2"):
        open_telemetry(str(recorded.folder("routing")), selector="x")


def written(folder: Path, pages: list[str]) -> Path:
    """A recording of these pages, five seconds apart from t = 1000 on."""
    folder.mkdir()
    shutil.copy(recorded.folder("restart") / "recording.yaml", folder)
    with gzip.open(folder / "metrics.jsonl.gz", "wt") as lines:
        lines.writelines(json.dumps({"t": 1000.0 + 5 * n, "text": page}) + "\n" for n, page in enumerate(pages))
    return folder


def test_a_silence_of_a_third_of_the_run_is_no_telemetry_of_it() -> None:
    pages = pages_of("restart")
    found = open_telemetry(str(recorded.folder("restart"))).read_run(run(started_at=pages[0][0], ended_at=pages[-1][0]))
    assert found.values == {}
    assert "covers 63% of this run" in found.remarks[0]


def test_a_quick_restart_in_the_run_is_said(tmp_path: Path) -> None:
    pages = [page for _, page in pages_of("restart")]
    folder = written(tmp_path / "quick", pages)
    found = open_telemetry(str(folder)).read_run(run(started_at=1000.0, ended_at=995.0 + 5 * len(pages)))
    assert found.remarks[0] == "the engine restarted during this run"
    assert "prefix_hit_ratio" in found.values


def test_a_recording_of_no_engine_is_said(tmp_path: Path) -> None:
    folder = Path(shutil.copytree(recorded.folder("steady"), tmp_path / "strange"))
    with gzip.open(folder / "metrics.jsonl.gz", "wt") as lines:
        lines.write(json.dumps({"t": 1.0, "text": "node_load1 0.5\n"}) + "\n")
    with pytest.raises(BenchmarkError, match="has no page of an engine"):
        open_telemetry(str(folder))


def test_a_recording_whose_index_is_broken_is_said(tmp_path: Path) -> None:
    (tmp_path / "recording.yaml").write_text("targets: []\n")
    with pytest.raises(BenchmarkError, match="has no list `targets`"):
        open_telemetry(str(tmp_path))


@settings(max_examples=20)
@given(offset=st.floats(-1e9, 1e9), length=st.floats(-10, 1e9), requests=st.none() | st.integers(1, 10**6))
def test_any_span_ends_in_an_answer(offset: float, length: float, requests: int | None) -> None:
    found = steady().read_run(
        run(requests=requests, started_at=1795198650 + offset, ended_at=1795198650 + offset + length)
    )
    assert found.values or found.remarks


def ttft_run(name: str, later: float = 0.0) -> BenchmarkMeasurement:
    """A run over a whole recording with the TTFT that its clients measured, so many seconds later."""
    pages = pages_of(name)
    start, end = pages[0][0], pages[-1][0]
    rows = [row for row in recorded.requests(name) if not row["error"] and row["e2e"]]
    waited = sorted(
        float(row["ttft"]) + later for row in rows if start < float(row["t_start"]) + float(row["e2e"]) <= end
    )
    p50, p99 = (waited[math.ceil(q * len(waited)) - 1] for q in (0.5, 0.99))
    point = Point(completed_rps=1.0, requests=len(waited), ttft_p50_seconds=p50, ttft_p99_seconds=p99)  # type: ignore[call-arg]
    return BenchmarkMeasurement(source="x.json", tool="test", loop="open", point=point, started_at=start, ended_at=end)


@pytest.mark.parametrize("name", ["steady", "prefix", "specdecode", "kv_cascade", "lora", "diurnal", "sglang"])
def test_recorded_clients_agree_with_their_engines_ttft_and_held_back_chunks_do_not(name: str) -> None:
    telemetry = open_telemetry(str(recorded.folder(name)))
    assert [text for text in telemetry.read_run(ttft_run(name)).remarks if text.startswith("TTFT")] == []
    (remark,) = [text for text in telemetry.read_run(ttft_run(name, later=13.0)).remarks if text.startswith("TTFT")]
    assert remark.startswith("TTFT P50 is 1")
