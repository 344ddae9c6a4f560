"""What a whole GPU and a MIG instance have in common: one way to read a value or note its absence, and reported faults.

Faults are events (XID). NVML has no call for past faults: those before the registration of a GPU are unknown. Only XIDs
are registered. An uncorrectable memory error also causes an XID (48) and would be counted twice. With MIG on, an event
names its instance. Without privilege the driver reports only events of the whole GPU (NVML reference, nvmlEventSetWait_v2).
"""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import pynvml

from agent.gpu.nvml_calls import TIMEOUT, NvmlError, address, ask, give_back
from agent.gpu.nvml_gpm import GpmActivity
from rules.gpu_sources.devices import BY_CODE, FAULTS
from rules.telemetry.snapshots import GpuReadout

MEMORY = ("gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_memory_reserved_bytes")


@dataclass(slots=True)
class ReadoutBuilder:
    """Values of one cycle before they become a readout."""

    counters: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    gaps: dict[str, str] = field(default_factory=dict)
    sampled: set[str] = field(default_factory=set)


class NvmlDevice:
    """Device with a handle. Every method may raise an NvmlError that is not absent."""

    def __init__(self, *, uuid: str, product: str, driver: str, instance: int | None = None) -> None:
        self.uuid = uuid
        self.product = product
        self.driver = driver
        self.instance = instance
        """Number of the GPU instance, which the driver reuses. None for a whole GPU."""
        self.index: int | None = None
        self.handle: Any = None
        self.faults = Counter[int]()
        self._activity = GpmActivity(instance)

    def ask(self, call: str, *arguments: Any) -> Any:
        """Call a function for this device. Raise NvmlError, also an absent one."""
        return ask(call, self.handle, *arguments)

    def try_read(self, builder: ReadoutBuilder, names: tuple[str, ...], *calls: tuple[Any, ...]) -> Any:
        """Return the result of the first call that is supported. Add gaps and return None without a value.

        Each call is the name of a function and its arguments, the newest first.
        """
        for call, *arguments in calls:
            try:
                return self.ask(call, *arguments)
            except NvmlError as error:
                refused = error
                if not error.is_unsupported:
                    break
        self.leave_out(builder, names, refused)
        return None

    def leave_out(self, builder: ReadoutBuilder, names: tuple[str, ...], error: NvmlError) -> None:
        """Add gaps for absent values. Raise any other error."""
        if not error.is_absent:
            raise error
        builder.gaps.update(dict.fromkeys(names, self.gap(error.words)))

    def gap(self, words: str) -> str:
        """Return the reason of a gap, of the type of `words`."""
        return type(words)(f"{words} by {self.product} (driver {self.driver})")

    def interrupt(self) -> None:
        """Start again, and give back what the library lent: the time without access is not covered."""
        self._activity.interrupt()

    def finish_readout(
        self, builder: ReadoutBuilder, t: float, no_faults: str, whole: "NvmlDevice", clock: Callable[[], float]
    ) -> GpuReadout:
        """Read what an instance has too, and return all values as one record. ``t`` is unix seconds.

        ``no_faults`` is why faults are not reported, or empty; ``whole`` is the GPU of the instance, or the GPU itself.
        """
        self._read_memory(builder)
        processes = self.try_read(builder, ("pids",), ("nvmlDeviceGetComputeRunningProcesses",))
        if no_faults:
            builder.gaps.update(dict.fromkeys((FAULTS, BY_CODE), no_faults))
        else:
            builder.counters[FAULTS] = self.faults.total()
            builder.counters.update({f"{BY_CODE}/xid-{xid}": count for xid, count in sorted(self.faults.items())})
        # Last: some drivers refuse memory for a while after GPM.
        for name, value in self._activity.read(whole.handle, clock()).items():
            if isinstance(value, str):
                builder.gaps[name] = self.gap(value)
            else:
                builder.gauges[name] = value
        return GpuReadout(
            t=t,
            gpu=self.uuid,
            index=self.index,
            product=self.product,
            counters=builder.counters,
            gauges=builder.gauges,
            gaps=builder.gaps,
            sampled=frozenset(builder.sampled),
            pids=tuple(sorted({int(process.pid) for process in processes or ()})),
        )

    def _read_memory(self, builder: ReadoutBuilder) -> None:
        call = "nvmlDeviceGetMemoryInfo"
        info = self.try_read(builder, MEMORY, (call, pynvml.nvmlMemory_v2), (call,))
        if info is None:
            return
        # Used is total minus free: drivers disagree whether `used` of version 2 includes the reserved part.
        builder.gauges["gpu_memory_used_bytes"] = float(info.total - info.free)
        builder.gauges["gpu_memory_total_bytes"] = float(info.total)
        if hasattr(info, "reserved"):
            builder.gauges["gpu_memory_reserved_bytes"] = float(info.reserved)
        else:
            builder.gaps["gpu_memory_reserved_bytes"] = self.gap("not supported")


MOST_EVENTS = 200
"""Maximum number of events per cycle. The rest come in the next one."""

WAIT_MILLISECONDS = 1
"""Wait for the next fault. Not 0: NVIDIA's bindings differ whether that returns at once or never."""

WHOLE_GPU = 0xFFFFFFFF
"""Instance of an event that concerns none or all (``NVML_GPU_INSTANCE_ID_ANY``)."""


class XidFault(NamedTuple):
    """Reported fault. ``gpu`` is the address of the handle; ``instance`` is None for the whole GPU."""

    gpu: int
    instance: int | None
    xid: int


class FaultEvents:
    """Event set of an open library."""

    def __init__(self) -> None:
        self._set: Any = None
        self._refusals: dict[int, str] = {}
        """Why a GPU reports no faults, by address; empty if it is registered."""

    def watch(self, gpu: NvmlDevice) -> str:
        """Register a GPU once. Return the reason of a gap if NVML or the GPU reports no faults, else an empty text."""
        number = address(gpu.handle)
        if number not in self._refusals:
            try:
                self._set = self._set or ask("nvmlEventSetCreate")
                gpu.ask("nvmlDeviceRegisterEvents", pynvml.nvmlEventTypeXidCriticalError, self._set)
                self._refusals[number] = ""
            except NvmlError as error:
                if not error.is_unsupported:
                    raise
                self._refusals[number] = error.words
        words = self._refusals[number]
        return gpu.gap(words) if words else ""

    def collect(self) -> tuple[tuple[XidFault, ...], str]:
        """Return the faults since the last call, in order, and a problem as text. Wait a millisecond.

        Raise NvmlError if the library is lost.
        """
        faults: list[XidFault] = []
        problem = ""
        try:
            for _ in range(MOST_EVENTS if "" in self._refusals.values() else 0):
                event = ask("nvmlEventSetWait_v2", self._set, WAIT_MILLISECONDS)
                if event.eventType & pynvml.nvmlEventTypeXidCriticalError:
                    instance = None if event.gpuInstanceId == WHOLE_GPU else int(event.gpuInstanceId)
                    faults.append(XidFault(address(event.device), instance, int(event.eventData)))
        except NvmlError as error:
            if error.is_library_lost:
                raise
            if error.is_unsupported:
                self._refusals = dict.fromkeys(self._refusals, error.words)
            elif error.code != TIMEOUT:
                self.free()
                problem = f"NVML: {error}; faults are not seen this cycle, registered again"
        return tuple(faults), problem

    def free(self) -> None:
        """Free the set before the library is closed. Every GPU must be registered again."""
        if self._set is not None:
            give_back("nvmlEventSetFree", self._set)
        self._set = None
        self._refusals.clear()
