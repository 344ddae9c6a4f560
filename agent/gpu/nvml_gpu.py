"""Whole GPU read through NVML: running sums, one readout per cycle, and its activity by GPM.

A new quantity needs a method here and a row of ``GPU_NAMES``.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pynvml

from agent.gpu.nvml_device import (
    ABSENT,
    CAPABILITY,
    NvmlDevice,
    NvmlErrorKind,
    NvmlRefusedError,
    ReadoutBuilder,
    ask,
    member_of,
    refusal,
)
from agent.gpu.nvml_faults import add_faults
from agent.gpu.nvml_health import GpuHealthSums
from agent.gpu.nvml_sums import LONGEST_SAMPLE_SECONDS, BusySum, EnergySum
from rules.telemetry.gpu_limits import Impossible
from rules.telemetry.snapshots import GpuReadout

BUSY = ("gpu_busy_seconds", "gpu_busy_covered_seconds")
ENERGY = ("gpu_energy_joules", "gpu_energy_covered_seconds")

GPM_BYTES: Mapping[str, int] = MappingProxyType(
    {
        f"gpu_{link}_{way}_bytes_per_second": getattr(pynvml, f"NVML_GPM_METRIC_{theirs}_{way.upper()}_PER_SEC")
        for link, theirs in (("pcie", "PCIE"), ("nvlink", "NVLINK_TOTAL"))
        for way in ("tx", "rx")
    }
)
"""GPM metric (MiB per second) by our name. Chip-to-chip metrics came later: an older driver may refuse all for them."""

GPM_METRICS: Mapping[str, int] = MappingProxyType(
    {
        **GPM_BYTES,
        "gpu_gr_engine_active": pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
        "gpu_sm_active": pynvml.NVML_GPM_METRIC_SM_UTIL,
        "tensor_active": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
        "dram_active": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    }
)
"""GPM metric (percentage) by our name. GPM: Hopper and newer, values 0 to 100; NVML reference, nvidia-ml-py 13.615.71."""

SHORTEST_SECONDS = 0.1
"""Minimum time between two GPM samples. An earlier cycle keeps the older sample."""

LARGEST_RATIO = 1.01
"""Upper bound of a ratio. A ratio between 1 and this bound is a rounding error and counts as 1."""

_log = logging.getLogger(__name__)


class GpmActivity:
    """Activity of a GPU or of one of its MIG instances by GPM, without DCGM.

    GPM counts in hardware: a value is the mean since the previous sample. GPM is read from the whole GPU, with the
    number of the instance.
    """

    def __init__(self, instance: int | None = None) -> None:
        self._instance = instance
        self._request: Any = None
        self._held: Any = None
        self._spare: Any = None
        self._at: float | None = None
        self._last: dict[str, float | str] = {}

    def read(self, device: NvmlDevice, whole: NvmlDevice, builder: ReadoutBuilder, at: float) -> None:
        """Add the activity of ``device`` since the last cycle, as ``whole`` reports it. The first cycle adds nothing.

        ``at`` is the reader's clock in seconds.
        """
        try:
            if self._at is None:
                self._begin(whole, at)
            elif at - self._at >= SHORTEST_SECONDS:
                self._advance(device, whole, at)
        except NvmlRefusedError as refused:
            self.interrupt()
            if refused.kind is not NvmlErrorKind.BUG:
                device.leave_out(builder, tuple(GPM_METRICS), refused)
            else:
                # Drivers differ most in GPM. An error must not cost the GPU its other values.
                builder.gaps.update(dict.fromkeys(GPM_METRICS, str(refused)))
            return
        for name, found in self._last.items():
            if isinstance(found, str):
                builder.gaps[name] = found
            else:
                builder.gauges[name] = found

    def _begin(self, whole: NvmlDevice, at: float) -> None:
        call = "nvmlGpmQueryDeviceSupport"
        if not whole.ask(call).isSupportedDevice:
            raise whole.remember(call, "GPM (Hopper and newer) not supported")
        self._held = self._held or ask("nvmlGpmSampleAlloc")
        self._take(whole, self._held)
        self._at, self._last = at, {}

    def _take(self, whole: NvmlDevice, sample: Any) -> None:
        if self._instance is None:
            whole.ask("nvmlGpmSampleGet", sample)
        else:
            whole.ask("nvmlGpmMigSampleGet", self._instance, sample, fact=str(self._instance))

    def _advance(self, device: NvmlDevice, whole: NvmlDevice, at: float) -> None:
        self._spare = self._spare or ask("nvmlGpmSampleAlloc")
        self._take(whole, self._spare)
        request = self._between(self._held, self._spare)
        self._held, self._spare, self._at = self._spare, self._held, at
        ask("nvmlGpmMetricsGet", request)
        self._last = {name: _measured(name, request.metrics[place], device) for place, name in enumerate(GPM_METRICS)}

    def _between(self, older: Any, newer: Any) -> Any:
        if self._request is None:
            self._request = pynvml.c_nvmlGpmMetricsGet_t()
            self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
            self._request.numMetrics = len(GPM_METRICS)
        # Clear the previous result: NVML may leave a metric unchanged.
        for place, metric in enumerate(GPM_METRICS.values()):
            self._request.metrics[place].metricId = metric
            self._request.metrics[place].nvmlReturn = pynvml.NVML_ERROR_NO_DATA
        self._request.sample1, self._request.sample2 = older, newer
        return self._request

    def interrupt(self) -> None:
        """Start again with the next cycle."""
        self._at = None

    def free(self) -> None:
        """Free both samples before the library is closed."""
        for sample in filter(None, (self._held, self._spare)):
            try:
                ask("nvmlGpmSampleFree", sample)
            except NvmlRefusedError as refused:
                _log.info('freeing an NVML sample failed error="%s"', refused)
        self._held = self._spare = self._at = None


def _measured(name: str, metric: Any, device: NvmlDevice) -> float | str:
    """Return a ratio from 0 to 1 or bytes per second, or the reason of a gap. Raise NvmlRefusedError for a lost GPU."""
    if metric.nvmlReturn != pynvml.NVML_SUCCESS:
        refused = refusal("nvmlGpmMetricsGet", metric.nvmlReturn)
        if refused.kind not in ABSENT | {NvmlErrorKind.BUG}:
            raise refused
        return f"{refused.words} by {device.product} (driver {device.driver})"
    if name in GPM_BYTES and 0.0 <= metric.value < math.inf:
        return float(metric.value * 2**20)
    ratio = metric.value / 100.0
    if not 0.0 <= ratio <= LARGEST_RATIO:  # also false for NaN
        text = f"{metric.value:g} % active was given by {device.product} (driver {device.driver})"
        return text if math.isnan(ratio) else Impossible(text)
    return float(min(ratio, 1.0))


class NvmlGpu(NvmlDevice):
    """Whole GPU. Every method may raise NvmlRefusedError of the kinds lost, library and bug."""

    def __init__(self, *, uuid: str, product: str, driver: str) -> None:
        super().__init__(uuid=uuid, product=product, driver=driver)
        self.faults = Counter[int]()
        self._limit: float | None = None
        self._busy = BusySum()
        self._energy = EnergySum()
        self._health = GpuHealthSums()
        self._activity = GpmActivity()

    @property
    def label(self) -> str:
        """Return its name in problems."""
        return f"GPU {self.index} ({self.uuid}, {self.product})"

    def acquire(self, handle: Any, *, index: int | None = None, driver: str | None = None) -> None:
        """Set a new handle. Capability facts are dropped; sums continue."""
        self.handle = handle
        self.index = self.index if index is None else index
        self.driver = driver or self.driver
        self.forget()

    def forget(self) -> None:
        """Drop the capability facts and the power limit."""
        super().forget()
        self._limit = None

    def interrupt(self) -> None:
        """Start again: the time without readouts is not covered."""
        self._busy.interrupt()
        self._energy.interrupt()
        self._health.interrupt()
        self._activity.interrupt()

    def lose(self) -> None:
        """Drop the handle and interrupt all sums."""
        self.handle = None
        self.interrupt()

    def free(self) -> None:
        """Free the samples before the library is closed."""
        self._activity.free()

    def read(self, clock: Callable[[], float], unix_offset: float, no_faults: str) -> GpuReadout:
        """Read all changing values. ``clock() + unix_offset`` is unix time.

        ``no_faults`` is the reason why faults are not reported, or empty.
        """
        builder = ReadoutBuilder()
        self._read_busy(builder, clock)
        self._read_energy(builder, clock)
        t = unix_offset + clock()
        self.read_memory(builder)
        self._read_temperature(builder)
        self._read_limit(builder)
        self._health.read(self, builder, clock)
        pids = self.read_pids(builder)
        add_faults(builder, self.faults, no_faults)
        # Last: some drivers refuse memory for a while after GPM.
        self._activity.read(self, self, builder, clock())
        return self.readout(t, builder, pids)

    def _read_busy(self, builder: ReadoutBuilder, clock: Callable[[], float]) -> None:
        try:
            supported, samples = True, self._new_samples()
        except NvmlRefusedError as refused:
            if refused.kind not in CAPABILITY:
                raise
            supported, samples = False, []
        if samples:
            self._busy.add_samples(samples, clock())
        elif not (supported and self._is_covered(clock())) and not self._poll_busy(builder, clock):
            return
        builder.counters.update(zip(BUSY, (self._busy.busy_seconds, self._busy.covered_seconds), strict=True))

    def _is_covered(self, at: float) -> bool:
        # The next sample may not be due yet.
        return self._busy.until is not None and at - self._busy.until <= LONGEST_SAMPLE_SECONDS

    def _poll_busy(self, builder: ReadoutBuilder, clock: Callable[[], float]) -> bool:
        """Poll the utilisation. Some products have no samples, or none of an idle GPU. Return whether it is known."""
        try:
            percent = self.ask("nvmlDeviceGetUtilizationRates").gpu
            if percent > 100:
                raise NvmlRefusedError(
                    "nvmlDeviceGetUtilizationRates", NvmlErrorKind.NOTHING, f"{percent} % busy was given"
                )
        except NvmlRefusedError as refused:
            self.leave_out(builder, BUSY, refused)
            return False
        self._busy.add_poll(percent / 100.0, clock())
        builder.sampled.update(BUSY)
        return True

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

    def _read_energy(self, builder: ReadoutBuilder, clock: Callable[[], float]) -> None:
        try:
            self._energy.add_total(self.ask("nvmlDeviceGetTotalEnergyConsumption"), clock())
        except NvmlRefusedError as refused:
            if not self._poll_power(builder, clock, refused):
                return
        builder.counters.update(zip(ENERGY, (self._energy.joules, self._energy.covered_seconds), strict=True))

    def _poll_power(self, builder: ReadoutBuilder, clock: Callable[[], float], why: NvmlRefusedError) -> bool:
        if why.kind not in CAPABILITY:
            self.leave_out(builder, ENERGY, why)
            return False
        try:
            watts = self.ask("nvmlDeviceGetPowerUsage") / 1e3
        except NvmlRefusedError as refused:
            self.leave_out(builder, (*ENERGY, "gpu_power_watts"), refused)
            return False
        self._energy.add_poll(watts, clock())
        builder.gauges["gpu_power_watts"] = watts
        builder.sampled.update((*ENERGY, "gpu_power_watts"))
        return True

    def _read_temperature(self, builder: ReadoutBuilder) -> None:
        name = "gpu_temperature_celsius"
        try:
            try:
                celsius = self.ask("nvmlDeviceGetTemperatureV", pynvml.NVML_TEMPERATURE_GPU)
            except NvmlRefusedError as newer:
                if newer.kind not in CAPABILITY:
                    raise
                celsius = self.ask("nvmlDeviceGetTemperature", pynvml.NVML_TEMPERATURE_GPU)
        except NvmlRefusedError as refused:
            self.leave_out(builder, (name,), refused)
            return
        builder.gauges[name] = float(celsius)

    def _read_limit(self, builder: ReadoutBuilder) -> None:
        name = "gpu_power_limit_watts"
        if self._limit is None:
            try:
                self._limit = self.ask("nvmlDeviceGetEnforcedPowerLimit") / 1e3
            except NvmlRefusedError as refused:
                self.leave_out(builder, (name,), refused)
                return
        builder.gauges[name] = self._limit
