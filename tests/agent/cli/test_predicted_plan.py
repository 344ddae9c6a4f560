"""From a planner's prediction to a plan, production that is slower, the factor between them, and the next plan."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from report_samples import HOUR, START, TIER, book, hour
from result_files import predicted_row, write_table
from test_calibration import simulate
from test_whatif_command import configured

from agent.cli import main
from agent.config.files import load_plan
from agent.history.store import HistoryStore
from exporters.documents.calibration import TIME, Calibration, calibrate
from exporters.documents.plan_show import show
from rules.catalogue.registry import CATALOGUE
from rules.plan.checks import check_plan
from rules.plan.load_bins import build_tier_context
from rules.plan.schema import TierPlan, plan_version
from rules.telemetry.windows import Window

LOADS = (4, 8, 16, 32)

Captured = pytest.CaptureFixture[str]


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
