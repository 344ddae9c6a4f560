"""Reader of all GPUs of this machine through NVML, with a deadline per cycle.

A GPU costs 10 calls of the binding a cycle (docs/gpus.md). MIG mode and instances are read every 60 s, names once.
"""

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future, wait
from typing import Any, TypeVar

from agent.durations import Backoff
from agent.gpu.collector import GpuRead
from agent.gpu.nvml_calls import NvmlError, ask, ask_text, give_back
from agent.gpu.nvml_device import FaultEvents
from agent.gpu.nvml_gpu import NvmlGpu
from rules.telemetry.snapshots import GpuReadout

FIRST_RETRY_SECONDS = 10.0
LONGEST_RETRY_SECONDS = 300.0

T = TypeVar("T")


class NvmlReader:
    """Reader of all GPUs. A cycle ends within the deadline, whatever NVML does. ``clock`` is for durations.

    A driver can hang and cannot be interrupted, so each cycle has a daemon thread. While it hangs no other one starts.
    """

    def __init__(self, *, deadline_seconds: float = 5.0, clock: Callable[[], float] = time.monotonic) -> None:
        self._deadline = deadline_seconds
        self._machine = _Machine(clock)
        self._late: Future[Any] | None = None
        self._began = 0.0

    def read(self, now: float) -> GpuRead:
        """Return a readout for each GPU that answered, and problems as texts. ``now`` is unix seconds.

        A readout's ``t`` is ``now`` plus the time until its counters were read. A failing GPU loses its own readout,
        a failing library the GPUs not yet read. A hanging library costs the whole cycle, and later cycles.
        """
        if self._late is not None:
            if not self._late.done():
                seconds = time.monotonic() - self._began
                return (), (f"NVML has not answered for {seconds:.0f} s; waiting for the same call",)
            late, self._late = self._late, None
            # Its readouts are too old. A defect is raised.
            late.result()
        reading = self._start(lambda: self._machine.read(now))
        if not wait([reading], self._deadline).done:
            self._late = reading
            return (), (f"NVML did not answer within {self._deadline:g} s",)
        return reading.result()

    def close(self) -> None:
        """Shut the library down. A hanging library is left to its daemon thread."""
        if self._late is None or self._late.done():
            wait([self._start(self._machine.close)], self._deadline)

    def _start(self, job: Callable[[], T]) -> Future[T]:
        result: Future[T] = Future()

        def run() -> None:
            try:
                result.set_result(job())
            except BaseException as error:  # noqa: BLE001 (raised again by the reader)
                result.set_exception(error)

        self._began = time.monotonic()
        threading.Thread(target=run, name="nvml", daemon=True).start()
        return result


class _Machine:
    """NVML library and its GPUs, used in one thread at a time."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._is_open = False
        self._driver = "unknown"
        self._gpus: dict[str, NvmlGpu] = {}
        self._faults = FaultEvents()
        self._register_again = False
        self._unidentified: list[int] = []
        self._backoff = Backoff(FIRST_RETRY_SECONDS, LONGEST_RETRY_SECONDS)
        self._why_closed = ""

    def read(self, now: float) -> GpuRead:
        offset = now - self._clock()
        readouts: list[GpuReadout] = []
        problems: list[str] = []
        try:
            if not self._is_open and not self._open():
                return (), (self._why_closed,)
            self._identify(problems)
            self._collect_faults(problems)
            for gpu in sorted(self._gpus.values(), key=lambda gpu: (gpu.index or 0, gpu.uuid)):
                self._read_gpu(gpu, offset, readouts, problems)
        except NvmlError as error:
            problems.append(f"NVML: {error}; GPUs not read this cycle, opened again next cycle")
            self.close()
        return tuple(readouts), tuple(problems)

    def _open(self) -> bool:
        if not self._backoff.is_due(self._clock()):
            return False
        try:
            ask("nvmlInit")
            self._is_open = True
            self._unidentified = list(range(ask("nvmlDeviceGetCount")))
            self._driver = ask_text("of unknown version", "nvmlSystemGetDriverVersion")
            # A driver without a GPU is no error of NVML. Look again, but not in every cycle.
            trouble = "" if self._unidentified else "the driver runs but shows no GPU"
        except NvmlError as error:
            trouble = str(error)
        if not trouble:
            self._backoff = self._backoff.record_success()
            return True
        self.close()
        self._backoff = self._backoff.record_failure(self._clock())
        seconds = self._backoff.skip_until - self._clock()
        self._why_closed = f"NVML: {trouble}; no GPU is read, next try after {seconds:.0f} s"
        return False

    def _identify(self, problems: list[str]) -> None:
        """Find the GPU of every index of the driver. A known GPU keeps its sums."""
        left = []
        for index in self._unidentified:
            try:
                handle = ask("nvmlDeviceGetHandleByIndex", index)
                uuid = ask("nvmlDeviceGetUUID", handle)
                if uuid not in self._gpus:
                    product = ask_text("", "nvmlDeviceGetName", handle)
                    self._gpus[uuid] = NvmlGpu(uuid=uuid, product=product, driver=self._driver)
            except NvmlError as error:
                if error.is_library_lost:
                    raise
                left.append(index)
                problems.append(f"GPU {index}: {error}; tried again next cycle")
                continue
            gpu = self._gpus[uuid]
            gpu.acquire(handle)
            gpu.index, gpu.driver = index, self._driver
        self._unidentified = left

    def _collect_faults(self, problems: list[str]) -> None:
        faults, problem = self._faults.collect()
        problems.extend(filter(None, (problem,)))
        for gpu in self._gpus.values():
            gpu.note_faults(faults)
        if self._register_again:
            # The set is empty now. A GPU that came back may not be the registered one.
            self._faults.free()
            self._register_again = False

    def _read_gpu(self, gpu: NvmlGpu, offset: float, readouts: list[GpuReadout], problems: list[str]) -> None:
        try:
            if gpu.handle is None:
                gpu.acquire(ask("nvmlDeviceGetHandleByUUID", gpu.uuid))
                self._register_again = True
            own_readouts, own_problems = gpu.read(self._faults, self._clock, offset)
        except NvmlError as error:
            gpu.lose()
            if error.is_library_lost:
                raise
            problems.append(f"{gpu.label}: {error}; tried again next cycle")
            return
        readouts.extend(own_readouts)
        problems.extend(own_problems)

    def close(self) -> None:
        """Shut the library down completely. The GPUs keep their sums."""
        for gpu in self._gpus.values():
            gpu.lose()
        self._faults.free()
        if self._is_open:
            self._is_open = False
            give_back("nvmlShutdown")


def list_local_gpus() -> tuple[GpuReadout, ...]:
    """Return the GPUs of this machine. Empty without a driver."""
    reader = NvmlReader()
    try:
        return reader.read(time.time())[0]
    finally:
        reader.close()
