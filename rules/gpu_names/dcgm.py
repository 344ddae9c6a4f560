"""How dcgm-exporter spells what a GPU says: fields, units, labels and blanks.

Owns the tables and the walk from parsed samples to readouts. Must not read or parse a page. A field more is a row of
``FIELDS``. Source: dcgm-exporter etc/default-counters.csv and label code at commit d5e5f510, DCGM dcgm_structs.h.

The exporter asks DCGM every 30 s by default, whoever scrapes: two readouts for which ``same_refresh`` holds are one.
"""

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from rules.gpu_readout import GPU_NAMES, GpuReadout

MIB = 1024.0 * 1024.0
PREFIX = "DCGM_FI_"


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """One DCGM field: our name, the factor to our unit, and whether it is a plain poll of what could be summed."""

    theirs: str
    ours: str
    factor: float = 1.0
    sampled: bool = False


FIELDS: tuple[Field, ...] = (
    Field(theirs="DCGM_FI_PROF_GR_ENGINE_ACTIVE", ours="gpu_gr_engine_active"),
    Field(theirs="DCGM_FI_PROF_SM_ACTIVE", ours="gpu_sm_active"),
    Field(theirs="DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", ours="tensor_active"),
    Field(theirs="DCGM_FI_PROF_DRAM_ACTIVE", ours="dram_active"),
    Field(theirs="DCGM_FI_DEV_GPU_UTIL", ours="gpu_utilization_sampled", factor=0.01, sampled=True),
    Field(theirs="DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", ours="gpu_energy_joules", factor=0.001),
    Field(theirs="DCGM_FI_DEV_POWER_USAGE", ours="gpu_power_watts", sampled=True),
    Field(theirs="DCGM_FI_DEV_ENFORCED_POWER_LIMIT", ours="gpu_power_limit_watts"),
    Field(theirs="DCGM_FI_DEV_POWER_MGMT_LIMIT", ours="gpu_power_limit_watts"),
    Field(theirs="DCGM_FI_DEV_GPU_TEMP", ours="gpu_temperature_celsius"),
)
"""The first row of a name that has a value gives it. The PROF fields are ratios 0-1, whatever their HELP text says."""

USED, FREE = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"
RESERVED, TOTAL = "DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_FB_TOTAL"
MEMORY_FIELDS = (USED, FREE, RESERVED, TOTAL)
"""MiB. FB_USED leaves the reserved part out; FB_TOTAL is not in the default list; older exporters lack FB_RESERVED."""

OURS: tuple[str, ...] = (
    *dict.fromkeys(row.ours for row in FIELDS),
    "gpu_memory_used_bytes",
    "gpu_memory_total_bytes",
    "gpu_memory_reserved_bytes",
)
"""Every name a readout of this exporter has a value or a gap for."""

UUID_LABELS = ("UUID", "uuid")
PRODUCT_LABELS = ("modelName", "model_name")
INDEX_LABELS = ("gpu",)
MIG_LABELS = ("GPU_I_ID",)
POD_LABELS = ("pod", "pod_name", "exported_pod")
"""Old and new spellings. The host (Hostname, hostname) is no part of what a GPU is: its UUID is."""

_BLANK_WORDS = ("blank", "not found", "not supported", "not permitted")
_BLANK_BASES = (2.0**47, float(0x7FFFFFF0))
_INT64_BLANK = float(0x7FFFFFFFFFFFFFF0)
"""DCGM writes these in place of a value: base, +1, +2, +3, up to +15 (dcgm_structs.h: DCGM_FP64_BLANK,
DCGM_INT32_BLANK, DCGM_INT64_BLANK). The four 64-bit ones are one and the same float."""

RATIO_SLACK = 0.01
"""A ratio this far above 1 is the counters' rounding and taken as 1; beyond it is no ratio."""

_WANTED = frozenset({*(row.theirs for row in FIELDS), *MEMORY_FIELDS})
_RATIOS = frozenset(name for name, row in GPU_NAMES.items() if row.unit == "ratio")


@dataclass(slots=True)
class _Device:
    uuid: str
    index: int | None
    product: str
    values: dict[str, list[tuple[float, bool]]] = field(default_factory=dict)
    """By DCGM field: each series' value, and whether the series is one of a pod."""

    def value(self, theirs: str) -> float | str:
        """The whole GPU's value of a field in its own unit, or the reason why there is none."""
        series = self.values.get(theirs)
        if series is None:
            return f"{theirs} is not on the page"
        # A GPU shared by pods has one series a pod: copies of the whole GPU's value, or each pod's own part of it.
        distinct = {value for value, of_a_pod in series if not of_a_pod} or {value for value, _ in series}
        if len(distinct) > 1:
            return f"{theirs} has {len(distinct)} different values for this GPU (one a pod): none is the whole GPU's"
        value = distinct.pop()
        reason = _blank(value)
        return value if reason is None else f"{theirs} is {reason}"


def _blank(value: float) -> str | None:
    if not math.isfinite(value):
        return "not a number"
    if value >= _INT64_BLANK:
        return "blank (not found, not supported or not permitted)"
    for base in _BLANK_BASES:
        if base <= value <= base + 15:
            return _BLANK_WORDS[int(value - base)] if value - base < len(_BLANK_WORDS) else "blank"
    return None


def _label(labels: Mapping[str, str], names: tuple[str, ...]) -> str:
    return next((labels[name] for name in names if labels.get(name)), "")


def readouts(
    samples: Iterable[tuple[str, Mapping[str, str], float]], t: float
) -> tuple[tuple[GpuReadout, ...], tuple[str, ...]]:
    """From a page's samples (name, labels, value) to one readout a GPU, and problems in words.

    ``t`` is unix seconds of the scrape. Series of MIG instances are left out and named; a series without a UUID too.
    """
    devices: dict[str, _Device] = {}
    mig: dict[str, int] = {}
    nameless = 0
    for name, labels, value in samples:
        if not name.startswith(PREFIX):
            continue
        uuid = _label(labels, UUID_LABELS)
        if not uuid:
            nameless += name in _WANTED
        elif _label(labels, MIG_LABELS):
            mig[uuid] = mig.get(uuid, 0) + 1
        else:
            device = devices.get(uuid) or devices.setdefault(uuid, _device(uuid, labels))
            if name in _WANTED:
                device.values.setdefault(name, []).append((value, bool(_label(labels, POD_LABELS))))
    problems = [
        f"GPU {uuid}: {count} series of MIG instances left out: MIG is not supported yet" for uuid, count in mig.items()
    ]
    if nameless:
        problems.append(f"{nameless} DCGM series left out: no label {' or '.join(UUID_LABELS)} names their GPU")
    if not devices and not problems:
        problems.append("no DCGM series on the page: is this a dcgm-exporter (port 9400), and does it see a GPU?")
    found = sorted(devices.values(), key=lambda device: (device.index is None, device.index, device.uuid))
    return tuple(_readout(device, t) for device in found), tuple(problems)


def _device(uuid: str, labels: Mapping[str, str]) -> _Device:
    index = _label(labels, INDEX_LABELS)
    return _Device(uuid, int(index) if index.isdecimal() else None, _label(labels, PRODUCT_LABELS))


def _readout(device: _Device, t: float) -> GpuReadout:
    counters: dict[str, float] = {}
    gauges: dict[str, float] = {}
    gaps: dict[str, str] = {}
    sampled = set()
    for row in FIELDS:
        if row.ours in counters or row.ours in gauges:
            continue
        value = _in_our_unit(row, device.value(row.theirs))
        if isinstance(value, str):
            gaps.setdefault(row.ours, value)
            continue
        gaps.pop(row.ours, None)
        (counters if GPU_NAMES[row.ours].kind == "counter" else gauges)[row.ours] = value
        if row.sampled:
            sampled.add(row.ours)
    _add_memory(device, gauges, gaps)
    return GpuReadout(
        t=t,
        gpu=device.uuid,
        index=device.index,
        product=device.product,
        counters=counters,
        gauges=gauges,
        gaps=gaps,
        sampled=frozenset(sampled),
        pids=(),
    )


def _in_our_unit(row: Field, value: float | str) -> float | str:
    if isinstance(value, str):
        return value
    ours = value * row.factor
    if row.ours in _RATIOS:
        if not 0.0 <= ours <= 1.0 + RATIO_SLACK:
            return f"{row.theirs} is {value:g}, which is no share of time"
        return min(ours, 1.0)
    return ours


def _add_memory(device: _Device, gauges: dict[str, float], gaps: dict[str, str]) -> None:
    used, free, reserved, total = (device.value(theirs) for theirs in MEMORY_FIELDS)
    if isinstance(reserved, str):
        gaps["gpu_memory_reserved_bytes"] = reserved
        reserved = 0.0
    else:
        gauges["gpu_memory_reserved_bytes"] = reserved * MIB
    if isinstance(used, str):
        gaps["gpu_memory_used_bytes"] = used
    else:
        gauges["gpu_memory_used_bytes"] = (used + reserved) * MIB
    if not isinstance(used, str) and not isinstance(free, str):
        gauges["gpu_memory_total_bytes"] = (used + reserved + free) * MIB
    elif not isinstance(total, str):
        gauges["gpu_memory_total_bytes"] = total * MIB
    else:
        gaps["gpu_memory_total_bytes"] = next(reason for reason in (used, free) if isinstance(reason, str))


def same_refresh(a: tuple[GpuReadout, ...], b: tuple[GpuReadout, ...]) -> bool:
    """Whether two pages show one and the same refresh of the exporter: nothing differs but ``t``.

    On a GPU that is powered the energy counter moves with every refresh, so equal pages mean an equal refresh. Where it
    is not exported an idle GPU may look unrefreshed: that under-counts coverage and invents nothing.
    """
    return len(a) == len(b) and all(replace(one, t=other.t) == other for one, other in zip(a, b, strict=True))
