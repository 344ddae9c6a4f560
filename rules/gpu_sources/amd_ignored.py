"""What AMD's device-metrics-exporter prints and sizewatch leaves alone, and why: one row a prefix, for `sizewatch inspect`.

Owns reasons only; names without an operator's prefix. A family that the exporter adds is either a row of
`rules.gpu_sources.amd` or a row here; a test holds the list of its documentation to it.
"""

from __future__ import annotations

from rules.gpu_sources.exporter import IgnoredGpuFamily

_REASONS: tuple[tuple[str, str], ...] = (
    ("gpu_nodes_total", "the GPUs are counted by their series"),
    ("gpu_health", "the exporter's own verdict, by thresholds of its own; the errors it is made of are used"),
    ("gpu_clock", "a clock at one instant; how long it was held down is used"),
    ("gpu_min_clock", "a clock that is allowed, not one that ran"),
    ("gpu_max_clock", "a clock that is allowed, not one that ran"),
    ("gpu_memory_temperature", "the core's temperature is used"),
    ("gpu_hbm_temperature", "the core's temperature is used"),
    ("gpu_voltage", "voltages are not judged"),
    ("gpu_gfx_voltage", "voltages are not judged"),
    ("gpu_memory_voltage", "voltages are not judged"),
    ("gpu_mma_activity", "video is not judged"),
    ("gpu_vcn_", "video is not judged"),
    ("gpu_jpeg_", "video is not judged"),
    ("gpu_free_vram", "total minus used"),
    ("gpu_total_visible_vram", "the part that the host sees; all of it is used"),
    ("gpu_used_visible_vram", "the part that the host sees; all of it is used"),
    ("gpu_free_visible_vram", "the part that the host sees; all of it is used"),
    ("gpu_total_gtt", "memory of the host"),
    ("gpu_used_gtt", "memory of the host"),
    ("gpu_free_gtt", "memory of the host"),
    ("gpu_vram_max_bandwidth", "what the memory could do; how busy it was is used"),
    ("gpu_ecc_correct_", "errors by block; the total is used"),
    ("gpu_ecc_uncorrect_", "errors by block; the total is used"),
    ("gpu_ecc_deferred_", "errors found and not yet met: they count when they are"),
    ("gpu_xgmi_", "links between GPUs are not judged"),
    ("gpu_process_cu_occupancy", "by process; that of the GPU is used"),
    ("gpu_violation_low_utilization_", "clocks lowered for want of work: no fault"),
    ("gpu_violation_gfx_clock_below_host_limit_", "by compute die; the residencies of the whole GPU are used"),
    ("gpu_violation_ppt_residency_percentage", "a poll; the accumulated count knows all of the time"),
    ("gpu_violation_processor_hot_residency_percentage", "a poll; the accumulated count knows all of the time"),
    ("gpu_violation_socket_thermal_residency_percentage", "a poll; the accumulated count knows all of the time"),
    ("gpu_violation_vr_thermal_residency_percentage", "a poll; the accumulated count knows all of the time"),
    ("gpu_violation_hbm_thermal_residency_percentage", "a poll; the accumulated count knows all of the time"),
    ("gpu_prof_sm_active", "the share of time with vector instructions (VALUBusy), not with a resident wave"),
    ("gpu_prof_", "the profiler's counters; of them only the tensor share is used"),
    ("pcie_", "the bus to the host is not judged"),
    ("go_", "the exporter's own"),
    ("process_", "the exporter's own"),
    ("promhttp_", "the exporter's own"),
)

IGNORED: tuple[IgnoredGpuFamily, ...] = tuple(IgnoredGpuFamily(prefix=prefix, why=why) for prefix, why in _REASONS)
