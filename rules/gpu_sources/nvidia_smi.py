"""nvidia_gpu_exporter (utkuozdemir), which queries nvidia-smi: names, units, labels and ignored families.

A new series needs a row of ``FIELDS``, or a reason in the test that holds its pages. Source: pages of
the exporter's own tests (internal/integration/testdata, drivers 590.48 and 595.80). Its names are nvidia-smi's fields
with base units. It needs no DCGM and no privileges. It therefore shows no energy, no tensor or memory activity, and no
XID. With MIG it shows the whole GPU and no instances.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping

from rules.gpu_sources.devices import Device, label, readout, sort_by_index, whole_number
from rules.gpu_sources.exporter import Field, GpuExporter, GpuExporterPage, Sample
from rules.telemetry.snapshots import LINKS

PREFIX = "nvidia_smi_"
_REASON = "nvidia_smi_clocks_event_reasons_counters_"
_OLDER = "drivers before 570 do not tell it"
_ECC = "nvidia_smi_ecc_errors_"

FIELDS: tuple[Field, ...] = (
    Field(theirs="nvidia_smi_utilization_gpu_ratio", ours="gpu_utilization_sampled", sampled=True),
    Field(theirs="nvidia_smi_power_draw_average_watts", ours="gpu_power_watts", sampled=True),
    Field(theirs="nvidia_smi_power_draw_watts", ours="gpu_power_watts", sampled=True),
    Field(theirs="nvidia_smi_enforced_power_limit_watts", ours="gpu_power_limit_watts"),
    Field(theirs="nvidia_smi_power_limit_watts", ours="gpu_power_limit_watts"),
    Field(theirs="nvidia_smi_temperature_gpu", ours="gpu_temperature_celsius"),
    Field(theirs=f"{_REASON}sw_power_cap_seconds", ours="gpu_throttled_power_seconds", off=_OLDER),
    Field(
        theirs=f"{_REASON}sw_thermal_slowdown_seconds",
        plus=(f"{_REASON}hw_thermal_slowdown_seconds",),
        ours="gpu_throttled_thermal_seconds",
        off=_OLDER,
    ),
    Field(theirs=f"{_REASON}hw_power_brake_slowdown_seconds", ours="gpu_throttled_hardware_seconds", off=_OLDER),
    Field(theirs=f"{_ECC}uncorrected_volatile_total", ours="gpu_ecc_uncorrectable_errors"),
    Field(theirs=f"{_ECC}uncorrected_aggregate_total", ours="gpu_ecc_uncorrectable_errors"),
    Field(theirs=f"{_ECC}corrected_volatile_total", ours="gpu_ecc_correctable_errors"),
    Field(theirs=f"{_ECC}corrected_aggregate_total", ours="gpu_ecc_correctable_errors"),
)
"""The first row of a name with a value wins. Slowdown by software and by hardware may overlap: their sum is an upper
bound of the time that heat reduced the clocks."""

TOTAL, FREE = "nvidia_smi_memory_total_bytes", "nvidia_smi_memory_free_bytes"
RESERVED = "nvidia_smi_memory_reserved_bytes"
"""memory.used excludes the reserved part, like NVML's second version. Total minus free includes it."""

INFO, MIG, APPS = "nvidia_smi_gpu_info", "nvidia_smi_mig_mode_current", "nvidia_smi_compute_app_info"
UUID_LABEL, PRODUCT_LABELS, INDEX_LABELS = "uuid", ("name",), ("index",)

_READ = frozenset({TOTAL, FREE, RESERVED, INFO, MIG, APPS, *(name for row in FIELDS for name in row.names)})


def _blank(_: Field | None, value: float) -> str | None:
    return None if math.isfinite(value) and value >= 0 else "not a number"


def read(samples: Iterable[Sample], t: float) -> GpuExporterPage:
    """Return the page of samples at ``t`` (unix seconds). Skip series without a uuid."""
    devices: dict[str, Device] = {}
    partitioned: set[str] = set()
    for name, labels, value in samples:
        uuid = labels.get(UUID_LABEL, "")
        if name not in _READ or not uuid:
            continue
        device = devices.get(uuid) or devices.setdefault(uuid, Device(gpu=uuid, index=None, product="", blank=_blank))
        if name == INFO:
            device.product, device.index = label(labels, PRODUCT_LABELS), whole_number(label(labels, INDEX_LABELS))
        elif name == APPS:
            device.pids |= {pid} if (pid := whole_number(labels.get("pid", ""))) else set()
        elif name == MIG:
            partitioned |= {uuid} if value == 1 else set()
        else:
            device.add(name, value)
    problems = [
        f"GPU {uuid[:80]}: MIG is on, and this exporter shows none of its instances: what it says is of the whole GPU"
        for uuid in devices
        if uuid in partitioned
    ]
    if not devices:
        problems = ["no GPU series on the page: is this an nvidia_gpu_exporter (port 9835), and does it see a GPU?"]
    found = sort_by_index(devices.values())
    return GpuExporterPage(
        readouts=tuple(readout(d, t, FIELDS, _more(d, d.gpu in partitioned)) for d in found),
        problems=tuple(problems),
    )


def _more(device: Device, partitioned: bool) -> Mapping[str, float | str]:
    total, free, reserved = (device.value(name) for name in (TOTAL, FREE, RESERVED))
    found: dict[str, float | str] = {"gpu_memory_total_bytes": total, "gpu_memory_reserved_bytes": reserved}
    if isinstance(total, str) or isinstance(free, str):
        found["gpu_memory_used_bytes"] = total if isinstance(total, str) else free
    else:
        found["gpu_memory_used_bytes"] = total - free
    if partitioned:
        found["gpu_utilization_sampled"] = "MIG is on: nvidia-smi tells no utilisation of the whole GPU"
    return found


NVIDIA_SMI = GpuExporter(
    name="nvidia_smi",
    title="nvidia_gpu_exporter",
    signature=lambda name, labels: name.startswith(PREFIX) and UUID_LABEL in labels,
    wanted=lambda name: name in _READ,
    plain=lambda name: name,
    read=read,
    fields=FIELDS,
    also_read={
        TOTAL: "gpu_memory_total_bytes, gpu_memory_used_bytes",
        FREE: "gpu_memory_used_bytes",
        RESERVED: "gpu_memory_reserved_bytes",
        INFO: "product and index of the GPU",
        MIG: "whether the GPU is partitioned",
        APPS: "processes on the GPU",
    },
    not_exposed={
        **dict.fromkeys(LINKS, "nvidia-smi shows the width of a link, no traffic"),
        "gpu_busy_seconds": "nvidia-smi shows no sum of busy time; gpu_utilization_sampled is a poll",
        "gpu_busy_covered_seconds": "nvidia-smi shows no sum of busy time",
        "gpu_energy_joules": "nvidia-smi shows no energy; gpu_power_watts is a poll",
        "gpu_energy_covered_seconds": "nvidia-smi shows no energy",
        "gpu_fault_events": "nvidia-smi tells no XID",
        "gpu_fault_events_by_code": "nvidia-smi tells no XID",
        "gpu_gr_engine_active": "needs DCGM",
        "gpu_gfx_active": "of AMD GPUs alone",
        "gpu_sm_active": "needs DCGM",
        "tensor_active": "needs DCGM",
        "dram_active": "needs DCGM",
    },
)
