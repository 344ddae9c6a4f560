"""Activity of a GPU or of one of its MIG instances by GPM, without DCGM.

GPM counts in hardware: a value is the mean since the previous sample.
"""

import math
from collections.abc import Mapping
from typing import Any

import pynvml

from agent.gpu.nvml_calls import INVALID_ARGUMENT, NOT_SUPPORTED, NvmlError, ask, give_back
from rules.telemetry.gpu_windows import Impossible

GPM_BYTES = {
    f"gpu_{link}_{way}_bytes_per_second": getattr(pynvml, f"NVML_GPM_METRIC_{theirs}_{way.upper()}_PER_SEC")
    for link, theirs in (("pcie", "PCIE"), ("nvlink", "NVLINK_TOTAL"))
    for way in ("tx", "rx")
}
"""GPM metric (MiB per second) by our name. Chip-to-chip metrics came later: an older driver may refuse all for them."""

GPM_METRICS = {
    **GPM_BYTES,
    "gpu_gr_engine_active": pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
    "gpu_sm_active": pynvml.NVML_GPM_METRIC_SM_UTIL,
    "tensor_active": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
    "dram_active": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
}
"""GPM metric (percentage) by our name. GPM: Hopper and newer, values 0 to 100; NVML reference, nvidia-ml-py 13.615.71."""

SHORTEST_SECONDS = 0.1
"""Minimum time between two GPM samples. An earlier cycle keeps the older sample."""

LARGEST_RATIO = 1.01
"""Upper bound of a ratio. A ratio between 1 and this bound is a rounding error and counts as 1."""


class GpmActivity:
    """Activity of a GPU, or of its MIG instance of this number."""

    def __init__(self, instance: int | None = None) -> None:
        self._instance = instance
        self._held: Any = None
        self._spare: Any = None
        self._at: float | None = None
        self._last: Mapping[str, float | str] = {}

    def read(self, gpu: Any, at: float) -> Mapping[str, float | str]:
        """Return the ratio or bytes per second since the last cycle by name, or why there is none. At first nothing.

        ``gpu`` is the handle of the whole GPU, ``at`` the reader's clock in seconds. Raise NvmlError for a lost GPU.
        """
        try:
            if self._at is None:
                self._begin(gpu, at)
            elif at - self._at >= SHORTEST_SECONDS:
                self._advance(gpu, at)
        except NvmlError as error:
            self.interrupt()
            if not _is_gap(error):
                raise
            return dict.fromkeys(GPM_METRICS, error.words)
        return self._last

    def _begin(self, gpu: Any, at: float) -> None:
        call = "nvmlGpmQueryDeviceSupport"
        if not ask(call, gpu).isSupportedDevice:
            raise NvmlError(call, NOT_SUPPORTED, "GPM (Hopper and newer) not supported")
        self._held = ask("nvmlGpmSampleAlloc")
        self._sample(gpu, self._held)
        self._at, self._last = at, {}

    def _sample(self, gpu: Any, sample: Any) -> None:
        if self._instance is None:
            ask("nvmlGpmSampleGet", gpu, sample)
        else:
            ask("nvmlGpmMigSampleGet", gpu, self._instance, sample)

    def _advance(self, gpu: Any, at: float) -> None:
        self._spare = self._spare or ask("nvmlGpmSampleAlloc")
        self._sample(gpu, self._spare)
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(GPM_METRICS)
        request.sample1, request.sample2 = self._held, self._spare
        for place, metric in enumerate(GPM_METRICS.values()):
            request.metrics[place].metricId = metric
            # NVML may leave a metric as it is.
            request.metrics[place].nvmlReturn = pynvml.NVML_ERROR_NO_DATA
        self._held, self._spare, self._at = self._spare, self._held, at
        ask("nvmlGpmMetricsGet", request)
        self._last = {name: _value(name, request.metrics[place]) for place, name in enumerate(GPM_METRICS)}

    def interrupt(self) -> None:
        """Give both samples back and start again with the next cycle."""
        for sample in filter(None, (self._held, self._spare)):
            give_back("nvmlGpmSampleFree", sample)
        self._held = self._spare = self._at = None


def _is_gap(error: NvmlError) -> bool:
    # Drivers differ most in GPM. A call that they take for wrong must not cost the GPU its other values.
    return error.is_absent or error.code in (INVALID_ARGUMENT, None)


def _value(name: str, metric: Any) -> float | str:
    if metric.nvmlReturn != pynvml.NVML_SUCCESS:
        error = NvmlError("nvmlGpmMetricsGet", metric.nvmlReturn)
        if not _is_gap(error):
            raise error
        return error.words
    if name in GPM_BYTES and 0.0 <= metric.value < math.inf:
        return float(metric.value * 2**20)
    ratio = metric.value / 100.0
    if not 0.0 <= ratio <= LARGEST_RATIO:  # also false for NaN
        text = f"{metric.value:g} % active was given"
        return text if math.isnan(ratio) else Impossible(text)
    return float(min(ratio, 1.0))
