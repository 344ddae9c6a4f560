"""Throttling and memory errors through the real binding, against stand-in GPUs."""

import pytest
from nvml_fixture import nvml_library, nvml_state, read_machine, read_one_gpu  # noqa: F401 (fixtures)

NOT_SUPPORTED, FUNCTION_NOT_FOUND, GPU_IS_LOST = 3, 13, 15
POWER_CAP, HW_SLOWDOWN, SW_THERMAL, HW_THERMAL, POWER_BRAKE = 0x4, 0x8, 0x20, 0x40, 0x80
IDLE, APPLICATION_CLOCKS, SYNC_BOOST, DISPLAY = 0x1, 0x2, 0x10, 0x100
BOARD_LIMIT, RELIABILITY = 0x200, 0x400


def throttled(gpu):
    """Seconds by cause, and covered."""
    names = ("power", "thermal", "hardware", "covered")
    return tuple(gpu.counters.get(f"gpu_throttled_{name}_seconds") for name in names)


# ---- throttling ----


def test_throttling_is_the_increase_of_driver_totals(machine):
    machine.standin.add_gpu()
    assert throttled(machine.only()) == (0.0, 0.0, 0.0, 0.0)
    machine.standin.set({"0.field.74": 3_000_000_000 + 4_500_000_000, "0.field.75": 250_000_000})
    assert throttled(machine.only()) == pytest.approx((4.5, 0.25, 0.0, 15.0))
    assert throttled(machine.only()) == pytest.approx((4.5, 0.25, 0.0, 30.0))


NO_TOTALS = {"field.74": None, "field.75": None}
EVERY = frozenset({"power", "thermal", "hardware"})
BOARD, TO_THERMAL = frozenset({"hardware"}), frozenset({"thermal", "hardware"})
FIELDS, BITS = "nvmlDeviceGetFieldValues", "nvmlDeviceGetCurrentClocksEventReasons"


@pytest.mark.parametrize(
    ("gpu", "lacking", "changes", "seconds", "polled"),
    [
        ({}, None, {"reasons": POWER_BRAKE}, (0.0, 0.0, 15.0), BOARD),
        (NO_TOTALS, None, {"reasons": IDLE | APPLICATION_CLOCKS | SYNC_BOOST | DISPLAY}, (0.0, 0.0, 0.0), EVERY),
        (NO_TOTALS, None, {"reasons": RELIABILITY}, (0.0, 0.0, 0.0), EVERY),
        (NO_TOTALS, None, {"reasons": POWER_CAP}, (15.0, 0.0, 0.0), EVERY),
        (NO_TOTALS, None, {"reasons": SW_THERMAL}, (0.0, 15.0, 0.0), EVERY),
        (NO_TOTALS, None, {"reasons": HW_SLOWDOWN}, (0.0, 0.0, 15.0), EVERY),
        (NO_TOTALS, None, {"reasons": BOARD_LIMIT}, (0.0, 0.0, 15.0), EVERY),
        (NO_TOTALS, None, {"reasons": HW_SLOWDOWN | HW_THERMAL}, (0.0, 15.0, 0.0), EVERY),
        (NO_TOTALS, None, {"reasons": HW_SLOWDOWN | HW_THERMAL | POWER_BRAKE}, (0.0, 15.0, 15.0), EVERY),
        (NO_TOTALS, None, {"reasons": POWER_CAP | SW_THERMAL}, (15.0, 15.0, 0.0), EVERY),
        # An older driver answers by policy in place of the field, and names its bits otherwise.
        (
            {"violation.0": 0, "violation.1": 10},
            FIELDS,
            {"violation.0": 2_000_000_000, "violation.1": 1_000_000_010},
            (2.0, 1.0, 0.0),
            BOARD,
        ),
        # A refused policy does not silence the other.
        (
            {"violation.0": 0},
            FIELDS,
            {"violation.0": 2_000_000_000, "reasons": SW_THERMAL},
            (2.0, 15.0, 0.0),
            TO_THERMAL,
        ),
        ({"reasons": POWER_BRAKE}, BITS, {}, (0.0, 0.0, 15.0), BOARD),
        # The totals move in tenths of a second: no cause lasts longer than the turn.
        ({}, None, {"field.74": 3_000_000_000 + 15_100_000_000}, (15.0, 0.0, 0.0), BOARD),
        # A field that the driver does not know is polled, a field of another type is read by its type.
        ({"field.75.return": 2, "reasons": SW_THERMAL}, None, {}, (0.0, 15.0, 0.0), TO_THERMAL),
        ({"field.74.type": 0, "field.74": 0}, None, {"field.74": 2_500_000_000}, (2.5, 0.0, 0.0), BOARD),
    ],
)
def test_every_cause_has_its_seconds(machine, gpu, lacking, changes, seconds, polled):
    machine.standin.add_gpu(**gpu)
    if lacking is not None:
        machine.standin.set({f"error.{lacking}": FUNCTION_NOT_FOUND})
    machine.only()
    machine.standin.set({f"0.{name}": value for name, value in changes.items()})
    found = machine.only()
    assert throttled(found) == pytest.approx((*seconds, 15.0))
    assert {name for name in EVERY if f"gpu_throttled_{name}_seconds" in found.sampled} == polled
    assert not [name for name in found.gaps if name.startswith("gpu_throttled")]


def test_boards_without_bits_are_a_gap(machine):
    machine.standin.add_gpu(reasons=None)
    machine.only()
    machine.standin.set({"0.field.74": 4_000_000_000})
    gpu = machine.only()
    assert throttled(gpu) == pytest.approx((1.0, 0.0, None, 15.0))
    assert gpu.gaps["gpu_throttled_hardware_seconds"] == "not supported by NVIDIA H100 80GB HBM3 (driver 580.95.05)"


def test_fallen_total_covers_nothing(watched):
    watched.standin.set({"0.field.74": 1_000_000})
    assert throttled(watched.only()) == (0.0, 0.0, 0.0, 0.0)
    watched.standin.set({"0.field.74": 1_001_000_000})
    assert throttled(watched.only()) == pytest.approx((1.0, 0.0, 0.0, 15.0))


def test_time_without_the_gpu_is_uncovered(watched):
    watched.standin.set({"0.gone": 1})
    assert watched.turn() == ()
    watched.standin.set({"0.gone": None, "0.field.74": 9_000_000_000})
    assert throttled(watched.only()) == (0.0, 0.0, 0.0, 0.0)
    watched.standin.set({"0.field.74": 10_000_000_000})
    assert throttled(watched.only()) == pytest.approx((1.0, 0.0, 0.0, 15.0))


def test_field_of_lost_gpu_costs_the_turn(machine):
    machine.standin.add_gpu(**{"field.74.return": GPU_IS_LOST})
    assert machine.turn() == ()
    assert "GPU is lost" in machine.problems[0]


# ---- memory errors ----


def errors(gpu):
    """Corrected and not corrected."""
    return gpu.counters.get("gpu_ecc_correctable_errors"), gpu.counters.get("gpu_ecc_uncorrectable_errors")


def test_memory_errors_count_from_the_first_turn(machine):
    machine.standin.add_gpu()  # 12 corrected in its life
    assert errors(machine.only()) == (0, 0)
    machine.standin.set({"0.field.5": 15, "0.field.6": 1})
    assert errors(machine.only(60.0)) == (3, 1)


def test_memory_errors_are_asked_once_a_minute(watched):
    watched.standin.set({"0.field.5": 13})
    assert [errors(watched.only())[0] for _ in range(4)] == [0, 0, 0, 1]


def test_error_while_away_is_counted(watched):
    watched.standin.set({"0.gone": 1})
    watched.turn()
    watched.standin.set({"0.gone": None, "0.field.6": 2})
    assert errors(watched.only()) == (0, 2)


def test_cleared_totals_start_from_zero(watched):
    watched.standin.set({"0.field.5": 4})
    assert errors(watched.only(60.0)) == (4, 0)


def test_ecc_switched_off_is_no_zero(machine):
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


def test_ecc_switched_on_later_is_counted(machine):
    machine.standin.add_gpu(**{"field.1": 0})
    machine.only()
    machine.standin.set({"0.field.1": 1})
    assert errors(machine.only(60.0)) == (0, 0)
    machine.standin.set({"0.field.6": 1})
    gpu = machine.only(60.0)
    assert errors(gpu) == (0, 1)
    assert not [name for name in gpu.gaps if name.startswith("gpu_ecc")]


def test_older_call_is_no_increase(machine):
    machine.standin.add_gpu(**{"ecc.0.1": 500, "ecc.1.1": 0, "ecc.0.0": 7, "ecc.1.0": 7})
    machine.only()
    machine.standin.set({"error.nvmlDeviceGetFieldValues": NOT_SUPPORTED})
    assert errors(machine.only(60.0)) == (0, 0)
    machine.standin.set({"0.ecc.0.1": 501})
    assert errors(machine.only(60.0)) == (1, 0)


def test_refused_total_does_not_silence_the_other(machine):
    machine.standin.add_gpu(**{"ecc.0.1": 500})
    machine.standin.set({"error.nvmlDeviceGetFieldValues": NOT_SUPPORTED})
    machine.only()
    machine.standin.set({"0.ecc.0.1": 501})
    gpu = machine.only(60.0)
    assert errors(gpu) == (1, None)
    assert "gpu_ecc_uncorrectable_errors" in gpu.gaps
