"""Throttling and memory errors of one GPU, as running sums.

Add a cause of throttling to ``TOTALS`` or ``BITS``, an error to ``ERRORS``. Throttling by power and heat has totals of
the driver: nanoseconds below the requested clocks (NVML reference, nvmlPerfPolicyType_t and nvmlViolationTime_t; DCGM
documents the same fields in ns). The totals of hardware slowdown and power brake have field ids 251 to 253 in some
driver releases and 269 to 271 in others. Each pair means power-smoothing settings in the other releases, and the result
does not show which. These causes are therefore polled as bits and marked as sampled.

Memory errors are the aggregate totals, which survive driver reload, reset and reboot. Only increases are counted.
"""

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
    member_of,
    refusal,
)
from agent.gpu.nvml_sums import CountSum, ThrottleSum

ECC_SECONDS = 60.0
"""Interval of reading memory errors, which are rare."""

POWER, THERMAL, HARDWARE = (f"gpu_throttled_{cause}_seconds" for cause in ("power", "thermal", "hardware"))
COVERED = "gpu_throttled_covered_seconds"
THROTTLING = (POWER, THERMAL, HARDWARE, COVERED)


TOTALS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        POWER: (pynvml.NVML_FI_DEV_PERF_POLICY_POWER, pynvml.NVML_PERF_POLICY_POWER),
        THERMAL: (pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL, pynvml.NVML_PERF_POLICY_THERMAL),
    }
)
"""Field of a total of nanoseconds, and the policy of the older call."""

BOARD_LIMIT = 0x200
"""Bit of a board limit (NVML reference, nvmlClocksEventReasonBoardLimit). Bindings before 13.615 do not name it."""

BITS: Mapping[str, int] = MappingProxyType(
    {
        POWER: pynvml.nvmlClocksEventReasonSwPowerCap,
        THERMAL: pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown,
        HARDWARE: pynvml.nvmlClocksEventReasonHwSlowdown
        | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
        | BOARD_LIMIT,
    }
)
"""Bits of unwanted throttling. Idle, application clocks, sync boost and display clocks are wanted. Every GPU reaches the
reliability limit (0x400), a voltage limit, at its top clock, as for DCGM (`rules.gpu_sources.dcgm`)."""


ERRORS: Mapping[str, tuple[int, int]] = MappingProxyType(
    {
        "gpu_ecc_correctable_errors": (pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL, pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED),
        "gpu_ecc_uncorrectable_errors": (
            pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
        ),
    }
)
"""Field of a total of memory errors, and the type of the older call."""

_Found = Mapping[int, int | NvmlRefusedError]


class GpuHealthSums:
    """Sums of one whole GPU. An instance has none: the board is throttled as a whole."""

    def __init__(self) -> None:
        self._throttled = ThrottleSum()
        self._errors = {name: CountSum() for name in ERRORS}
        self._ecc_gaps: dict[str, str] = {}
        self._ecc_at: float | None = None

    def read(self, gpu: NvmlDevice, builder: ReadoutBuilder, clock: Callable[[], float]) -> None:
        """Add the changes since the last cycle, with one call for all totals and one for the bits."""
        ecc_due = self._ecc_at is None or clock() - self._ecc_at >= ECC_SECONDS
        wanted = [field for field, _ in TOTALS.values()]
        if ecc_due:
            wanted += [pynvml.NVML_FI_DEV_ECC_CURRENT, *(field for field, _ in ERRORS.values())]
        found = _fields(gpu, wanted)
        self._add_throttling(gpu, builder, found, clock)
        if ecc_due:
            self._add_errors(gpu, found)
            self._ecc_at = clock()
        builder.gaps.update(self._ecc_gaps)
        builder.counters.update({name: s.count for name, s in self._errors.items() if name not in self._ecc_gaps})

    def interrupt(self) -> None:
        """Restart throttling and read the errors at once."""
        self._throttled.interrupt()
        self._ecc_at = None

    def _add_throttling(
        self, gpu: NvmlDevice, builder: ReadoutBuilder, found: _Found, clock: Callable[[], float]
    ) -> None:
        totals: dict[str, int] = {}
        why: dict[str, NvmlRefusedError] = {}
        for cause, (field, policy) in TOTALS.items():
            try:
                totals[cause] = _total(gpu, field, policy, found)
            except NvmlRefusedError as refused:
                if refused.kind not in ABSENT:
                    raise
                why[cause] = refused
        active: dict[str, bool] = {}
        try:
            reasons = _reasons(gpu)
            active = {cause: bool(reasons & bits) for cause, bits in BITS.items() if cause not in totals}
        except NvmlRefusedError as refused:
            why = {cause: why.get(cause, refused) for cause in BITS if cause not in totals}
        self._throttled.add(totals, active, clock())
        for cause in (cause for cause in why if cause not in active):
            gpu.leave_out(builder, (cause,), why[cause])
        if not (totals or active):
            gpu.leave_out(builder, (COVERED,), next(iter(why.values())))
            return
        builder.counters.update({cause: self._throttled.seconds[cause] for cause in self._throttled.known})
        builder.counters[COVERED] = self._throttled.covered_seconds
        builder.sampled.update(active)

    def _add_errors(self, gpu: NvmlDevice, found: _Found) -> None:
        gaps = ReadoutBuilder()
        off = found[pynvml.NVML_FI_DEV_ECC_CURRENT] == 0
        for name, (field, type_) in ERRORS.items():
            if off:
                gaps.gaps[name] = f"ECC is switched off on {gpu.product} (driver {gpu.driver})"
                continue
            try:
                self._errors[name].add_total(*_errors(gpu, field, type_, found))
            except NvmlRefusedError as refused:
                gpu.leave_out(gaps, (name,), refused)
        self._ecc_gaps = gaps.gaps


def _fields(gpu: NvmlDevice, wanted: list[int]) -> _Found:
    """Return the value of each field, or its error."""
    call = "nvmlDeviceGetFieldValues"
    try:
        rows = gpu.ask(call, wanted)
    except NvmlRefusedError as refused:
        if refused.kind not in ABSENT:
            raise
        return dict.fromkeys(wanted, refused)
    return {field: _value(call, row) for field, row in zip(wanted, rows, strict=True)}


def _value(call: str, row: Any) -> int | NvmlRefusedError:
    if row.nvmlReturn == pynvml.NVML_SUCCESS:
        return int(getattr(row.value, member_of(row.valueType, call)))
    refused = refusal(call, row.nvmlReturn)
    if refused.kind is NvmlErrorKind.BUG:
        # A driver answers an unknown field with `invalid argument`.
        return NvmlRefusedError(call, NvmlErrorKind.GAP, "not known", refused.code)
    return refused


def _held(found: _Found, field: int) -> int | None:
    """Return the value of a field, None for a missing capability. Raise its other errors."""
    held = found[field]
    if not isinstance(held, NvmlRefusedError):
        return held
    if held.kind not in CAPABILITY:
        raise held
    return None


def _total(gpu: NvmlDevice, field: int, policy: int, found: _Found) -> int:
    total = _held(found, field)
    if total is None:
        total = int(gpu.ask("nvmlDeviceGetViolationStatus", policy, fact=str(policy)).violationTime)
    return total


def _reasons(gpu: NvmlDevice) -> int:
    """Return the acting causes, by the newer or else the older call, without the bit that heat sets with its own."""
    try:
        reasons = int(gpu.ask("nvmlDeviceGetCurrentClocksEventReasons"))
    except NvmlRefusedError as newer:
        if newer.kind not in CAPABILITY:
            raise
        reasons = int(gpu.ask("nvmlDeviceGetCurrentClocksThrottleReasons"))
    if reasons & pynvml.nvmlClocksEventReasonHwThermalSlowdown:
        reasons &= ~pynvml.nvmlClocksEventReasonHwSlowdown
    return reasons


def _errors(gpu: NvmlDevice, field: int, type_: int, found: _Found) -> tuple[int, str]:
    """Return a total and its source."""
    total = _held(found, field)
    if total is not None:
        return total, "field"
    call = "nvmlDeviceGetTotalEccErrors"
    return int(gpu.ask(call, type_, pynvml.NVML_AGGREGATE_ECC, fact=str(type_))), call
