"""NVML through the real binding, against stand-in GPUs: what a GPU and a MIG instance say, and what is not supported."""

import pytest
from golden_text import check_golden, print_fields
from nvml_fixture import H100, nvml_library, nvml_state, read_machine, read_one_gpu  # noqa: F401 (fixtures)

from agent.gpu.nvml_gpm import GPM_BYTES, GPM_METRICS
from rules.telemetry.families import GPU_NAMES

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND = 3, 4, 9, 13

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
    check_golden(__file__, "full_gpu.txt", print_fields(dict(sorted({**gpu.gauges, **gpu.counters}.items()))))
    assert (gpu.gaps, gpu.sampled, gpu.pids) == ({}, POLLED, (4242, 4300))
    assert {*gpu.counters, *gpu.gauges} <= set(GPU_NAMES)


BUSY = POLLED | {"gpu_busy_seconds", "gpu_busy_covered_seconds"}


@pytest.mark.parametrize(
    ("gpu", "turns"),
    [
        ({"samples_again": 1, "util": 0}, [("1000000:50,2000000:100", 1.0, 1.0, POLLED), ("", 1.0, 16.0, BUSY)]),
        ({"sample_type": 0}, [("1000000:50,2000000:62.5", 0.625, 1.0, POLLED)]),
        # The first sample after a pause only starts the count again.
        ({"util": 0}, [("", 0.0, 15.0, BUSY), ("1000000:50,40000000:100,41000000:100", 1.0, 16.0, POLLED)]),
        # All samples are older than before: a poll stands in, and from there each sample counts.
        (
            {"samples": "900000000:50"},
            [("1000000:50,2000000:50", 9.6, 15.0, BUSY), ("1000000:50,2000000:50,3000000:100", 10.6, 16.0, POLLED)],
        ),
    ],
    ids=["sample again", "doubles", "dry buffer", "clock set back"],
)
def test_each_sample_counts_once(machine, gpu, turns):
    machine.standin.add_gpu(**{"samples": "1000000:50", **gpu})
    machine.only()
    for samples, busy, covered, sampled in turns:
        if samples:
            machine.standin.set({"0.samples": samples})
        found = machine.only()
        assert found.counters["gpu_busy_seconds"] == pytest.approx(busy)
        assert found.counters["gpu_busy_covered_seconds"] == pytest.approx(covered)
        assert found.sampled == sampled


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


def test_turn_too_soon_is_not_polled(watched):
    gpu = watched.only(1.0)
    assert (gpu.counters["gpu_busy_covered_seconds"], gpu.sampled) == (0.0, POLLED)


def test_poll_above_100_percent_is_a_gap(machine):
    machine.standin.add_gpu(samples=None, util=4_294_967_295)
    gpu = machine.only()
    assert gpu.gaps["gpu_busy_seconds"] == "4294967295 % busy was given by NVIDIA H100 80GB HBM3 (driver 580.95.05)"
    assert "gpu_busy_seconds" not in gpu.counters


# ---- MIG: the instance is the GPU ----


OF_THE_WHOLE = "measured for the whole GPU, not for an instance"
WHOLE = "GPU 0 (GPU-00000000-0000-4000-8000-000000000000, NVIDIA H100 80GB HBM3)"
ACTIVITY = tuple(GPM_METRICS)
RATIOS = tuple(name for name in GPM_METRICS if name not in GPM_BYTES)


def activity_of(gpu_instance, clock, *totals):
    """GPM's counters of one GPU instance of GPU 0."""
    inside = f"0.gi.{gpu_instance}.gpm"
    return {f"{inside}.clock": clock} | {f"{inside}.{m}": total for m, total in zip((1, 2, 5, 10), totals, strict=True)}


@pytest.fixture
def halves(machine):
    """An H100 in two halves, in places 0 and 2 with GPU instances 1 and 5."""
    machine.standin.add_gpu()
    machine.first = machine.standin.add_instance(0, 0)
    machine.second = machine.standin.add_instance(0, 2, gi=5, pids="6161,6262", free=30_000_000_000)
    machine.standin.set(activity_of(1, 100, 0, 0, 0, 0) | activity_of(5, 100, 0, 0, 0, 0))
    return machine


def read(machine, seconds=15.0):
    readouts = machine.turn(seconds)
    assert machine.problems == ()
    return readouts


OF_THE_GPU = (
    *("gpu_energy_joules", "gpu_energy_covered_seconds", "gpu_temperature_celsius", "gpu_power_limit_watts"),
    *("gpu_throttled_power_seconds", "gpu_throttled_thermal_seconds", "gpu_throttled_hardware_seconds"),
    *("gpu_throttled_covered_seconds", "gpu_ecc_correctable_errors", "gpu_ecc_uncorrectable_errors"),
)


def test_instances_replace_the_whole_gpu(halves):
    # Of the twelve places two are taken; the other handles are invalid arguments.
    halves.standin.set({"0.mig.places": 12, "0.power_mw": 600_000, "0.energy_mj": 9_000_000})
    read(halves)
    halves.standin.set(activity_of(1, 115, 1350, 1200, 600, 300) | activity_of(5, 115, 150, 0, 0, 75))
    first, second = read(halves)
    assert [gpu.gpu for gpu in (first, second)] == [halves.first, halves.second]
    assert (first.product, first.index, first.pids) == ("NVIDIA H100 80GB HBM3 MIG 3g.40gb", None, (5151,))
    assert (second.index, second.pids) == (None, (6161, 6262))
    memory = ("gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_memory_reserved_bytes")
    assert [first.gauges[name] for name in memory] == [40_000_000_000.0, 42_000_000_000.0, 200_000_000.0]
    assert second.gauges["gpu_memory_used_bytes"] == 12_000_000_000.0
    assert [first.gauges[name] for name in RATIOS] == pytest.approx([0.9, 0.8, 0.4, 0.2])
    assert [second.gauges[name] for name in RATIOS] == pytest.approx([0.1, 0.0, 0.0, 0.05])
    assert first.counters == {"gpu_fault_events": 0}
    assert {*first.gaps, *first.gauges} <= set(GPU_NAMES)
    assert {name for name, reason in first.gaps.items() if reason == OF_THE_WHOLE} == {*OF_THE_GPU}
    assert {*first.gaps} - {*OF_THE_GPU, *ACTIVITY} == {"gpu_busy_seconds", "gpu_busy_covered_seconds"}
    assert first.gaps["gpu_busy_seconds"] == "not measured where MIG is on; gpu_gr_engine_active is"


def test_two_instances_cost_known_calls(halves):
    read(halves)
    read(halves)
    halves.standin.calls()
    read(halves)
    calls = ["nvmlDeviceGetComputeRunningProcesses_v3"] * 2
    calls += ["nvmlDeviceGetMemoryInfo_v2", "nvmlGpmMetricsGet", "nvmlGpmMigSampleGet"]
    assert sorted(halves.standin.calls()) == sorted([*calls * 2, "nvmlEventSetWait_v2"])


# ---- faults ----


def test_fault_counts_for_the_named_instance(halves):
    read(halves)
    halves.standin.set({"events": "1:0:31:5,2:0:79:-,3:0:13:6"})
    first, second = read(halves)
    assert first.counters == {"gpu_fault_events": 1, "gpu_fault_events_by_code/xid-79": 1}
    assert second.counters == {
        "gpu_fault_events": 2,
        "gpu_fault_events_by_code/xid-31": 1,
        "gpu_fault_events_by_code/xid-79": 1,
    }


def test_hidden_faults_are_gaps_of_instances(halves):
    halves.standin.set({"0.error.nvmlDeviceRegisterEvents": NO_PERMISSION})
    for gpu in read(halves):
        assert gpu.counters == {}
        assert gpu.gaps["gpu_fault_events"] == "not permitted by NVIDIA H100 80GB HBM3 (driver 580.95.05)"


# ---- instances come and go ----


def test_mig_switched_on_is_seen_within_minutes(machine):
    whole = machine.standin.add_gpu()
    assert [gpu.gpu for gpu in read(machine)] == [whole]
    instance = machine.standin.add_instance(0, 0)
    machine.standin.set(activity_of(1, 100, 0, 0, 0, 0))
    assert [gpu.gpu for gpu in read(machine, 60.0)] == [instance]
    machine.standin.remove_instance(0, 0)
    machine.standin.set({"0.mig": 0, "0.energy_mj": 6_000_000})
    (back,) = read(machine, 60.0)
    assert back.gpu == whole
    # What it used while nobody asked is in no sum, and neither is the time.
    assert (back.counters["gpu_energy_joules"], back.counters["gpu_energy_covered_seconds"]) == (0.0, 0.0)
    assert "tensor_active" not in {*back.gauges, *back.gaps}


def test_new_instance_is_read_within_a_minute(halves):
    read(halves)
    third = halves.standin.add_instance(0, 1, gi=3)
    halves.standin.set(activity_of(3, 100, 0, 0, 0, 0) | {"events": "1:0:31:1"})
    assert len(read(halves)) == 2
    readouts = read(halves, 60.0)
    assert [gpu.gpu for gpu in readouts] == [halves.first, third, halves.second]
    assert [gpu.counters["gpu_fault_events"] for gpu in readouts] == [1, 0, 0]


def test_lost_instance_is_told_once(halves):
    read(halves)
    read(halves)
    assert halves.standin.lent() == 5
    halves.standin.remove_instance(0, 0)
    (left,) = halves.turn()
    assert left.gpu == halves.second
    (problem,) = halves.problems
    assert problem.startswith(f"MIG instance {halves.first} (NVIDIA H100 80GB HBM3 MIG 3g.40gb): ")
    assert problem.endswith("; looked for again next cycle")
    for _ in range(2):
        assert [gpu.gpu for gpu in read(halves)] == [halves.second]
    assert halves.standin.lent() == 3


@pytest.mark.parametrize("reused", ["number", "uuid"])
def test_reused_instance_starts_with_nothing(halves, reused):
    halves.standin.set({"events": "1:0:31:1"})
    read(halves)
    assert read(halves)[0].counters["gpu_fault_events"] == 1
    other = halves.first
    if reused == "uuid":
        halves.standin.set({"0.mig.0.gi": 2} | activity_of(2, 500, 0, 0, 0, 0))
    else:
        halves.standin.remove_instance(0, 0)
        other = halves.standin.add_instance(0, 0, uuid="MIG-77000000-0000-5000-8000-000000000000")
    first, _ = read(halves, 60.0)
    assert (first.gpu, first.counters["gpu_fault_events"]) == (other, 0)
    assert "tensor_active" not in {*first.gauges, *first.gaps}
    assert halves.standin.lent() == 4, "the new one's first sample, the other's two, and the event set"
    halves.reader.close()
    assert (halves.standin.lent(), halves.standin.opened()) == (0, 0)


def test_mig_without_an_instance_is_said(machine):
    machine.standin.add_gpu(mig=1)
    assert machine.turn() == ()
    assert machine.problems == (f"{WHOLE}: MIG is on and there is no instance, so there is nothing to read",)
    machine.standin.add_instance(0, 3, name=None)
    machine.standin.set(activity_of(1, 100, 0, 0, 0, 0))
    assert [gpu.product for gpu in read(machine, 60.0)] == ["NVIDIA H100 80GB HBM3 MIG"]


def test_lost_gpu_takes_its_instances_along(halves):
    read(halves)
    halves.standin.set({"events": "1:0:31:5", "0.gone": 1})
    assert halves.turn() == ()
    assert halves.turn() == ()
    assert halves.problems == (f"{WHOLE}: Not Found (nvmlDeviceGetHandleByUUID); tried again next cycle",)
    halves.standin.set({"0.gone": None})
    first, second = read(halves)
    assert second.counters["gpu_fault_events"] == 1
    assert "tensor_active" not in {*first.gauges, *first.gaps}


def test_driver_lost_in_an_instance_reopens(halves):
    read(halves)
    halves.standin.set({"0.mig.2.error.nvmlDeviceGetMemoryInfo_v2": DRIVER_NOT_LOADED})
    assert halves.turn() == ()
    assert halves.problems[0].endswith("GPUs not read this cycle, opened again next cycle")
    assert (halves.standin.opened(), halves.standin.lent()) == (0, 0)
    halves.standin.set({"0.mig.2.error.nvmlDeviceGetMemoryInfo_v2": None})
    assert len(read(halves)) == 2
