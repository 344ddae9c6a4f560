"""NVML through the real binding, against stand-in GPUs: what a GPU says, and what it does not support."""

import pytest
from nvml_fixture import H100, nvml_library, nvml_state, read_machine, read_one_gpu  # noqa: F401 (fixtures)

from agent.gpu.nvml_gpm import GPM_METRICS
from rules.telemetry.families import GPU_NAMES

NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND = 3, 4, 13

POLLED = frozenset({"gpu_throttled_hardware_seconds"})
"""What NVML gives no sum for on any GPU."""


# ---- what a healthy GPU says ----


def second_turn(machine):
    """15 s in which the GPU drew 400 W; the first turn has nothing to compare with."""
    machine.only()
    machine.standin.set({"0.samples": "1000000:50,2000000:50", "0.energy_mj": 11_000_000})
    machine.standin.set({"0.gpm.20": 2_500, "0.gpm.21": 4_000, "0.gpm.60": 31_000, "0.gpm.61": 16_000})
    machine.standin.set({"0.gpm.clock": 115, "0.gpm.1": 6_350, "0.gpm.2": 4_900, "0.gpm.5": 3_600, "0.gpm.10": 2_300})
    return machine.only()


def test_full_gpu_gives_every_value(machine):
    uuid = machine.standin.add_gpu()
    gpu = second_turn(machine)
    assert (gpu.gpu, gpu.index, gpu.product) == (uuid, 0, "NVIDIA H100 80GB HBM3")
    assert gpu.t == 1_700_000_030.0
    assert gpu.gauges == {
        "gpu_memory_used_bytes": 80_000_000_000.0,
        "gpu_memory_total_bytes": 85_520_809_984.0,
        "gpu_memory_reserved_bytes": 502_000_000.0,
        "gpu_temperature_celsius": 61.0,
        "gpu_power_limit_watts": 700.0,
        "gpu_gr_engine_active": pytest.approx(0.9),
        "gpu_sm_active": pytest.approx(0.6),
        "tensor_active": pytest.approx(0.4),
        "dram_active": pytest.approx(0.2),
        "gpu_pcie_tx_bytes_per_second": 100 * 2**20,
        "gpu_pcie_rx_bytes_per_second": 200 * 2**20,
        "gpu_nvlink_rx_bytes_per_second": 2000 * 2**20,
        "gpu_nvlink_tx_bytes_per_second": 1000 * 2**20,
    }
    assert dict(gpu.counters) == {
        "gpu_busy_seconds": pytest.approx(0.5),
        "gpu_busy_covered_seconds": pytest.approx(1.0),
        "gpu_energy_joules": pytest.approx(6_000.0),
        "gpu_energy_covered_seconds": pytest.approx(15.0),
        "gpu_throttled_power_seconds": 0.0,
        "gpu_throttled_thermal_seconds": 0.0,
        "gpu_throttled_hardware_seconds": 0.0,
        "gpu_throttled_covered_seconds": pytest.approx(15.0),
        "gpu_ecc_correctable_errors": 0,
        "gpu_ecc_uncorrectable_errors": 0,
        "gpu_fault_events": 0,
    }
    assert (gpu.gaps, gpu.sampled, gpu.pids) == ({}, POLLED, (4242, 4300))
    assert {*gpu.counters, *gpu.gauges} <= set(GPU_NAMES)


def test_repeated_samples_are_not_counted_again(machine):
    machine.standin.add_gpu(samples="1000000:50", samples_again=1, util=0)
    machine.only()
    machine.standin.set({"0.samples": "1000000:50,2000000:100"})
    assert machine.only().counters["gpu_busy_seconds"] == pytest.approx(1.0)
    gpu = machine.only()
    assert gpu.counters["gpu_busy_seconds"] == pytest.approx(1.0)
    assert gpu.sampled == POLLED | {"gpu_busy_seconds", "gpu_busy_covered_seconds"}


def test_samples_are_read_as_doubles(machine):
    machine.standin.add_gpu(sample_type=0)
    machine.only()
    machine.standin.set({"0.samples": "1000000:50,2000000:62.5"})
    assert machine.only().counters["gpu_busy_seconds"] == pytest.approx(0.625)


OF_A_TURN = (
    *("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v3"),
    *("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetEnforcedPowerLimit", "nvmlDeviceGetFieldValues"),
    *("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetSamples", "nvmlDeviceGetSamples", "nvmlDeviceGetTemperatureV"),
    *("nvmlDeviceGetTotalEnergyConsumption", "nvmlGpmMetricsGet", "nvmlGpmSampleGet"),
)


@pytest.mark.parametrize("gpus", [1, 2])
def test_turn_asks_only_what_changes(machine, gpus):
    for _ in range(gpus):
        machine.standin.add_gpu()
    machine.turn()
    machine.turn()  # the second sample of GPM is made here
    machine.standin.calls()
    machine.standin.set({f"{number}.samples": "1000000:50,2000000:50" for number in range(gpus)})
    assert len(machine.turn()) == gpus
    assert sorted(machine.standin.calls()) == sorted([*(OF_A_TURN * gpus), "nvmlEventSetWait_v2"])


# ---- what is not there ----


UNSUPPORTED = (
    *("gpu_busy_seconds", "gpu_busy_covered_seconds", "gpu_energy_joules", "gpu_energy_covered_seconds"),
    *("gpu_power_watts", "gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_memory_reserved_bytes"),
    *("gpu_temperature_celsius", "gpu_power_limit_watts", "gpu_throttled_power_seconds"),
    *("gpu_throttled_thermal_seconds", "gpu_throttled_hardware_seconds", "gpu_throttled_covered_seconds"),
    *("gpu_ecc_correctable_errors", "gpu_ecc_uncorrectable_errors", "gpu_fault_events", "gpu_fault_events_by_code"),
)


def test_unsupported_values_are_gaps(machine):
    uuid = machine.standin.add_gpu(**{**dict.fromkeys(H100), "name": "Tesla T4"})
    machine.standin.set({"driver": "460.106", "error.nvmlEventSetCreate": NOT_SUPPORTED})
    gpu = machine.only()
    assert (gpu.gpu, gpu.counters, gpu.gauges, gpu.sampled) == (uuid, {}, {}, frozenset())
    gaps = dict.fromkeys(GPM_METRICS, "GPM (Hopper and newer) not supported by Tesla T4 (driver 460.106)")
    assert gpu.gaps == gaps | dict.fromkeys(UNSUPPORTED, "not supported by Tesla T4 (driver 460.106)")


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND])
def test_polls_fill_counters_without_driver_sums(machine, code):
    machine.standin.add_gpu(util=64, power_mw=400_000)
    machine.standin.set({"error.nvmlDeviceGetSamples": code, "error.nvmlDeviceGetTotalEnergyConsumption": code})
    machine.only()
    machine.standin.set({"0.util": 20, "0.power_mw": 200_000, "0.gpm.clock": 115})
    gpu = machine.only()
    assert gpu.counters["gpu_busy_seconds"] == pytest.approx(0.2 * 15)
    assert gpu.counters["gpu_busy_covered_seconds"] == pytest.approx(15.0)
    assert gpu.counters["gpu_energy_joules"] == pytest.approx(200.0 * 15)
    assert gpu.counters["gpu_energy_covered_seconds"] == pytest.approx(15.0)
    assert gpu.gauges["gpu_power_watts"] == 200.0
    polled = {name for name in gpu.counters if name.startswith(("gpu_busy", "gpu_energy"))}
    assert len(polled) == 4
    assert gpu.sampled == POLLED | polled | {"gpu_power_watts"}
    assert gpu.gaps == {}


def test_polls_do_not_cover_an_absence(machine):
    machine.standin.add_gpu(samples=None, energy_mj=None)
    machine.only()
    machine.standin.set({"0.gone": 1})
    assert machine.turn() == ()
    machine.standin.set({"0.gone": None})
    machine.only()
    counters = machine.only().counters
    assert (counters["gpu_busy_covered_seconds"], counters["gpu_energy_covered_seconds"]) == (15.0, 15.0)


def test_older_calls_stand_in_for_newer(machine):
    machine.standin.add_gpu()
    for call in ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTemperatureV"):
        machine.standin.set({f"error.{call}": FUNCTION_NOT_FOUND})
    machine.standin.set({"error.nvmlDeviceGetComputeRunningProcesses_v3": NO_PERMISSION})
    gpu = second_turn(machine)
    assert gpu.gauges["gpu_memory_used_bytes"] == 80_000_000_000.0
    assert gpu.gauges["gpu_memory_total_bytes"] == 85_520_809_984.0
    assert gpu.gauges["gpu_temperature_celsius"] == 61.0
    assert (gpu.pids, set(gpu.gaps)) == ((), {"pids", "gpu_memory_reserved_bytes"})
    assert gpu.gaps["gpu_memory_reserved_bytes"] == "not supported by NVIDIA H100 80GB HBM3 (driver 580.95.05)"


def test_dry_sample_buffer_is_polled(machine):
    machine.standin.add_gpu(util=0, samples="1000000:50")
    machine.only()
    gpu = machine.only()  # the buffer still holds nothing newer
    assert (gpu.counters["gpu_busy_seconds"], gpu.counters["gpu_busy_covered_seconds"]) == (0.0, 15.0)
    assert gpu.sampled == POLLED | {"gpu_busy_seconds", "gpu_busy_covered_seconds"}
    machine.standin.set({"0.samples": "1000000:50,40000000:100,41000000:100"})
    gpu = machine.only()
    # The first sample after the pause only starts the count again.
    assert (gpu.counters["gpu_busy_seconds"], gpu.counters["gpu_busy_covered_seconds"]) == (1.0, 16.0)
    assert gpu.sampled == POLLED


def test_turn_too_soon_is_not_polled(watched):
    gpu = watched.only(1.0)
    assert (gpu.counters["gpu_busy_covered_seconds"], gpu.sampled) == (0.0, POLLED)


def test_clock_set_back_does_not_silence_samples(machine):
    machine.standin.add_gpu(samples="900000000:50")
    machine.only()
    machine.standin.set({"0.samples": "1000000:50,2000000:50"})
    machine.only()  # finds that all is older, and starts from there
    machine.standin.set({"0.samples": "1000000:50,2000000:50,3000000:100"})
    gpu = machine.only()
    assert gpu.sampled == POLLED
    assert gpu.counters["gpu_busy_seconds"] == pytest.approx(0.64 * 15 + 1.0)  # a poll in between, one sample


def test_poll_above_100_percent_is_a_gap(machine):
    machine.standin.add_gpu(samples=None, util=4_294_967_295)
    gpu = machine.only()
    assert gpu.gaps["gpu_busy_seconds"] == "4294967295 % busy was given by NVIDIA H100 80GB HBM3 (driver 580.95.05)"
    assert "gpu_busy_seconds" not in gpu.counters
