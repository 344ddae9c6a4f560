"""Faults that the driver reports as events (XID).

NVML has no call for past faults: those before the registration of a GPU are unknown. Only XIDs are registered. An
uncorrectable memory error also causes an XID (48) and would be counted twice. With MIG on, an event names its instance.
Without privilege the driver reports only events of the whole GPU (NVML reference, nvmlEventSetWait_v2).
"""

from typing import Any, NamedTuple

import pynvml

from agent.gpu.nvml_calls import TIMEOUT, NvmlError, address, ask, give_back
from agent.gpu.nvml_device import NvmlDevice

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
