"""One whole GPU behind NVML: its running sums and one readout a turn.

Owns which call answers which name, and what to ask instead where a driver or product lacks it. Must not open the
library, keep time or catch a lost GPU: that is ``nvml`` and ``nvml_board``; memory and processes are ``nvml_device``'s,
throttling and memory errors ``nvml_health``'s, activity ``nvml_gpm``'s. A new quantity is a method here and a row of
``GPU_NAMES``.
"""

from collections.abc import Callable
from typing import Any

import pynvml

from agent.gpu.nvml_activity import GpmActivity
from agent.gpu.nvml_device import CAPABILITY, NvmlDevice, NvmlErrorKind, NvmlRefusedError, ReadoutBuilder, member_of
from agent.gpu.nvml_faults import add_faults
from agent.gpu.nvml_health import GpuHealthSums
from agent.gpu.nvml_sums import LONGEST_SAMPLE_SECONDS, BusySum, EnergySum, FaultSum
from rules.telemetry.snapshots import GpuReadout

BUSY = ("gpu_busy_seconds", "gpu_busy_covered_seconds")
ENERGY = ("gpu_energy_joules", "gpu_energy_covered_seconds")


class NvmlGpu(NvmlDevice):
    """One GPU. Every method may raise NvmlRefusedError of the kinds lost, library and bug."""

    def __init__(self, *, uuid: str, product: str, driver: str) -> None:
        super().__init__(uuid=uuid, product=product, driver=driver)
        self.faults = FaultSum()
        self._limit: float | None = None
        self._busy = BusySum()
        self._energy = EnergySum()
        self._health = GpuHealthSums()
        self._activity = GpmActivity()

    @property
    def label(self) -> str:
        """How problems name it."""
        return f"GPU {self.index} ({self.uuid}, {self.product})"

    def acquire(self, handle: Any, *, index: int | None = None, driver: str | None = None) -> None:
        """Take a fresh handle; what was known about capabilities is forgotten, the sums go on."""
        self.handle = handle
        self.index = self.index if index is None else index
        self.driver = driver or self.driver
        self.forget()

    def forget(self) -> None:
        """Believe no capability fact any longer, nor the power limit."""
        super().forget()
        self._limit = None

    def interrupt(self) -> None:
        """It is not read now; time until it is again is covered by nothing."""
        self._busy.interrupt()
        self._energy.interrupt()
        self._health.interrupt()
        self._activity.interrupt()

    def lose(self) -> None:
        """Drop the handle, and with it the stretch in hand."""
        self.handle = None
        self.interrupt()

    def free(self) -> None:
        """Give back what NVML lent; to be done before the library is closed."""
        self._activity.free()

    def read(self, clock: Callable[[], float], unix_offset: float, no_faults: str) -> GpuReadout:
        """Ask for everything that changes. ``clock() + unix_offset`` is unix time.

        ``no_faults`` says why faults cannot be seen; empty where they can.
        """
        answers = ReadoutBuilder()
        self._read_busy(answers, clock)
        self._read_energy(answers, clock)
        t = unix_offset + clock()
        self.read_memory(answers)
        self._read_temperature(answers)
        self._read_limit(answers)
        self._health.read(self, answers, clock)
        pids = self.read_pids(answers)
        add_faults(answers, self.faults, no_faults)
        # Last: on some drivers memory is refused for a while after GPM was asked.
        self._activity.read(self, self, answers, clock())
        return self.readout(t, answers, pids)

    def _read_busy(self, answers: ReadoutBuilder, clock: Callable[[], float]) -> None:
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

    def _poll_busy(self, answers: ReadoutBuilder, clock: Callable[[], float]) -> bool:
        """Return where there are no driver samples, or none came (the buffer of an idle GPU runs dry on some
        products)."""
        try:
            percent = self.ask("nvmlDeviceGetUtilizationRates").gpu
            if percent > 100:
                raise NvmlRefusedError(
                    "nvmlDeviceGetUtilizationRates", NvmlErrorKind.NOTHING, f"{percent} % busy was given"
                )
        except NvmlRefusedError as refused:
            self.leave_out(answers, BUSY, refused)
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
            value_type, samples = self.ask("nvmlDeviceGetSamples", pynvml.NVML_GPU_UTILIZATION_SAMPLES, stamp)
        except NvmlRefusedError as refused:
            if refused.kind is not NvmlErrorKind.NOTHING:
                raise
            return []
        member = member_of(value_type, "nvmlDeviceGetSamples")
        return [
            (int(row.timeStamp), getattr(row.sampleValue, member) / 100.0) for row in samples if row.timeStamp > stamp
        ]

    def _read_energy(self, answers: ReadoutBuilder, clock: Callable[[], float]) -> None:
        try:
            self._energy.add_total(self.ask("nvmlDeviceGetTotalEnergyConsumption"), clock())
        except NvmlRefusedError as refused:
            if not self._poll_power(answers, clock, refused):
                return
        answers.counters.update(zip(ENERGY, (self._energy.joules, self._energy.covered_seconds), strict=True))

    def _poll_power(self, answers: ReadoutBuilder, clock: Callable[[], float], why: NvmlRefusedError) -> bool:
        if why.kind not in CAPABILITY:
            self.leave_out(answers, ENERGY, why)
            return False
        try:
            watts = self.ask("nvmlDeviceGetPowerUsage") / 1e3
        except NvmlRefusedError as refused:
            self.leave_out(answers, (*ENERGY, "gpu_power_watts"), refused)
            return False
        self._energy.add_poll(watts, clock())
        answers.gauges["gpu_power_watts"] = watts
        answers.sampled.update((*ENERGY, "gpu_power_watts"))
        return True

    def _read_temperature(self, answers: ReadoutBuilder) -> None:
        name = "gpu_temperature_celsius"
        try:
            try:
                celsius = self.ask("nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU)
            except NvmlRefusedError as newer:
                if newer.kind not in CAPABILITY:
                    raise
                celsius = self.ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)
        except NvmlRefusedError as refused:
            self.leave_out(answers, (name,), refused)
            return
        answers.gauges[name] = float(celsius)

    def _read_limit(self, answers: ReadoutBuilder) -> None:
        name = "gpu_power_limit_watts"
        if self._limit is None:
            try:
                self._limit = self.ask("nvmlDeviceGetEnforcedPowerLimit") / 1e3
            except NvmlRefusedError as refused:
                self.leave_out(answers, (name,), refused)
                return
        answers.gauges[name] = self._limit
