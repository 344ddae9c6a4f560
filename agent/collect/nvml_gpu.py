"""One GPU behind NVML: its handle, what it cannot do, its running sums, and one readout a turn.

Owns which call answers which name, and what to ask instead where a driver or product lacks it. Must not open the
library, keep time or catch a lost GPU: that is ``nvml``. A new quantity is a method here and a row of ``GPU_NAMES``.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import pynvml

from agent.collect.nvml_errors import ABSENT, CAPABILITY, Kind, NvmlRefusedError, ask
from agent.collect.nvml_sums import LONGEST_SAMPLE_SECONDS, BusySum, EnergySum
from rules.gpu_readout import GpuReadout

FACTS_SECONDS = 300.0
"""How long a capability fact and the power limit are believed: MIG mode and limits are changed by hand, rarely."""

BUSY = ("gpu_busy_seconds", "gpu_busy_covered_seconds")
ENERGY = ("gpu_energy_joules", "gpu_energy_covered_seconds")
MEMORY = ("gpu_memory_used_bytes", "gpu_memory_total_bytes", "gpu_memory_reserved_bytes")

VALUE_MEMBERS = {0: "dVal", 1: "uiVal", 2: "ulVal", 3: "ullVal", 4: "sllVal", 5: "siVal", 6: "usVal"}
"""NVML value type (``NVML_VALUE_TYPE_*``) -> member of the sample's union. Utilisation comes as 1 today."""


@dataclass(slots=True)
class _Answers:
    counters: dict[str, float] = field(default_factory=dict)
    gauges: dict[str, float] = field(default_factory=dict)
    gaps: dict[str, str] = field(default_factory=dict)
    sampled: set[str] = field(default_factory=set)


class NvmlGpu:
    """One GPU. Every method may raise NvmlRefusedError of the kinds lost, library and bug."""

    def __init__(self, *, uuid: str, product: str, driver: str) -> None:
        self.uuid = uuid
        self.product = product
        self.driver = driver
        self.index: int | None = None
        self.handle: Any = None
        self._facts: dict[str, tuple[Kind, str]] = {}
        self._limit: float | None = None
        self._facts_until = 0.0
        self._busy = BusySum()
        self._energy = EnergySum()

    @property
    def label(self) -> str:
        """How problems name it."""
        return f"GPU {self.index} ({self.uuid}, {self.product})"

    def acquire(self, handle: Any, *, index: int | None = None, driver: str | None = None) -> None:
        """Take a fresh handle; what was known about capabilities is forgotten, the sums go on."""
        self.handle = handle
        self.index = self.index if index is None else index
        self.driver = driver or self.driver
        self._facts_until = 0.0
        self._facts.clear()

    def lose(self) -> None:
        """Drop the handle; time until it is back is covered by nothing."""
        self.handle = None
        self._busy.interrupt()
        self._energy.interrupt()

    def read(self, clock: Callable[[], float], unix_offset: float) -> GpuReadout:
        """Ask for everything that changes. ``clock() + unix_offset`` is unix time."""
        if clock() >= self._facts_until:
            self._facts.clear()
            self._limit = None
            self._facts_until = clock() + FACTS_SECONDS
        answers = _Answers()
        self._read_busy(answers, clock)
        self._read_energy(answers, clock)
        t = unix_offset + clock()
        self._read_memory(answers)
        self._read_temperature(answers)
        self._read_limit(answers)
        pids = self._read_pids(answers)
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

    def _ask(self, call: str, *arguments: Any, **options: Any) -> Any:
        """Ask about this GPU; a capability it lacks is asked for once and then remembered."""
        fact = f"{call}{options or ''}"
        if fact in self._facts:
            raise NvmlRefusedError(call, *self._facts[fact])
        try:
            return ask(call, self.handle, *arguments, **options)
        except NvmlRefusedError as refused:
            if refused.kind in CAPABILITY:
                self._facts[fact] = (refused.kind, refused.words)
            raise

    def _leave_out(self, answers: _Answers, names: tuple[str, ...], refused: NvmlRefusedError) -> None:
        if refused.kind not in ABSENT:
            raise refused
        answers.gaps.update(dict.fromkeys(names, f"{refused.words} by {self.product} (driver {self.driver})"))

    def _read_busy(self, answers: _Answers, clock: Callable[[], float]) -> None:
        try:
            supported, samples = True, self._new_samples()
        except NvmlRefusedError as refused:
            if refused.kind not in CAPABILITY:
                raise
            supported, samples = False, []
        if samples:
            self._busy.add_samples(samples, clock())
        elif not (supported and self._is_accounted_for(clock())) and not self._poll_busy(answers, clock):
            return
        answers.counters.update(zip(BUSY, (self._busy.busy_seconds, self._busy.covered_seconds), strict=True))

    def _is_accounted_for(self, at: float) -> bool:
        # The next sample may simply not be due yet.
        return self._busy.until is not None and at - self._busy.until <= LONGEST_SAMPLE_SECONDS

    def _poll_busy(self, answers: _Answers, clock: Callable[[], float]) -> bool:
        """Where there are no driver samples, or none came (the buffer of an idle GPU runs dry on some products)."""
        try:
            percent = self._ask("nvmlDeviceGetUtilizationRates").gpu
            if percent > 100:
                raise NvmlRefusedError("nvmlDeviceGetUtilizationRates", Kind.NOTHING, f"{percent} % busy was given")
        except NvmlRefusedError as refused:
            self._leave_out(answers, BUSY, refused)
            return False
        self._busy.add_poll(percent / 100.0, clock())
        answers.sampled.update(BUSY)
        return True

    def _new_samples(self) -> list[tuple[int, float]]:
        """Driver samples newer than the last one seen: (microseconds, ratio)."""
        last = self._busy.last_sample
        rows = self._samples_after(last or 0)
        if rows or last is None:
            return rows
        # None is newer. If the whole buffer is older, the driver's clock was set back: go on from there.
        self._busy.last_sample = max((stamp for stamp, _ in self._samples_after(0)), default=last)
        return []

    def _samples_after(self, stamp: int) -> list[tuple[int, float]]:
        try:
            value_type, samples = self._ask("nvmlDeviceGetSamples", pynvml.NVML_GPU_UTILIZATION_SAMPLES, stamp)
        except NvmlRefusedError as refused:
            if refused.kind is not Kind.NOTHING:
                raise
            return []
        if value_type not in VALUE_MEMBERS:
            raise NvmlRefusedError("nvmlDeviceGetSamples", Kind.BUG, f"sample values of the unknown type {value_type}")
        member = VALUE_MEMBERS[value_type]
        return [
            (int(row.timeStamp), getattr(row.sampleValue, member) / 100.0) for row in samples if row.timeStamp > stamp
        ]

    def _read_energy(self, answers: _Answers, clock: Callable[[], float]) -> None:
        try:
            self._energy.add_total(self._ask("nvmlDeviceGetTotalEnergyConsumption"), clock())
        except NvmlRefusedError as refused:
            if not self._poll_power(answers, clock, refused):
                return
        answers.counters.update(zip(ENERGY, (self._energy.joules, self._energy.covered_seconds), strict=True))

    def _poll_power(self, answers: _Answers, clock: Callable[[], float], why: NvmlRefusedError) -> bool:
        if why.kind not in CAPABILITY:
            self._leave_out(answers, ENERGY, why)
            return False
        try:
            watts = self._ask("nvmlDeviceGetPowerUsage") / 1e3
        except NvmlRefusedError as refused:
            self._leave_out(answers, (*ENERGY, "gpu_power_watts"), refused)
            return False
        self._energy.add_poll(watts, clock())
        answers.gauges["gpu_power_watts"] = watts
        answers.sampled.update((*ENERGY, "gpu_power_watts"))
        return True

    def _read_memory(self, answers: _Answers) -> None:
        # Used is total minus free in both versions: drivers disagree whether v2's own `used` holds the reserved part.
        try:
            info = self._ask("nvmlDeviceGetMemoryInfo", version=pynvml.nvmlMemory_v2)
            answers.gauges["gpu_memory_reserved_bytes"] = float(info.reserved)
        except NvmlRefusedError as newer:
            try:
                if newer.kind not in CAPABILITY:
                    raise
                info = self._ask("nvmlDeviceGetMemoryInfo")
                self._leave_out(answers, MEMORY[2:], newer)
            except NvmlRefusedError as refused:
                self._leave_out(answers, MEMORY, refused)
                return
        answers.gauges["gpu_memory_used_bytes"] = float(info.total - info.free)
        answers.gauges["gpu_memory_total_bytes"] = float(info.total)

    def _read_temperature(self, answers: _Answers) -> None:
        name = "gpu_temperature_celsius"
        try:
            try:
                celsius = self._ask("nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU)
            except NvmlRefusedError as newer:
                if newer.kind not in CAPABILITY:
                    raise
                celsius = self._ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)
        except NvmlRefusedError as refused:
            self._leave_out(answers, (name,), refused)
            return
        answers.gauges[name] = float(celsius)

    def _read_limit(self, answers: _Answers) -> None:
        name = "gpu_power_limit_watts"
        if self._limit is None:
            try:
                self._limit = self._ask("nvmlDeviceGetEnforcedPowerLimit") / 1e3
            except NvmlRefusedError as refused:
                self._leave_out(answers, (name,), refused)
                return
        answers.gauges[name] = self._limit

    def _read_pids(self, answers: _Answers) -> tuple[int, ...]:
        try:
            return tuple(sorted({int(p.pid) for p in self._ask("nvmlDeviceGetComputeRunningProcesses")}))
        except NvmlRefusedError as refused:
            self._leave_out(answers, ("pids",), refused)
            return ()
