"""Calls of NVML with their errors, and the common base of a whole GPU and a MIG instance.

Every call goes through ``ask``. Add an error code of a newer nvidia-ml-py to ``CODES``; the tests fail until then.
"""

import ctypes
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from types import MappingProxyType
from typing import Any

import pynvml

from rules.telemetry.snapshots import GpuReadout


class NvmlErrorKind(StrEnum):
    """Consequence of an NVML error."""

    GAP = "gap"
    """Capability that this GPU or driver lacks; remembered."""
    PERMISSION = "permission"
    """Missing permission; remembered like a capability."""
    NOTHING = "nothing"
    """No value at the moment: a gap of this cycle only."""
    LOST = "lost"
    """Failing GPU: no readout in this cycle, retried in the next."""
    LIBRARY = "library"
    """Unusable library or driver: no GPU is read until the library is opened again."""
    BUG = "bug"
    """Wrong call of sizewatch: no readout in this cycle, reported as a defect."""


CODES: Mapping[int, tuple[NvmlErrorKind, str]] = MappingProxyType(
    {
        1: (NvmlErrorKind.LIBRARY, "NVML is not open"),
        2: (NvmlErrorKind.BUG, "invalid argument"),
        3: (NvmlErrorKind.GAP, "not supported"),
        4: (NvmlErrorKind.PERMISSION, "not permitted"),
        5: (NvmlErrorKind.BUG, "already initialised"),
        6: (NvmlErrorKind.NOTHING, "not found"),
        7: (NvmlErrorKind.NOTHING, "more than fitted was given"),
        8: (NvmlErrorKind.LOST, "external power is not attached properly"),
        9: (NvmlErrorKind.LIBRARY, "the NVIDIA driver is not loaded"),
        10: (NvmlErrorKind.LOST, "timeout inside the driver"),
        11: (NvmlErrorKind.LOST, "interrupt trouble"),
        12: (
            NvmlErrorKind.LIBRARY,
            "libnvidia-ml.so.1 was not found: no NVIDIA driver here, or the container was not given it",
        ),
        13: (NvmlErrorKind.GAP, "not offered"),
        14: (NvmlErrorKind.LOST, "its infoROM is corrupted"),
        15: (NvmlErrorKind.LOST, "it is lost (fallen off the bus or otherwise out of reach)"),
        16: (NvmlErrorKind.LOST, "it needs a reset"),
        17: (NvmlErrorKind.LOST, "the operating system blocked the request"),
        18: (
            NvmlErrorKind.LIBRARY,
            "driver and libnvidia-ml.so.1 differ in version: restart sizewatch after a driver upgrade",
        ),
        19: (NvmlErrorKind.LOST, "it is in use"),
        20: (NvmlErrorKind.LOST, "out of memory inside the driver"),
        21: (NvmlErrorKind.NOTHING, "no data given"),
        22: (NvmlErrorKind.GAP, "ECC under vGPU not supported"),
        23: (NvmlErrorKind.LOST, "the driver ran out of resources"),
        24: (NvmlErrorKind.GAP, "that frequency not supported"),
        25: (NvmlErrorKind.GAP, "that structure version not accepted"),
        26: (NvmlErrorKind.GAP, "no longer offered"),
        27: (NvmlErrorKind.LOST, "it is not ready"),
        28: (NvmlErrorKind.LOST, "it was not found"),
        29: (NvmlErrorKind.LOST, "it is in an invalid state"),
        30: (NvmlErrorKind.GAP, "that reset type not supported"),
        999: (NvmlErrorKind.LOST, "unknown error inside the driver"),
    }
)
"""NVML error code -> kind and words; codes as in nvidia-ml-py 13.615.71 (``NVML_ERROR_*``)."""

CAPABILITY = frozenset({NvmlErrorKind.GAP, NvmlErrorKind.PERMISSION})
"""Permanent errors. They are remembered, and another call may still give the value."""
ABSENT = CAPABILITY | {NvmlErrorKind.NOTHING}
"""Errors that leave out one value and nothing else."""

TIMEOUT = 10
"""Code of a wait without an event, and of a call that the driver did not answer in time."""

FACTS_SECONDS = 300.0
"""Lifetime in seconds of capability facts and the power limit, which rarely change."""

MEMORY = ("gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_memory_reserved_bytes")

VALUE_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""NVML value type (``NVML_VALUE_TYPE_*``) -> member of the union of samples and field values."""


class NvmlRefusedError(Exception):
    """Failed call of NVML. ``code`` is None if NVML gave none."""

    def __init__(self, call: str, kind: NvmlErrorKind, words: str, code: int | None = None) -> None:
        super().__init__(
            f"{words} ({call})" if kind is not NvmlErrorKind.BUG else f"{words} ({call}): please report this"
        )
        self.call = call
        self.kind = kind
        self.words = words
        self.code = code


def refusal(call: str, code: int) -> NvmlRefusedError:
    """Return the error for a code that NVML returned for ``call``, or in a part of its result."""
    # A code of a newer driver costs the GPU this cycle and is named.
    kind, words = CODES.get(code, (NvmlErrorKind.LOST, f"NVML error {code}, unknown to sizewatch"))
    return NvmlRefusedError(call, kind, words, code)


def ask(call: str, *arguments: Any, **options: Any) -> Any:
    """Call the function of pynvml named ``call``. Raise NvmlRefusedError for every error of NVML or its binding."""
    function = getattr(pynvml, call, None)
    if function is None:
        raise NvmlRefusedError(call, NvmlErrorKind.GAP, "not known to the installed nvidia-ml-py and so not given")
    try:
        return function(*arguments, **options)
    except pynvml.NVMLError as error:
        raise refusal(call, error.value) from error
    except (OSError, ValueError, ctypes.ArgumentError) as error:
        raise NvmlRefusedError(call, NvmlErrorKind.BUG, f"{type(error).__name__}: {error}") from error


def ask_text(absent: str, call: str, *arguments: Any) -> str:
    """Call ``call`` and return its result as text, or ``absent`` if the driver has none."""
    try:
        return str(ask(call, *arguments))
    except NvmlRefusedError as refused:
        if refused.kind not in ABSENT:
            raise
        return absent


@dataclass(slots=True)
class ReadoutBuilder:
    """Values of one cycle before they become a readout."""

    counters: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    gaps: dict[str, str] = field(default_factory=dict)
    sampled: set[str] = field(default_factory=set)


def member_of(value_type: int, call: str) -> str:
    """Return the union member of a value type. Raise NvmlRefusedError (bug) for an unknown type."""
    if value_type not in VALUE_MEMBERS:
        raise NvmlRefusedError(call, NvmlErrorKind.BUG, f"sample values of the unknown type {value_type}")
    return VALUE_MEMBERS[value_type]


def address(handle: Any) -> int:
    """Return the address of a handle. It identifies the GPU until the library is closed."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


class NvmlDevice:
    """Device with a handle. Every method may raise NvmlRefusedError of the kinds lost, library and bug."""

    def __init__(self, *, uuid: str, product: str, driver: str) -> None:
        self.uuid = uuid
        self.product = product
        self.driver = driver
        self.index: int | None = None
        self.handle: Any = None
        self._facts: dict[str, tuple[NvmlErrorKind, str]] = {}
        self._facts_until = float("-inf")

    def forget(self) -> None:
        """Drop the capability facts."""
        self._facts.clear()
        self._facts_until = float("-inf")

    def renew(self, at: float) -> None:
        """Drop old facts before a cycle. ``at`` is the reader's clock."""
        if at >= self._facts_until:
            self.forget()
            self._facts_until = at + FACTS_SECONDS

    def ask(self, call: str, *arguments: Any, fact: str = "", **options: Any) -> Any:
        """Call a function for this device. A missing capability is asked for once and then remembered.

        ``fact`` separates calls of one function that may differ in capability.
        """
        known = f"{call}{options or ''}{fact}"
        if known in self._facts:
            raise NvmlRefusedError(call, *self._facts[known])
        try:
            return ask(call, self.handle, *arguments, **options)
        except NvmlRefusedError as refused:
            if refused.kind in CAPABILITY:
                self._facts[known] = (refused.kind, refused.words)
            raise

    def remember(self, call: str, words: str) -> NvmlRefusedError:
        """Remember a result as a missing capability and return its error."""
        self._facts[call] = (NvmlErrorKind.GAP, words)
        return NvmlRefusedError(call, NvmlErrorKind.GAP, words)

    def leave_out(self, builder: ReadoutBuilder, names: tuple[str, ...], refused: NvmlRefusedError) -> None:
        """Add gaps for absent values. Raise any other error."""
        if refused.kind not in ABSENT:
            raise refused
        builder.gaps.update(dict.fromkeys(names, f"{refused.words} by {self.product} (driver {self.driver})"))

    def read_memory(self, builder: ReadoutBuilder) -> None:
        """Read used, total and reserved bytes, from version 2 of the call or else from version 1."""
        # Used is total minus free: drivers disagree whether `used` of version 2 includes the reserved part.
        try:
            info = self.ask("nvmlDeviceGetMemoryInfo", version=pynvml.nvmlMemory_v2)
            builder.gauges["gpu_memory_reserved_bytes"] = float(info.reserved)
        except NvmlRefusedError as newer:
            try:
                if newer.kind not in CAPABILITY:
                    raise
                info = self.ask("nvmlDeviceGetMemoryInfo")
                self.leave_out(builder, MEMORY[2:], newer)
            except NvmlRefusedError as refused:
                self.leave_out(builder, MEMORY, refused)
                return
        builder.gauges["gpu_memory_used_bytes"] = float(info.total - info.free)
        builder.gauges["gpu_memory_total_bytes"] = float(info.total)

    def read_pids(self, builder: ReadoutBuilder) -> tuple[int, ...]:
        """Return the host process ids of its compute processes."""
        try:
            return tuple(sorted({int(p.pid) for p in self.ask("nvmlDeviceGetComputeRunningProcesses")}))
        except NvmlRefusedError as refused:
            self.leave_out(builder, ("pids",), refused)
            return ()

    def readout(self, t: float, builder: ReadoutBuilder, pids: tuple[int, ...]) -> GpuReadout:
        """Return the values as one record. ``t`` is unix seconds."""
        return GpuReadout(
            t=t,
            gpu=self.uuid,
            index=self.index,
            product=self.product,
            counters=builder.counters,
            gauges=builder.gauges,
            gaps=builder.gaps,
            sampled=frozenset(builder.sampled),
            pids=pids,
        )
