"""dcgm-exporter: labels, blanks, memory and faults. Its fields and their sources are rows of `dcgm.toml`.

The exporter queries DCGM every 30 s by default, independent of scrapes. OpenTelemetry adds `_total` to counters.
MIG: an instance is a separate GPU, "<UUID>/<GPU_I_ID>", and replaces its parent GPU. Measurements of the whole GPU are
printed for each instance: a gap there, because a sum over instances would count them several times.
DCGM_FI_PROF_GR_ENGINE_ACTIVE of an instance is a share of the instance's own time.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from rules.gpu_sources.devices import BY_CODE, FAULTS, Device, label, no_codes, readout, sort_by_index, whole_number
from rules.gpu_sources.exporter import MIB, Field, GpuExporter, GpuExporterPage, Sample, load_exporter_keys

KEYS = load_exporter_keys("dcgm")
FIELDS: tuple[Field, ...] = KEYS["fields"]
PREFIX = "DCGM_FI_"

USED, FREE = "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_FB_FREE"
RESERVED, TOTAL = "DCGM_FI_DEV_FB_RESERVED", "DCGM_FI_DEV_FB_TOTAL"
MEMORY_FIELDS = (USED, FREE, RESERVED, TOTAL)
"""Memory fields in MiB. FB_USED excludes the reserved part. Old exporters lack FB_RESERVED, and most FB_TOTAL."""

XID = "DCGM_FI_DEV_XID_ERRORS"
"""Last code until the driver is reloaded; 0 before any. A repeated code is indistinguishable."""

UUID_LABELS, PRODUCT_LABELS = ("UUID", "uuid"), ("modelName", "model_name")
INDEX_LABELS, MIG_LABELS, PROFILE_LABELS = ("gpu",), ("GPU_I_ID",), ("GPU_I_PROFILE",)
POD_LABELS = ("pod", "pod_name", "exported_pod")
"""Old and new label names. The host (Hostname, hostname) does not identify a GPU: its UUID does."""

_BLANKS = ((2.0**47, 15.0), (float(0x7FFFFFF0), 15.0), (float(0x7FFFFFFFFFFFFFF0), math.inf))
"""DCGM blanks: first value and length (dcgm_structs.h: DCGM_FP64_BLANK, DCGM_INT32_BLANK, DCGM_INT64_BLANK)."""

_WANTED = frozenset({*KEYS["also_read"], *(name for row in FIELDS for name in row.names)})


def _blank(_: Field | None, value: float) -> str | None:
    if not math.isfinite(value):
        return "not a number"
    is_blank = any(base <= value <= base + length for base, length in _BLANKS)
    return "blank (not found, not supported or not permitted)" if is_blank else None


def read(samples: Iterable[Sample], t: float) -> GpuExporterPage:
    """Return the page of samples at ``t`` (unix seconds). Skip series without a UUID and report them."""
    devices: dict[tuple[str, str], Device] = {}
    nameless = 0
    for printed, labels, value in samples:
        name = printed.removesuffix("_total")
        if not name.startswith(PREFIX):
            continue
        key = (label(labels, UUID_LABELS), label(labels, MIG_LABELS))
        if not key[0]:
            nameless += name in _WANTED
            continue
        device = devices.get(key) or devices.setdefault(key, _device(key, labels))
        if name in _WANTED:
            device.add(name, value, labels, POD_LABELS)
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
    rows = sort_by_index(device for (uuid, instance), device in devices.items() if instance or uuid not in parents)
    faults = {device.gpu: _codes(device) for device in rows}
    return GpuExporterPage(
        readouts=tuple(readout(device, t, FIELDS, _more(device, faults[device.gpu])) for device in rows),
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
    """Return the active codes, or why they are unknown."""
    series = device.values.get(XID)
    if series is None:
        return f"{XID} is not on the page"
    known = [value for value, _ in series if _blank(None, value) is None]
    if not known:
        return f"{XID} is {_blank(None, series[0][0])}"
    return no_codes(known) or frozenset(f"xid-{value:.0f}" for value in known if value != 0)


def _more(device: Device, faults: frozenset[str] | str) -> dict[str, float | str]:
    """Return the memory, and the reason for no faults."""
    used, free, reserved, total = (device.value(theirs) for theirs in MEMORY_FIELDS)
    mapping: dict[str, float | str] = {FAULTS: faults, BY_CODE: faults} if isinstance(faults, str) else {}
    mapping["gpu_memory_reserved_bytes"] = reserved if isinstance(reserved, str) else reserved * MIB
    kept = 0.0 if isinstance(reserved, str) else reserved
    mapping["gpu_memory_used_bytes"] = used if isinstance(used, str) else (used + kept) * MIB
    if not isinstance(used, str) and not isinstance(free, str):
        mapping["gpu_memory_total_bytes"] = (used + kept + free) * MIB
    elif not isinstance(total, str):
        mapping["gpu_memory_total_bytes"] = total * MIB
    else:
        mapping["gpu_memory_total_bytes"] = used if isinstance(used, str) else free
    return mapping


DCGM = GpuExporter(
    signature=lambda name, labels: name.startswith(PREFIX),
    wanted=lambda name: name.startswith(PREFIX),
    plain=lambda name: name.removesuffix("_total"),
    read=read,
    **KEYS,
)
