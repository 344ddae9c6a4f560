"""AMD device-metrics-exporter: names, units, labels, partitions, faults, throttling counts and ignored families.

A new series needs a row of ``FIELDS``, or a reason in the test that holds the exporter's list.
Sources: ROCm/device-metrics-exporter docs/configuration/metricslist.md and pkg/amdgpu/gpuagent/gpuagent_gpu_metrics.go
(1.5), ROCm gpu-agent (memory in MiB), and the page tools/metricutil/metrics_mini.txt for the old naming. Names may
carry an operator's prefix ("amd_gpu_gfx_activity"). A partition (DPX, QPX, CPX) is a separate GPU, "<serial
number>/<gpu_partition_id>". Sensors of the whole GPU are on partition 0 only.

Throttling is in counts of the firmware's accumulation cycles, without a unit. `rules.gpu_sources.devices` converts
counts to seconds by their share of the cycles between two pages, like amd-smi's percentages. Sources: metricslist.md;
AMD SMI, GPU violations; Linux amdgpu gpu_metrics 1.6 ("accumulated throttler residencies", in a later patch
"dimensionless hardware counters").
"""

from __future__ import annotations

import math
import re
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
from rules.gpu_sources.exporter import MEAN, MIB, Field, GpuExporter, GpuExporterPage, Sample, Ticks
from rules.telemetry.snapshots import LINKS

TICKS = "gpu_violation_current_accumulated_counter"
RESIDENCIES: Mapping[str, tuple[str, ...]] = {
    "gpu_throttled_power_seconds": ("gpu_violation_ppt_residency_accumulated",),
    "gpu_throttled_thermal_seconds": (
        "gpu_violation_socket_thermal_residency_accumulated",
        "gpu_violation_vr_thermal_residency_accumulated",
        "gpu_violation_hbm_thermal_residency_accumulated",
    ),
    "gpu_throttled_hardware_seconds": ("gpu_violation_processor_hot_residency_accumulated",),
}
"""Throttling counts of MI300 and newer. PPT is the package power limit, VR the voltage regulator, "processor hot" an
external signal."""


def ticks_of(device: Device) -> Ticks | str:
    """Return the counts of a GPU, or the reason for none. A name needs all its parts."""
    if device.part:
        return f"throttling is measured for the whole GPU, not for {device.part}"
    total = device.value(TICKS)
    if isinstance(total, str):
        return f"{total} (MI300 and newer have it)"
    of = {}
    for ours, names in RESIDENCIES.items():
        parts = [count for count in map(device.value, names) if not isinstance(count, str)]
        if len(parts) == len(names):
            of[ours] = math.fsum(parts)
    return Ticks(total=total, of=of)


def explain_missing_ticks(device: Device, ticks: Ticks | str) -> Mapping[str, str]:
    """Return, by our name, the reason why a GPU does not count it."""
    if isinstance(ticks, str):
        return dict.fromkeys(RESIDENCIES, ticks)
    missing = {ours: names for ours, names in RESIDENCIES.items() if ours not in ticks.of}
    return {
        ours: next(why for why in map(device.value, names) if isinstance(why, str)) for ours, names in missing.items()
    }


LIST = "device-metrics-exporter docs/configuration/metricslist.md"
_MB = 1e6
_PROFILER = "only with the exporter's ProfilerMetrics, which are off by default"


def _sensor(theirs: str, ours: str, *, factor: float = 1.0, sampled: bool = False, source: str = "") -> Field:
    """Return a row for a sensor of the whole GPU. It is never 0: older exporters print 0 for what a GPU lacks."""
    return Field(
        theirs=theirs, ours=ours, factor=factor, sampled=sampled, whole_gpu=True, zero_is_blank=True, source=source
    )


WHOLE = frozenset({"gpu_gfx_activity", "gpu_usage"})
DIES = "gpu_gfx_busy_instantaneous"
"""WHOLE do not apply to a partition (metricslist.md: "applicable for unpartitioned GPU"); DIES do."""

FIELDS: tuple[Field, ...] = (
    Field(theirs="gpu_gfx_activity", ours="gpu_gfx_active", factor=0.01, sampled=True),
    Field(theirs=DIES, ours="gpu_gfx_active", factor=0.01, sampled=True, many=MEAN),
    Field(theirs="gpu_usage", ours="gpu_gfx_active", factor=0.01, sampled=True),
    Field(theirs="gpu_umc_activity", ours="dram_active", factor=0.01, sampled=True, whole_gpu=True),
    Field(theirs="gpu_prof_tensor_active_percent", ours="tensor_active", factor=0.01, sampled=True, off=_PROFILER),
    _sensor("gpu_energy_consumed", "gpu_energy_joules", factor=1e-6),
    _sensor("gpu_package_power", "gpu_power_watts", sampled=True),
    _sensor("gpu_average_package_power", "gpu_power_watts", sampled=True),
    _sensor("gpu_power_usage", "gpu_power_watts", sampled=True),
    _sensor("gpu_junction_temperature", "gpu_temperature_celsius"),
    _sensor("gpu_edge_temperature", "gpu_temperature_celsius", source=LIST),
    Field(theirs="gpu_used_vram", ours="gpu_memory_used_bytes", factor=MIB, zero_is_blank=True),
    Field(theirs="gpu_total_vram", ours="gpu_memory_total_bytes", factor=MIB, zero_is_blank=True),
    Field(theirs="gpu_total_memory", ours="gpu_memory_total_bytes", factor=_MB, zero_is_blank=True),
    Field(theirs="gpu_ecc_uncorrect_total", ours="gpu_ecc_uncorrectable_errors", whole_gpu=True),
    Field(theirs="gpu_ecc_correct_total", ours="gpu_ecc_correctable_errors", whole_gpu=True),
)
"""The first row of a name with a value wins. "MB" of the new naming are 1024 x 1024 bytes (by gpu-agent's division: an
MI300X of 192 GiB shows 196592). "MB" of the old naming are 10^6 (64 GiB show as 68702). gfx activity comes first for an
unpartitioned GPU, the only one it is valid for. The profiler's gpu_prof_sm_active is no row. It is VALUBusy, the share
of time in which vector instructions were issued. `gpu_sm_active` means the share of time with a resident wave.
gpu_umc_activity is the share of time with a busy memory controller: the nearest to `dram_active`."""

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

_SIGNS = frozenset(
    {
        *("gpu_gfx_activity", "gpu_umc_activity", "gpu_clock", "gpu_xgmi_link_rx", "gpu_usage"),
        *("gpu_package_power", "gpu_average_package_power", "gpu_energy_consumed"),
        *("gpu_junction_temperature", "gpu_edge_temperature", "gpu_total_vram", "gpu_total_memory"),
    }
)
_READ = frozenset(
    {
        TICKS,
        AFID,
        *(name for row in FIELDS for name in row.names),
        *(n for names in RESIDENCIES.values() for n in names),
    }
)
_PREFIX = re.compile(r"^(?!nv_)[a-zA-Z]\w*?_(?=gpu_|pcie_)")
"""An operator's prefix. nv_gpu_* are Triton's own names."""


MOST_NAME = 80
"""Longest GPU name in a message, in characters."""


def strip_prefix(name: str) -> str:
    """Return a printed name without the operator's prefix, which ends before "gpu_" or "pcie_"."""
    return name if name.startswith(("gpu_", "pcie_")) else _PREFIX.sub("", name)


def signature(name: str, labels: Mapping[str, str]) -> bool:
    """Return whether only this exporter prints the series."""
    return strip_prefix(name) in _SIGNS and bool(label(labels, (*INDEX_LABELS, *UUID_LABELS)))


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
            afids.setdefault(key, set()).update({f"afid-{code(value)}"} if known else ())
        elif name in WHOLE and _split(labels):
            split.add(key)
        elif name in _READ:
            pod = pod_of(labels, POD_LABELS)
            device.add(name, value, bool(label(labels, POD_LABELS)))
            device.pods.update({pod} if pod else ())
    problems = [*_told_apart(devices)]
    if nameless:
        problems.append(f"{nameless} AMD series left out: no label gpu_id, gpu_uuid or serial_number names their GPU")
    if not devices and not problems:
        problems.append(
            "no GPU series on the page: is this a device-metrics-exporter (port 5000), and does it see a GPU?"
        )
    ticks = {device.gpu: ticks_of(device) for device in devices.values()}
    of_a_part = {devices[key].gpu for key in split}
    found = sort_by_index(devices.values())
    codes = {devices[key].gpu: frozenset(of) or None for key, of in afids.items()}
    return GpuExporterPage(
        readouts=tuple(readout(d, t, FIELDS, _more(d, ticks[d.gpu], codes, of_a_part)) for d in found),
        problems=tuple(problems),
        faults=codes,
        ticks={gpu: counted for gpu, counted in ticks.items() if not isinstance(counted, str)},
    )


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
    """Yield a problem for each group of GPUs with one serial number, as after hiding it. Add their index to their
    names."""
    called: dict[str, list[Device]] = {}
    for device in devices.values():
        called.setdefault(device.gpu, []).append(device)
    for gpu, several in called.items():
        if len(several) > 1:
            taken: set[str] = set()
            for place, device in enumerate(several):
                name = f"{gpu}#{device.index}"
                device.gpu = f"{name}.{place}" if name in taken else name
                taken.add(device.gpu)
            yield f"{len(several)} GPUs are called {gpu[:MOST_NAME]}; export the label gpu_uuid to tell them apart for good"


def _more(
    device: Device, ticks: Ticks | str, codes: Mapping[str, object], of_a_part: set[str]
) -> dict[str, float | str]:
    found: dict[str, float | str] = dict(explain_missing_ticks(device, ticks))
    if device.gpu not in codes:
        why = f"{AFID} is not on the page (from 1.4.2 on, and from the first event on)"
        found |= {FAULTS: why, BY_CODE: why}
    if device.gpu in of_a_part and DIES not in device.values:
        found["gpu_gfx_active"] = f"gpu_gfx_activity holds for a GPU in one piece, and {DIES} is not on the page"
    return found


AMD = GpuExporter(
    name="amd",
    title="AMD device-metrics-exporter",
    signature=signature,
    wanted=lambda name: strip_prefix(name) in _READ or strip_prefix(name) in _SIGNS,
    plain=strip_prefix,
    read=read,
    fields=FIELDS,
    also_read={
        **{name: ours for ours, names in RESIDENCIES.items() for name in names},
        TICKS: "gpu_throttled_covered_seconds",
        AFID: "gpu_fault_events, by change",
    },
    not_exposed={
        **dict.fromkeys(LINKS, "the exporter prints sums of unknown unit, link by link"),
        "gpu_busy_seconds": "the exporter shows no sum of busy time; gpu_gfx_active is a poll",
        "gpu_busy_covered_seconds": "the exporter shows no sum of busy time",
        "gpu_power_limit_watts": "the exporter does not print it",
        "gpu_memory_reserved_bytes": "the exporter does not print it",
        "gpu_gr_engine_active": "of NVIDIA GPUs alone",
        "gpu_sm_active": "gpu_prof_sm_active is the share of time with vector instructions, which is another thing",
        "gpu_utilization_sampled": "of NVIDIA GPUs alone",
    },
)
