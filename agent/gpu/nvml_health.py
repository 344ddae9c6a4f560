"""Throttling and memory errors of one GPU, as running sums.

Owns which of NVML's totals and bits mean what, and what is asked where a driver lacks one. Must not do arithmetic: that
is ``nvml_sums``. A cause of throttling is a row of ``TOTALS`` or ``BITS``, an error a row of ``ERRORS``.

Throttling by power and by heat are totals of the driver (nanoseconds below the requested clocks: NVML reference,
nvmlPerfPolicyType_t and nvmlViolationTime_t; DCGM documents the same fields in ns). The board's own brakes (hardware
slowdown, power brake) have totals too, but their field ids were renumbered between driver releases: 251 to 253 in some,
269 to 271 in others, where each pair means power-smoothing settings in the other. What a number means cannot be told
from the answer, so the board's brakes are polled as bits, whose meaning never changed, and marked as sampled.

Memory errors are the aggregate totals: they outlive driver reload, reset and reboot, so an error that happened while
nobody looked is still counted; volatile ones would be gone. Only increases are used, so years of history do not matter.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
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
"""How often memory errors are asked for: they are rare, and a minute of delay costs nothing."""

POWER, THERMAL, HARDWARE = (f"gpu_throttled_{cause}_seconds" for cause in ("power", "thermal", "hardware"))
COVERED = "gpu_throttled_covered_seconds"
THROTTLING = (POWER, THERMAL, HARDWARE, COVERED)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Total:
    """A total of nanoseconds: its field, and the policy of the older call."""

    field: int
    policy: int


TOTALS: Mapping[str, _Total] = MappingProxyType(
    {
        POWER: _Total(field=pynvml.NVML_FI_DEV_PERF_POLICY_POWER, policy=pynvml.NVML_PERF_POLICY_POWER),
        THERMAL: _Total(field=pynvml.NVML_FI_DEV_PERF_POLICY_THERMAL, policy=pynvml.NVML_PERF_POLICY_THERMAL),
    }
)

BOARD_LIMIT = 0x200
"""Bit of a board limit (NVML reference, nvmlClocksEventReasonBoardLimit). Older drivers never set it, and bindings before
13.615 do not name it."""

BITS: Mapping[str, int] = MappingProxyType(
    {
        POWER: pynvml.nvmlClocksEventReasonSwPowerCap,
        THERMAL: pynvml.nvmlClocksEventReasonSwThermalSlowdown | pynvml.nvmlClocksEventReasonHwThermalSlowdown,
        HARDWARE: pynvml.nvmlClocksEventReasonHwSlowdown
        | pynvml.nvmlClocksEventReasonHwPowerBrakeSlowdown
        | BOARD_LIMIT,
    }
)
"""Idle, application clocks, sync boost and display clocks hold nothing down that was wanted. The reliability limit (0x400)
is a voltage limit that every GPU reaches at its top clock, as for DCGM (`rules.gpu_sources.dcgm`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Errors:
    """A total of memory errors: its field, and the type of the older call."""

    field: int
    type: int


ERRORS: Mapping[str, _Errors] = MappingProxyType(
    {
        "gpu_ecc_correctable_errors": _Errors(
            field=pynvml.NVML_FI_DEV_ECC_SBE_AGG_TOTAL, type=pynvml.NVML_MEMORY_ERROR_TYPE_CORRECTED
        ),
        "gpu_ecc_uncorrectable_errors": _Errors(
            field=pynvml.NVML_FI_DEV_ECC_DBE_AGG_TOTAL, type=pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED
        ),
    }
)

_Found = Mapping[int, int | NvmlRefusedError]


class GpuHealthSums:
    """The sums of one whole GPU. An instance has none of its own: the board is held down as one."""

    def __init__(self) -> None:
        self._throttled = ThrottleSum()
        self._errors = {name: CountSum() for name in ERRORS}
        self._ecc_gaps: dict[str, str] = {}
        self._ecc_at: float | None = None

    def read(self, gpu: NvmlDevice, answers: ReadoutBuilder, clock: Callable[[], float]) -> None:
        """Add what happened since the last turn. One call for all totals, one for the bits."""
        ecc_due = self._ecc_at is None or clock() - self._ecc_at >= ECC_SECONDS
        wanted = [total.field for total in TOTALS.values()]
        if ecc_due:
            wanted += [pynvml.NVML_FI_DEV_ECC_CURRENT, *(errors.field for errors in ERRORS.values())]
        found = _fields(gpu, wanted)
        self._add_throttling(gpu, answers, found, clock)
        if ecc_due:
            self._add_errors(gpu, found)
            self._ecc_at = clock()
        answers.gaps.update(self._ecc_gaps)
        answers.counters.update({name: s.count for name, s in self._errors.items() if name not in self._ecc_gaps})

    def interrupt(self) -> None:
        """The GPU was out of reach: throttling begins anew, and errors are asked for at once."""
        self._throttled.interrupt()
        self._ecc_at = None

    def _add_throttling(
        self, gpu: NvmlDevice, answers: ReadoutBuilder, found: _Found, clock: Callable[[], float]
    ) -> None:
        totals: dict[str, int] = {}
        why: dict[str, NvmlRefusedError] = {}
        for cause, row in TOTALS.items():
            try:
                totals[cause] = _total(gpu, row, found)
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
            gpu.leave_out(answers, (cause,), why[cause])
        if not (totals or active):
            gpu.leave_out(answers, (COVERED,), next(iter(why.values())))
            return
        answers.counters.update({cause: self._throttled.seconds[cause] for cause in self._throttled.known})
        answers.counters[COVERED] = self._throttled.covered_seconds
        answers.sampled.update(active)

    def _add_errors(self, gpu: NvmlDevice, found: _Found) -> None:
        gaps = ReadoutBuilder()
        off = found[pynvml.NVML_FI_DEV_ECC_CURRENT] == 0
        for name, row in ERRORS.items():
            if off:
                gaps.gaps[name] = f"ECC is switched off on {gpu.product} (driver {gpu.driver})"
                continue
            try:
                total, source = _errors(gpu, row, found)
                self._errors[name].add_total(total, source)
            except NvmlRefusedError as refused:
                gpu.leave_out(gaps, (name,), refused)
        self._ecc_gaps = gaps.gaps


def _fields(gpu: NvmlDevice, wanted: list[int]) -> _Found:
    """What each field holds, or why it holds nothing."""
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
    # A field that a driver does not know is answered by invalid argument.
    return (
        refused
        if refused.kind is not NvmlErrorKind.BUG
        else NvmlRefusedError(call, NvmlErrorKind.GAP, "not known", refused.code)
    )


def _held(found: _Found, field: int) -> int:
    held = found[field]
    if isinstance(held, NvmlRefusedError):
        raise held
    return held


def _total(gpu: NvmlDevice, row: _Total, found: _Found) -> int:
    try:
        return _held(found, row.field)
    except NvmlRefusedError as refused:
        if refused.kind not in CAPABILITY:
            raise
        return int(gpu.ask("nvmlDeviceGetViolationStatus", row.policy, fact=str(row.policy)).violationTime)


def _reasons(gpu: NvmlDevice) -> int:
    """The causes that act now, by the newer call or else the older; without the bit that heat sets along with its own."""
    try:
        reasons = int(gpu.ask("nvmlDeviceGetCurrentClocksEventReasons"))
    except NvmlRefusedError as newer:
        if newer.kind not in CAPABILITY:
            raise
        reasons = int(gpu.ask("nvmlDeviceGetCurrentClocksThrottleReasons"))
    if reasons & pynvml.nvmlClocksEventReasonHwThermalSlowdown:
        reasons &= ~pynvml.nvmlClocksEventReasonHwSlowdown
    return reasons


def _errors(gpu: NvmlDevice, row: _Errors, found: _Found) -> tuple[int, str]:
    """The total and where it came from."""
    try:
        return _held(found, row.field), "field"
    except NvmlRefusedError as refused:
        if refused.kind not in CAPABILITY:
            raise
        call = "nvmlDeviceGetTotalEccErrors"
        return int(gpu.ask(call, row.type, pynvml.NVML_AGGREGATE_ECC, fact=str(row.type))), call
