"""Faults that the driver reports (XID), as events: each is seen once, also when the same code comes again.

Owns the event set: registering GPUs, draining it once a turn, giving it back. Must not count: the sums are each GPU's
own. NVML has no call that tells past faults, so what happened before a GPU was registered is not known. Only XIDs are
registered: an uncorrectable memory error brings one of its own (48), and counting both would count it twice.

For a GPU with MIG on, events name the instance they concern; without privilege the driver reports only those that
concern the whole GPU (NVML reference, nvmlEventSetWait_v2).
"""

import logging
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
from agent.gpu.nvml_sums import FaultSum

MOST_EVENTS = 200
"""Events taken in one turn: a GPU that reports without end must not hold the turn up. The rest come in the next."""

WAIT_MILLISECONDS = 1
"""How long a call waits for the next fault. Not 0: NVIDIA's own bindings differ whether that is at once or for ever."""

WHOLE_GPU = 0xFFFFFFFF
"""The instance that an event names when it concerns none or all (``NVML_GPU_INSTANCE_ID_ANY``)."""

FAULTS = "gpu_fault_events"
BY_CODE = "gpu_fault_events_by_code"

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class XidFault:
    """One reported fault: the address of the GPU's handle, the MIG instance or None for the whole GPU, the XID."""

    gpu: int
    instance: int | None
    xid: int


class FaultEvents:
    """The event set of an open library."""

    def __init__(self) -> None:
        self._set: Any = None
        self._watched: set[int] = set()
        self._refused: NvmlRefusedError | None = None

    def watch(self, gpu: NvmlDevice) -> None:
        """From now on collect the faults of this GPU; does nothing where they are collected already.

        Raises NvmlRefusedError: of a capability where NVML or this GPU does not report faults.
        """
        if address(gpu.handle) in self._watched:
            return
        if self._refused is not None:
            raise self._refused
        if self._set is None:
            self._set = ask("nvmlEventSetCreate")
        gpu.ask("nvmlDeviceRegisterEvents", pynvml.nvmlEventTypeXidCriticalError, self._set)
        self._watched.add(address(gpu.handle))

    def collect(self) -> tuple[tuple[XidFault, ...], str]:
        """Faults since the last call, in order, and in words what was wrong. Waits a millisecond.

        Raises NvmlRefusedError of the kind library.
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
        """Give the set back, so that every GPU is registered again; to be done before the library is closed."""
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


def add_faults(answers: ReadoutBuilder, faults: FaultSum, why_not: str) -> None:
    """Fill in the faults so far, zero included; or, where they cannot be seen, why not."""
    if why_not:
        answers.gaps.update(dict.fromkeys((FAULTS, BY_CODE), why_not))
        return
    answers.counters[FAULTS] = faults.count
    answers.counters.update({f"{BY_CODE}/xid-{xid}": count for xid, count in sorted(faults.by_code.items())})
