"""`sizewatch plan import`: what it prints, what it writes, what it refuses, and the plans of the tests as it makes them."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path
from statistics import fmean
from typing import Any

import pytest
import yaml
from golden_text import check_golden
from paths import ROOT, SHARED, TESTS
from report_samples import HOUR, START, TIER, book, hour
from result_files import predicted_row, write_table
from telemetry_samples import stored, sweep_samples
from test_calibration import simulate
from test_history_commands import configured

from agent.cli import main
from agent.config.files import load_plan
from agent.history.store import HistoryStore
from exporters.documents.calibration import TIME, Calibration, calibrate
from exporters.documents.plan_files import WRITTEN
from exporters.documents.plan_show import show
from rules.catalogue.registry import CATALOGUE
from rules.plan.checks import check_plan
from rules.plan.curve import operating_point
from rules.plan.load_bins import build_tier_context
from rules.plan.schema import BenchmarkCurve, Point, TierPlan, plan_version
from rules.telemetry.windows import Window

BENCH, PLANS = TESTS / "bench", TESTS / "plans"
IMPOSSIBLE = TESTS / "cases" / "21-impossible"
CLOSED = sorted((BENCH / "vllm-cpu").glob("bench_c*.json"))
OPEN = sorted((BENCH / "vllm-cpu-open").glob("bench_r*.json"))
CACHED = sorted((BENCH / "vllm-cpu-cached").glob("bench_r*.json"))

# Each plan, the results it comes from, and whether a server that scraped the engine is asked.
MADE = {"cpu-small": (CLOSED, False), "cpu-small-open": (OPEN, False), "cpu-small-cached": (CACHED, True)}

Captured = pytest.CaptureFixture[str]


def run(*words: object) -> int:
    return main.main(["plan", "import", *map(str, words)])


def plan_with(folder: Path, **parts: Any) -> Path:
    """A plan of one tier without a curve."""
    tier = {"model": "small-llama", "engine": "vllm", "gpu": {"product": "CPU", "per_replica": 1}}
    tier |= {"slo": {"ttft_p99_seconds": 2.0, "tpot_p99_seconds": 0.15}, **parts}
    path = folder / "plan.yaml"
    path.write_text(yaml.safe_dump({"schema": 1, "tiers": {"t": tier}}, sort_keys=False))
    return path


def observed_by(address: str, folder: Path, tier: str = "t") -> list[object]:
    """The words for a configuration whose store has the engine's own series."""
    series = {"from": "engines", "selector": 'instance=~".+"'}
    path = folder / "sizewatch.yaml"
    path.write_text(yaml.safe_dump({"role": "fleet", "store": {"url": address}, "tiers": {tier: series}}))
    return ["-c", path]


def refused(capsys: Captured, *words: object) -> str:
    """The one sentence on stderr; nothing may be on stdout."""
    assert run(*words) == 2
    out, err = capsys.readouterr()
    assert out == ""
    (line,) = err.splitlines()
    return line.removeprefix("sizewatch plan: ")


@pytest.mark.parametrize("name", MADE)
def test_made_plans_equal_an_import(name: str, tmp_path: Path, capsys: Captured) -> None:
    files, observed = MADE[name]
    folder = files[0].parent.name
    shutil.copytree(BENCH / folder, tmp_path / "bench" / folder)
    (tmp_path / "plans").mkdir()
    plan = shutil.copy(PLANS / f"{name}.yaml", tmp_path / "plans" / f"{name}.yaml")
    copies = [tmp_path / "bench" / folder / file.name for file in files]
    with stored(sweep_samples(BENCH / folder) if observed else ()) as address:
        more = [*observed_by(address, tmp_path, "cpu-small"), "--measured", "kv_tokens=32768"] if observed else []
        # The order in which files are given does not matter.
        assert run(*reversed(copies), "--into", plan, *more) == 0
    assert plan.read_bytes() == (PLANS / f"{name}.yaml").read_bytes()
    assert ", already as it was; within the SLO" in capsys.readouterr().out


def test_curve_without_a_plan_is_printed(tmp_path: Path, capsys: Captured) -> None:
    assert run(*CLOSED) == 0
    out, err = capsys.readouterr()
    printed = BenchmarkCurve.model_validate(yaml.safe_load(out)["curve"])
    known = load_plan(PLANS / "cpu-small.yaml").tiers["cpu-small"].curve
    assert printed.points == known.points
    assert out.splitlines()[1] == f"  # {WRITTEN}"
    assert all(line.startswith("sizewatch plan: ") for line in err.splitlines())
    pasted = plan_with(tmp_path).read_text() + "".join(f"    {line}\n" for line in out.splitlines())
    (tmp_path / "pasted.yaml").write_text(pasted)
    assert load_plan(tmp_path / "pasted.yaml").tiers["t"].curve == printed


@pytest.mark.parametrize("files", [CLOSED, OPEN], ids=["closed", "open"])
def test_remarks_read_as_the_golden(files: list[Path], monkeypatch: pytest.MonkeyPatch, capsys: Captured) -> None:
    """Remarks of a point are comments, and what is so at every load is said once."""
    monkeypatch.chdir(ROOT)
    assert run(*files) == 0
    text = "".join(capsys.readouterr()).replace(f"{files[0].parent}/", "")
    check_golden(__file__, f"import_{files[0].parent.name}.txt", text)


def test_telemetry_finds_prefix_cache_hits(tmp_path: Path) -> None:
    # vllm:prefix_cache_hits_total goes from 2304 to 21952 over the first rate, queries from 24661 to 49304, and so on:
    # 19648 of 24643 tokens each time, as every rate sent the prompts of the first one again.
    known = load_plan(PLANS / "cpu-small-cached.yaml").tiers["cpu-small"].curve
    assert [point.prefix_hit_ratio or 0 for point in known.points] == pytest.approx([0.797] * 5, abs=0.001)
    assert [point.eviction_rate for point in known.points] == [0.0] * 5
    plan = plan_with(tmp_path)
    with stored(sweep_samples(OPEN[0].parent)) as address:
        assert run(*OPEN, "--into", plan, *observed_by(address, tmp_path)) == 0
    # With a seed a rate the prompts share their first words only: 4128 of 23376 tokens (17.7 %) at 8 rps.
    ratios = [point.prefix_hit_ratio or 0 for point in load_plan(plan).tiers["t"].curve.points]
    assert ratios == pytest.approx([0.0935, 0.0699, 0.1215, 0.1282, 0.1652, 0.1766], abs=0.0001)


def test_tier_gets_the_curve_and_its_findings(tmp_path: Path, capsys: Captured) -> None:
    plan = plan_with(tmp_path, operating_point={"usable_rps": 20, "c_max": 30.5})
    assert run(*CLOSED, "--into", plan) == 0
    out = capsys.readouterr().out
    assert "warning: tiers.t.operating_point.usable_rps: 20 is given, curve and SLO give 7.341 (limited by" in out
    assert "operating_point.c_max" not in out
    assert out.splitlines()[-1] == (
        f"{plan}: curve of t: 6 points from 6 files, written; within the SLO 7.341 rps at C_max 30.92"
    )
    curve = load_plan(plan).tiers["t"].curve
    assert [point.concurrency for point in curve.points] == [1, 2, 4, 8, 16, 32]


def test_second_sweep_replaces_the_first(tmp_path: Path) -> None:
    plan = plan_with(tmp_path)
    with stored(sweep_samples(CACHED[0].parent)) as address:
        run(*CACHED, "--into", plan, *observed_by(address, tmp_path))
    run(*OPEN, "--into", plan)
    again = plan.read_bytes()
    run(*OPEN, "--into", plan_with(tmp_path))
    assert plan.read_bytes() == again


def test_files_are_named_from_the_plan(tmp_path: Path, capsys: Captured) -> None:
    far = tmp_path / "far" / "away"
    near = tmp_path / "plans" / "sweep"
    for folder in (far, near):
        folder.mkdir(parents=True)
    shutil.copy(CLOSED[0], near / "one.json")
    shutil.copy(CLOSED[1], far / "two.json")
    plan = plan_with(tmp_path / "plans")
    run(near / "one.json", far / "two.json", "--into", plan)
    curve = load_plan(plan).tiers["t"].curve
    assert curve.source == ("sweep/one.json", "../far/away/two.json")


def changed(folder: Path, **more: Any) -> Path:
    """The first result with other keys."""
    path = folder / "changed.json"
    path.write_text(json.dumps({**json.loads(CLOSED[0].read_text()), **more}))
    return path


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (CLOSED[0].read_bytes()[:500], "is no valid JSON (Unterminated string"),
        (OPEN[0].read_bytes(), "measured the model small-llama, tiers.t.model is llama-70b: nothing was written."),
    ],
    ids=["cut off", "another model"],
)
def test_wrong_file_writes_nothing(tmp_path: Path, capsys: Captured, content: bytes, said: str) -> None:
    plan, path = plan_with(tmp_path, model="llama-70b"), tmp_path / "wrong.json"
    before = plan.read_bytes()
    path.write_bytes(content)
    assert refused(capsys, path, "--into", plan).startswith(f"{path}: {said}")
    assert plan.read_bytes() == before


CANNOT_BE = "tells what excludes each other: "


@pytest.mark.parametrize(
    ("keys", "code", "said"),
    [
        ({"completed": 7, "failed": 9}, 0, "is of a failed run: 7 of 16 requests succeeded"),
        ({"request_throughput": "fast"}, 0, "has a wrong value: request_throughput: input should be a valid number"),
        ({"p99_ttft_ms": 1}, 1, f"{CANNOT_BE}TTFT p99 0.001 s is below its p95 0.08238 s, which cannot be"),
        ("ttft_above_e2e", 1, f"{CANNOT_BE}TTFT P99 9 s is above E2E P99 3.6 s, which cannot be"),
        ("little", 1, f"{CANNOT_BE}7 rps x 2.285 s are 16 requests at once, the load is 64 clients, which cannot be"),
        ("tpot_seconds", 1, f"{CANNOT_BE}E2E - TTFT is 1.985 s, which cannot be"),
        ("tpot_us", 1, f"{CANNOT_BE}E2E - TTFT is 1.985 s, which cannot be"),
    ],
)
def test_unusable_run_is_left_out(
    tmp_path: Path, capsys: Captured, keys: dict[str, Any] | str, code: int, said: str
) -> None:
    """Contradictions come first, and fail the import."""
    path = IMPOSSIBLE / f"{keys}.json" if isinstance(keys, str) else changed(tmp_path, **keys)
    alone = refused(capsys, path)
    assert alone.startswith(f"{path}: {said.partition(CANNOT_BE)[0]}")
    assert said.removeprefix(CANNOT_BE) in alone
    assert run(*CLOSED, path) == code
    out, err = capsys.readouterr()
    sources = [Path(source).name for source in yaml.safe_load(out)["curve"]["source"]]
    assert sources == [known.name for known in CLOSED]
    assert f"sizewatch plan: {alone}; left out\n" in (err.splitlines(keepends=True)[0] if code else err)


def test_file_name_without_text_is_read(tmp_path: Path) -> None:
    odd = os.fsencode(tmp_path) + b"/bench_\xff.json"
    with open(odd, "wb") as file:
        file.write(Path(CLOSED[0]).read_bytes())
    # The standard error of a process, unlike that of these tests, takes such names.
    words = [sys.executable, "-m", "agent", "plan", "import", os.fsdecode(odd)]
    done = subprocess.run(words, capture_output=True, cwd=ROOT, check=False)
    assert done.returncode == 0, done.stderr
    assert yaml.safe_load(done.stdout)["curve"]["source"][0].endswith("/bench_?.json")


def test_same_file_twice_is_read_once(capsys: Captured) -> None:
    assert run(CLOSED[0], CLOSED[0], CLOSED[1]) == 0
    out, err = capsys.readouterr()
    assert len(yaml.safe_load(out)["curve"]["points"]) == 2
    assert f"{CLOSED[0]}: holds the same measurement as {CLOSED[0]}; it is taken once" in err


def test_other_files_of_a_folder_are_remarks(tmp_path: Path, capsys: Captured) -> None:
    (tmp_path / "server.json").write_text('{"a": 1}')
    (tmp_path / "notes.txt").write_text("a sweep of Monday")
    (tmp_path / "folder.json").mkdir()
    (tmp_path / "binary.json").write_bytes(b"\xff\xfe\x00")
    others = [tmp_path / name for name in ("server.json", "notes.txt", "folder.json", "binary.json")]
    assert run(*OPEN, *others) == 0
    out, err = capsys.readouterr()
    assert len(yaml.safe_load(out)["curve"]["points"]) == 6
    assert f"{tmp_path}/server.json: is no benchmark result that sizewatch reads (vllm-bench" in err
    assert f"{tmp_path}/notes.txt: is no JSON; left out" in err
    assert f"{tmp_path}/binary.json: is no text in UTF-8; left out" in err
    assert f"{tmp_path}/folder.json: is a folder; left out" in err
    said = refused(capsys, tmp_path / "server.json", tmp_path / "notes.txt")
    assert said.endswith("notes.txt: is no JSON. Formats, and how to convert: docs/plan-import.md")


def test_mixed_inference_perf_folder_is_a_curve(capsys: Captured) -> None:
    folder = SHARED / "bench" / "inference-perf" / "vllm" / "results"
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here: a folder of the tool itself was NOT checked")
    assert run(*sorted(folder.glob("*.json"))) == 0
    out, err = capsys.readouterr()
    assert len(yaml.safe_load(out)["curve"]["points"]) == 7
    assert "stage_0_prometheus_metrics.json: is the server's side or a summary of stages" in err
    assert "8 more remarks of this kind" in err


def test_remarks_of_one_kind_are_one_line(tmp_path: Path, capsys: Captured) -> None:
    plan = plan_with(tmp_path)
    assert run(*CLOSED[:3], "--into", plan) == 1
    out, err = capsys.readouterr()
    assert out.startswith("mistake: tiers.t.curve.points: the capacity rests on a load of 40 requests")
    assert len(yaml.safe_load(plan.read_text())["tiers"]["t"]["curve"]["points"]) == 3
    remarks = [line.removeprefix("sizewatch plan: ") for line in err.splitlines()]
    places = [remark.partition(": ")[0] for remark in remarks]
    assert places == [str(CLOSED[0]), str(CLOSED[1]), "not told and left out"]
    assert "P99 of 16 requests rests on the slowest few" in remarks[0]
    assert remarks[0].endswith("; 2 more remarks of this kind")
    assert "engine_version (give it with --measured engine_version=RELEASE" in remarks[2]
    run(*CLOSED[:3], "--measured", "engine_version=0.32")
    assert "engine_version" not in capsys.readouterr().err


def test_open_loop_c_max_is_littles_law(tmp_path: Path, capsys: Captured) -> None:
    """bench_r8.json: 7.0 completed rps x the mean latency of its requests."""
    plan = plan_with(tmp_path)
    assert run(*OPEN, "--into", plan) == 0
    assert " at C_max " in capsys.readouterr().out
    tier = load_plan(plan).tiers["t"]
    for point, path in zip(tier.curve.points, OPEN, strict=True):
        told = json.loads(path.read_text())
        mean = fmean(told["latencies"]) if "latencies" in told else told["mean_e2el_ms"] / 1e3
        assert point.concurrency == pytest.approx(told["request_throughput"] * mean, rel=1e-3)
    point = operating_point(tier)
    assert point.c_max is not None
    assert main.main(["plan", "show", str(plan)]) == 0
    assert "requests in the system (Little's law: rps x mean latency)" in " ".join(capsys.readouterr().out.split())


def test_every_measured_field_is_written(tmp_path: Path, capsys: Captured) -> None:
    with stored(sweep_samples(CACHED[0].parent)) as address:
        run(*CACHED, *observed_by(address, tmp_path))
    written = set(yaml.safe_load(capsys.readouterr().out)["curve"]["points"][0])
    left_out = {"censored", "gpu_utilization", "kv_utilization", "speculative_acceptance"}
    assert written == set(Point.model_fields) - left_out


def test_impossible_telemetry_is_left_out_and_fails(tmp_path: Path, capsys: Captured) -> None:
    for file in (BENCH / "vllm-cpu-open").iterdir():
        text = file.read_text()
        if file.name == "metrics_after_r8.prom":
            text = re.sub(r"(?m)^(vllm:prefix_cache_hits_total\{.*) \S+$", r"\1 471978000", text)
        (tmp_path / file.name).write_text(text)
    made = sorted(tmp_path.glob("bench_r*.json"))
    plan = plan_with(tmp_path)
    with stored(sweep_samples(tmp_path)) as address:
        assert run(*made, "--into", plan, *observed_by(address, tmp_path)) == 1
    first, *_ = capsys.readouterr().err.splitlines()
    assert first.startswith(f"sizewatch plan: {tmp_path / 'bench_r8.json'}: prefix_hit_ratio: ")
    assert first.endswith("which cannot be; left out")
    points = yaml.safe_load(plan.read_text())["tiers"]["t"]["curve"]["points"]
    assert ["prefix_hit_ratio" in point for point in points] == [True] * 5 + [False]


def test_measured_option_is_written_and_wins(tmp_path: Path, capsys: Captured) -> None:
    plan = plan_with(tmp_path)
    told = ["--measured", "engine_version=0.32", "--measured", "tensor_parallel=2", "--measured", "max_num_seqs=64"]
    assert run(*OPEN, "--into", plan, *told) == 0
    out, err = capsys.readouterr()
    assert "release" not in err
    curve = load_plan(plan).tiers["t"].curve
    assert curve.measured.model_dump(exclude_none=True) == {
        "engine_version": "0.32",
        "tensor_parallel": 2,
        "max_num_seqs": 64,
        "prompt_tokens": {"mean": 80.01},
        "generation_tokens": {"mean": 43.99},
        "concurrency": "littles_law",
        "measured_on": "2026-11-20",
    }
    assert "warning: tiers.t.curve.measured.tensor_parallel: was 2, the plan deploys 1: a curve of another" in out
    assert main.main(["plan", "show", str(plan)]) == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert "measured engine_version 0.32, tensor_parallel 2, max_num_seqs 64" in shown


def test_unstreamed_answers_have_no_ttft(tmp_path: Path, capsys: Captured) -> None:
    run_of = json.loads((IMPOSSIBLE / "little.json").read_text()) | {"max_concurrency": 16}
    whole = {f"{name}_ttft_ms": run_of[f"{name}_e2el_ms"] for name in ("mean", "median", "p99")}
    untimed = {f"{name}_{kind}_ms": 0.0 for name in ("mean", "median", "p99") for kind in ("tpot", "itl")}
    file = tmp_path / "run.json"
    file.write_text(json.dumps(run_of | whole | untimed))
    assert run(file) == 1
    out, err = capsys.readouterr()
    assert "answers were not streamed, which cannot be; TTFT, TPOT and ITL are left out" in err
    (point,) = yaml.safe_load(out)["curve"]["points"]
    assert {name for name in point if name.endswith("_seconds")} == {"e2e_p99_seconds"}


def test_every_contradiction_is_told(capsys: Captured) -> None:
    told = refused(capsys, IMPOSSIBLE / "little.json", IMPOSSIBLE / "ttft_above_e2e.json")
    assert "64 clients, which cannot be; " in told
    assert told.endswith("TTFT P99 9 s is above E2E P99 3.6 s, which cannot be")


LOADS = (4, 8, 16, 32)


def imported(folder: Path, **columns: Any) -> Path:
    """A plan whose curve is AIConfigurator's."""
    table = write_table(folder, [predicted_row(load, system="h100_sxm", **columns) for load in LOADS])
    path = folder / "plan.yaml"
    bare = {key: value for key, value in TIER.items() if key != "curve"}
    path.write_text(yaml.safe_dump({"schema": 1, "tiers": {"t": bare}}, sort_keys=False))
    assert main.main(["plan", "import", str(table), "--into", str(path)]) == 0
    return path


def test_prediction_is_marked_wherever_it_is_shown(tmp_path: Path, capsys: Captured) -> None:
    plan = load_plan(imported(tmp_path))
    told = capsys.readouterr()
    curve = plan.tiers["t"].curve
    assert (curve.origin, len(curve.points)) == ("predicted", 4)
    assert "curve of t: 4 points from 1 file, written" in told.out
    assert f"warning: tiers.t.curve.origin: {curve.remark}" in told.out
    assert "not told and left out: ttft_p99_seconds, tpot_p99_seconds" in told.err
    assert "Predicted curve of one replica" in show(plan, "t")
    # A mean is no P99: no operating point follows from it.
    (said,) = [text for path, _, text in check_plan(plan, CATALOGUE) if path == "tiers.t.curve.points"]
    assert said.startswith("the lowest load lacks a metric of the SLO")


def test_origin_starts_no_new_comparison() -> None:
    tier = TierPlan.model_validate(TIER)
    marked = TierPlan.model_validate({**TIER, "curve": {**TIER["curve"], "origin": "predicted"}})
    assert plan_version(tier) == plan_version(marked)


def test_another_machine_is_refused_as_predicted(tmp_path: Path, capsys: Captured) -> None:
    path = imported(tmp_path)
    table = write_table(tmp_path, [predicted_row(4)])
    assert main.main(["plan", "import", str(table), "--into", str(path)]) == 2
    assert "predicted the GPU h200_sxm, tiers.t.gpu.product is NVIDIA H100" in capsys.readouterr().err


@pytest.mark.parametrize("factor", [1.0, 1.3])
def test_calibration_finds_the_factor(factor: float, tmp_path: Path) -> None:
    context = build_tier_context("t", load_plan(imported(tmp_path)).tiers["t"])
    assert context.curve is not None
    made = calibrate(context, "vllm 0.24.0", "fp8", simulate(factor, 3000, 1, points=context.curve.points))
    assert isinstance(made, Calibration)
    assert made.predicted_by == "planner"
    lengths = {"prompt_tokens_mean", "generation_tokens_mean"}
    assert made.factors.keys() - lengths == {"ttft_p50_seconds", "tpot_p50_seconds", TIME}
    for metric, tolerance in (("ttft_p50_seconds", 0.1), ("tpot_p50_seconds", 0.1), (TIME, 0.03)):
        assert made.factors[metric].value == pytest.approx(factor, rel=tolerance), metric
    assert made.bins[0].missing["ttft_p99_seconds"] == "the curve does not have it at this load"


def slower(number: int) -> Window:
    """An hour in which a replica breaks the SLO at 6 rps, of which the prediction has 7.6 and more."""
    busy = 10 <= number % 24 < 16
    return hour(number, 60.0 if busy else 30.0, ttft={0.08: 0.9, 3.0: 0.1} if busy else None)


def test_next_plan_has_what_production_measured(tmp_path: Path, capsys: Captured) -> None:
    tier = yaml.safe_load(imported(tmp_path).read_text())["tiers"]["t"]
    shift = time.time() // HOUR * HOUR - START - 168 * HOUR
    week = [replace(part, start=part.start + shift, end=part.end + shift) for part in map(slower, range(168))]
    config = configured(tmp_path, [], {**tier, "operating_point": {"usable_rps": 7.6}})
    with HistoryStore(tmp_path / "history.db") as store:
        book(store, load_plan(tmp_path / "plan.yaml"), week, "t")
    out = tmp_path / "report"
    assert main.main(["report", "-c", config, "--out", str(out)]) == 0
    proposed = load_plan(out / "plan.next.yaml").tiers["t"]
    assert proposed.curve.origin == "predicted"
    assert proposed.operating_point.source == "production"
    assert 3.0 <= proposed.operating_point.usable_rps < 6.0
    assert "The curve is predicted: no engine has run it." in (out / "report.md").read_text()
