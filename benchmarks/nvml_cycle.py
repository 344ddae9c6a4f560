"""What a cycle of the GPU collector costs on this machine, what it says, and what NVML returned.

Runs the real collector against the machine's own NVML for some cycles and prints the time of a cycle (median, P99), the
last readouts as JSON, used memory by version 1 and version 2 of the call side by side, and the time of each call. With
--record it also writes what NVML returned, in the form that the tests' stand-in library plays. Exit 1 without NVML.

usage: python benchmarks/nvml_cycle.py [--cycles 60] [--interval 1] [--record FILE]
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import statistics
import sys
import time
from pathlib import Path

HERE = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(HERE), str(HERE / "benchmarks")]

import pynvml
from nvml_recording import Recorder, cycles, memory_versions

from agent.gpu.nvml_reader import NvmlReader


def as_json(readout: object) -> str:
    values = {field.name: getattr(readout, field.name) for field in dataclasses.fields(readout)}  # type: ignore[arg-type]
    return json.dumps(values, indent=1, default=lambda value: dict(value) if hasattr(value, "items") else sorted(value))


def measure(arguments: argparse.Namespace, record: Path) -> tuple[list[float], float, Recorder]:
    """Wall seconds of each cycle, CPU seconds of all, and what was recorded besides."""
    reader, recorder = NvmlReader(), Recorder()
    wall: list[float] = []
    spent = 0.0
    with record.open("w", encoding="ascii") as file:
        for number in range(arguments.cycles):
            if number:
                time.sleep(arguments.interval)
            begin, cpu = time.perf_counter(), time.process_time()
            readouts, problems = reader.read(time.time())
            wall.append(time.perf_counter() - begin)
            spent += time.process_time() - cpu
            for problem in problems:
                print(f"cycle {number}: {problem}", file=sys.stderr)
            file.write(recorder.cycle())
    for readout in readouts:
        print(as_json(readout))
    reader.close()
    return wall, spent, recorder


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--cycles", type=int, default=60, help="cycles to run, at least 2")
    parser.add_argument("--interval", type=float, default=1.0, help="seconds between cycles")
    parser.add_argument("--record", type=Path, help="file for what NVML returned")
    arguments = parser.parse_args()
    if arguments.cycles < 2:
        parser.error("--cycles must be at least 2: the first one opens the library")
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        print(f"there is no NVML here ({error}): nothing was measured", file=sys.stderr)
        return 1
    if not pynvml.nvmlDeviceGetCount():
        print("NVML runs here but shows no GPU: nothing was measured", file=sys.stderr)
        return 1
    record = arguments.record or Path("/dev/null")
    wall, spent, recorder = measure(arguments, record)
    first, rest = wall[0], [seconds * 1e3 for seconds in wall[1:]]
    print(f"driver {pynvml.nvmlSystemGetDriverVersion()}, {pynvml.nvmlDeviceGetCount()} GPUs, {len(wall)} cycles")
    print(f"first cycle (opens the library): {first * 1e3:.2f} ms")
    middle, late = statistics.median(rest), sorted(rest)[math.ceil(0.99 * len(rest)) - 1]
    print(f"a cycle: median {middle:.2f} ms, P99 {late:.2f} ms, most {max(rest):.2f} ms")
    print(f"CPU: {spent / len(wall) * 1e3:.2f} ms a cycle")
    print("memory in bytes: GPU, total, used (v1), used (v2), reserved, total minus free")
    for row in memory_versions(recorder.state):
        print("  " + ", ".join(str(value) for value in row))
    print("calls: median ms, most ms")
    for call, costs in sorted(recorder.costs.items()):
        print(f"  {call}: {statistics.median(costs) * 1e3:.3f}, {max(costs) * 1e3:.3f}")
    if arguments.record:
        print(f"recorded {sum(1 for _ in cycles(arguments.record))} cycles in {arguments.record}")
    pynvml.nvmlShutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
