"""Faults that the driver reports as events (XID).

NVML has no call for past faults: those before the registration of a GPU are unknown. Only XIDs are registered. An
uncorrectable memory error also causes an XID (48) and would be counted twice. With MIG on, an event names its instance.
Without privilege the driver reports only events of the whole GPU (NVML reference, nvmlEventSetWait_v2).
"""

import logging
from collections import Counter
from dataclasses import dataclass
from typing import Any

import pynvml

from agent.gpu.nvml_device import TIMEOUT, NvmlDevice, NvmlError, ReadoutBuilder, address, ask

MOST_EVENTS = 200
"""Maximum number of events per cycle. The rest come in the next one."""

WAIT_MILLISECONDS = 1
"""Wait for the next fault. Not 0: NVIDIA's bindings differ whether that returns at once or never."""

WHOLE_GPU = 0xFFFFFFFF
"""Instance of an event that concerns none or all (``NVML_GPU_INSTANCE_ID_ANY``)."""

FAULTS = "gpu_fault_events"
BY_CODE = "gpu_fault_events_by_code"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class XidFault:
    """Reported fault. ``gpu`` is the address of the handle; ``instance`` is None for the whole GPU."""

    gpu: int
    instance: int | None
    xid: int


class FaultEvents:
    """Event set of an open library."""

    def __init__(self) -> None:
        self._set: Any = None
        self._watched: set[int] = set()
        self._refused: dict[int, NvmlError] = {}
        self._refused_all: NvmlError | None = None

    def watch(self, gpu: NvmlDevice) -> str:
        """Register a GPU once. Return the reason of a gap if NVML or the GPU reports no faults, else an empty text."""
        number = address(gpu.handle)
        refused = self._refused_all or self._refused.get(number)
        if refused is None and number not in self._watched:
            try:
                self._set = self._set or ask("nvmlEventSetCreate")
                gpu.ask("nvmlDeviceRegisterEvents", pynvml.nvmlEventTypeXidCriticalError, self._set)
                self._watched.add(number)
            except NvmlError as error:
                if not error.is_unsupported:
                    raise
                refused = self._refused[number] = error
        return gpu.gap(refused.words) if refused is not None else ""

    def collect(self) -> tuple[tuple[XidFault, ...], str]:
        """Return the faults since the last call, in order, and a problem as text. Wait a millisecond.

        Raise NvmlError if the library is lost.
        """
        faults: list[XidFault] = []
        try:
            for _ in range(MOST_EVENTS if self._watched else 0):
                event = ask("nvmlEventSetWait_v2", self._set, WAIT_MILLISECONDS)
                if event.eventType & pynvml.nvmlEventTypeXidCriticalError:
                    instance = None if event.gpuInstanceId == WHOLE_GPU else int(event.gpuInstanceId)
                    faults.append(XidFault(gpu=address(event.device), instance=instance, xid=int(event.eventData)))
        except NvmlError as error:
            if error.code == TIMEOUT:
                return tuple(faults), ""
            self.free()
            if error.is_library_lost:
                raise
            if not error.is_unsupported:
                return tuple(faults), f"NVML: {error}; faults are not seen this cycle, registered again"
            self._refused_all = error
        return tuple(faults), ""

    def free(self) -> None:
        """Free the set before the library is closed. Every GPU must be registered again."""
        events, self._set = self._set, None
        self._watched.clear()
        self._refused.clear()
        if events is None:
            return
        try:
            ask("nvmlEventSetFree", events)
        except NvmlError as error:
            _log.info('freeing the NVML event set failed error="%s"', error)


def add_faults(builder: ReadoutBuilder, faults: Counter[int], why_not: str) -> None:
    """Add the number of faults, also zero. Add gaps if they are not reported."""
    if why_not:
        builder.gaps.update(dict.fromkeys((FAULTS, BY_CODE), why_not))
        return
    builder.counters[FAULTS] = faults.total()
    builder.counters.update({f"{BY_CODE}/xid-{xid}": count for xid, count in sorted(faults.items())})
