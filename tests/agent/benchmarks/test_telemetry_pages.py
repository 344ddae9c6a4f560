"""Telemetry from pages that were saved before and after each run of real sweeps."""

import re
import shutil
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from telemetry_samples import BENCH, run, saved

from agent.benchmarks.formats import read_results
from agent.benchmarks.telemetry import open_telemetry
from agent.errors import BenchmarkError

TOKENS = {"r3": 12996, "r4.5": 13059, "r6": 12964, "r8": 13534}
"""`total_output_tokens` of the open sweep's files; of each of the cached sweep's it is 13289."""


def counted(page: Path, name: str) -> float:
    """A counter's sum over its series, read from the page by hand."""
    return sum(float(n) for n in re.findall(rf"^{re.escape(name)}\{{[^}}]*\}} (\S+)$", page.read_text(), re.M))


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A copy of the cached sweep, to be spoilt."""
    return Path(shutil.copytree(BENCH / "vllm-cpu-cached", tmp_path / "sweep"))


@pytest.mark.parametrize("tag", ["r3", "r4.5", "r6", "r7", "r8"])
def test_four_fifths_of_the_prompts_of_the_cached_sweep_came_from_the_cache(tag: str) -> None:
    found = open_telemetry(str(BENCH / "vllm-cpu-cached")).read_run(saved("vllm-cpu-cached", tag))
    # The same 300 prompts at every rate: 19648 of their 24643 tokens were found each time.
    assert found.values["prefix_hit_ratio"] == pytest.approx(19648 / 24643)
    assert found.values["eviction_rate"] == 0.0


def test_the_hit_ratio_is_the_difference_of_the_two_pages_around_the_run() -> None:
    folder = BENCH / "vllm-cpu-cached"
    before, after = folder / "metrics_after_r4.5.prom", folder / "metrics_after_r6.prom"
    hits, asked = (
        counted(after, f"vllm:prefix_cache_{what}_total") - counted(before, f"vllm:prefix_cache_{what}_total")
        for what in ("hits", "queries")
    )
    found = open_telemetry(str(folder)).read_run(saved("vllm-cpu-cached", "r6"))
    assert asked == 24643
    assert found.values["prefix_hit_ratio"] == pytest.approx(hits / asked)


@pytest.mark.parametrize(
    ("tag", "hits", "asked"),
    [("r1.5", 2304 - 0, 24661 - 18), ("r3", 1696, 24263), ("r8", 15744 - 11616, 119399 - 96023)],
)
def test_prompts_of_the_open_sweep_were_mostly_computed(tag: str, hits: float, asked: float) -> None:
    found = open_telemetry(str(BENCH / "vllm-cpu-open")).read_run(saved("vllm-cpu-open", tag))
    assert found.values["prefix_hit_ratio"] == pytest.approx(hits / asked)
    assert hits / asked < 0.2


def test_a_run_after_a_restart_is_counted_since_the_process_started() -> None:
    found = open_telemetry(str(BENCH / "vllm-cpu-open")).read_run(saved("vllm-cpu-open", "r3"))
    assert any("counted since the process started" in remark for remark in found.remarks)


@pytest.mark.parametrize("tag", ["c01", "c02", "c04", "c08", "c16", "c32"])
def test_every_concurrency_of_the_closed_sweep_has_its_two_pages(tag: str) -> None:
    found = open_telemetry(str(BENCH / "vllm-cpu")).read_run(saved("vllm-cpu", tag))
    assert 0.02 < found.values["prefix_hit_ratio"] < 0.1
    assert not any("requests" in remark for remark in found.remarks)


@pytest.mark.parametrize("tag", ["r3", "r4.5", "r6", "r8"])
def test_pages_of_another_sweep_with_as_many_requests_show_in_the_tokens(tag: str) -> None:
    cached = open_telemetry(str(BENCH / "vllm-cpu-cached"))
    (other,) = read_results(BENCH / "vllm-cpu-open" / f"bench_{tag}.json")
    (own,) = read_results(BENCH / "vllm-cpu-cached" / f"bench_{tag}.json")
    said = f"the engine generated 13289 tokens in this run, the result file has {TOKENS[tag]}: make sure"
    assert any(remark.startswith(said) for remark in cached.read_run(other).remarks)
    assert not any("tokens in this run" in remark for remark in cached.read_run(own).remarks)


def test_a_run_without_a_page_of_its_tag_gets_nothing_and_the_name_it_lacks() -> None:
    found = open_telemetry(str(BENCH / "vllm-cpu")).read_run(saved("vllm-cpu", "rate3_detailed"))
    assert found.values == {}
    assert "metrics_after_bench_rate3_detailed.prom" in found.remarks[0]


def test_two_pages_tell_no_mean_of_a_gauge() -> None:
    found = open_telemetry(str(BENCH / "vllm-cpu-cached")).read_run(saved("vllm-cpu-cached", "r3"))
    assert "kv_utilization" not in found.values
    assert any("kv_utilization: is a gauge" in remark for remark in found.remarks)
    assert any(remark.startswith("speculative_acceptance: vLLM does not expose it") for remark in found.remarks)


def test_pages_around_two_runs_are_not_taken_for_one(sweep: Path) -> None:
    (sweep / "metrics_after_r4.5.prom").unlink()
    found = open_telemetry(str(sweep)).read_run(run("bench_r6.json", requests=300))
    assert found.values == {}
    assert "finished 600 requests" in found.remarks[0]
    assert "not of this run alone" in found.remarks[0]


def test_warm_up_requests_are_said_and_cost_nothing(sweep: Path) -> None:
    found = open_telemetry(str(sweep)).read_run(run("bench_r6.json", requests=290))
    assert "prefix_hit_ratio" in found.values
    assert "the engine finished 300 requests in this run, the result file has 290" in found.remarks[0]


def test_dates_of_the_files_and_missing_times_of_the_run_change_nothing(sweep: Path) -> None:
    for path in sweep.iterdir():
        path.touch()
    found = open_telemetry(str(sweep)).read_run(run("elsewhere/bench_r6.json", requests=300))
    assert found.values["prefix_hit_ratio"] == pytest.approx(19648 / 24643)


def test_a_cut_off_page_costs_its_run_and_is_named(sweep: Path) -> None:
    page = sweep / "metrics_after_r6.prom"
    page.write_bytes(page.read_bytes()[:-3])
    telemetry = open_telemetry(str(sweep))
    assert (
        "metrics_after_r6.prom, saved after this run, cannot be used"
        in telemetry.read_run(run("bench_r6.json")).remarks[0]
    )
    assert "prefix_hit_ratio" in telemetry.read_run(run("bench_r8.json", requests=300)).values


def test_two_pages_of_one_tag_must_be_sorted_out_by_a_person(sweep: Path) -> None:
    shutil.copy(sweep / "metrics_after_r6.prom", sweep / "other_after_r6.txt")
    with pytest.raises(BenchmarkError, match=r"metrics_after_r6\.prom and other_after_r6\.txt"):
        open_telemetry(str(sweep)).read_run(run("bench_r6.json"))


def test_without_an_older_page_or_a_count_of_requests_nothing_is_told(sweep: Path) -> None:
    for path in sweep.glob("metrics_*"):
        if "r8" not in path.name:
            path.unlink()
    found = open_telemetry(str(sweep)).read_run(run("bench_r8.json"))
    assert found.values == {}
    assert "from before metrics_after_r8.prom" in found.remarks[0]


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda folder: None, "is neither a folder"),
        (lambda folder: folder.mkdir(), "has neither recording.yaml nor pages"),
        (lambda folder: folder.write_text("x"), "is neither a folder"),
    ],
)
def test_a_place_that_is_no_telemetry_is_said(tmp_path: Path, make: object, reason: str) -> None:
    folder = tmp_path / "place"
    make(folder)  # type: ignore[operator]
    with pytest.raises(BenchmarkError, match=reason):
        open_telemetry(str(folder))


def test_a_folder_whose_pages_are_all_of_something_else_is_said(tmp_path: Path) -> None:
    (tmp_path / "metrics_before.prom").write_text("node_load1 0.5\n")
    with pytest.raises(BenchmarkError, match=r"metrics_before\.prom: cannot be used .* no page of an engine"):
        open_telemetry(str(tmp_path))


def test_a_selector_has_nothing_to_choose_from(sweep: Path) -> None:
    with pytest.raises(BenchmarkError, match="cannot choose"):
        open_telemetry(str(sweep), selector="x")


@settings(max_examples=40)
@given(at=st.floats(0, 1), junk=st.binary(max_size=40))
def test_a_spoilt_page_ends_in_an_answer_or_in_a_bad_benchmark(
    tmp_path_factory: pytest.TempPathFactory, at: float, junk: bytes
) -> None:
    folder = tmp_path_factory.mktemp("spoilt")
    for name in ("metrics_before.prom", "metrics_after_r3.prom"):
        shutil.copy(BENCH / "vllm-cpu-cached" / name, folder)
    body = (folder / "metrics_after_r3.prom").read_bytes()
    place = int(at * len(body))
    (folder / "metrics_after_r3.prom").write_bytes(body[:place] + junk + body[place + len(junk) :])
    told: tuple[str, ...] = ()
    try:
        found = open_telemetry(str(folder)).read_run(run("bench_r3.json", requests=300))
        told = (*found.values, *found.remarks)
    except BenchmarkError as error:
        told = (error.text,)
    assert told


def first_token_remarks(sweep: str, tag: str) -> list[str]:
    """What telemetry says of the TTFT in the file of a run of a real sweep."""
    (measured,) = read_results(BENCH / sweep / f"bench_{tag}.json", "auto")
    found = open_telemetry(str(BENCH / sweep)).read_run(measured)
    return [text for text in found.remarks if text.startswith("TTFT")]


@pytest.mark.parametrize(
    ("tag", "told"),
    [
        ("r3", "TTFT P99 is 92.6 ms at the client and 20 to 40 ms in the engine"),
        ("r4.5", "TTFT P99 is 96.6 ms at the client and 20 to 40 ms in the engine"),
        ("r6", "TTFT P99 is 111 ms at the client and 40 to 60 ms in the engine"),
        ("r7", "TTFT P99 is 188 ms at the client and 40 to 60 ms in the engine"),
    ],
)
def test_a_client_that_waits_longer_than_the_engine_counts_is_told_with_both(tag: str, told: str) -> None:
    (remark,) = first_token_remarks("vllm-cpu-cached", tag)
    assert remark.startswith(f"{told}: likely --stream-interval, a reasoning parser, or time in the client")
    assert (BENCH.parent.parent / remark.split("(")[1].rstrip(")")).is_file()


@pytest.mark.parametrize(
    ("sweep", "tag"),
    # r8: 57.6 ms of 60 ms; r1.5: 107 ms, and 80 ms + 10 % + 20 ms are 108 ms; c32: 2.1 s in a bucket from 1 to 2.5 s.
    [("vllm-cpu-cached", "r8"), ("vllm-cpu-open", "r1.5"), ("vllm-cpu-open", "r3"), ("vllm-cpu", "c32")],
)
def test_a_client_within_the_engines_bounds_is_not_remarked_on(sweep: str, tag: str) -> None:
    assert first_token_remarks(sweep, tag) == []
