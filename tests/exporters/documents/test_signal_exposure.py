"""`sizewatch inspect` over pages of GPU exporters: saved, live, excerpts of documents, and what is none of them."""

from typing import Any

import pytest
from gpu_pages import MADE, MADE_PAGES, SHARED_PAGES, page_text
from test_inspect import Captured, as_json, inspected

from exporters.documents.diagnosis import LISTED, NOT_TOLD
from rules.gpu_sources.registry import BY_NAME
from rules.telemetry.families import GPU_NAMES

ALL_PAGES = {**MADE_PAGES, **SHARED_PAGES}


@pytest.mark.parametrize("name", ALL_PAGES)
def test_each_gpu_has_value_or_reason(name: str, tmp_path: Any, capsys: Captured) -> None:
    path = str(tmp_path / "page")
    (tmp_path / "page").write_text(page_text(name), encoding="utf-8")
    found = as_json(capsys, path)
    assert (found["schema"], found["exporter"]) == (1, ALL_PAGES[name])
    assert found["gpus"]
    for gpu in found["gpus"]:
        assert gpu["gpu"]
        assert list(gpu["quantities"]) == list(LISTED)
        for value in gpu["quantities"].values():
            assert ("value" in value) != bool(value.get("text"))
    assert {family["use"] for family in found["families"]} <= {"mapped", "unread"}
    code, out, err = inspected(capsys, path)
    assert (code, err) == (0, "")
    assert BY_NAME[found["exporter"]].title in out.splitlines()[0]
    assert all(out.count(f"\n  {quantity} ") == len(found["gpus"]) for quantity in LISTED)
    assert all(family["name"] in out for family in found["families"])


def test_values_have_units_and_polls(capsys: Captured) -> None:
    _, out, _ = inspected(capsys, str(MADE / "made-dcgm-mig.prom"))
    assert "GPU: NVIDIA H100 80GB HBM3 MIG 3g.40gb, GPU-5f3c/1" in out
    assert "\n  3 GPUs; " in f"\n{out}"
    (block,) = (block for block in out.split("\n\n") if block.splitlines()[0].endswith(", GPU-77aa"))
    quantities = dict(line.split(None, 1) for line in block.splitlines()[1:])
    expected = {
        "gpu_memory_total_bytes": "79.65 GiB",
        "gpu_temperature_celsius": "61 °C",
        "gpu_power_watts": "655 W (a poll)",
        "gpu_gr_engine_active": "93.0%",
        "gpu_ecc_correctable_errors": "2 errors",
        "gpu_throttled_power_seconds": "2.5 s",
        "gpu_fault_events": f"not_exposed: {NOT_TOLD}",
        "gpu_energy_covered_seconds": f"not_exposed: {NOT_TOLD}",
    }
    assert expected.items() <= quantities.items()


def test_broken_line_refuses_saved_page(tmp_path: Any, capsys: Captured) -> None:
    lines = (MADE / "made-amd-1.5-mi300x.prom").read_bytes().splitlines(keepends=True)
    (tmp_path / "page").write_bytes(b"".join([*lines[:4], b"...\n", *lines[4:]]))
    code, out, err = inspected(capsys, str(tmp_path / "page"))
    assert (code, out) == (2, "")
    assert "line 5 is not a line of an exposition page" in err


def test_only_faults_by_code_are_unlisted() -> None:
    assert set(GPU_NAMES) - set(LISTED) == {"gpu_fault_events_by_code"}
