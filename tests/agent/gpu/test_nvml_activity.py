"""Activity without DCGM: GPM through the real binding, against stand-in GPUs."""

import pytest
from nvml_fixture import nvml_library, nvml_state, read_machine, read_one_gpu  # noqa: F401 (fixtures)

from rules.telemetry.gpu_limits import Impossible

NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, GPU_IS_LOST = 3, 4, 13, 15
NAMES = ("gpu_gr_engine_active", "gpu_sm_active", "tensor_active", "dram_active")
OF = " NVIDIA H100 80GB HBM3 (driver 580.95.05)"


def begins(gpu):
    """Whether this cycle could be compared with none before it: it asked nothing, so there is nothing to explain."""
    return not {*NAMES} & {*gpu.gauges, *gpu.gaps}


def activity(gpu):
    return tuple(gpu.gauges.get(name) for name in NAMES)


def pass_time(machine, seconds, *percent, **keys):
    """Let the GPU be so active (engine, multiprocessors, tensor, DRAM) for some seconds, and read it."""
    state = machine.standin.state_file.read_text(encoding="ascii").splitlines()
    now = {key: float(value) for key, value in (line.split("=") for line in state) if key.startswith("0.gpm.")}
    added = {
        f"0.gpm.{metric}": now[f"0.gpm.{metric}"] + p * seconds
        for metric, p in zip((1, 2, 5, 10), percent, strict=True)
        if f"0.gpm.{metric}" in now
    }
    machine.standin.set({"0.gpm.clock": now["0.gpm.clock"] + seconds, **added, **keys})
    return machine.only(seconds)


def test_activity_is_the_mean_since_last_turn(machine):
    machine.standin.add_gpu(gpm=0)
    machine.only()
    # A new driver supports it.
    machine.standin.set({"0.gpm": 1})
    assert begins(machine.only())
    assert activity(pass_time(machine, 15.0, 90, 80, 40, 20)) == pytest.approx((0.9, 0.8, 0.4, 0.2))
    gpu = pass_time(machine, 60.0, 100, 50, 0, 12.5)
    assert activity(gpu) == pytest.approx((1.0, 0.5, 0.0, 0.125))
    assert gpu.sampled.isdisjoint(NAMES)
    machine.standin.calls()
    assert activity(pass_time(machine, 0.05, 100, 100, 100, 100)) == pytest.approx((1.0, 0.5, 0.0, 0.125))
    assert "nvmlGpmSampleGet" not in machine.standin.calls(), "too soon: the older sample is kept"
    # 0.05 s at 100 % and 9.95 s at 0 %
    assert activity(pass_time(machine, 9.95, 0, 0, 0, 0)) == pytest.approx((0.005,) * 4)


@pytest.mark.parametrize(
    ("keys", "reason"),
    [
        ({"0.gpm": 0}, "GPM (Hopper and newer) not supported by" + OF),
        ({"error.nvmlGpmQueryDeviceSupport": FUNCTION_NOT_FOUND}, "not supported by" + OF),
        ({"error.nvmlGpmSampleGet": NO_PERMISSION}, "not permitted by" + OF),
        ({"error.nvmlGpmMetricsGet": 2}, "Invalid Argument by" + OF),
    ],
)
def test_gpu_without_gpm_has_gaps(machine, keys, reason):
    machine.standin.add_gpu()
    machine.standin.set(keys)
    first, gpu = machine.only(), machine.only()
    assert begins(first) or first.gaps["dram_active"] == reason
    assert {name: gpu.gaps[name] for name in NAMES} == dict.fromkeys(NAMES, reason)
    assert gpu.gauges["gpu_temperature_celsius"] == 61.0
    # Some drivers refuse an instance's memory for a while after GPM was asked.
    calls = machine.standin.calls()
    assert calls.index("nvmlDeviceGetMemoryInfo_v2") < calls.index("nvmlGpmQueryDeviceSupport")


@pytest.mark.parametrize(
    ("code", "words"), [(NOT_SUPPORTED, "not supported"), (2, "Invalid Argument"), (21, "error of the stand-in")]
)
def test_missing_metric_leaves_the_others(watched, code, words):
    gpu = pass_time(watched, 15.0, 90, 80, 40, 20, **{"0.gpm.5.return": code})
    assert activity(gpu) == pytest.approx((0.9, 0.8, None, 0.2))
    assert gpu.gaps["tensor_active"] == f"{words} by{OF}"


def test_metric_of_lost_gpu_costs_the_turn(machine):
    machine.standin.add_gpu(**{"gpm.2.return": GPU_IS_LOST})
    machine.turn()
    machine.standin.set({"0.gpm.clock": 115})
    assert machine.turn() == ()
    assert "GPU is lost" in machine.problems[0]


def test_slightly_above_100_percent_is_rounding(watched):
    # Two samples between which the GPU's own clock stood still divide nothing by nothing.
    gpu = watched.only()
    assert activity(gpu) == (None, None, None, None)
    assert gpu.gaps["dram_active"] in {f"{sign}nan % active was given by{OF}" for sign in ("", "-")}
    gpu = pass_time(watched, 10.0, 100.5, 102, 40, -1)
    assert activity(gpu) == pytest.approx((1.0, None, 0.4, None))
    assert gpu.gaps["gpu_sm_active"] == "102 % active was given by" + OF
    assert isinstance(gpu.gaps["gpu_sm_active"], Impossible)


def test_returned_gpu_starts_its_samples_again(watched):
    watched.standin.set({"0.gone": 1})
    assert watched.turn() == ()
    watched.standin.set({"0.gone": None})
    assert begins(pass_time(watched, 15.0, 90, 90, 90, 90))
    assert activity(pass_time(watched, 15.0, 20, 20, 20, 20)) == pytest.approx((0.2,) * 4)
    assert watched.standin.lent() == 3
