"""Throttling and memory errors of one GPU, as running sums.

Add a cause of throttling to ``TOTALS`` or ``BITS``, an error to ``ERRORS``. Throttling by power and heat has totals of
the driver: nanoseconds below the requested clocks (NVML reference, nvmlPerfPolicyType_t and nvmlViolationTime_t; DCGM
documents the same fields in ns). The totals of hardware slowdown and power brake have field ids 251 to 253 in some
driver releases and 269 to 271 in others. Each pair means power-smoothing settings in the other releases, and the result
does not show which. These causes are polled as bits, marked as sampled.

Memory errors are the aggregate totals, which survive driver reload, reset and reboot. Only increases are counted.
"""

from collections.abc import Callable, Mapping
from struct import unpack_from
from typing import Any

import pynvml

from agent.gpu.nvml_calls import INVALID_ARGUMENT, NOT_SUPPORTED, NvmlError, value_format
from agent.gpu.nvml_device import NvmlDevice, ReadoutBuilder
from agent.gpu.nvml_sums import CountSum, ThrottleSum

ECC_SECONDS = 60.0
"""Interval of reading memory errors, which are rare."""

POWER, THERMAL, HARDWARE = (f"gpu_throttled_{cause}_seconds" for cause in ("power", "thermal", "hardware"))
COVERED = "gpu_throttled_covered_seconds"
THROTTLING = (POWER, THERMAL, HARDWARE, COVERED)

TOTALS = {
    POWER: (pynvml.NVML_FI_DEV_PERF_POLICY_POWER, pynvml.NVML_PERF_POLICY_POWER),
    THERMAL: (pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL, pynvml.NVML_PERF_POLICY_THERMAL),
}
"""Field of a total of nanoseconds, and the policy of the older call."""

BOARD_LIMIT = 0x200
"""Bit of a board limit (NVML reference, nvmlClocksEventReasonBoardLimit). Bindings before 13.615 do not name it."""

BITS = {
    POWER: pynvml.nvmlClocksEventReasonSwPowerCap,
    THERMAL: pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown,
    HARDWARE: pynvml.nvmlClocksEventReasonHwSlowdown | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown | BOARD_LIMIT,
}
"""Bits of unwanted throttling. Idle, application clocks, sync boost and display clocks are wanted. Every GPU reaches the
reliability limit (0x400), a voltage limit, at its top clock, as for DCGM (`rules.gpu_sources.dcgm`)."""

ERRORS = {
    "gpu_ecc_correctable_errors": (pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
    "gpu_ecc_uncorrectable_errors": (pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL, pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
}
"""Field of a total of memory errors, and the type of the older call."""

FIELD = "field"
"""Source of a total that is a field. Other sources are named by their call."""

_Fields = Mapping[int, int | NvmlError]


class GpuHealthSums:
    """Sums of one whole GPU. An instance has none: the board is throttled as a whole."""

    def __init__(self) -> None:
        self._throttled = ThrottleSum()
        self._errors = {name: CountSum() for name in ERRORS}
        self._last_errors = ReadoutBuilder()
        self._errors_at: float | None = None

    def read(self, gpu: NvmlDevice, builder: ReadoutBuilder, clock: Callable[[], float]) -> None:
        """Add the changes since the last cycle, with one call for all totals and one for the bits."""
        errors_due = self._errors_at is None or clock() - self._errors_at >= ECC_SECONDS
        wanted = [field for field, _ in TOTALS.values()]
        if errors_due:
            wanted += [pynvml.NVML_FI_DEV_ECC_CURRENT, *(field for field, _ in ERRORS.values())]
        fields = _read_fields(gpu, wanted)
        self._add_throttling(gpu, builder, fields, clock)
        if errors_due:
            self._last_errors = self._read_errors(gpu, fields)
            self._errors_at = clock()
        builder.gaps.update(self._last_errors.gaps)
        builder.counters.update(self._last_errors.counters)

    def interrupt(self) -> None:
        """Restart throttling and read the errors at once."""
        self._throttled.until = self._errors_at = None

    def _add_throttling(
        self, gpu: NvmlDevice, builder: ReadoutBuilder, fields: _Fields, clock: Callable[[], float]
    ) -> None:
        totals: dict[str, int] = {}
        for cause, (field, policy) in TOTALS.items():
            total, source = _read_total(gpu, builder, cause, fields[field], "nvmlDeviceGetViolationStatus", policy)
            if total is not None:
                totals[cause] = int(total if source == FIELD else total.violationTime)
        polled = tuple(cause for cause in BITS if cause not in totals)
        reasons = gpu.try_read(
            builder,
            polled if totals else (*polled, COVERED),
            ("nvmlDeviceGetCurrentClocksEventReasons",),
            ("nvmlDeviceGetCurrentClocksThrottleReasons",),
        )
        active: dict[str, bool] = {}
        if reasons is not None:
            if reasons & pynvml.nvmlClocksEventReasonHwThermalSlowdown:
                # Heat sets this bit with its own.
                reasons &= ~pynvml.nvmlClocksEventReasonHwSlowdown
            active = {cause: bool(reasons & BITS[cause]) for cause in polled}
        self._throttled.add(totals, active, clock())
        if not (totals or active):
            return
        for cause in active:
            builder.gaps.pop(cause, None)
        builder.counters.update({cause: self._throttled.seconds[cause] for cause in self._throttled.known})
        builder.counters[COVERED] = self._throttled.covered_seconds
        builder.sampled.update(active)

    def _read_errors(self, gpu: NvmlDevice, fields: _Fields) -> ReadoutBuilder:
        builder = ReadoutBuilder()
        for name, (field, type_) in ERRORS.items():
            if fields[pynvml.NVML_FI_DEV_ECC_CURRENT] == 0:
                builder.gaps[name] = f"ECC is switched off on {gpu.product} (driver {gpu.driver})"
                continue
            call = ("nvmlDeviceGetTotalEccErrors", type_, pynvml.NVML_AGGREGATE_ECC)
            total, source = _read_total(gpu, builder, name, fields[field], *call)
            if total is not None:
                self._errors[name].add_total(int(total), source)
                builder.counters[name] = self._errors[name].count
        return builder


def _read_fields(gpu: NvmlDevice, wanted: list[int]) -> _Fields:
    """Return the value of each field, or its error."""
    call = "nvmlDeviceGetFieldValues"
    try:
        rows = gpu.ask(call, wanted)
    except NvmlError as error:
        if not error.is_absent:
            raise
        return dict.fromkeys(wanted, error)
    fields: dict[int, int | NvmlError] = {}
    for field, row in zip(wanted, rows, strict=True):
        if row.nvmlReturn == pynvml.NVML_SUCCESS:
            (value,) = unpack_from(value_format(row.valueType, call), row.value)
            fields[field] = int(value)
        else:
            # A driver answers an unknown field with `invalid argument`.
            code = NOT_SUPPORTED if row.nvmlReturn == INVALID_ARGUMENT else row.nvmlReturn
            fields[field] = NvmlError(call, code)
    return fields


def _read_total(
    gpu: NvmlDevice, builder: ReadoutBuilder, name: str, value: int | NvmlError, *older_call: Any
) -> tuple[Any, str]:
    """Return a total and its source: its field, or an older call if that is not supported. Add a gap without it."""
    if not isinstance(value, NvmlError):
        return value, FIELD
    if not value.is_unsupported:
        gpu.leave_out(builder, (name,), value)
        return None, FIELD
    return gpu.try_read(builder, (name,), older_call), older_call[0]
