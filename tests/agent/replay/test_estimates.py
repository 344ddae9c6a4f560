"""MFU and MBU by what a real vLLM estimates (--enable-mfu-metrics), against the peak of the plan's product."""

import json
from pathlib import Path
from typing import Any

import pytest
from paths import TESTS

from agent.cli import main

RECORDING = TESTS / "residency" / "kv_churn"
PLAN = (TESTS / "residency" / "plan.yaml").read_text()


def reading(capsys: pytest.CaptureFixture[str], folder: Path, product: str, weights: str = "bf16") -> dict[str, Any]:
    plan = folder / "plan.yaml"
    plan.write_text(PLAN.replace("product: CPU", f"product: {product}").replace("weights: bf16", f"weights: {weights}"))
    main.main(["replay", str(RECORDING), "--plan", str(plan), "--format", "json"])
    windows = json.loads(capsys.readouterr().out)["windows"]
    found: dict[str, Any] = windows[-2]["readings"]
    return found


def test_mfu_and_mbu_are_shares_of_peak(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    h100 = reading(capsys, tmp_path, "NVIDIA H100 80GB HBM3")
    a100 = reading(capsys, tmp_path, "NVIDIA A100-SXM4-80GB")
    assert 0 < h100["mfu"]["value"] < h100["mbu"]["value"] < 0.01
    assert a100["mfu"]["value"] == pytest.approx(h100["mfu"]["value"] * 990 / 312)
    assert a100["mbu"]["value"] == pytest.approx(h100["mbu"]["value"] * 3.35 / 2.04)


def test_unknown_product_has_no_mfu(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    for product in ("CPU", "NVIDIA H200 NVL", "NVIDIA H100 PCIe"):
        found = reading(capsys, tmp_path, product)
        assert (found["mfu"]["gap"], found["mbu"]["gap"]) == ("not_in_plan", "not_in_plan")
    fp8 = reading(capsys, tmp_path, "NVIDIA H100 80GB HBM3", "fp8")
    assert fp8["mfu"]["gap"] == "not_in_plan"
    assert fp8["mbu"]["value"] > 0
