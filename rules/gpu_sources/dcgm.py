"""dcgm-exporter: fields, units, labels, blanks and ignored families.

A new field needs a row of ``FIELDS``, or a reason in the test that holds its pages. Sources:
dcgm-exporter etc/default-counters.csv and label code at commit d5e5f510, DCGM dcgm_structs.h and dcgm_fields.h. The
exporter queries DCGM every 30 s by default, independent of scrapes. Two pages for which ``same_refresh`` holds are one.
MIG: an instance is a separate GPU, "<UUID>/<GPU_I_ID>", and replaces its parent GPU. Measurements of the whole GPU are
printed for each instance. They are a gap there, because a sum over instances would count them several times.
DCGM_FI_PROF_GR_ENGINE_ACTIVE of an instance is a share of the instance's own time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from rules.gpu_sources.devices import (
    BY_CODE,
    FAULTS,
    Device,
    code,
    label,
    no_codes,
    pod_of,
    readout,
    sort_by_index,
    whole_number,
)
from rules.gpu_sources.exporter import MIB, Field, GpuExporter, GpuExporterPage, Sample

PREFIX = "DCGM_FI_"

OFF = "not in dcgm-exporter's default counters"
_CSV = "dcgm-exporter etc/default-counters.csv"
_DCP = "dcgm-exporter etc/dcp-metrics-included.csv"
_HEADER = "DCGM dcgm_fields.h"
_NS = 1e-9
"""Violation times are nanoseconds, although older HELP texts differ. Sources: dcgm_fields.h, and dcgm-exporter pull
request 589, whose author measured them. The newer names of the same fields end in _NS."""

_POWER, _THERMAL = "gpu_throttled_power_seconds", "gpu_throttled_thermal_seconds"
_HARDWARE = "gpu_throttled_hardware_seconds"
_LOST, _MENDED = "gpu_ecc_uncorrectable_errors", "gpu_ecc_correctable_errors"
_REASON = "DCGM_FI_DEV_CLOCKS_EVENT_REASON_"


def _off(ours: str, source: str, *theirs: str, factor: float = 1.0) -> Field:
    """Return a row of the whole GPU that is not in the default counters. Several series are added."""
    return Field(theirs=theirs[0], plus=theirs[1:], ours=ours, factor=factor, whole_gpu=True, off=OFF, source=source)


FIELDS: tuple[Field, ...] = (
    Field(theirs="DCGM_FI_PROF_GR_ENGINE_ACTIVE", ours="gpu_gr_engine_active", source=_CSV),
    Field(theirs="DCGM_FI_PROF_SM_ACTIVE", ours="gpu_sm_active", off=OFF, source=_DCP),
    Field(theirs="DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", ours="tensor_active", source=_CSV),
    Field(theirs="DCGM_FI_PROF_DRAM_ACTIVE", ours="dram_active"),
    *(
        Field(
            theirs=f"DCGM_FI_PROF_{link}_{way}{end}",
            ours=f"gpu_{link.lower()}_{way.lower()}_bytes_per_second",
            whole_gpu=True,
            off="" if link == "PCIE" else OFF,
            source=source,
        )
        for link, end, source in (("PCIE", "_BYTES", _CSV), ("NVLINK", "_BYTES", _DCP), ("C2C", "_ALL_BYTES", _HEADER))
        for way in ("TX", "RX")
    ),
    Field(theirs="DCGM_FI_DEV_GPU_UTIL", ours="gpu_utilization_sampled", factor=0.01, sampled=True, whole_gpu=True),
    Field(theirs="DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", ours="gpu_energy_joules", factor=0.001, whole_gpu=True),
    Field(theirs="DCGM_FI_DEV_POWER_USAGE", ours="gpu_power_watts", sampled=True, whole_gpu=True),
    _off("gpu_power_limit_watts", _HEADER, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT"),
    _off("gpu_power_limit_watts", _HEADER, "DCGM_FI_DEV_POWER_MGMT_LIMIT"),
    Field(theirs="DCGM_FI_DEV_GPU_TEMP", ours="gpu_temperature_celsius", whole_gpu=True),
    _off(_POWER, _CSV, "DCGM_FI_DEV_POWER_VIOLATION", factor=_NS),
    _off(_POWER, _HEADER, f"{_REASON}SW_POWER_CAP_NS", factor=_NS),
    _off(_THERMAL, _CSV, "DCGM_FI_DEV_THERMAL_VIOLATION", factor=_NS),
    _off(_THERMAL, _HEADER, f"{_REASON}SW_THERM_SLOWDOWN_NS", f"{_REASON}HW_THERM_SLOWDOWN_NS", factor=_NS),
    _off(_HARDWARE, _CSV, "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", factor=_NS),
    _off(_HARDWARE, _HEADER, f"{_REASON}HW_POWER_BRAKE_SLOWDOWN_NS", factor=_NS),
    _off(_LOST, _CSV, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL"),
    _off(_LOST, _CSV, "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL"),
    _off(_MENDED, _CSV, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL"),
    _off(_MENDED, _CSV, "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL"),
)
"""The first row of a name with a value wins. The PROF fields are ratios 0-1, although their HELP text differs."""

USED, FREE = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"
RESERVED, TOTAL = "DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_FB_TOTAL"
MEMORY_FIELDS = (USED, FREE, RESERVED, TOTAL)
"""Memory fields in MiB. FB_USED excludes the reserved part; FB_TOTAL is not in the default list; older exporters lack
FB_RESERVED."""

XID = "DCGM_FI_DEV_XID_ERRORS"
"""Last code until the driver is reloaded; 0 before any. A repeated code is indistinguishable."""

OURS: tuple[str, ...] = (
    *dict.fromkeys(row.ours for row in FIELDS),
    "gpu_memory_used_bytes",
    "gpu_memory_total_bytes",
    "gpu_memory_reserved_bytes",
    FAULTS,
    BY_CODE,
)
"""Names with a value or a gap in every readout. Faults have only the gap (see `GpuExporterPage.faults`)."""

UUID_LABELS = ("UUID", "uuid")
PRODUCT_LABELS = ("modelName", "model_name")
INDEX_LABELS = ("gpu",)
MIG_LABELS = ("GPU_I_ID",)
PROFILE_LABELS = ("GPU_I_PROFILE",)
POD_LABELS = ("pod", "pod_name", "exported_pod")
"""Old and new label names. The host (Hostname, hostname) does not identify a GPU: its UUID does."""

_BLANK_WORDS = ("blank", "not found", "not supported", "not permitted")
_BLANK_BASES = (2.0**47, float(0x7FFFFFF0))
_INT64_BLANK = float(0x7FFFFFFFFFFFFFF0)
"""DCGM blanks: base, +1, +2, +3, up to +15 (dcgm_structs.h: DCGM_FP64_BLANK, DCGM_INT32_BLANK, DCGM_INT64_BLANK). The
four 64-bit blanks are the same float."""

_WANTED = frozenset({XID, *MEMORY_FIELDS, *(name for row in FIELDS for name in row.names)})


def _blank(_: Field | None, value: float) -> str | None:
    if not math.isfinite(value):
        return "not a number"
    if value >= _INT64_BLANK:
        return "blank (not found, not supported or not permitted)"
    for base in _BLANK_BASES:
        if base <= value <= base + 15:
            return _BLANK_WORDS[int(value - base)] if value - base < len(_BLANK_WORDS) else "blank"
    return None


def read(samples: Iterable[Sample], t: float) -> GpuExporterPage:
    """Return the page of samples at ``t`` (unix seconds). Skip series without a UUID and report them."""
    devices: dict[tuple[str, str], Device] = {}
    nameless = 0
    for name, labels, value in samples:
        if not name.startswith(PREFIX):
            continue
        key = (label(labels, UUID_LABELS), label(labels, MIG_LABELS))
        if not key[0]:
            nameless += name in _WANTED
            continue
        device = devices.get(key) or devices.setdefault(key, _device(key, labels))
        if name in _WANTED:
            pod = pod_of(labels, POD_LABELS)
            device.add(name, value, bool(label(labels, POD_LABELS)))
            device.pods.update({pod} if pod else ())
    problems = []
    if nameless:
        problems.append(f"{nameless} DCGM series left out: no label {' or '.join(UUID_LABELS)} names their GPU")
    if not devices and not problems:
        problems.append("no DCGM series on the page: is this a dcgm-exporter (port 9400), and does it see a GPU?")
    parents = {uuid for uuid, instance in devices if instance}
    for uuid, instance in devices:
        # A fault of the whole GPU belongs to each instance that has no series of its own.
        if instance and XID not in devices[uuid, instance].values and (uuid, "") in devices:
            whole = devices[uuid, ""].values
            devices[uuid, instance].values.update({XID: whole[XID]} if XID in whole else {})
    found = sort_by_index(device for (uuid, instance), device in devices.items() if instance or uuid not in parents)
    faults = {device.gpu: _codes(device) for device in found}
    return GpuExporterPage(
        readouts=tuple(readout(d, t, FIELDS, {**_memory(d), **_no_faults(faults[d.gpu])}) for d in found),
        problems=tuple(problems),
        faults={gpu: codes for gpu, codes in faults.items() if not isinstance(codes, str)},
    )


def _device(key: tuple[str, str], labels: Mapping[str, str]) -> Device:
    uuid, instance = key
    product = label(labels, PRODUCT_LABELS)
    if not instance:
        return Device(gpu=uuid, index=whole_number(label(labels, INDEX_LABELS)), product=product, blank=_blank)
    # Without an index: an index names a whole GPU.
    product = " ".join(word for word in (product, "MIG", label(labels, PROFILE_LABELS)) if word)
    return Device(gpu=f"{uuid}/{instance}", index=None, product=product, blank=_blank, part="a MIG instance")


def _codes(device: Device) -> frozenset[str] | str:
    """Return the active codes, or the reason why they are unknown."""
    series = device.values.get(XID)
    if series is None:
        return f"{XID} is not on the page"
    known = [value for value, _ in series if _blank(None, value) is None]
    if not known:
        return f"{XID} is {_blank(None, series[0][0])}"
    if (odd := no_codes(known)) is not None:
        return odd
    return frozenset(f"xid-{code(value)}" for value in known if value != 0)


def _no_faults(codes: frozenset[str] | str) -> dict[str, float | str]:
    return {FAULTS: codes, BY_CODE: codes} if isinstance(codes, str) else {}


def _memory(device: Device) -> dict[str, float | str]:
    used, free, reserved, total = (device.value(theirs) for theirs in MEMORY_FIELDS)
    found: dict[str, float | str] = {
        "gpu_memory_reserved_bytes": reserved if isinstance(reserved, str) else reserved * MIB
    }
    kept = 0.0 if isinstance(reserved, str) else reserved
    found["gpu_memory_used_bytes"] = used if isinstance(used, str) else (used + kept) * MIB
    if not isinstance(used, str) and not isinstance(free, str):
        found["gpu_memory_total_bytes"] = (used + kept + free) * MIB
    elif not isinstance(total, str):
        found["gpu_memory_total_bytes"] = total * MIB
    else:
        found["gpu_memory_total_bytes"] = next(reason for reason in (used, free) if isinstance(reason, str))
    return found


DCGM = GpuExporter(
    name="dcgm",
    title="dcgm-exporter",
    signature=lambda name, labels: name.startswith(PREFIX),
    wanted=lambda name: name.startswith(PREFIX),
    plain=lambda name: name,
    read=read,
    fields=FIELDS,
    also_read={
        USED: "gpu_memory_used_bytes, gpu_memory_total_bytes",
        FREE: "gpu_memory_total_bytes",
        RESERVED: "gpu_memory_reserved_bytes",
        TOTAL: "gpu_memory_total_bytes",
        XID: "gpu_fault_events, by change",
    },
    not_exposed={
        "gpu_busy_seconds": "DCGM shows no sum of busy time; gpu_gr_engine_active is its mean over a refresh",
        "gpu_busy_covered_seconds": "DCGM shows no sum of busy time",
        "gpu_gfx_active": "of AMD GPUs alone",
    },
    keeps_values=True,
)
