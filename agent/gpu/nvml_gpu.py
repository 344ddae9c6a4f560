"""Physical GPU, read as a whole or as its MIG instances: running sums, and readouts of each cycle.

A new quantity needs a method here and a row of `rules/telemetry/families.toml`.

MIG mode and instances are read again every minute and after every error, because they change at run time. A GPU with
MIG on is no GPU itself: nothing can run on it. Power, temperature and throttling of the whole GPU are gaps of an
instance, because their sum would be wrong. Add a value that an instance lacks to ``WHOLE``.

Two compute instances may share one GPU instance, and then its memory and activity. A fault of the whole GPU is counted
by each instance.
"""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from struct import Struct
from typing import Any

import pynvml

from agent.gpu.nvml_calls import INVALID_ARGUMENT, NO_DATA, NvmlError, address, ask, ask_text, value_format
from agent.gpu.nvml_device import FaultEvents, NvmlDevice, ReadoutBuilder, XidFault
from agent.gpu.nvml_health import ERRORS, THROTTLING, GpuHealthSums
from agent.gpu.nvml_sums import LONGEST_SAMPLE_SECONDS, BusySum, EnergySum
from rules.telemetry.snapshots import GpuReadout

BUSY = ("gpu_busy_seconds", "gpu_busy_covered_seconds")
ENERGY = ("gpu_energy_joules", "gpu_energy_covered_seconds")

WHOLE = (*ENERGY, *THROTTLING, *ERRORS, "gpu_temperature_celsius", "gpu_power_limit_watts")
"""Values of the whole GPU only."""

INSTANCE_GAPS = dict.fromkeys(BUSY, "not measured where MIG is on; gpu_gr_engine_active is") | dict.fromkeys(
    WHOLE, "measured for the whole GPU, not for an instance"
)

NO_INSTANCE = NO_DATA | {INVALID_ARGUMENT}
"""Codes of a place without an instance: `not found` of most drivers, `invalid argument` of some."""

MIG_SECONDS = 60.0
"""Lifetime of the list of instances."""

Clock = Callable[[], float]

_log = logging.getLogger(__name__)


class NvmlGpu(NvmlDevice):
    """Physical GPU. Every method but ``note_faults`` may raise an NvmlError that is not absent."""

    def __init__(self, *, uuid: str, product: str, driver: str) -> None:
        super().__init__(uuid=uuid, product=product, driver=driver)
        self._busy = BusySum()
        self._energy = EnergySum()
        self._health = GpuHealthSums()
        self._instances: dict[str, NvmlDevice] | None = None
        """By UUID. None where MIG is off."""
        self._listed_at: float | None = None
        self._address = 0

    @property
    def label(self) -> str:
        """Return its name in problems."""
        return f"GPU {self.index} ({self.uuid}, {self.product})"

    def acquire(self, handle: Any) -> None:
        """Set a new handle. Instances are listed again; sums continue."""
        self.handle, self._address, self._listed_at = handle, address(handle), None

    def lose(self) -> None:
        """Drop the handle. The time until the next one is not covered."""
        self.handle = None
        self.interrupt()
        for part in (self._instances or {}).values():
            part.interrupt()

    def interrupt(self) -> None:
        """Start again: the time without readouts is not covered."""
        super().interrupt()
        self._busy.interrupt()
        self._energy.interrupt()
        self._health.interrupt()

    def note_faults(self, faults: Sequence[XidFault]) -> None:
        """Count the faults of this GPU, per instance if they name one."""
        own = [fault for fault in faults if fault.gpu == self._address]
        for fault, count in Counter(own).items():
            where = "" if fault.instance is None else f" in GPU instance {fault.instance}"
            _log.warning("%s: the driver reported XID %d%s (%d x)", self.label, fault.xid, where, count)
        devices = [self] if self._instances is None else [*self._instances.values()]
        for device in devices:
            device.faults.update(fault.xid for fault in own if fault.instance in (None, device.instance))

    def read(self, faults: FaultEvents, clock: Clock, unix_offset: float) -> tuple[list[GpuReadout], list[str]]:
        """Return the readouts of the GPU or its instances, and problems of single instances as texts.

        ``clock() + unix_offset`` is unix time.
        """
        self._list_instances(clock())
        no_faults = faults.watch(self)
        if self._instances is None:
            return [self._read_whole(clock, unix_offset, no_faults)], []
        if not self._instances:
            return [], [f"{self.label}: MIG is on and there is no instance, so there is nothing to read"]
        readouts: list[GpuReadout] = []
        problems: list[str] = []
        for part in self._instances.values():
            builder = ReadoutBuilder(gaps=dict(INSTANCE_GAPS))
            try:
                readouts.append(part.finish_readout(builder, unix_offset + clock(), no_faults, self, clock))
            except NvmlError as error:
                if error.is_library_lost:
                    raise
                problems.append(f"MIG instance {part.uuid} ({part.product}): {error}; looked for again next cycle")
        if problems:
            self.lose()
        return readouts, problems

    def _list_instances(self, at: float) -> None:
        if self._listed_at is not None and at - self._listed_at < MIG_SECONDS:
            return
        before, self._listed_at = self._instances, at
        mode = self.try_read(ReadoutBuilder(), (), ("nvmlDeviceGetMigMode",))
        is_on = mode is not None and mode[0] == pynvml.NVML_DEVICE_MIG_ENABLE
        self._instances = self._find_instances(before or {}) if is_on else None
        if before is None and self._instances is not None:
            self.interrupt()
        for part in {*(before or {}).values()} - {*(self._instances or {}).values()}:
            part.interrupt()

    def _find_instances(self, known: dict[str, NvmlDevice]) -> dict[str, NvmlDevice]:
        """Return the present instances by UUID. Those of ``known`` are kept."""
        present: dict[str, NvmlDevice] = {}
        for place in range(self.ask("nvmlDeviceGetMaxMigDeviceCount")):
            try:
                handle = self.ask("nvmlDeviceGetMigDeviceHandleByIndex", place)
            except NvmlError as error:
                if error.code not in NO_INSTANCE:
                    raise
                continue
            uuid = str(ask("nvmlDeviceGetUUID", handle))
            number = int(ask("nvmlDeviceGetGpuInstanceId", handle))
            instance = known.get(uuid)
            if instance is None or instance.instance != number:
                product = ask_text(f"{self.product} MIG", "nvmlDeviceGetName", handle)
                instance = NvmlDevice(uuid=uuid, product=product, driver=self.driver, instance=number)
            instance.handle = handle
            present[uuid] = instance
        return present

    def _read_whole(self, clock: Clock, unix_offset: float, no_faults: str) -> GpuReadout:
        builder = ReadoutBuilder()
        self._read_busy(builder, clock)
        self._read_energy(builder, clock)
        t = unix_offset + clock()
        sensor = pynvml.NVML_TEMPERATURE_GPU
        calls = (("nvmlDeviceGetTemperatureV", sensor), ("nvmlDeviceGetTemperature", sensor))
        celsius = self.try_read(builder, ("gpu_temperature_celsius",), *calls)
        if celsius is not None:
            builder.gauges["gpu_temperature_celsius"] = float(celsius)
        milliwatts = self.try_read(builder, ("gpu_power_limit_watts",), ("nvmlDeviceGetEnforcedPowerLimit",))
        if milliwatts is not None:
            builder.gauges["gpu_power_limit_watts"] = milliwatts / 1e3
        self._health.read(self, builder, clock)
        return self.finish_readout(builder, t, no_faults, self, clock)

    def _read_busy(self, builder: ReadoutBuilder, clock: Clock) -> None:
        try:
            samples = self._new_samples()
            # The next sample may not be due yet.
            is_covered = self._busy.until is not None and clock() - self._busy.until <= LONGEST_SAMPLE_SECONDS
        except NvmlError as error:
            if not error.is_unsupported:
                raise
            samples, is_covered = [], False
        if samples:
            self._busy.add_samples(samples, clock())
        elif not is_covered:
            # Some products have no samples, or none of an idle GPU.
            rates = self.try_read(builder, BUSY, ("nvmlDeviceGetUtilizationRates",))
            if rates is None:
                return
            if rates.gpu > 100:
                builder.gaps.update(dict.fromkeys(BUSY, self.gap(f"{rates.gpu} % busy was given")))
                return
            self._busy.add_poll(rates.gpu / 100.0, clock())
            builder.sampled.update(BUSY)
        builder.counters.update(zip(BUSY, (self._busy.total, self._busy.covered_seconds), strict=True))

    def _new_samples(self) -> list[tuple[int, float]]:
        """Return the driver samples newer than the last one: (microseconds, ratio)."""
        last = self._busy.last_sample
        rows = self._samples_after(last or 0)
        if rows or last is None:
            return rows
        # No newer sample. If the whole buffer is older, the driver's clock was set back: continue from there.
        self._busy.last_sample = max((stamp for stamp, _ in self._samples_after(0)), default=last)
        return []

    def _samples_after(self, stamp: int) -> list[tuple[int, float]]:
        call = "nvmlDeviceGetSamples"
        try:
            type_, samples = self.ask(call, pynvml.NVML_GPU_UTILIZATION_SAMPLES, stamp)
        except NvmlError as error:
            if error.code not in NO_DATA:
                raise
            return []
        # Not by the binding's attributes: they took a tenth to a fifth of a read's CPU.
        rows = map(Struct(f"Q{value_format(type_, call)}").unpack_from, samples)
        return [(time, value / 100.0) for time, value in rows if time > stamp]

    def _read_energy(self, builder: ReadoutBuilder, clock: Clock) -> None:
        try:
            self._energy.add_total(self.ask("nvmlDeviceGetTotalEnergyConsumption"), clock())
        except NvmlError as error:
            if not error.is_unsupported:
                self.leave_out(builder, ENERGY, error)
                return
            polled = (*ENERGY, "gpu_power_watts")
            milliwatts = self.try_read(builder, polled, ("nvmlDeviceGetPowerUsage",))
            if milliwatts is None:
                return
            self._energy.add_poll(milliwatts / 1e3, clock())
            builder.gauges["gpu_power_watts"] = milliwatts / 1e3
            builder.sampled.update(polled)
        builder.counters.update(zip(ENERGY, (self._energy.total, self._energy.covered_seconds), strict=True))
