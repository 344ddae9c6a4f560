"""What a whole GPU and a MIG instance have in common: a handle, what it cannot do, its memory and its processes.

Owns the remembered capabilities and the words of a gap. Must not open the library, keep time or know what only one of
the two can be asked: that is ``nvml_gpu`` and ``nvml_mig``.

The one way to ask NVML anything, and what each of its refusals means.

Owns the funnel ``ask`` and the table from NVML's error codes to six kinds. Must not decide what to do about a refusal:
that is ``nvml_gpu`` (one GPU) and ``nvml`` (the library). A code that a newer nvidia-ml-py adds is a row of ``CODES``;
the tests fail until it is there.
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
    """What a refusal means for the one who asked."""

    GAP = "gap"
    """This GPU or driver never gives it: a capability, remembered."""
    PERMISSION = "permission"
    """We may not have it: remembered like a capability."""
    NOTHING = "nothing"
    """Nothing there just now: a gap of this turn only."""
    LOST = "lost"
    """The GPU does not answer as it should: costs it this turn, tried again in the next."""
    LIBRARY = "library"
    """Library or driver are not usable: every GPU is out until they are opened again."""
    BUG = "bug"
    """We asked wrongly. Costs the GPU this turn and is reported as our fault."""


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
"""Refusals that stay: worth remembering, and worth asking in another way."""
ABSENT = CAPABILITY | {NvmlErrorKind.NOTHING}
"""Refusals that leave a value out and nothing else."""


TIMEOUT = 10
"""What waiting for events answers when none came, and any other call when the driver did not answer it in time."""


class NvmlRefusedError(Exception):
    """NVML did not give what was asked: which call, which kind, in which words; its code where NVML gave one."""

    def __init__(self, call: str, kind: NvmlErrorKind, words: str, code: int | None = None) -> None:
        super().__init__(
            f"{words} ({call})" if kind is not NvmlErrorKind.BUG else f"{words} ({call}): please report this"
        )
        self.call = call
        self.kind = kind
        self.words = words
        self.code = code


def refusal(call: str, code: int) -> NvmlRefusedError:
    """What the code means that NVML returned for ``call``, or in a part of its answer."""
    # A code of a newer driver may be anything: that GPU loses its turn and the code is named.
    kind, words = CODES.get(code, (NvmlErrorKind.LOST, f"NVML error {code}, unknown to sizewatch"))
    return NvmlRefusedError(call, kind, words, code)


def ask(call: str, *arguments: Any, **options: Any) -> Any:
    """Call the function of pynvml named ``call``; every use of NVML goes through here.

    Raises NvmlRefusedError, and nothing else that NVML, its binding or a value it could not decode can cause.
    """
    function = getattr(pynvml, call, None)
    if function is None:
        raise NvmlRefusedError(call, NvmlErrorKind.GAP, "not known to the installed nvidia-ml-py and so not given")
    try:
        return function(*arguments, **options)
    except pynvml.NVMLError as error:
        raise refusal(call, error.value) from error
    except (OSError, ValueError, ctypes.ArgumentError) as error:
        raise NvmlRefusedError(call, NvmlErrorKind.BUG, f"{type(error).__name__}: {error}") from error


FACTS_SECONDS = 300.0
"""How long a capability fact and the power limit are believed: they are changed by hand, rarely."""

MEMORY = ("gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_memory_reserved_bytes")

VALUE_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""NVML value type (``NVML_VALUE_TYPE_*``) -> member of the union that samples and field values come in."""


@dataclass(slots=True)
class ReadoutBuilder:
    """What was answered in one turn, until it becomes a readout."""

    counters: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    gaps: dict[str, str] = field(default_factory=dict)
    sampled: set[str] = field(default_factory=set)


def member_of(value_type: int, call: str) -> str:
    """The union member a value of this type stands in. Raises NvmlRefusedError (bug) for a type nobody knows."""
    if value_type not in VALUE_MEMBERS:
        raise NvmlRefusedError(call, NvmlErrorKind.BUG, f"sample values of the unknown type {value_type}")
    return VALUE_MEMBERS[value_type]


def address(handle: Any) -> int:
    """The address behind a handle: the same GPU gives the same one until the library is closed."""
    return ctypes.cast(handle, ctypes.c_void_p).value or 0


class NvmlDevice:
    """Something with a handle. Every method may raise NvmlRefusedError of the kinds lost, library and bug."""

    def __init__(self, *, uuid: str, product: str, driver: str) -> None:
        self.uuid = uuid
        self.product = product
        self.driver = driver
        self.index: int | None = None
        self.handle: Any = None
        self._facts: dict[str, tuple[NvmlErrorKind, str]] = {}
        self._facts_until = float("-inf")

    def forget(self) -> None:
        """Believe no capability fact any longer."""
        self._facts.clear()
        self._facts_until = float("-inf")

    def renew(self, at: float) -> None:
        """Forget what was believed for too long; ``at`` is the reader's own clock. To be done before each turn."""
        if at >= self._facts_until:
            self.forget()
            self._facts_until = at + FACTS_SECONDS

    def ask(self, call: str, *arguments: Any, fact: str = "", **options: Any) -> Any:
        """Ask about this device; a capability it lacks is asked for once and then remembered.

        ``fact`` tells apart calls of one function of which one may be refused and another not.
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
        """Take an answer for a refusal: the call is not made again for some time, and refused in these words."""
        self._facts[call] = (NvmlErrorKind.GAP, words)
        return NvmlRefusedError(call, NvmlErrorKind.GAP, words)

    def leave_out(self, answers: ReadoutBuilder, names: tuple[str, ...], refused: NvmlRefusedError) -> None:
        """Make a gap of what may be absent; raise what costs the device its turn."""
        if refused.kind not in ABSENT:
            raise refused
        answers.gaps.update(dict.fromkeys(names, f"{refused.words} by {self.product} (driver {self.driver})"))

    def read_memory(self, answers: ReadoutBuilder) -> None:
        """Used, total and reserved bytes, from version 2 of the call or else from version 1."""
        # Used is total minus free in both versions: drivers disagree whether v2's own `used` holds the reserved part.
        try:
            info = self.ask("nvmlDeviceGetMemoryInfo", version=pynvml.nvmlMemory_v2)
            answers.gauges["gpu_memory_reserved_bytes"] = float(info.reserved)
        except NvmlRefusedError as newer:
            try:
                if newer.kind not in CAPABILITY:
                    raise
                info = self.ask("nvmlDeviceGetMemoryInfo")
                self.leave_out(answers, MEMORY[2:], newer)
            except NvmlRefusedError as refused:
                self.leave_out(answers, MEMORY, refused)
                return
        answers.gauges["gpu_memory_used_bytes"] = float(info.total - info.free)
        answers.gauges["gpu_memory_total_bytes"] = float(info.total)

    def read_pids(self, answers: ReadoutBuilder) -> tuple[int, ...]:
        """Host process ids of its compute processes."""
        try:
            return tuple(sorted({int(p.pid) for p in self.ask("nvmlDeviceGetComputeRunningProcesses")}))
        except NvmlRefusedError as refused:
            self.leave_out(answers, ("pids",), refused)
            return ()

    def readout(self, t: float, answers: ReadoutBuilder, pids: tuple[int, ...]) -> GpuReadout:
        """What was answered, as one record; ``t`` is unix seconds."""
        return GpuReadout(
            t=t,
            gpu=self.uuid,
            index=self.index,
            product=self.product,
            counters=answers.counters,
            gauges=answers.gauges,
            gaps=answers.gaps,
            sampled=frozenset(answers.sampled),
            pids=pids,
        )
