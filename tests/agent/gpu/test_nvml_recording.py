"""What NVML returned on one machine, played by the stand-in on another: the collector says the same of both."""

import json
import os
import subprocess
import sys
from dataclasses import asdict

import pytest
from nvml_fixture import Machine, nvml_library, nvml_state, read_machine  # noqa: F401 (fixtures)
from paths import ROOT
from waiting import CEILING_SECONDS

sys.path.append(str(ROOT / "benchmarks"))
from nvml_cycle import Recorder, cycles

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
