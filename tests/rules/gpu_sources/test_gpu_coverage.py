"""Tables and pages of GPU exporters hold each other: every row is hit or documented, every family read or explained."""

from collections.abc import Iterable

import pytest
from gpu_pages import MADE_PAGES, SHARED_PAGES, SHARED_PAGES_FOLDER, families, page_path, page_text, series
from table_checks import UNREAD, why_unread

from agent.config.load import parse_config
from rules.engines.coverage import FamilyUse
from rules.gpu_sources.exporter import GpuExporter, explain_families
from rules.gpu_sources.registry import BY_NAME, EXPORTERS, detect_exporter
from rules.telemetry.families import GPU_NAMES

ALL_PAGES = {**MADE_PAGES, **SHARED_PAGES}

AMD_LIST = """
gpu_nodes_total gpu_health gpu_edge_temperature gpu_junction_temperature gpu_memory_temperature gpu_hbm_temperature
gpu_package_power gpu_average_package_power gpu_power_usage gpu_energy_consumed gpu_gfx_activity gpu_umc_activity
gpu_mma_activity gpu_vcn_activity gpu_jpeg_activity gpu_gfx_busy_instantaneous gpu_vcn_busy_instantaneous
gpu_jpeg_busy_instantaneous gpu_voltage gpu_gfx_voltage gpu_memory_voltage pcie_speed pcie_max_speed pcie_bandwidth
pcie_replay_count pcie_recovery_count pcie_replay_rollover_count pcie_nack_sent_count pcie_nack_received_count pcie_rx
pcie_tx pcie_bidirectional_bandwidth gpu_clock gpu_min_clock gpu_max_clock gpu_total_vram gpu_used_vram gpu_free_vram
gpu_total_visible_vram gpu_used_visible_vram gpu_free_visible_vram gpu_vram_max_bandwidth gpu_total_gtt gpu_used_gtt
gpu_free_gtt gpu_ecc_correct_total gpu_ecc_uncorrect_total gpu_ecc_deferred_total gpu_ecc_correct_umc
gpu_ecc_uncorrect_gfx gpu_ecc_deferred_sdma gpu_xgmi_nbr_0_nop_tx gpu_xgmi_nbr_5_tx_thrput gpu_xgmi_link_rx
gpu_xgmi_link_tx gpu_violation_current_accumulated_counter gpu_violation_processor_hot_residency_accumulated
gpu_violation_ppt_residency_accumulated gpu_violation_socket_thermal_residency_accumulated
gpu_violation_vr_thermal_residency_accumulated gpu_violation_hbm_thermal_residency_accumulated
gpu_violation_processor_hot_residency_percentage gpu_violation_ppt_residency_percentage
gpu_violation_socket_thermal_residency_percentage gpu_violation_vr_thermal_residency_percentage
gpu_violation_hbm_thermal_residency_percentage gpu_violation_gfx_clock_below_host_limit_power_accumulated
gpu_violation_gfx_clock_below_host_limit_thermal_percentage gpu_violation_low_utilization_accumulated
gpu_violation_gfx_clock_below_host_limit_total_percentage gpu_afid_errors gpu_process_cu_occupancy
gpu_prof_cpc_cpc_stat_busy gpu_prof_grbm_gui_active gpu_prof_gui_util_percent gpu_prof_sm_active gpu_prof_fetch_size
gpu_prof_write_size gpu_prof_occupancy_percent gpu_prof_tensor_active_percent gpu_prof_simd_utilization
"""
"""Names of docs/configuration/metricslist.md (1.5) and gpuagent_gpu_metrics.go; of long rows one or two."""

DCGM_LIST = """
DCGM_FI_DEV_SM_CLOCK DCGM_FI_DEV_MEM_CLOCK DCGM_FI_DEV_MEMORY_TEMP DCGM_FI_DEV_GPU_TEMP DCGM_FI_DEV_POWER_USAGE
DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION DCGM_FI_DEV_PCIE_TX_THROUGHPUT DCGM_FI_DEV_PCIE_REPLAY_COUNTER DCGM_FI_DEV_GPU_UTIL
DCGM_FI_DEV_MEM_COPY_UTIL DCGM_FI_DEV_ENC_UTIL DCGM_FI_DEV_DEC_UTIL DCGM_FI_DEV_XID_ERRORS DCGM_FI_DEV_POWER_VIOLATION
DCGM_FI_DEV_THERMAL_VIOLATION DCGM_FI_DEV_SYNC_BOOST_VIOLATION DCGM_FI_DEV_BOARD_LIMIT_VIOLATION
DCGM_FI_DEV_LOW_UTIL_VIOLATION DCGM_FI_DEV_RELIABILITY_VIOLATION DCGM_EXP_CLOCK_EVENTS_COUNT DCGM_EXP_XID_ERRORS_COUNT
DCGM_EXP_GPU_HEALTH_STATUS DCGM_FI_DEV_FB_FREE DCGM_FI_DEV_FB_USED DCGM_FI_DEV_FB_RESERVED DCGM_FI_DEV_ECC_SBE_VOL_TOTAL
DCGM_FI_DEV_ECC_DBE_VOL_TOTAL DCGM_FI_DEV_ECC_SBE_AGG_TOTAL DCGM_FI_DEV_ECC_DBE_AGG_TOTAL DCGM_FI_DEV_RETIRED_SBE
DCGM_FI_DEV_RETIRED_PENDING DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL
DCGM_FI_DEV_VGPU_LICENSE_STATUS DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS
DCGM_FI_DEV_ROW_REMAP_FAILURE DCGM_FI_PROF_GR_ENGINE_ACTIVE DCGM_FI_PROF_PIPE_TENSOR_ACTIVE DCGM_FI_PROF_DRAM_ACTIVE
DCGM_FI_PROF_PCIE_TX_BYTES DCGM_FI_PROF_PCIE_RX_BYTES DCGM_FI_PROF_SM_ACTIVE DCGM_FI_PROF_SM_OCCUPANCY
DCGM_FI_PROF_PIPE_FP64_ACTIVE DCGM_FI_PROF_PIPE_FP32_ACTIVE DCGM_FI_PROF_PIPE_FP16_ACTIVE
"""
"""Names of dcgm-exporter's etc/default-counters.csv and etc/dcp-metrics-included.csv, switched on or not."""


@pytest.mark.parametrize("name", ALL_PAGES)
def test_page_families_are_read_or_explained(name: str) -> None:
    text, expected = page_text(name), BY_NAME[ALL_PAGES[name]]
    parsed = [one for exporter in EXPORTERS for one in series(text, exporter)]
    assert detect_exporter((name, labels) for name, labels, _ in parsed) is expected
    uses = explain_families(expected, families(text))
    assert len(uses) > 2
    assert unexplained(expected, uses) == []


@pytest.mark.parametrize(
    ("exporter", "names", "unknown"), [("amd", AMD_LIST, "gpu_brand_new"), ("dcgm", DCGM_LIST, "DCGM_FI_DEV_BRAND_NEW")]
)
def test_documented_names_are_read_or_explained(exporter: str, names: str, unknown: str) -> None:
    uses = explain_families(BY_NAME[exporter], dict.fromkeys(names.split(), "gauge"))
    assert unexplained(BY_NAME[exporter], uses) == []
    (use,) = explain_families(BY_NAME[exporter], {unknown: "gauge"})
    assert use.text == ""


def unexplained(exporter: GpuExporter, found: Iterable[FamilyUse]) -> list[str]:
    return [use.name for use in found if not use.text and not why_unread(exporter.title, exporter.plain(use.name))]


def shown_by(exporter: GpuExporter, pages: dict[str, str]) -> set[str]:
    """Plain names of the series on these pages."""
    return {
        exporter.plain(name)
        for page, of in pages.items()
        if of == exporter.name and (page in MADE_PAGES or (SHARED_PAGES_FOLDER / page).exists())
        for name, _, _ in series(page_text(page), exporter)
    }


@pytest.mark.parametrize("exporter", EXPORTERS, ids=lambda exporter: exporter.name)
def test_every_row_meets_page_or_document(exporter: GpuExporter) -> None:
    shown = shown_by(exporter, ALL_PAGES)
    missing = [row.theirs for row in exporter.fields if not set(row.names) <= shown and not row.source]
    assert missing == []
    assert set(exporter.also_read) - shown <= {"DCGM_FI_DEV_FB_TOTAL"}, "only a page of ../shared has that one"
    ours = {row.ours for row in exporter.fields}
    assert not ours & set(exporter.not_exposed)
    assert ours | set(exporter.not_exposed) <= set(GPU_NAMES)
    assert not {name for row in exporter.fields for name in row.names} & set(UNREAD[exporter.title])


@pytest.mark.parametrize("name", [name for name in ALL_PAGES if "made" in name])
def test_made_pages_say_so(name: str) -> None:
    assert page_path(name).read_text(encoding="utf-8").startswith("# Made for the tests of sizewatch: ")


def test_every_exporter_has_a_configuration_key() -> None:
    for exporter in EXPORTERS:
        gpus = {"source": exporter.name, exporter.name: {"url": "http://x:1/metrics"}}
        configured = parse_config({"gpus": gpus}).gpu_exporter
        assert (configured[0], configured[1].url) == (exporter, "http://x:1/metrics")
    assert parse_config({}).gpu_exporter is None


def test_shared_gpu_pages_are_all_listed() -> None:
    if not SHARED_PAGES_FOLDER.exists():
        pytest.skip("../shared/pages is not here")
    there = {path.name for path in SHARED_PAGES_FOLDER.iterdir() if path.name.startswith(("amd-", "dcgm-"))}
    assert there == set(SHARED_PAGES)
