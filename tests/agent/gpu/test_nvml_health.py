"""Throttling, memory errors, activity and faults through the real binding, against stand-in GPUs; sums by hand."""

import logging

import pytest
from nvml_fixture import nvml_library, nvml_state, read_machine, read_one_gpu  # noqa: F401 (fixtures)

from agent.gpu.nvml_device import MOST_EVENTS
from agent.gpu.nvml_sums import BusySum, EnergySum, ThrottleSum
from rules.telemetry.gpu_windows import Impossible

NOT_SUPPORTED, NO_PERMISSION, DRIVER_NOT_LOADED, FUNCTION_NOT_FOUND, GPU_IS_LOST = 3, 4, 9, 13, 15
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


# ---- activity, by GPM ----


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


# ---- sums over time for one GPU, each checked by hand ----


SECOND = 1_000_000


@pytest.mark.parametrize(
    ("busy", "samples", "at", "expected"),
    [
        # 0.2 s x 1.0 + 0.5 s x 0.5 + 1.0 s x 0.0
        (BusySum(last_sample=SECOND), [(1.2, 1.0), (1.7, 0.5), (2.7, 0.0)], 10.0, (0.45, 1.7)),
        # 15 s later the buffer begins at 6 s: what happened between 1 s and 6 s is known to nobody.
        (BusySum(last_sample=SECOND), [(6.0, 1.0), (6.5, 1.0), (7.5, 0.5)], 15.0, (1.0, 1.5)),
        # A ratio that cannot be covers nothing, and samples may come in any order and twice.
        (BusySum(last_sample=0), [(1.0, 42_949_672.95), (2.0, 0.5)], 2.0, (0.5, 1.0)),
        (BusySum(last_sample=0), [(1.0, 0.0), (0.5, 1.0), (1.0, 0.0)], 1.0, (0.5, 1.0)),
    ],
)
def test_sample_stands_for_time_before_it(busy, samples, at, expected):
    busy.add_samples([(round(seconds * SECOND), ratio) for seconds, ratio in samples], at=at)
    assert (busy.total, busy.covered_seconds) == pytest.approx(expected)


def test_samples_after_a_poll_count_once():
    busy = BusySum(last_sample=1_000_000, until=100.0)
    busy.add_poll(0.0, at=115.0)
    # 4 s later; the newest sample (20.0 s) is now, so the poll reached the driver's 16.0 s.
    samples = [(stamp, 1.0) for stamp in range(14_000_000, 20_000_001, 1_000_000)]
    busy.add_samples(samples, at=119.0)
    assert (busy.total, busy.covered_seconds) == pytest.approx((4.0, 15.0 + 4.0))


@pytest.mark.parametrize(
    ("totals", "polled", "expected"),
    [
        # A total that fell covers nothing, and counts from there.
        ({0: 9_000_000, 15: 3_000}, {}, (0.0, 0.0)),
        ({0: 9_000_000, 15: 3_000, 30: 1_503_000}, {}, (1_500.0, 15.0)),
        # A total after a poll counts the time since once.
        ({0: 1_000_000, 20: 7_000_000}, {10: 300.0}, (3_000.0, 10.0)),
    ],
)
def test_energy_is_counted_once(totals, polled, expected):
    energy = EnergySum()
    for at in sorted({*totals, *polled}):
        if at in polled:
            energy.add_poll(polled[at], at=float(at))
        else:
            energy.add_total(totals[at], at=float(at))
    assert (energy.total, energy.covered_seconds) == pytest.approx(expected)


BOTH = {"power": True, "board": True}
POWER = {"power": True, "board": False}


@pytest.mark.parametrize(
    ("steps", "seconds", "covered"),
    [
        # Another means starts again.
        ([({"power": 10**9}, {"board": True}, 0), ({}, BOTH, 10)], (0.0, 0.0), 0.0),
        ([({"power": 10**9}, {"board": True}, 0), ({}, BOTH, 10), ({}, POWER, 15)], (5.0, 0.0), 5.0),
        # An unknown cause stops the cover, and so does an outage.
        ([({}, BOTH, 0), ({}, BOTH, 10), ({}, {"power": True}, 20), ({}, BOTH, 30)], (10.0, 10.0), 10.0),
        ([({}, BOTH, 0), ({}, BOTH, 600)], (0.0, 0.0), 0.0),
    ],
)
def test_throttling_is_covered_by_one_means(steps, seconds, covered):
    held = ThrottleSum()
    for totals, active, at in steps:
        held.add(totals, active, at=float(at))
        assert held.known == {*totals, *active}
    assert (held.seconds, held.covered_seconds) == (dict(zip(BOTH, seconds, strict=True)), covered)


# ---- faults (XID): seen as they happen, each once ----


BY_CODE = "gpu_fault_events_by_code"


def faults(gpu):
    """All, and by code."""
    parts = {name.partition("/")[2]: value for name, value in gpu.counters.items() if name.startswith(BY_CODE)}
    return gpu.counters.get("gpu_fault_events"), parts


def test_each_fault_is_counted_once(watched, caplog):
    watched.standin.set({"events": "1:0:79:-,2:0:79:-,3:0:31:-"})
    with caplog.at_level(logging.WARNING):
        assert faults(watched.only()) == (3, {"xid-31": 1, "xid-79": 2})
    assert "the driver reported XID 79 (2 x)" in caplog.text
    assert faults(watched.only()) == (3, {"xid-31": 1, "xid-79": 2})
    storm = ",".join(f"{number}:0:79:-" for number in range(4, MOST_EVENTS + 54))
    watched.standin.set({"events": f"1:0:79:-,2:0:79:-,3:0:31:-,{storm}"})
    assert faults(watched.only())[0] == 3 + MOST_EVENTS
    assert faults(watched.only()) == (3 + MOST_EVENTS + 50, {"xid-31": 1, "xid-79": 52 + MOST_EVENTS})


@pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION])
@pytest.mark.parametrize("call", ["nvmlEventSetCreate", "nvmlDeviceRegisterEvents", "nvmlEventSetWait_v2"])
def test_hidden_faults_are_a_gap(machine, call, code):
    machine.standin.add_gpu()
    machine.standin.set({f"error.{call}": code})
    machine.turn()
    gpu = machine.only()
    words = {NOT_SUPPORTED: "not supported", NO_PERMISSION: "not permitted"}[code]
    assert faults(gpu) == (None, {})
    for name in ("gpu_fault_events", BY_CODE):
        assert gpu.gaps[name] == f"{words} by NVIDIA H100 80GB HBM3 (driver 580.95.05)"


def test_silent_gpu_does_not_hide_others(machine):
    machine.standin.add_gpu()
    machine.standin.add_gpu()
    machine.standin.set({"0.error.nvmlDeviceRegisterEvents": NOT_SUPPORTED})
    machine.turn()
    machine.standin.set({"events": "1:1:63:-"})
    first, second = machine.turn()
    assert (faults(first), faults(second)) == ((None, {}), (1, {"xid-63": 1}))
    machine.standin.calls()
    machine.turn()
    assert "nvmlDeviceRegisterEvents" not in machine.standin.calls()


def test_failed_waiting_registers_gpus_again(watched):
    watched.standin.set({"error.nvmlEventSetWait_v2": GPU_IS_LOST})
    (gpu,) = watched.turn()
    assert faults(gpu) == (0, {})
    assert "GPU is lost" in watched.problems[0]
    assert "faults are not seen this cycle, registered again" in watched.problems[0]
    watched.standin.set({"error.nvmlEventSetWait_v2": None, "events": "1:0:79:-"})
    assert faults(watched.only()) == (1, {"xid-79": 1})
    assert watched.standin.lent() == 3


def test_returned_gpu_reports_once(machine):
    machine.standin.add_gpu()
    machine.standin.add_gpu()
    machine.turn()
    machine.standin.set({"events": "1:0:79:-", "0.gone": 1})
    machine.turn()
    machine.standin.set({"0.gone": None})
    assert faults(machine.turn()[0]) == (1, {"xid-79": 1}), "the last fault of a lost GPU counts"
    machine.standin.calls()
    machine.turn()
    assert machine.standin.calls().count("nvmlDeviceRegisterEvents") == 2
    machine.standin.set({"events": "1:0:79:-,2:0:31:-,3:1:31:-"})
    assert [faults(gpu)[0] for gpu in machine.turn()] == [2, 1]
    machine.standin.calls()
    machine.turn()
    assert "nvmlDeviceRegisterEvents" not in machine.standin.calls()


@pytest.mark.parametrize("call", ["nvmlDeviceGetTemperatureV", "nvmlEventSetWait_v2"])
def test_counts_continue_after_the_driver(watched, call):
    watched.standin.set({"events": "1:0:31:-"})
    watched.only()
    watched.standin.set({f"error.{call}": DRIVER_NOT_LOADED})
    assert watched.turn() == ()
    assert (watched.standin.opened(), watched.standin.lent()) == (0, 0)
    watched.standin.set({f"error.{call}": None, "events": "1:0:31:-,2:0:31:-"})
    watched.only()
    assert faults(watched.only()) == (2, {"xid-31": 2})
