"""What nvidia_gpu_exporter prints and sizewatch leaves alone, and why: one row a prefix, for `sizewatch inspect`.

Owns reasons only. A family that the exporter adds is either a row of `rules.gpu_sources.nvidia_smi` or a row here; a test
holds its pages to it.
"""

from __future__ import annotations

from rules.gpu_sources.exporter import IgnoredGpuFamily

_REASONS: tuple[tuple[str, str], ...] = (
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

IGNORED: tuple[IgnoredGpuFamily, ...] = tuple(IgnoredGpuFamily(prefix=prefix, why=why) for prefix, why in _REASONS)
