"""What a cycle of the GPU collector costs on this machine, what it says, and what NVML returned.

Runs the real collector against the machine's own NVML for some cycles and prints the time of a cycle (median, P99), the
last readouts as JSON, and used memory by version 1 and version 2 of the call side by side. With --record it also writes
what NVML returned, in the form that the tests' stand-in library plays. Exit 1 without NVML.

A recording has one block a cycle: a line `== SECONDS` and below it the state file of tests/nvml_standin/standin.h, so that a
machine with real GPUs can be played again where there is none. The recorder asks NVML itself, not through the collector: what
the collector makes of the answers is what a replay is to show. Faults are not in it (they cannot be asked for, only waited for).
A question more is a line in `_whole` or `_part`, and a key in the stand-in.

usage: python benchmarks/nvml_cycle.py [--cycles 60] [--interval 1] [--record FILE]
"""

from __future__ import annotations

import json
import math
import statistics
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TextIO

import common
import pynvml
from pydantic_core import to_jsonable_python

from agent.gpu.nvml_reader import NvmlReader

FIELDS = (1, 3, 4, 5, 6, *range(74, 82), *range(251, 254), *range(269, 272))
"""ECC, time held down by policy, and both places where drivers keep the time of slowdowns and power brake."""
POLICIES = (0, 1, 2, 3, 4, 5, 10, 11)
METRICS = (1, 2, 3, 5, 10, 20, 21, 60, 61)
MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
NOT_SUPPORTED = 3


class Gpm:
    """Two samples that alternate, and the metrics between them added up as the stand-in wants them."""

    def __init__(self) -> None:
        self._older: Any = None
        self._newer: Any = None
        self._at = 0.0
        self.clock = 0.0
        self.totals: dict[int, float] = dict.fromkeys(METRICS, 0.0)
        self.codes: dict[int, int] = {}

    def take(self, get: Callable[[Any], Any], at: float) -> None:
        """Take a sample with `get`; `at` is seconds. Raises NVMLError."""
        if self._older is None:
            self._older, self._newer = pynvml.nvmlGpmSampleAlloc(), pynvml.nvmlGpmSampleAlloc()
            get(self._older)
            self._at = at
            return
        get(self._newer)
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(METRICS)
        request.sample1, request.sample2 = self._older, self._newer
        for place, metric in enumerate(METRICS):
            request.metrics[place].metricId = metric
        pynvml.nvmlGpmMetricsGet(request)
        self._older, self._newer = self._newer, self._older
        seconds, self._at = at - self._at, at
        self.clock += seconds
        for place, metric in enumerate(METRICS):
            found = request.metrics[place]
            self.codes[metric] = found.nvmlReturn
            if found.nvmlReturn == 0 and found.value == found.value:
                self.totals[metric] += found.value * seconds

    def lines(self, prefix: str) -> Iterator[tuple[str, object]]:
        yield f"{prefix}gpm.clock", repr(self.clock)
        for metric, total in self.totals.items():
            yield f"{prefix}gpm.{metric}", repr(total)
            if self.codes.get(metric):
                yield f"{prefix}gpm.{metric}.return", self.codes[metric]


class Recorder:
    """Asks every GPU of the machine. NVML must be open; `clock` is seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._begin: float | None = None
        self._gpm: dict[tuple[int, int | None], Gpm] = defaultdict(Gpm)
        self.state: dict[str, object] = {}
        """What the last cycle returned, by the stand-in's keys."""

    def cycle(self) -> str:
        """Return the block of one cycle."""
        now = self._clock()
        self._begin = now if self._begin is None else self._begin
        self.state = {"driver": pynvml.nvmlSystemGetDriverVersion(), "count": pynvml.nvmlDeviceGetCount()}
        for number in range(int(str(self.state["count"]))):
            handle = self._ask(f"{number}", "nvmlDeviceGetHandleByIndex", number)
            if handle is not None:
                self._whole(number, handle)
        lines = [f"{key}={value}" for key, value in self.state.items()]
        return "\n".join([f"== {now - self._begin:.6f}", *lines]) + "\n"

    def _ask(self, prefix: str, call: str, *arguments: Any, symbol: str = "", **options: Any) -> Any:
        """The answer; None where NVML refused, which is then in the state (what is missing there is not supported)."""
        try:
            return getattr(pynvml, call)(*arguments, **options)
        except pynvml.NVMLError as error:
            if error.value != NOT_SUPPORTED:
                self.state[f"{prefix}.error.{symbol or call}"] = error.value
            return None

    def _keep(self, key: str, value: object) -> None:
        if value is not None:
            self.state[key] = value

    def _part(self, prefix: str, handle: Any) -> None:
        """What a GPU and a MIG instance are both asked."""
        self._keep(f"{prefix}.uuid", self._ask(prefix, "nvmlDeviceGetUUID", handle))
        self._keep(f"{prefix}.name", self._ask(prefix, "nvmlDeviceGetName", handle))
        older = self._ask(prefix, "nvmlDeviceGetMemoryInfo", handle)
        newer = self._ask(
            prefix, "nvmlDeviceGetMemoryInfo", handle, version=pynvml.nvmlMemory_v2, symbol="nvmlDeviceGetMemoryInfo_v2"
        )
        for version, info in (("v1", older), ("v2", newer)):
            if info is not None:
                self.state |= {f"{prefix}.total": info.total, f"{prefix}.free": info.free}
                self.state[f"{prefix}.{version}.used"] = info.used
        if newer is not None:
            self.state[f"{prefix}.reserved"] = newer.reserved
        symbol = "nvmlDeviceGetComputeRunningProcesses_v3"
        processes = self._ask(prefix, "nvmlDeviceGetComputeRunningProcesses", handle, symbol=symbol)
        self._keep(f"{prefix}.pids", None if processes is None else ",".join(str(one.pid) for one in processes))

    def _whole(self, number: int, handle: Any) -> None:
        prefix = f"{number}"
        self._part(prefix, handle)
        rates = self._ask(prefix, "nvmlDeviceGetUtilizationRates", handle)
        self._keep(f"{prefix}.util", None if rates is None else rates.gpu)
        result = self._ask(prefix, "nvmlDeviceGetSamples", handle, pynvml.NVML_GPU_UTILIZATION_SAMPLES, 0)
        if result is not None:
            value_type, rows = result
            samples = (f"{row.timeStamp}:{getattr(row.sampleValue, MEMBERS[value_type])}" for row in rows)
            self.state |= {f"{prefix}.sample_type": value_type, f"{prefix}.samples": ",".join(samples)}
        for key, call in (
            ("energy_mj", "nvmlDeviceGetTotalEnergyConsumption"),
            ("power_mw", "nvmlDeviceGetPowerUsage"),
            ("limit_mw", "nvmlDeviceGetEnforcedPowerLimit"),
            ("reasons", "nvmlDeviceGetCurrentClocksThrottleReasons"),
            ("reasons", "nvmlDeviceGetCurrentClocksEventReasons"),
        ):
            self._keep(f"{prefix}.{key}", self._ask(prefix, call, handle))
        for call in ("nvmlDeviceGetTemperature", "nvmlDeviceGetTemperatureV"):
            self._keep(f"{prefix}.celsius", self._ask(prefix, call, handle, 0))
        self._health(prefix, handle)
        self._mig(number, handle)
        self._activity(number, None, handle)

    def _health(self, prefix: str, handle: Any) -> None:
        rows = self._ask(prefix, "nvmlDeviceGetFieldValues", handle, list(FIELDS)) or ()
        for row in rows:
            key = f"{prefix}.field.{row.fieldId}"
            if row.nvmlReturn:
                self.state[f"{key}.return"] = row.nvmlReturn
                continue
            self.state |= {f"{key}.type": row.valueType, key: getattr(row.value, MEMBERS[row.valueType])}
        for policy in POLICIES:
            status = self._ask(prefix, "nvmlDeviceGetViolationStatus", handle, policy, symbol=f"policy.{policy}")
            self._keep(f"{prefix}.violation.{policy}", None if status is None else status.violationTime)
        for kind, counter in ((0, 0), (0, 1), (1, 0), (1, 1)):
            call, symbol = "nvmlDeviceGetTotalEccErrors", f"ecc.{kind}.{counter}"
            self._keep(f"{prefix}.{symbol}", self._ask(prefix, call, handle, kind, counter, symbol=symbol))

    def _mig(self, number: int, handle: Any) -> None:
        mode = self._ask(f"{number}", "nvmlDeviceGetMigMode", handle)
        self._keep(f"{number}.mig", None if mode is None else mode[0])
        if not mode or mode[0] != pynvml.NVML_DEVICE_MIG_ENABLE:
            return
        count = self._ask(f"{number}", "nvmlDeviceGetMaxMigDeviceCount", handle) or 0
        self.state[f"{number}.mig.places"] = count
        for place in range(count):
            prefix = f"{number}.mig.{place}"
            instance = self._ask(prefix, "nvmlDeviceGetMigDeviceHandleByIndex", handle, place)
            if instance is not None:
                self._part(prefix, instance)
                of = self._ask(prefix, "nvmlDeviceGetGpuInstanceId", instance)
                self._keep(f"{prefix}.gi", of)
                if of is not None:
                    self._activity(number, of, handle)

    def _activity(self, number: int, instance: int | None, handle: Any) -> None:
        support = self._ask(f"{number}", "nvmlGpmQueryDeviceSupport", handle)
        self._keep(f"{number}.gpm", None if support is None else support.isSupportedDevice)
        if support is None or not support.isSupportedDevice:
            return
        gpm, call, whose = self._gpm[number, instance], "nvmlGpmSampleGet", (handle,)
        prefix = f"{number}."
        if instance is not None:
            call, whose, prefix = "nvmlGpmMigSampleGet", (handle, instance), f"{number}.gi.{instance}."
        try:
            gpm.take(lambda sample: getattr(pynvml, call)(*whose, sample), self._clock())
        except pynvml.NVMLError as error:
            self.state[f"{number}.error.{call}"] = error.value
        else:
            self.state |= dict(gpm.lines(prefix))


def cycles(recording: Path) -> Iterator[tuple[float, Mapping[str, str]]]:
    """Of a recording, seconds since its beginning and the stand-in's state, cycle by cycle."""
    for block in recording.read_text(encoding="ascii").split("== ")[1:]:
        head, *lines = block.splitlines()
        yield float(head), dict(line.split("=", 1) for line in lines)


def memory_versions(state: Mapping[str, Any]) -> Iterator[Sequence[object]]:
    """GPU, total, used by version 1, used by version 2, reserved, total minus free: bytes, for each that has both."""
    prefixes = [key.removesuffix(".uuid") for key in state if key.endswith(".uuid")]
    for prefix in prefixes:
        keys = [f"{prefix}.{name}" for name in ("total", "v1.used", "v2.used", "reserved", "free")]
        if all(key in state for key in keys):
            total, v1, v2, reserved, free = (int(state[key]) for key in keys)
            yield state[f"{prefix}.uuid"], total, v1, v2, reserved, total - free


def measure(cycle_count: int, interval: float, file: TextIO) -> None:
    """Run the cycles, write what NVML returned, and print what a cycle takes."""
    reader, recorder = NvmlReader(), Recorder()
    wall: list[float] = []
    spent = 0.0
    for number in range(cycle_count):
        if number:
            time.sleep(interval)
        begin, cpu = time.perf_counter(), time.process_time()
        readouts, problems = reader.read(time.time())
        wall.append(1e3 * (time.perf_counter() - begin))
        spent += 1e3 * (time.process_time() - cpu)
        for problem in problems:
            print(f"cycle {number}: {problem}", file=sys.stderr)
        file.write(recorder.cycle())
    for readout in readouts:
        print(json.dumps(to_jsonable_python(readout), indent=1))
    reader.close()
    first, *rest = wall
    print(f"driver {recorder.state['driver']}, {recorder.state['count']} GPUs, {len(wall)} cycles")
    print(f"first cycle (opens the library): {first:.2f} ms")
    late = sorted(rest)[math.ceil(0.99 * len(rest)) - 1]
    print(f"a cycle: median {statistics.median(rest):.2f} ms, P99 {late:.2f} ms, most {max(rest):.2f} ms")
    print(f"CPU: {spent / len(wall):.2f} ms a cycle")
    print("memory in bytes: GPU, total, used (v1), used (v2), reserved, total minus free")
    for row in memory_versions(recorder.state):
        print("  " + ", ".join(map(str, row)))


def main() -> int:
    parser = common.build_parser(__doc__, cycles=60, interval=1.0, record=Path("/dev/null"))
    arguments = parser.parse_args()
    if arguments.cycles < 2:
        parser.error("--cycles must be at least 2: the first one opens the library")
    try:
        pynvml.nvmlInit()
        count = pynvml.nvmlDeviceGetCount()
    except pynvml.NVMLError as error:
        count, reason = 0, str(error)
    else:
        reason = "NVML runs, but shows no GPU"
    if not count:
        print(f"nothing was measured: {reason}", file=sys.stderr)
        return 1
    with arguments.record.open("w", encoding="ascii") as file:
        measure(arguments.cycles, arguments.interval, file)
    pynvml.nvmlShutdown()
    return 0


if __name__ == "__main__":
    sys.exit(main())
