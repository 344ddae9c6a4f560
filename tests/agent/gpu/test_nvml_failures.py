"""NVML going wrong half-way: lost GPUs, a driver that goes away, hanging calls, no library, the binding's errors."""

import os
import subprocess
import sys
import threading

import pynvml
import pytest
from nvml_fixture import H100, nvml_library, nvml_state, read_machine, read_one_gpu  # noqa: F401 (fixtures)
from paths import ROOT
from waiting import CEILING_SECONDS, wait_for

from agent.gpu.nvml_calls import NvmlError, ask
from agent.gpu.nvml_reader import NvmlReader

DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, UNKNOWN = 9, 12, 15, 16, 999
FIRST_GPU = "GPU 0 (GPU-00000000-0000-4000-8000-000000000000, NVIDIA H100 80GB HBM3)"


# ---- one GPU ----


@pytest.mark.parametrize("code", [GPU_IS_LOST, RESET_REQUIRED, UNKNOWN, 4711])
@pytest.mark.parametrize("call", ["nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetTotalEnergyConsumption"])
def test_gpu_lost_half_way_costs_itself(machine, code, call):
    first, second = machine.standin.add_gpu(), machine.standin.add_gpu()
    assert [gpu.gpu for gpu in machine.turn()] == [first, second]
    machine.standin.set({f"0.error.{call}": code})
    assert [gpu.gpu for gpu in machine.turn()] == [second]
    assert machine.problems == (
        f"GPU 0 ({first}, NVIDIA H100 80GB HBM3): {pynvml.NVMLError(code)} ({call.removesuffix('_v2')}); tried again next cycle",
    )
    machine.standin.set({f"0.error.{call}": None})
    machine.standin.calls()
    assert [gpu.gpu for gpu in machine.turn()] == [first, second]
    assert machine.problems == ()
    assert "nvmlDeviceGetHandleByUUID" in machine.standin.calls()


def test_vanished_gpu_is_named_and_sums_continue(watched):
    watched.standin.set({"0.energy_mj": 50_000})
    watched.only()
    watched.standin.set({"0.energy_mj": 80_000})
    before = watched.only().counters["gpu_energy_joules"]
    watched.standin.set({"0.gone": 1})
    assert watched.turn() == ()
    assert "GPU is lost" in watched.problems[0]
    assert watched.turn() == ()
    assert watched.problems == (f"{FIRST_GPU}: Not Found (nvmlDeviceGetHandleByUUID); tried again next cycle",)
    # It counts from nothing again and has already passed the old total: nobody knows that from a plain increase.
    watched.standin.set({"0.gone": None, "0.energy_mj": 100_000})
    back = watched.only().counters
    assert (back["gpu_energy_joules"], back["gpu_energy_covered_seconds"]) == (before, 15.0)
    watched.standin.set({"0.energy_mj": 1_600_000})
    assert watched.only().counters["gpu_energy_joules"] == pytest.approx(before + 1_500.0)


def test_lost_driver_keeps_what_was_read(machine):
    first, second = machine.standin.add_gpu(), machine.standin.add_gpu()
    machine.turn()
    machine.standin.set({"0.energy_mj": 8_000_000, "1.error.nvmlDeviceGetTemperatureV": DRIVER_NOT_LOADED})
    assert [gpu.gpu for gpu in machine.turn()] == [first]
    assert machine.problems == (
        "NVML: Driver Not Loaded (nvmlDeviceGetTemperatureV); GPUs not read this cycle, opened again next cycle",
    )
    assert machine.standin.opened() == 0
    machine.standin.set({"1.error.nvmlDeviceGetTemperatureV": None, "1.energy_mj": 6_000_000})
    readouts = machine.turn()
    assert [gpu.gpu for gpu in readouts] == [first, second]
    assert machine.problems == ()
    assert machine.standin.opened() == 1
    # The sums live on in the reader, the time without the driver is not covered.
    assert readouts[0].counters["gpu_energy_joules"] == pytest.approx(3_000.0)
    assert readouts[0].counters["gpu_energy_covered_seconds"] == pytest.approx(15.0)


@pytest.mark.parametrize("code", [DRIVER_NOT_LOADED, LIBRARY_NOT_FOUND])
def test_opening_without_a_driver_backs_off(machine, code):
    machine.standin.add_gpu()
    machine.standin.set({"error.nvmlInitWithFlags": code})
    opened_at = []
    for _ in range(60):  # a quarter of an hour
        assert machine.turn() == ()
        assert len(machine.problems) == 1
        assert str(pynvml.NVMLError(code)) in machine.problems[0]
        if machine.standin.calls():
            opened_at.append(machine.clock.now)
    assert opened_at == [15.0, 30.0, 60.0, 105.0, 195.0, 360.0, 660.0]
    machine.standin.set({"error.nvmlInitWithFlags": None})
    assert len(machine.turn(300.0)) == 1
    assert machine.problems == ()
    machine.standin.set({"error.nvmlInitWithFlags": code, "error.nvmlEventSetWait_v2": DRIVER_NOT_LOADED})
    machine.turn()
    machine.turn()
    assert machine.problems[0].endswith("no GPU is read, next try after 10 s"), "it begins anew"


def test_driver_without_a_gpu_is_said(machine):
    for seconds in (10, 20):
        assert machine.turn() == ()
        told = f"NVML: the driver runs but shows no GPU; no GPU is read, next try after {seconds} s"
        assert machine.problems == (told,)
    assert machine.standin.opened() == 0
    machine.standin.add_gpu(celsius=None)
    machine.standin.set({"driver": None})
    assert machine.turn() == ()
    assert "driver of unknown version" in machine.only().gaps["gpu_temperature_celsius"]


@pytest.mark.parametrize(
    ("state", "others", "problem"),
    [
        ({"error.nvmlDeviceGetCount_v2": UNKNOWN}, 0, "NVML: Unknown Error (nvmlDeviceGetCount)"),
        ({"0.error.nvmlDeviceGetUUID": UNKNOWN}, 1, "GPU 0: Unknown Error (nvmlDeviceGetUUID); tried again next cycle"),
        ({"0.name": "NVIDIA ?100"}, 1, "GPU 0: UnicodeDecodeError"),
        (
            {"0.sample_type": 77},
            1,
            f"{FIRST_GPU}: values of the unknown type 77 (nvmlDeviceGetSamples); tried again next",
        ),
    ],
    ids=["count", "uuid", "undecodable name", "type of samples"],
)
def test_unopened_gpu_does_not_hide_others(machine, state, others, problem):
    machine.standin.add_gpu()
    second = machine.standin.add_gpu()
    machine.standin.set(state)
    file = machine.standin.state_file
    file.write_bytes(file.read_bytes().replace(b"?", b"\xff"))
    assert [gpu.gpu for gpu in machine.turn()] == [second] * others
    (told,) = machine.problems
    assert told.startswith(problem)
    assert machine.standin.opened() == others
    machine.standin.set({name: H100.get(name.removeprefix("0.")) for name in state})
    machine.turn(60.0)
    assert [gpu.index for gpu in machine.turn(60.0)] == [0, 1]


def test_hanging_call_costs_turns_and_no_threads(nvml):
    nvml.add_gpu()
    before = set(threading.enumerate())
    reader = NvmlReader(deadline_seconds=0.2)
    # A busy machine may take longer than that for the first one, which opens the library.
    assert wait_for(lambda: len(reader.read(0.0)[0]) == 1)
    nvml.set({"0.hang.nvmlDeviceGetTotalEnergyConsumption": 1, "0.energy_mj": 6_000_000})
    assert reader.read(15.0) == ((), ("NVML did not answer within 0.2 s",))
    for turn in range(2, 6):
        readouts, problems = reader.read(15.0 * turn)
        assert readouts == ()
        assert problems[0].startswith("NVML has not answered for ")
    assert [thread.name for thread in threading.enumerate()].count("nvml") == 1
    nvml.set({"0.hang.nvmlDeviceGetTotalEnergyConsumption": None})
    readouts = wait_for(lambda: reader.read(90.0)[0])
    # The turn that came back late was dropped, its sums were not.
    assert readouts[0].counters["gpu_energy_joules"] == pytest.approx(1_000.0)
    assert nvml.opened() == 1
    reader.close()
    reader.close()
    assert nvml.opened() == 0
    assert wait_for(lambda: set(threading.enumerate()) <= before)


def test_late_defect_is_raised_by_the_next(nvml, monkeypatch):
    nvml.add_gpu()
    reader = NvmlReader(deadline_seconds=0.05)
    release = threading.Event()

    def fail_late(now: float) -> None:
        release.wait()
        raise ZeroDivisionError(now)

    monkeypatch.setattr(reader._machine, "read", fail_late)
    assert reader.read(0.0) == ((), ("NVML did not answer within 0.05 s",))
    late = reader._late
    release.set()
    assert wait_for(late.done)
    with pytest.raises(ZeroDivisionError):
        reader.read(15.0)


def test_closing_does_not_wait_for_hanging_calls(nvml):
    nvml.add_gpu()
    reader = NvmlReader(deadline_seconds=0.1)
    nvml.set({"hang.nvmlDeviceGetCount_v2": 1})
    reader.read(0.0)
    closing = threading.Thread(target=reader.close, daemon=True)
    closing.start()
    closing.join(CEILING_SECONDS)
    assert not closing.is_alive()
    nvml.set({"hang.nvmlDeviceGetCount_v2": None})


def test_function_without_a_binding_is_a_gap():
    with pytest.raises(NvmlError) as refused:
        ask("nvmlDeviceGetNothingOfTheKind")
    assert refused.value.is_unsupported


READ_ONCE = "from agent.gpu.nvml_reader import NvmlReader; r = NvmlReader(); print(*r.read(0.0), sep='\\n'); r.close()"


def run_python(program: str, **environment: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LD_LIBRARY_PATH": "", **environment}
    command = [sys.executable, "-c", program]
    return subprocess.run(
        command, env=environment, cwd=ROOT, capture_output=True, text=True, timeout=CEILING_SECONDS, check=False
    )


def test_missing_library_is_one_problem():
    if run_python("import ctypes; ctypes.CDLL('libnvidia-ml.so.1')").returncode == 0:
        pytest.skip("this machine has a real libnvidia-ml.so.1")
    done = run_python(READ_ONCE)
    readouts, problems = done.stdout.splitlines()
    assert (done.stderr, readouts) == ("", "()")
    assert "NVML Shared Library Not Found" in problems
    assert problems.count("no GPU is read") == 1


def test_library_is_found_on_the_loader_path(tmp_path, nvml):
    state = tmp_path / "state"
    state.write_text("driver=580\ncount=1\n0.uuid=GPU-a\n0.name=NVIDIA L4\n0.celsius=40\n", encoding="ascii")
    done = run_python(READ_ONCE, LD_LIBRARY_PATH=str(nvml.folder_of_library), NVML_STANDIN_STATE=str(state))
    readouts, problems = done.stdout.splitlines()
    assert "'gpu_temperature_celsius': 40.0" in readouts
    assert (done.stderr, problems) == ("", "()")
