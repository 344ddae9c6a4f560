"""nvidia_gpu_exporter pages: units, throttling, MIG, processes, blanks."""

from __future__ import annotations

import pytest
from gpu_pages import page_text, read_page

from rules.gpu_sources.nvidia_smi import NVIDIA_SMI
from rules.telemetry.snapshots import GPU_NAMES, GpuReadout

H200 = "made-nvidia-smi-h200.prom"
UUID = "a1b2c3d4-0000-4000-8000-000000000001"


def one(**values: float) -> GpuReadout:
    samples = [(f"nvidia_smi_{name}", {"uuid": UUID}, value) for name, value in values.items()]
    (gpu,) = NVIDIA_SMI.read(samples, 0.0).readouts
    return gpu


def test_a_full_page_comes_out_in_base_units() -> None:
    page = read_page(page_text(H200), NVIDIA_SMI, 9.0)
    (gpu,) = page.readouts
    assert (page.problems, page.faults, page.ticks) == ((), {}, {})
    assert (gpu.t, gpu.gpu, gpu.index, gpu.product, gpu.pids) == (9.0, UUID, 0, "NVIDIA H200", (21180,))
    assert gpu.counters == {
        "gpu_throttled_power_seconds": 12.5,
        "gpu_throttled_thermal_seconds": 0.75,
        "gpu_throttled_hardware_seconds": 0.0,
        "gpu_ecc_uncorrectable_errors": 0.0,
        "gpu_ecc_correctable_errors": 4.0,
    }
    assert gpu.gauges == {
        "gpu_utilization_sampled": 0.97,
        "gpu_power_watts": 612.4,
        "gpu_power_limit_watts": 700.0,
        "gpu_temperature_celsius": 64.0,
        "gpu_memory_total_bytes": 1.50754820096e11,
        "gpu_memory_used_bytes": 1.50754820096e11 - 1.073741824e10,
        "gpu_memory_reserved_bytes": 8.03209216e08,
    }
    assert gpu.sampled == {"gpu_utilization_sampled", "gpu_power_watts"}
    assert gpu.gaps == {}


def test_used_memory_holds_the_reserved_part_which_nvidia_smis_own_number_leaves_out() -> None:
    gpu = one(memory_total_bytes=100.0, memory_free_bytes=30.0, memory_used_bytes=65.0, memory_reserved_bytes=5.0)
    assert gpu.gauges["gpu_memory_used_bytes"] == 70.0
    gpu = one(memory_total_bytes=100.0, memory_used_bytes=65.0)
    assert gpu.gaps["gpu_memory_used_bytes"] == "nvidia_smi_memory_free_bytes is not on the page"


def test_older_drivers_tell_no_throttling_and_that_is_said() -> None:
    assert one(temperature_gpu=50.0).gaps["gpu_throttled_thermal_seconds"] == (
        "nvidia_smi_clocks_event_reasons_counters_sw_thermal_slowdown_seconds is not on the page "
        "(drivers before 570 do not tell it)"
    )


def test_the_gpu_of_mig_instances_has_no_utilisation_and_the_page_says_that_it_shows_no_instance() -> None:
    samples = [
        ("nvidia_smi_mig_mode_current", {"uuid": UUID}, 1.0),
        ("nvidia_smi_utilization_gpu_ratio", {"uuid": UUID}, 0.0),
        ("nvidia_smi_power_draw_watts", {"uuid": UUID}, 400.0),
    ]
    page = NVIDIA_SMI.read(samples, 0.0)
    (gpu,) = page.readouts
    assert gpu.gaps["gpu_utilization_sampled"] == "MIG is on: nvidia-smi tells no utilisation of the whole GPU"
    assert "gpu_utilization_sampled" not in {*gpu.gauges, *gpu.sampled}
    assert gpu.gauges["gpu_power_watts"] == 400.0
    assert page.problems == (
        f"GPU {UUID}: MIG is on, and this exporter shows none of its instances: what it says is of the whole GPU",
    )


def test_what_is_no_number_is_a_gap() -> None:
    gpu = one(temperature_gpu=float("nan"), power_draw_watts=-1.0)
    assert (gpu.gauges, gpu.counters) == ({}, {})
    assert gpu.gaps["gpu_temperature_celsius"] == "nvidia_smi_temperature_gpu is not a number"


def test_a_page_without_a_gpu_is_said() -> None:
    page = NVIDIA_SMI.read([("nvidia_smi_failed_scrapes_total", {}, 1.0)], 0.0)
    assert page.problems == (
        "no GPU series on the page: is this an nvidia_gpu_exporter (port 9835), and does it see a GPU?",
    )


def test_every_name_given_is_in_the_table_of_names() -> None:
    assert {row.ours for row in NVIDIA_SMI.fields} <= set(GPU_NAMES)
    assert set(NVIDIA_SMI.not_exposed) <= set(GPU_NAMES)


# ---- pages of others ----


@pytest.mark.parametrize(
    ("name", "product", "utilisation", "watts", "processes"),
    [
        ("nvidia_gpu_exporter-nvidia-h100-80gb-hbm3__590.48.01__load.prom", "NVIDIA H100 80GB HBM3", 1.0, None, 3),
        ("nvidia_gpu_exporter-nvidia-h100-mig__590.48.01__load.prom", "NVIDIA H100 80GB HBM3", None, 433.78, 3),
        ("nvidia_gpu_exporter-nvidia-h200-mig__590.48.01__idle.prom", "NVIDIA H200", None, None, 0),
        ("nvidia_gpu_exporter-nvidia-h200__590.48.01__load.prom", "NVIDIA H200", 1.0, None, 3),
        ("nvidia_gpu_exporter-nvidia-l40s__595.80__load.prom", "NVIDIA L40S", 0.09, None, 2),
    ],
)
def test_real_pages_are_read(
    name: str, product: str, utilisation: float | None, watts: float | None, processes: int
) -> None:
    page = read_page(page_text(name), NVIDIA_SMI)
    (gpu,) = page.readouts
    assert (gpu.product, gpu.index, len(gpu.pids)) == (product, 0, processes)
    assert gpu.gauges.get("gpu_utilization_sampled") == utilisation
    assert watts is None or gpu.gauges["gpu_power_watts"] == watts
    assert bool(page.problems) == (utilisation is None), "MIG is told, and nothing else is wrong"
    assert set(gpu.gaps) == (set() if utilisation is not None else {"gpu_utilization_sampled"})
    assert 0 < gpu.gauges["gpu_memory_used_bytes"] < gpu.gauges["gpu_memory_total_bytes"]
