"""AMD device-metrics-exporter: labels, blanks, partitions, faults and throttling. Its fields are rows of `amd.toml`.

Names may carry an operator's prefix ("amd_gpu_gfx_activity"). A partition (DPX, QPX, CPX) is a separate GPU, "<serial
number>/<gpu_partition_id>". Sensors of the whole GPU are on partition 0 only, and never 0: older exporters print 0 for
what a GPU lacks. Throttling is in counts of the firmware's accumulation cycles, without a unit.
`rules.gpu_sources.devices` converts counts to seconds by their share of the cycles between two pages, like amd-smi's
percentages. Sources: metricslist.md; AMD SMI, GPU violations; Linux amdgpu gpu_metrics 1.6.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping

from rules.gpu_sources.devices import BY_CODE, FAULTS, Device, label, no_codes, readout, sort_by_index, whole_number
from rules.gpu_sources.exporter import Field, GpuExporter, GpuExporterPage, Sample, Ticks, load_exporter_keys
from rules.telemetry.snapshots import GpuReadout

KEYS = load_exporter_keys("amd")
FIELDS: tuple[Field, ...] = KEYS["fields"]

TICKS = "gpu_violation_current_accumulated_counter"
RESIDENCIES = {
    ours: [name for name, use in KEYS["also_read"].items() if use == ours]
    for ours in ("gpu_throttled_power_seconds", "gpu_throttled_thermal_seconds", "gpu_throttled_hardware_seconds")
}
"""Throttling counts of MI300 and newer, by our name."""


def _count_ticks(device: Device) -> tuple[Ticks | None, dict[str, str]]:
    """Return the counts of a GPU and, by our name, why it does not count them. A name needs all its parts."""
    total = device.value(TICKS)
    if device.part:
        return None, dict.fromkeys(RESIDENCIES, f"throttling is measured for the whole GPU, not for {device.part}")
    if isinstance(total, str):
        return None, dict.fromkeys(RESIDENCIES, f"{total} (MI300 and newer have it)")
    of: dict[str, float] = {}
    missing: dict[str, str] = {}
    for ours, names in RESIDENCIES.items():
        parts = [device.value(name) for name in names]
        counts = [count for count in parts if not isinstance(count, str)]
        if len(counts) == len(parts):
            of[ours] = math.fsum(counts)
        else:
            missing[ours] = next(why for why in parts if isinstance(why, str))
    return Ticks(total=total, of=of), missing


WHOLE = frozenset({"gpu_gfx_activity", "gpu_usage"})
DIES = "gpu_gfx_busy_instantaneous"
"""WHOLE do not apply to a partition (metricslist.md: "applicable for unpartitioned GPU"); DIES do."""

AFID = "gpu_afid_errors"
"""Codes of the last RAS event, one series each. Printed from 1.4.2 on, and only after the first event."""

UUID_LABELS, SERIAL_LABELS = ("gpu_uuid", "GPU_UUID"), ("serial_number", "SERIAL_NUMBER")
INDEX_LABELS, PARTITION_LABELS = ("gpu_id", "GPU_ID"), ("gpu_partition_id",)
MODE_LABELS, PRODUCT_LABELS = ("gpu_compute_partition_type",), ("card_series", "card_model")
_PART_NUMBER = re.compile(r"\d{3}-\w+-\w+")
"""Frequent form of card_model ("102-D67305-00"), which is no product name."""
PIDS_LABEL, POD_LABELS = "kfd_process_id", ("pod", "exported_pod")
SINCE_AFID = "deployment_mode"
"""Introduced with AFID in 1.4.2, on every series of a GPU."""

_WHOLE_MODES = frozenset({"", "spx", "none", "na", "n/a"})
_BLANKS = frozenset({2.0**32 - 1, 2.0**64})
"""Values of firmware and driver for "not supported": all bits set. As a float the 64-bit value is 2^64."""

_READ = frozenset({*KEYS["also_read"], *(name for row in FIELDS for name in row.names)})
_WANTED = _READ | {"gpu_clock", "gpu_xgmi_link_rx"}
"""With series that are on every page, so that a GPU without any other is seen."""

_PREFIX = re.compile(r"^(?!nv_)[a-zA-Z]\w*?_(?=gpu_|pcie_)")
"""An operator's prefix. nv_gpu_* are Triton's own names."""


def strip_prefix(name: str) -> str:
    """Return a printed name without the operator's prefix, which ends before "gpu_" or "pcie_"."""
    return name if name.startswith(("gpu_", "pcie_")) else _PREFIX.sub("", name)


def signature(name: str, labels: Mapping[str, str]) -> bool:
    """Return whether only this exporter prints the series."""
    return strip_prefix(name) in _WANTED and bool(label(labels, (*INDEX_LABELS, *UUID_LABELS)))


def _blank(row: Field | None, value: float) -> str | None:
    if not math.isfinite(value):
        return "not a number"
    if value in _BLANKS or (row is not None and row.whole_gpu and row.sampled and value == 65535):
        return f"{value:.0f}, which stands for not supported"
    if value < 0:
        return f"{value:g}, which stands for not supported"
    if value == 0 and row is not None and row.zero_is_blank:
        return "0, which stands for not measured"
    return None


def read(samples: Iterable[Sample], t: float) -> GpuExporterPage:
    """Return the page of samples at ``t`` (unix seconds). Skip series without a GPU and report them."""
    devices: dict[tuple[str, str, str], Device] = {}
    afids: dict[tuple[str, str, str], set[str]] = {}
    split: set[tuple[str, str, str]] = set()
    nameless = 0
    for printed, labels, value in samples:
        name = strip_prefix(printed)
        index = label(labels, INDEX_LABELS)
        key = (label(labels, UUID_LABELS) or label(labels, SERIAL_LABELS), index, label(labels, PARTITION_LABELS))
        if not key[0] and not index:
            nameless += name in _READ
            continue
        device = devices.get(key) or devices.setdefault(key, _device(key, labels))
        device.pids |= {pid for text in labels.get(PIDS_LABEL, "").split(",") if (pid := whole_number(text.strip()))}
        if SINCE_AFID in labels:
            afids.setdefault(key, set())
        if name == AFID:
            known = _blank(None, value) is None and no_codes((value,)) is None
            afids.setdefault(key, set()).update({f"afid-{value:.0f}"} if known else ())
        elif name in WHOLE and _split(labels):
            split.add(key)
        elif name in _READ:
            device.add(name, value, labels, POD_LABELS)
    problems = [*_told_apart(devices)]
    if nameless:
        problems.append(f"{nameless} AMD series left out: no label gpu_id, gpu_uuid or serial_number names their GPU")
    if not devices and not problems:
        problems.append("no GPU series on the page: is this a device-metrics-exporter (port 5000)? does it see a GPU?")
    of_a_part = {devices[key].gpu for key in split}
    codes = {devices[key].gpu: frozenset(of) or None for key, of in afids.items()}
    readouts: list[GpuReadout] = []
    ticks: dict[str, Ticks] = {}
    for device in sort_by_index(devices.values()):
        counted, missing = _count_ticks(device)
        more: dict[str, float | str] = dict(missing)
        if device.gpu not in codes:
            why = f"{AFID} is not on the page (from 1.4.2 on, and from the first event on)"
            more |= {FAULTS: why, BY_CODE: why}
        if device.gpu in of_a_part and DIES not in device.values:
            more["gpu_gfx_active"] = f"gpu_gfx_activity holds for a GPU in one piece, and {DIES} is not on the page"
        readouts.append(readout(device, t, FIELDS, more))
        ticks |= {device.gpu: counted} if counted is not None else {}
    return GpuExporterPage(readouts=tuple(readouts), problems=tuple(problems), faults=codes, ticks=ticks)


def _device(key: tuple[str, str, str], labels: Mapping[str, str]) -> Device:
    gpu, index, partition = key
    product = _PART_NUMBER.sub("", label(labels, PRODUCT_LABELS))
    mode, split = label(labels, MODE_LABELS).lower(), _split(labels)
    if split:
        gpu, product = f"{gpu or f'amd-{index}'}/{partition or index}", f"{product} {mode.upper()} partition".strip()
    elsewhere = f"a partition ({mode.upper()}); it stands on partition 0" if split and partition != "0" else ""
    number = whole_number(index)
    return Device(gpu=gpu or f"amd-{index}", index=number, product=product, blank=_blank, part=elsewhere)


def _split(labels: Mapping[str, str]) -> bool:
    """Return whether a series belongs to a partition of a GPU."""
    return label(labels, MODE_LABELS).lower() not in _WHOLE_MODES


def _told_apart(devices: Mapping[tuple[str, str, str], Device]) -> Iterable[str]:
    """Yield a problem for each group of GPUs with one serial number. Add their index to their names."""
    called: dict[str, list[Device]] = {}
    for device in devices.values():
        called.setdefault(device.gpu, []).append(device)
    for gpu, group in called.items():
        if len(group) > 1:
            indexes = [device.index for device in group]
            for place, device in enumerate(group):
                device.gpu = f"{gpu}#{device.index}" + (f".{place}" if device.index in indexes[:place] else "")
            yield f"{len(group)} GPUs are called {gpu[:80]}; export the label gpu_uuid to tell them apart for good"


AMD = GpuExporter(
    signature=signature,
    wanted=lambda name: strip_prefix(name) in _WANTED,
    plain=strip_prefix,
    read=read,
    **KEYS,
)
