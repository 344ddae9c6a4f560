"""nvidia_gpu_exporter (utkuozdemir), which queries nvidia-smi: names, units, labels and ignored families.

A new series needs a row of ``FIELDS`` or a reason among the ignored families; a test checks its pages. Source: pages of
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

IGNORED: tuple[tuple[str, str], ...] = (
    ("nvidia_smi_accounting_", "a setting"),
    ("nvidia_smi_c2c_mode", "links to the processor are not judged"),
    ("nvidia_smi_clocks_current_", "a clock at one instant; how long it was held down is used"),
    ("nvidia_smi_clocks_max_", "a clock that is allowed, not one that ran"),
    ("nvidia_smi_clocks_event_reasons_", "what holds the clocks at one instant; how long it did is used"),
    ("nvidia_smi_clocks_throttle_reasons_", "what holds the clocks at one instant; how long it did is used"),
    ("nvidia_smi_clocks_event_reasons_counters_sync_boost", "held to the pace of its group: no limit of its own"),
    ("nvidia_smi_command_exit_code", "the exporter's own"),
    ("nvidia_smi_compute_app_used_memory_bytes", "by process; that of the GPU is used"),
    ("nvidia_smi_compute_apps", "the processes are counted by their series"),
    ("nvidia_smi_compute_apps_last_collect_success", "the exporter's own"),
    ("nvidia_smi_compute_cap", "what the GPU is, not what it does"),
    ("nvidia_smi_compute_mode", "a setting"),
    ("nvidia_smi_count", "the GPUs are counted by their series"),
    ("nvidia_smi_display_", "displays are not judged"),
    ("nvidia_smi_driver_", "a setting"),
    ("nvidia_smi_ecc_errors_", "errors by kind of memory, or of all the GPU's life; the totals are used"),
    ("nvidia_smi_ecc_mode_", "a setting"),
    ("nvidia_smi_edpp_multiplier_ratio", "a setting"),
    ("nvidia_smi_encoder_stats_", "video is not judged"),
    ("nvidia_smi_fabric_", "links between GPUs are not judged"),
    ("nvidia_smi_failed_scrapes", "the exporter's own"),
    ("nvidia_smi_fan_speed", "fans are not judged"),
    ("nvidia_smi_gpu_recovery_action", "what nvidia-smi advises; the errors it follows from are used"),
    ("nvidia_smi_gsp_", "a setting"),
    ("nvidia_smi_index", "the label of the GPU says the same"),
    ("nvidia_smi_inforom_", "what the GPU is, not what it does"),
    ("nvidia_smi_kmd_version", "a version"),
    ("nvidia_smi_last_collect_success", "the exporter's own"),
    ("nvidia_smi_memory_used_bytes", "leaves the reserved part out; total minus free is used"),
    ("nvidia_smi_mig_mode_pending", "a setting"),
    ("nvidia_smi_name", "the label of the GPU says the same"),
    ("nvidia_smi_pci_", "what the GPU is, not what it does"),
    ("nvidia_smi_pcie_", "the bus to the host is not judged"),
    ("nvidia_smi_persistence_mode", "a setting"),
    ("nvidia_smi_platform_", "where the GPU is, not what it does"),
    ("nvidia_smi_power_default_limit_watts", "what the limit may be set to; the one in force is used"),
    ("nvidia_smi_power_draw_instant_watts", "the power of one instant; the mean of a second is used"),
    ("nvidia_smi_power_management", "a setting"),
    ("nvidia_smi_power_max_limit_watts", "what the limit may be set to; the one in force is used"),
    ("nvidia_smi_power_min_limit_watts", "what the limit may be set to; the one in force is used"),
    ("nvidia_smi_protected_memory_", "confidential computing is not judged"),
    ("nvidia_smi_pstate", "a state at one instant; how long clocks were held down is used"),
    ("nvidia_smi_remapped_rows_", "rows taken out of use after errors; the errors are used"),
    ("nvidia_smi_retired_pages_", "pages taken out of use after errors; the errors are used"),
    ("nvidia_smi_serial", "the label of the GPU says the same"),
    ("nvidia_smi_temperature_gpu_tlimit", "a margin to a limit; the temperature itself is used"),
    ("nvidia_smi_temperature_memory", "the core's temperature is used"),
    ("nvidia_smi_utilization_decoder_ratio", "video is not judged"),
    ("nvidia_smi_utilization_encoder_ratio", "video is not judged"),
    ("nvidia_smi_utilization_jpeg_ratio", "video is not judged"),
    ("nvidia_smi_utilization_ofa_ratio", "video is not judged"),
    (
        "nvidia_smi_utilization_memory_ratio",
        "share of time in which memory was touched at all, not how much of it moved",
    ),
    ("nvidia_smi_vbios_version", "a version"),
    ("nvidia_gpu_exporter_", "the exporter's own"),
    ("go_", "the exporter's own"),
    ("process_", "the exporter's own"),
    ("promhttp_", "the exporter's own"),
)


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
    ignored=IGNORED,
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
