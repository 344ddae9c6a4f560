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


NONE, GONE, HERE = (0.0, 0.0, 0.0, 0.0), {"0.gone": 1}, {"0.gone": None}


def field(number, nanoseconds):
    return {f"0.field.{number}": nanoseconds}


@pytest.mark.parametrize(
    ("gpu", "turns"),
    [
        ({}, [({}, NONE), (field(74, 75e8) | field(75, 25e7), (4.5, 0.25, 0.0, 15.0)), ({}, (4.5, 0.25, 0.0, 30.0))]),
        ({"reasons": None}, [({}, (0.0, 0.0, None, 0.0)), (field(74, 4e9), (1.0, 0.0, None, 15.0))]),
        ({}, [({}, NONE), (field(74, 1e6), NONE), (field(74, 1_001e6), (1.0, 0.0, 0.0, 15.0))]),
        ({}, [({}, NONE), (GONE, None), (HERE | field(74, 9e9), NONE), (field(74, 1e10), (1.0, 0.0, 0.0, 15.0))]),
        ({"field.74.return": GPU_IS_LOST}, [({}, None)]),
    ],
    ids=["increase", "board without bits", "fallen total", "time without the GPU", "field of a lost GPU"],
)
def test_throttled_seconds_turn_by_turn(machine, gpu, turns):
    machine.standin.add_gpu(**gpu)
    for changes, seconds in turns:
        machine.standin.set({name: value and int(value) for name, value in changes.items()})
        if seconds is None:
            assert machine.turn() == ()
            assert "GPU is lost" in machine.problems[0]
            continue
        found = machine.only()
        assert throttled(found) == pytest.approx(seconds)
        assert ("gpu_throttled_hardware_seconds" in found.gaps) is (seconds[2] is None)


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


# ---- memory errors ----


def errors(gpu):
    """Corrected and not corrected."""
    return gpu.counters.get("gpu_ecc_correctable_errors"), gpu.counters.get("gpu_ecc_uncorrectable_errors")


NO_ECC = {"field.1": None, "field.5": None, "field.6": None}
OLDER = {"error.nvmlDeviceGetFieldValues": NOT_SUPPORTED}
OLD_TOTALS = {"ecc.0.1": 500, "ecc.1.1": 0, "ecc.0.0": 7, "ecc.1.0": 7}
FEW = ({}, 15, (0, 0))
"""A turn without an error since the first: twelve were corrected in the GPU's life."""


@pytest.mark.parametrize(
    ("gpu", "turns", "gap"),
    [
        ({}, [FEW, (field(5, 15) | field(6, 1), 60, (3, 1))], ""),
        ({}, [FEW, (field(5, 13), 15, (0, 0)), FEW, FEW, ({}, 15, (1, 0))], ""),
        ({}, [FEW, (GONE, 15, None), (HERE | field(6, 2), 15, (0, 2))], ""),
        ({}, [FEW, (field(5, 4), 60, (4, 0))], ""),
        (NO_ECC | {"field.1": 0}, [({}, 15, (None, None))] * 2, "ECC is switched off on NVIDIA H100"),
        (NO_ECC | {"name": "RTX 4090"}, [({}, 15, (None, None))], "not supported by RTX 4090"),
        ({"field.1": 0}, [({}, 15, (None, None)), (field(1, 1), 60, (0, 0)), (field(6, 1), 60, (0, 1))], ""),
        (OLD_TOTALS, [FEW, (OLDER, 60, (0, 0)), ({"0.ecc.0.1": 501}, 60, (1, 0))], ""),
        (
            {"ecc.0.1": 500},
            [(OLDER, 15, (0, None)), ({"0.ecc.0.1": 501}, 60, (1, None))],
            "not supported by NVIDIA H100",
        ),
    ],
    ids=["first", "once a minute", "while away", "cleared", "off", "none", "on later", "older call", "one refused"],
)
def test_memory_errors_turn_by_turn(machine, gpu, turns, gap):
    machine.standin.add_gpu(**gpu)
    read = []
    for changes, seconds, counted in turns:
        machine.standin.set(changes)
        if counted is None:
            assert machine.turn(seconds) == ()
            continue
        read.append(machine.only(seconds))
        assert errors(read[-1]) == counted
    assert read[0].gaps.get("gpu_ecc_uncorrectable_errors", "").startswith(gap)
    assert gap or not [name for name in read[-1].gaps if name.startswith("gpu_ecc")]
