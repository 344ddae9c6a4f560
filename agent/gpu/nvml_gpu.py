"""Whole GPU read through NVML: running sums, one readout per cycle, and its activity by GPM.

A new quantity needs a method here and a row of `rules/telemetry/families.toml`.
"""

import logging
import math
from collections import Counter
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

import pynvml

from agent.gpu.nvml_device import (
    INVALID_ARGUMENT,
    NO_DATA,
    NOT_SUPPORTED,
    NvmlDevice,
    NvmlError,
    ReadoutBuilder,
    ask,
    error_from_code,
    member_of,
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
        except NvmlError as error:
            self.interrupt()
            if not _is_gap(error):
                raise
            builder.gaps.update(dict.fromkeys(GPM_METRICS, device.gap(error.words)))
            return
        for name, value in self._last.items():
            if isinstance(value, str):
                builder.gaps[name] = value
            else:
                builder.gauges[name] = value

    def _begin(self, whole: NvmlDevice, at: float) -> None:
        call = "nvmlGpmQueryDeviceSupport"
        if not whole.ask(call).isSupportedDevice:
            raise NvmlError(call, "GPM (Hopper and newer) not supported", NOT_SUPPORTED)
        self._held = self._held or ask("nvmlGpmSampleAlloc")
        self._take(whole, self._held)
        self._at, self._last = at, {}

    def _take(self, whole: NvmlDevice, sample: Any) -> None:
        if self._instance is None:
            whole.ask("nvmlGpmSampleGet", sample)
        else:
            whole.ask("nvmlGpmMigSampleGet", self._instance, sample)

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
            except NvmlError as error:
                _log.info('freeing an NVML sample failed error="%s"', error)
        self._held = self._spare = self._at = None


def _is_gap(error: NvmlError) -> bool:
    # Drivers differ most in GPM. A call that they take for wrong must not cost the GPU its other values.
    return error.is_absent or error.code in (INVALID_ARGUMENT, None)


def _measured(name: str, metric: Any, device: NvmlDevice) -> float | str:
    """Return a ratio from 0 to 1 or bytes per second, or the reason of a gap. Raise NvmlError for a lost GPU."""
    if metric.nvmlReturn != pynvml.NVML_SUCCESS:
        error = error_from_code("nvmlGpmMetricsGet", metric.nvmlReturn)
        if not _is_gap(error):
            raise error
        return device.gap(error.words)
    if name in GPM_BYTES and 0.0 <= metric.value < math.inf:
        return float(metric.value * 2**20)
    ratio = metric.value / 100.0
    if not 0.0 <= ratio <= LARGEST_RATIO:  # also false for NaN
        text = device.gap(f"{metric.value:g} % active was given")
        return text if math.isnan(ratio) else Impossible(text)
    return float(min(ratio, 1.0))


class NvmlGpu(NvmlDevice):
    """Whole GPU. Every method may raise an NvmlError that is not absent."""

    def __init__(self, *, uuid: str, product: str, driver: str) -> None:
        super().__init__(uuid=uuid, product=product, driver=driver)
        self.faults = Counter[int]()
        self._busy = BusySum()
        self._energy = EnergySum()
        self._health = GpuHealthSums()
        self._activity = GpmActivity()

    @property
    def label(self) -> str:
        """Return its name in problems."""
        return f"GPU {self.index} ({self.uuid}, {self.product})"

    def acquire(self, handle: Any, *, index: int | None = None, driver: str | None = None) -> None:
        """Set a new handle. Sums continue."""
        self.handle = handle
        self.index = self.index if index is None else index
        self.driver = driver or self.driver

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
        builder.counters.update(zip(BUSY, (self._busy.busy_seconds, self._busy.covered_seconds), strict=True))

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
            value_type, samples = self.ask(call, pynvml.NVML_GPU_UTILIZATION_SAMPLES, stamp)
        except NvmlError as error:
            if error.code not in NO_DATA:
                raise
            return []
        member = member_of(value_type, call)
        return [
            (int(row.timeStamp), getattr(row.sampleValue, member) / 100.0) for row in samples if row.timeStamp > stamp
        ]

    def _read_energy(self, builder: ReadoutBuilder, clock: Callable[[], float]) -> None:
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
        builder.counters.update(zip(ENERGY, (self._energy.joules, self._energy.covered_seconds), strict=True))

    def _read_temperature(self, builder: ReadoutBuilder) -> None:
        name, sensor = "gpu_temperature_celsius", pynvml.NVML_TEMPERATURE_GPU
        calls = (("nvmlDeviceGetTemperatureV", sensor), ("nvmlDeviceGetTemperature", sensor))
        celsius = self.try_read(builder, (name,), *calls)
        if celsius is not None:
            builder.gauges[name] = float(celsius)

    def _read_limit(self, builder: ReadoutBuilder) -> None:
        name = "gpu_power_limit_watts"
        milliwatts = self.try_read(builder, (name,), ("nvmlDeviceGetEnforcedPowerLimit",))
        if milliwatts is not None:
            builder.gauges[name] = milliwatts / 1e3
