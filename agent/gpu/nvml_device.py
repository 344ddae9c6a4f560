"""Calls of NVML with their errors, and the common base of a whole GPU and a MIG instance.

Every call goes through ``ask``. An error is of one of three sets, or it costs the GPU this cycle.
"""

import ctypes
from dataclasses import dataclass, field
from typing import Any

import pynvml

from rules.telemetry.snapshots import GpuReadout

UNSUPPORTED = frozenset({3, 4, 13, 22, 24, 25, 26, 30})
"""Codes of a value that this GPU, driver or user does not have. An older call may still give it."""

NO_DATA = frozenset({6, 7, 21})
"""Codes of a value that is missing at the moment."""

LIBRARY_LOST = frozenset({1, 9, 12, 18})
"""Codes after which the library must be opened again: no driver, or one of another version."""

INVALID_ARGUMENT, NOT_SUPPORTED, NO_PERMISSION, TIMEOUT = 2, 3, 4, 10

MEMORY = ("gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_memory_reserved_bytes")

VALUE_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""NVML value type (``NVML_VALUE_TYPE_*``) -> member of the union of samples and field values."""


class NvmlError(Exception):
    """Failed call of NVML. ``code`` is that of NVML (``NVML_ERROR_*``), None if NVML gave none."""

    def __init__(self, call: str, words: str, code: int | None = None) -> None:
        super().__init__(f"{words} ({call})")
        self.words = words
        self.code = code

    @property
    def is_unsupported(self) -> bool:
        return self.code in UNSUPPORTED

    @property
    def is_absent(self) -> bool:
        """Return whether the error leaves out one value and nothing else."""
        return self.code in UNSUPPORTED | NO_DATA

    @property
    def is_library_lost(self) -> bool:
        return self.code in LIBRARY_LOST


def error_from_code(call: str, code: int) -> NvmlError:
    """Return the error for a code that NVML returned for ``call``, or in a part of its result."""
    words = str(pynvml.NVMLError(code))
    if code in UNSUPPORTED:
        words = "not permitted" if code == NO_PERMISSION else "not supported"
    return NvmlError(call, words, code)


def ask(call: str, *arguments: Any) -> Any:
    """Call the function of pynvml named ``call``. Raise NvmlError for every error of NVML or its binding."""
    function = getattr(pynvml, call, None)
    if function is None:
        raise NvmlError(call, "not known to the installed nvidia-ml-py and so not given", NOT_SUPPORTED)
    try:
        return function(*arguments)
    except pynvml.NVMLError as error:
        raise error_from_code(call, error.value) from error
    except (OSError, ValueError, ctypes.ArgumentError) as error:
        raise NvmlError(call, f"{type(error).__name__}: {error}") from error


def ask_text(absent: str, call: str, *arguments: Any) -> str:
    """Call ``call`` and return its result as text, or ``absent`` if the driver has none."""
    try:
        return str(ask(call, *arguments))
    except NvmlError as error:
        if not error.is_absent:
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
    """Return the union member of a value type. Raise NvmlError for an unknown type."""
    if value_type not in VALUE_MEMBERS:
        raise NvmlError(call, f"values of the unknown type {value_type}")
    return VALUE_MEMBERS[value_type]


def address(handle: Any) -> int:
    """Return the address of a handle. It identifies the GPU until the library is closed."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


class NvmlDevice:
    """Device with a handle. Every method may raise an NvmlError that is not absent."""

    def __init__(self, *, uuid: str, product: str, driver: str) -> None:
        self.uuid = uuid
        self.product = product
        self.driver = driver
        self.index: int | None = None
        self.handle: Any = None

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
        """Return the reason of a gap."""
        return f"{words} by {self.product} (driver {self.driver})"

    def read_memory(self, builder: ReadoutBuilder) -> None:
        """Read used, total and reserved bytes, from version 2 of the call or else from version 1."""
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

    def read_pids(self, builder: ReadoutBuilder) -> tuple[int, ...]:
        """Return the host process ids of its compute processes."""
        processes = self.try_read(builder, ("pids",), ("nvmlDeviceGetComputeRunningProcesses",))
        return tuple(sorted({int(process.pid) for process in processes or ()}))

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
