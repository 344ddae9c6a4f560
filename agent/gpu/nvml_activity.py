"""Activity of tensor pipes, DRAM, multiprocessors and engine, by NVML's GPM (Hopper and newer), without DCGM.

Owns the two samples of one GPU or one MIG instance and the metrics between them. GPM counts in hardware; a value is the
mean since the sample before, so a turn misses nothing. Must not be handed a MIG handle: GPM is asked of the whole GPU,
with the number of the instance. One metric more is a row of ``METRICS``.

Source: NVML reference, group GPM ("Hopper or newer", values 0 to 100), nvidia-ml-py 13.615.71.
"""

import logging
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import pynvml

from agent.gpu.nvml_device import ABSENT, NvmlDevice, NvmlErrorKind, NvmlRefusedError, ReadoutBuilder, ask, refusal

METRICS: Mapping[str, int] = MappingProxyType(
    {
        "gpu_gr_engine_active": pynvml.NVML_GPM_METRIC_GRAPHICS_UTIL,
        "gpu_sm_active": pynvml.NVML_GPM_METRIC_SM_UTIL,
        "tensor_active": pynvml.NVML_GPM_METRIC_ANY_TENSOR_UTIL,
        "dram_active": pynvml.NVML_GPM_METRIC_DRAM_BW_UTIL,
    }
)
"""Our name -> GPM metric, each a percentage."""

NAMES = tuple(METRICS)

SHORTEST_SECONDS = 0.1
"""NVML wants 100 ms between two samples; a turn that comes sooner keeps the older one."""

LARGEST_RATIO = 1.01
"""A ratio up to here is the counters' rounding and taken as 1; beyond it is no ratio."""

_log = logging.getLogger(__name__)


class GpmActivity:
    """What GPM says of one GPU, or of one instance of it."""

    def __init__(self, instance: int | None = None) -> None:
        self._instance = instance
        self._request: Any = None
        self._held: Any = None
        self._spare: Any = None
        self._at: float | None = None
        self._last: dict[str, float | str] = {}

    def read(self, device: NvmlDevice, whole: NvmlDevice, answers: ReadoutBuilder, at: float) -> None:
        """Fill in what happened since the last turn, in the first one nothing; ``at`` is the reader's clock in seconds.

        ``whole`` is the GPU that is asked, ``device`` the one the answer is about.
        """
        try:
            if self._at is None:
                self._begin(whole, at)
            elif at - self._at >= SHORTEST_SECONDS:
                self._advance(device, whole, at)
        except NvmlRefusedError as refused:
            self.interrupt()
            if refused.kind is not NvmlErrorKind.BUG:
                device.leave_out(answers, NAMES, refused)
            else:
                # Drivers disagree about GPM most of all: that must not cost a GPU everything else it says.
                answers.gaps.update(dict.fromkeys(NAMES, str(refused)))
            return
        for name, found in self._last.items():
            if isinstance(found, str):
                answers.gaps[name] = found
            else:
                answers.gauges[name] = found

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
        self._last = {name: _ratio(request.metrics[place], device) for place, name in enumerate(NAMES)}

    def _between(self, older: Any, newer: Any) -> Any:
        if self._request is None:
            self._request = pynvml.c_nvmlGpmMetricsGet_t()
            self._request.version = pynvml.NVML_GPM_METRICS_GET_VERSION
            self._request.numMetrics = len(METRICS)
        # Whatever an answer leaves untouched must not be read as the answer to the question before.
        for place, metric in enumerate(METRICS.values()):
            self._request.metrics[place].metricId = metric
            self._request.metrics[place].nvmlReturn = pynvml.NVML_ERROR_NO_DATA
        self._request.sample1, self._request.sample2 = older, newer
        return self._request

    def interrupt(self) -> None:
        """The GPU was out of reach: the next turn begins anew."""
        self._at = None

    def free(self) -> None:
        """Give both samples back; to be done before the library is closed."""
        for sample in filter(None, (self._held, self._spare)):
            try:
                ask("nvmlGpmSampleFree", sample)
            except NvmlRefusedError as refused:
                _log.info('freeing an NVML sample failed error="%s"', refused)
        self._held = self._spare = self._at = None


def _ratio(metric: Any, device: NvmlDevice) -> float | str:
    """A ratio 0-1, or why there is none. Raises NvmlRefusedError where the metric says that the GPU is gone."""
    if metric.nvmlReturn != pynvml.NVML_SUCCESS:
        refused = refusal("nvmlGpmMetricsGet", metric.nvmlReturn)
        if refused.kind not in ABSENT | {NvmlErrorKind.BUG}:
            raise refused
        return f"{refused.words} by {device.product} (driver {device.driver})"
    ratio = metric.value / 100.0
    if not 0.0 <= ratio <= LARGEST_RATIO:  # also what is no number
        return f"{metric.value:g} % active was given by {device.product} (driver {device.driver})"
    return float(min(ratio, 1.0))
