"""Throttling and memory errors through the real binding, against stand-in GPUs."""

import pytest
from nvml_fixture import nvml_library, nvml_state, read_machine  # noqa: F401 (fixtures)

NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST = 3, 13, 15
POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
IDLE, APPLICATION_CLOCKS, SYNC_BOOST, DISPLAY = 0x1, 0x2, 0x10, 0x100
BOARD_LIMIT, RELIABILITY = 0x200, 0x400


def throttled(gpu):
    """Seconds by cause, and covered."""
    names = ("power", "thermal", "hardware", "covered")
    return tuple(gpu.counters.get(f"gpu_throttled_{name}_seconds") for name in names)


# ---- throttling ----


def test_power_and_heat_are_the_increase_of_the_drivers_nanoseconds(machine):
    machine.standin.add_gpu()
    assert throttled(machine.only()) == (0.0, 0.0, 0.0, 0.0)
    machine.standin.set({"0.field.74": 3_000_000_000 + 4_500_000_000, "0.field.75": 250_000_000})
    assert throttled(machine.only()) == pytest.approx((4.5, 0.25, 0.0, 15.0))
    assert throttled(machine.only()) == pytest.approx((4.5, 0.25, 0.0, 30.0))


def test_the_boards_brakes_are_polled_and_stand_for_the_time_since_the_poll_before(machine):
    machine.standin.add_gpu()
    machine.only()
    machine.standin.set({"0.reasons": POWER_BRAKE})
    gpu = machine.only()
    assert throttled(gpu) == pytest.approx((0.0, 0.0, 15.0, 15.0))
    assert "gpu_throttled_hardware_seconds" in gpu.sampled
    assert "gpu_throttled_power_seconds" not in gpu.sampled


@pytest.mark.parametrize(
    ("reasons", "expected"),
    [
        (IDLE | APPLICATION_CLOCKS | SYNC_BOOST | DISPLAY | RELIABILITY, (0.0, 0.0, 0.0)),
        (POWER_CAP, (15.0, 0.0, 0.0)),
        (SW_THERMAL, (0.0, 15.0, 0.0)),
        (HW_SLOWDOWN, (0.0, 0.0, 15.0)),
        (BOARD_LIMIT, (0.0, 0.0, 15.0)),
        (HW_SLOWDOWN | HW_THERMAL, (0.0, 15.0, 0.0)),
        (HW_SLOWDOWN | HW_THERMAL | POWER_BRAKE, (0.0, 15.0, 15.0)),
        (POWER_CAP | SW_THERMAL, (15.0, 15.0, 0.0)),
    ],
)
def test_without_totals_every_cause_is_polled_and_marked(machine, reasons, expected):
    machine.standin.add_gpu(**{"field.74": None, "field.75": None})
    machine.only()
    machine.standin.set({"0.reasons": reasons})
    gpu = machine.only()
    assert throttled(gpu) == pytest.approx((*expected, 15.0))
    assert {f"gpu_throttled_{name}_seconds" for name in ("power", "thermal", "hardware")} <= gpu.sampled
    assert not [name for name in gpu.gaps if name.startswith("gpu_throttled")]


def test_an_older_driver_answers_by_policy_instead_of_field(machine):
    machine.standin.add_gpu(**{"violation.0": 0, "violation.1": 10})
    machine.standin.set({"error.nvmlDeviceGetFieldValues": FUNCTION_NOT_FOUND})
    machine.only()
    machine.standin.set({"0.violation.0": 2_000_000_000, "0.violation.1": 1_000_000_010})
    gpu = machine.only()
    assert throttled(gpu) == pytest.approx((2.0, 1.0, 0.0, 15.0))
    assert gpu.sampled.isdisjoint({"gpu_throttled_power_seconds", "gpu_throttled_thermal_seconds"})


def test_one_policy_that_is_refused_does_not_silence_the_other(machine):
    machine.standin.add_gpu(**{"violation.0": 0})
    machine.standin.set({"error.nvmlDeviceGetFieldValues": FUNCTION_NOT_FOUND})
    machine.only()
    machine.standin.set({"0.violation.0": 2_000_000_000, "0.reasons": SW_THERMAL})
    gpu = machine.only()
    assert throttled(gpu) == pytest.approx((2.0, 15.0, 0.0, 15.0))
    assert "gpu_throttled_power_seconds" not in gpu.sampled


def test_an_older_driver_has_its_bits_under_the_older_name(machine):
    machine.standin.add_gpu(reasons=POWER_BRAKE)
    machine.standin.set({"error.nvmlDeviceGetCurrentClocksEventReasons": FUNCTION_NOT_FOUND})
    machine.only()
    assert throttled(machine.only())[2] == 15.0


def test_without_bits_only_the_boards_brakes_are_a_gap(machine):
    machine.standin.add_gpu(reasons=None)
    machine.only()
    machine.standin.set({"0.field.74": 4_000_000_000})
    gpu = machine.only()
    assert throttled(gpu) == pytest.approx((1.0, 0.0, None, 15.0))
    assert gpu.gaps["gpu_throttled_hardware_seconds"] == "not supported by NVIDIA H100 80GB HBM3 (driver 580.95.05)"


def test_a_total_that_fell_covers_nothing_of_its_turn(machine):
    machine.standin.add_gpu()
    machine.only()
    machine.standin.set({"0.field.74": 1_000_000})
    assert throttled(machine.only()) == (0.0, 0.0, 0.0, 0.0)
    machine.standin.set({"0.field.74": 1_001_000_000})
    assert throttled(machine.only()) == pytest.approx((1.0, 0.0, 0.0, 15.0))


def test_no_cause_holds_the_clocks_down_for_longer_than_the_turn_took(machine):
    """The driver's totals move in tenths of a second."""
    machine.standin.add_gpu()
    machine.only()
    machine.standin.set({"0.field.74": 3_000_000_000 + 15_100_000_000})
    assert throttled(machine.only())[0] == 15.0


def test_time_without_the_gpu_is_covered_by_nothing(machine):
    machine.standin.add_gpu()
    machine.only()
    machine.standin.set({"0.gone": 1})
    assert machine.turn() == ()
    machine.standin.set({"0.gone": None, "0.field.74": 9_000_000_000})
    assert throttled(machine.only()) == (0.0, 0.0, 0.0, 0.0)
    machine.standin.set({"0.field.74": 10_000_000_000})
    assert throttled(machine.only()) == pytest.approx((1.0, 0.0, 0.0, 15.0))


def test_a_field_that_says_the_gpu_is_gone_costs_it_the_turn(machine):
    machine.standin.add_gpu(**{"field.74.return": GPU_IS_LOST})
    assert machine.turn() == ()
    assert "GPU is lost" in machine.problems[0]


def test_a_field_that_the_driver_does_not_know_is_no_defect_of_ours(machine):
    machine.standin.add_gpu(**{"field.75.return": 2, "reasons": SW_THERMAL})
    machine.only()
    gpu = machine.only()
    assert throttled(gpu)[1] == 15.0  # polled
    assert "gpu_throttled_thermal_seconds" in gpu.sampled


def test_a_field_of_another_type_is_read_by_its_type(machine):
    machine.standin.add_gpu(**{"field.74.type": 0, "field.74": 0})
    machine.only()
    machine.standin.set({"0.field.74": 2_500_000_000})
    assert throttled(machine.only())[0] == pytest.approx(2.5)


# ---- memory errors ----


def errors(gpu):
    """Corrected and not corrected."""
    return gpu.counters.get("gpu_ecc_correctable_errors"), gpu.counters.get("gpu_ecc_uncorrectable_errors")


def test_memory_errors_count_from_where_the_reader_began_not_from_the_gpus_birth(machine):
    machine.standin.add_gpu()  # 12 corrected in its life
    assert errors(machine.only()) == (0, 0)
    machine.standin.set({"0.field.5": 15, "0.field.6": 1})
    assert errors(machine.only(60.0)) == (3, 1)


def test_memory_errors_are_asked_for_once_a_minute_and_told_every_turn(machine):
    machine.standin.add_gpu()
    machine.only()
    machine.standin.set({"0.field.5": 13})
    assert [errors(machine.only())[0] for _ in range(4)] == [0, 0, 0, 1]


def test_an_error_that_happened_while_the_gpu_was_away_is_counted(machine):
    machine.standin.add_gpu()
    machine.only()
    machine.standin.set({"0.gone": 1})
    machine.turn()
    machine.standin.set({"0.gone": None, "0.field.6": 2})
    assert errors(machine.only()) == (0, 2)


def test_totals_that_were_cleared_by_hand_go_on_from_zero(machine):
    machine.standin.add_gpu()
    machine.only()
    machine.standin.set({"0.field.5": 4})
    assert errors(machine.only(60.0)) == (4, 0)


def test_ecc_switched_off_is_said_and_is_no_zero(machine):
    machine.standin.add_gpu(**{"field.1": 0, "field.5": None, "field.6": None})
    gpu = machine.only()
    assert errors(gpu) == (None, None)
    assert gpu.gaps["gpu_ecc_correctable_errors"] == ("ECC is switched off on NVIDIA H100 80GB HBM3 (driver 580.95.05)")
    assert errors(machine.only()) == (None, None)  # also in a turn that does not ask


def test_a_gpu_without_ecc_says_so(machine):
    machine.standin.add_gpu(name="NVIDIA GeForce RTX 4090", **{"field.1": None, "field.5": None, "field.6": None})
    gpu = machine.only()
    assert errors(gpu) == (None, None)
    assert gpu.gaps["gpu_ecc_uncorrectable_errors"] == "not supported by NVIDIA GeForce RTX 4090 (driver 580.95.05)"


def test_ecc_that_is_switched_on_later_is_counted_from_then(machine):
    machine.standin.add_gpu(**{"field.1": 0})
    machine.only()
    machine.standin.set({"0.field.1": 1})
    assert errors(machine.only(60.0)) == (0, 0)
    machine.standin.set({"0.field.6": 1})
    gpu = machine.only(60.0)
    assert errors(gpu) == (0, 1)
    assert not [name for name in gpu.gaps if name.startswith("gpu_ecc")]


def test_totals_by_the_older_call_are_not_taken_for_an_increase(machine):
    machine.standin.add_gpu(**{"ecc.0.1": 500, "ecc.1.1": 0, "ecc.0.0": 7, "ecc.1.0": 7})
    machine.only()
    machine.standin.set({"error.nvmlDeviceGetFieldValues": NOT_SUPPORTED})
    assert errors(machine.only(60.0)) == (0, 0)
    machine.standin.set({"0.ecc.0.1": 501})
    assert errors(machine.only(60.0)) == (1, 0)


def test_one_total_that_the_older_call_refuses_does_not_silence_the_other(machine):
    machine.standin.add_gpu(**{"ecc.0.1": 500})
    machine.standin.set({"error.nvmlDeviceGetFieldValues": NOT_SUPPORTED})
    machine.only()
    machine.standin.set({"0.ecc.0.1": 501})
    gpu = machine.only(60.0)
    assert errors(gpu) == (1, None)
    assert "gpu_ecc_uncorrectable_errors" in gpu.gaps
