"""NVML going wrong half-way: lost GPUs, a driver that goes away, hanging calls, no library; and recordings of it."""

import json
import os
import subprocess
import sys
import threading
from dataclasses import asdict

import pynvml
import pytest
from nvml_fixture import H100, Machine, nvml_library, nvml_state, read_machine, read_one_gpu  # noqa: F401 (fixtures)
from paths import ROOT
from waiting import CEILING_SECONDS, wait_for

from agent.gpu.nvml_calls import NvmlError, ask
from agent.gpu.nvml_reader import NvmlReader

sys.path.append(str(ROOT / "benchmarks"))
from nvml_cycle import Recorder, cycles

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


# ---- recordings: a stand-in that plays one gives the same readouts ----


LATER = (
    {"0.samples": "1000000:50,2000000:80", "0.energy_mj": 11_000_000, "0.gpm.clock": 115, "0.gpm.5": 3_600},
    {"0.samples": "1000000:50,2000000:80,3000000:20", "0.reasons": 0x80, "0.gpm.clock": 130, "0.gpm.5": 5_100},
    {"0.field.74": 5_000_000_000, "0.field.5": 14, "0.pids": "", "0.celsius": 70, "0.gpm.clock": 190},
)
SECONDS = (15.0, 15.0, 60.0)


def play(standin, recording):
    """The readouts of a reader that begins with the recording."""
    again = Machine(standin)
    said, before = [], 0.0
    for seconds, state in cycles(recording):
        standin.replace(state)
        said.append(again.turn(seconds - before))
        assert again.problems == ()
        before = seconds
    again.reader.close()
    return said


def record(machine, recording, changes, seconds):
    """The readouts of the machine itself while it is recorded."""
    recorder = Recorder(machine.clock)
    said = []
    with recording.open("w", encoding="ascii") as file:
        for change, pause in zip(({}, *changes), (0.0, *seconds), strict=True):
            machine.standin.set(change)
            said.append(machine.turn(pause))
            assert machine.problems == ()
            file.write(recorder.cycle())
    machine.reader.close()
    return said


def numbers(readout):
    """A readout without its time, floats near enough."""
    said = asdict(readout)
    del said["t"]
    return said | {name: pytest.approx(dict(said[name])) for name in ("counters", "gauges")}


def test_recording_replays_its_machine(machine, tmp_path):
    machine.standin.add_gpu(free=4_000_000_000, **{"ecc.0.1": 12, "violation.0": 7})
    said = record(machine, tmp_path / "recording", LATER, SECONDS)
    played = play(machine.standin, tmp_path / "recording")
    assert len(played) == 4
    for mine, again in zip(said, played, strict=True):
        assert asdict(again[0]) | {"t": 0} == numbers(mine[0]) | {"t": 0}
    last = played[-1][0]
    assert last.counters["gpu_throttled_power_seconds"] == pytest.approx(2.0)
    assert last.counters["gpu_ecc_correctable_errors"] == 2
    assert played[2][0].gauges["tensor_active"] == pytest.approx(1.0)


def test_instances_and_refusals_are_recorded(machine, tmp_path):
    machine.standin.add_gpu()
    machine.standin.add_instance(0, 2, gi=5)
    machine.standin.add_gpu(name="Tesla T4", gpm=None, mig=None, reasons=None)
    machine.standin.set({"1.error.nvmlDeviceGetTemperatureV": 13})
    machine.standin.set({f"0.gi.5.gpm.{name}": 1 for name in ("clock", 1, 2, 5, 10)})
    later = ({"0.gi.5.gpm.clock": 16, "0.gi.5.gpm.5": 901},)
    said = record(machine, tmp_path / "recording", later, (15.0,))
    played = play(machine.standin, tmp_path / "recording")
    instance, older = played[-1]
    assert instance.gauges["tensor_active"] == pytest.approx(0.6)
    assert "Tesla T4" in older.gaps["gpu_throttled_hardware_seconds"]
    for mine, again in zip(said[-1], played[-1], strict=True):
        assert asdict(again) | {"t": 0} == numbers(mine) | {"t": 0}


def measure(*options, **environment):
    command = [sys.executable, str(ROOT / "benchmarks" / "nvml_cycle.py"), *options]
    # A worker process of another test sets PYTHONSAFEPATH for its children: a script then finds no module beside it.
    environment = {**os.environ, "LD_LIBRARY_PATH": "", "PYTHONSAFEPATH": "", **environment}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, timeout=CEILING_SECONDS, check=False
    )


def test_benchmark_prints_and_records(nvml, tmp_path):
    uuid = nvml.add_gpu()
    recording = tmp_path / "recording"
    library = {"LD_LIBRARY_PATH": str(nvml.folder_of_library), "NVML_STANDIN_STATE": str(nvml.state_file)}
    done = measure("--cycles", "3", "--interval", "0", "--record", str(recording), **library)
    assert (done.returncode, done.stderr) == (0, "")
    readout, _ = json.JSONDecoder().raw_decode(done.stdout)
    assert (readout["gpu"], readout["gauges"]["gpu_temperature_celsius"]) == (uuid, 61.0)
    assert "driver 580.95.05, 1 GPUs, 3 cycles" in done.stdout
    assert "a cycle: median " in done.stdout
    assert f"{uuid}, 85520809984, 80000000000, 79498000000, 502000000, 80000000000" in done.stdout
    assert [state["0.uuid"] for _, state in cycles(recording)] == [uuid] * 3
