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

from agent.gpu.nvml_device import (
    CAPABILITY,
    TIMEOUT,
    NvmlDevice,
    NvmlErrorKind,
    NvmlRefusedError,
    ReadoutBuilder,
    address,
    ask,
)

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
        self._refused: NvmlRefusedError | None = None

    def watch(self, gpu: NvmlDevice) -> None:
        """Register a GPU once. Raise NvmlRefusedError of a capability if NVML or the GPU reports no faults."""
        if address(gpu.handle) in self._watched:
            return
        if self._refused is not None:
            raise self._refused
        if self._set is None:
            self._set = ask("nvmlEventSetCreate")
        gpu.ask("nvmlDeviceRegisterEvents", pynvml.nvmlEventTypeXidCriticalError, self._set)
        self._watched.add(address(gpu.handle))

    def collect(self) -> tuple[tuple[XidFault, ...], str]:
        """Return the faults since the last call, in order, and a problem as text. Wait a millisecond.

        Raise NvmlRefusedError of the kind library.
        """
        found: list[XidFault] = []
        try:
            for _ in range(MOST_EVENTS if self._watched else 0):
                event = ask("nvmlEventSetWait_v2", self._set, WAIT_MILLISECONDS)
                if event.eventType & pynvml.nvmlEventTypeXidCriticalError:
                    found.append(_fault(event))
        except NvmlRefusedError as refused:
            return tuple(found), self._stopped_by(refused)
        return tuple(found), ""

    def _stopped_by(self, refused: NvmlRefusedError) -> str:
        if refused.code == TIMEOUT:
            return ""
        self.free()
        if refused.kind is NvmlErrorKind.LIBRARY:
            raise refused
        if refused.kind in CAPABILITY:
            self._refused = refused
            return ""
        return f"NVML: {refused}; faults are not seen this turn, registered again"

    def free(self) -> None:
        """Free the set before the library is closed. Every GPU must be registered again."""
        events, self._set = self._set, None
        self._watched.clear()
        if events is None:
            return
        try:
            ask("nvmlEventSetFree", events)
        except NvmlRefusedError as refused:
            _log.info('freeing the NVML event set failed error="%s"', refused)


def _fault(event: Any) -> XidFault:
    instance = None if event.gpuInstanceId == WHOLE_GPU else int(event.gpuInstanceId)
    return XidFault(gpu=address(event.device), instance=instance, xid=int(event.eventData))


def add_faults(builder: ReadoutBuilder, faults: Counter[int], why_not: str) -> None:
    """Add the number of faults, also zero. Add gaps if they are not reported."""
    if why_not:
        builder.gaps.update(dict.fromkeys((FAULTS, BY_CODE), why_not))
        return
    builder.counters[FAULTS] = faults.total()
    builder.counters.update({f"{BY_CODE}/xid-{xid}": count for xid, count in sorted(faults.items())})
