"""What dcgm-exporter prints and sizewatch leaves alone, and why: one row a prefix, for `sizewatch inspect`.

Owns reasons only. A family that DCGM adds is either a row of `rules.gpu_sources.dcgm` or a row here; a test holds pages to it.
"""

from __future__ import annotations

from rules.gpu_sources.exporter import IgnoredGpuFamily

_REASONS: tuple[tuple[str, str], ...] = (
    ("DCGM_EXP_XID_ERRORS_COUNT", "a count over a sliding window (5 min): it goes down, so it is no counter"),
    ("DCGM_EXP_CLOCK_EVENTS_COUNT", "a count over a sliding window (5 min): it goes down, so it is no counter"),
    (
        "DCGM_EXP_GPU_HEALTH_STATUS",
        "DCGM's own verdict, by rules of its own (one nanosecond of throttling is a warning)",
    ),
    ("DCGM_FI_DEV_SM_CLOCK", "a clock at one instant; how long it was held down is used"),
    ("DCGM_FI_DEV_MEM_CLOCK", "a clock at one instant; how long it was held down is used"),
    ("DCGM_FI_DEV_APP_", "a clock that was set, not one that ran"),
    ("DCGM_FI_DEV_MAX_", "a clock that is allowed, not one that ran"),
    ("DCGM_FI_DEV_VIDEO_CLOCK", "video is not judged"),
    ("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "what holds the clocks at one instant; how long it did is used"),
    ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", "what holds the clocks at one instant; how long it did is used"),
    ("DCGM_FI_DEV_CLOCKS_EVENT_REASON_SYNC_BOOST_NS", "held to the pace of its group: no limit of its own"),
    ("DCGM_FI_DEV_SYNC_BOOST_VIOLATION", "held to the pace of its group: no limit of its own"),
    ("DCGM_FI_DEV_LOW_UTIL_VIOLATION", "clocks lowered for want of work: no fault"),
    ("DCGM_FI_DEV_RELIABILITY_VIOLATION", "a voltage limit that every GPU reaches at its top clock"),
    ("DCGM_FI_DEV_TOTAL_APP_CLOCKS_VIOLATION", "the sum of the others"),
    ("DCGM_FI_DEV_TOTAL_BASE_CLOCKS_VIOLATION", "the sum of the others"),
    ("DCGM_FI_DEV_MEMORY_TEMP", "the core's temperature is used"),
    ("DCGM_FI_DEV_SLOWDOWN_TEMP", "a limit of the board; that it was reached shows in the throttled seconds"),
    ("DCGM_FI_DEV_SHUTDOWN_TEMP", "a limit of the board; that it was reached shows in the throttled seconds"),
    ("DCGM_FI_DEV_GPU_MAX_OP_TEMP", "a limit of the board; that it was reached shows in the throttled seconds"),
    ("DCGM_FI_DEV_MEM_MAX_OP_TEMP", "a limit of the board; that it was reached shows in the throttled seconds"),
    ("DCGM_FI_DEV_GPU_TEMP_LIMIT", "a margin to a limit; the temperature itself is used"),
    ("DCGM_FI_DEV_POWER_USAGE_INSTANT", "the power of one instant; energy is used"),
    ("DCGM_FI_DEV_POWER_MGMT_LIMIT_", "what the limit may be set to; the one in force is used"),
    ("DCGM_FI_DEV_FAN_SPEED", "fans are not judged"),
    ("DCGM_FI_DEV_PSTATE", "a state at one instant; how long clocks were held down is used"),
    ("DCGM_FI_DEV_MEM_COPY_UTIL", "share of time in which memory was touched at all; dram_active says how much"),
    ("DCGM_FI_DEV_ENC_UTIL", "video is not judged"),
    ("DCGM_FI_DEV_DEC_UTIL", "video is not judged"),
    ("DCGM_FI_DEV_FB_USED_PERCENT", "used and free memory say the same"),
    ("DCGM_FI_DEV_PCIE_", "the bus to the host is not judged"),
    ("DCGM_FI_DEV_NVLINK_", "links between GPUs are not judged"),
    ("DCGM_FI_DEV_NVSWITCH_", "links between GPUs are not judged"),
    ("DCGM_FI_DEV_C2C_", "links to the processor are not judged"),
    ("DCGM_FI_DEV_FABRIC_", "links between GPUs are not judged"),
    ("DCGM_FI_DEV_VGPU_", "virtual GPUs are not judged"),
    ("DCGM_FI_DEV_COUNT", "the GPUs are counted by their series"),
    ("DCGM_FI_DEV_ECC_", "errors by kind of memory; the totals are used"),
    ("DCGM_FI_DEV_RETIRED_", "pages taken out of use after errors; the errors are used"),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", "rows taken out of use after errors; the errors are used"),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", "rows taken out of use after errors; the errors are used"),
    ("DCGM_FI_DEV_ROW_REMAP_", "rows taken out of use after errors; the errors are used"),
    ("DCGM_FI_PROF_PCIE_", "the bus to the host is not judged"),
    ("DCGM_FI_PROF_NVLINK_", "links between GPUs are not judged"),
    ("DCGM_FI_PROF_PIPE_", "one kind of pipe; tensor pipes and engine activity are used"),
    ("DCGM_FI_PROF_SM_OCCUPANCY", "warps on a multiprocessor; that it had any is used"),
    ("go_", "the exporter's own"),
    ("process_", "the exporter's own"),
    ("promhttp_", "the exporter's own"),
)

IGNORED: tuple[IgnoredGpuFamily, ...] = tuple(IgnoredGpuFamily(prefix=prefix, why=why) for prefix, why in _REASONS)
