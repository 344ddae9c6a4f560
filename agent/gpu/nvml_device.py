"""Common base of a whole GPU and a MIG instance: what both have, and one way to read a value or note its absence."""

from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml

from agent.gpu.nvml_calls import NvmlError, ask
from agent.gpu.nvml_gpm import GpmActivity
from rules.telemetry.snapshots import GpuReadout

MEMORY = ("gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_memory_reserved_bytes")

FAULTS, BY_CODE = "gpu_fault_events", "gpu_fault_events_by_code"


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
