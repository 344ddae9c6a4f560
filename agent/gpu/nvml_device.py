"""What a whole GPU and a MIG instance have in common: a handle, what it cannot do, its memory and its processes.

Owns the remembered capabilities and the words of a gap. Must not open the library, keep time or know what only one of
the two can be asked: that is ``nvml_gpu`` and ``nvml_mig``.
"""

import ctypes
from dataclasses import dataclass, field
from typing import Any

import pynvml

from agent.gpu.nvml_errors import ABSENT, CAPABILITY, NvmlErrorKind, NvmlRefusedError, ask
from rules.telemetry.gpu_readout import GpuReadout

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
