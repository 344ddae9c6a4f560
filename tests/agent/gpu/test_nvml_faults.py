"""Faults (XID) through the real binding, against stand-in GPUs: seen as they happen, each once."""

import logging

import pytest
from nvml_fixture import nvml_library, nvml_state, read_machine, read_one_gpu  # noqa: F401 (fixtures)

from agent.gpu.nvml_device import MOST_EVENTS

NOT_SUPPORTED, NO_PERMISSION, FUNCTION_NOT_FOUND, GPU_IS_LOST, DRIVER_NOT_LOADED = 3, 4, 13, 15, 9
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
