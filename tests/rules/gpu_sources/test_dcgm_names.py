"""dcgm-exporter pages: units, blanks, label spellings, shared and partitioned GPUs, refreshes."""

import math
import re

import pytest

from rules.gpu_sources.dcgm import FIELDS, read
from rules.gpu_sources.devices import same_refresh
from rules.telemetry.families import LINKS

MIB = 1024 * 1024
OFF = "not in dcgm-exporter's default counters"
OURS = {
    *(row.ours for row in FIELDS),
    *(f"gpu_memory_{part}_bytes" for part in ("used", "total", "reserved")),
    *("gpu_fault_events", "gpu_fault_events_by_code"),
}
"""Names with a value or a gap in every readout. Faults have only the gap (see `GpuExporterPage.faults`)."""
ANY_BLANK = "blank (not found, not supported or not permitted)"
LABEL = re.compile(r'(\w+)="([^"]*)"')


def page(labels="", **values):
    """A page of one GPU; ``labels`` are added to or replace the usual ones."""
    usual = {"gpu": "3", "UUID": "GPU-a", "modelName": "NVIDIA H200", "Hostname": "node-1", "pci_bus_id": "0:3B:00.0"}
    usual.update(LABEL.findall(labels))
    return [(name, usual, value) for name, value in values.items()]


FULL = {
    "DCGM_FI_PROF_GR_ENGINE_ACTIVE": 0.93,
    "DCGM_FI_PROF_SM_ACTIVE": 0.71,
    "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": 0.31,
    "DCGM_FI_PROF_DRAM_ACTIVE": 0.62,
    **dict.fromkeys(("DCGM_FI_PROF_PCIE_TX_BYTES", "DCGM_FI_PROF_PCIE_RX_BYTES"), 1000000000.0),
    **dict.fromkeys(("DCGM_FI_PROF_NVLINK_TX_BYTES", "DCGM_FI_PROF_NVLINK_RX_BYTES"), 20000000000.0),
    **dict.fromkeys(("DCGM_FI_PROF_C2C_TX_ALL_BYTES", "DCGM_FI_PROF_C2C_RX_ALL_BYTES"), 3000000000.0),
    "DCGM_FI_DEV_GPU_UTIL": 97.0,
    "DCGM_FI_DEV_FB_USED": 120_000.0,
    "DCGM_FI_DEV_FB_FREE": 23_000.0,
    "DCGM_FI_DEV_FB_RESERVED": 771.0,
    "DCGM_FI_DEV_POWER_USAGE": 512.5,
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": 700.0,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 123_456_789.0,
    "DCGM_FI_DEV_GPU_TEMP": 61.0,
    "DCGM_FI_DEV_XID_ERRORS": 0.0,
    "DCGM_FI_DEV_POWER_VIOLATION": 2_500_000_000.0,
    "DCGM_FI_DEV_THERMAL_VIOLATION": 0.0,
    "DCGM_FI_DEV_BOARD_LIMIT_VIOLATION": 1_000_000.0,
    "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL": 0.0,
    "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL": 12.0,
}


def readouts(samples, t):
    """The two parts of a page that most of these tests look at."""
    found = read(samples, t)
    return found.readouts, found.problems


def one(samples):
    found, problems = readouts(samples, 100.0)
    assert problems == ()
    assert len(found) == 1
    return found[0]


def test_full_dcgm_page_in_base_units():
    gpu = one(page(**FULL))
    assert (gpu.t, gpu.gpu, gpu.index, gpu.product, gpu.host) == (100.0, "GPU-a", 3, "NVIDIA H200", "node-1")
    assert gpu.counters == pytest.approx(
        {
            "gpu_energy_joules": 123_456.789,
            POWER: 2.5,
            THERMAL: 0.0,
            "gpu_throttled_hardware_seconds": 0.001,
            "gpu_ecc_uncorrectable_errors": 0.0,
            "gpu_ecc_correctable_errors": 12.0,
        }
    )
    links = {"pcie": 1e9, "nvlink": 2e10, "c2c": 3e9}
    assert gpu.gauges == pytest.approx(
        {
            "gpu_gr_engine_active": 0.93,
            "gpu_sm_active": 0.71,
            "tensor_active": 0.31,
            "dram_active": 0.62,
            **{f"gpu_{link}_{way}_bytes_per_second": links[link] for link in links for way in ("tx", "rx")},
            "gpu_utilization_sampled": 0.97,
            "gpu_memory_used_bytes": 120_771.0 * MIB,
            "gpu_memory_total_bytes": 143_771.0 * MIB,
            "gpu_memory_reserved_bytes": 771.0 * MIB,
            "gpu_power_watts": 512.5,
            "gpu_power_limit_watts": 700.0,
            "gpu_temperature_celsius": 61.0,
        }
    )
    assert (gpu.gaps, gpu.sampled) == ({}, {"gpu_utilization_sampled", "gpu_power_watts"})


def test_missing_field_is_a_named_gap():
    gpu = one(page(DCGM_FI_DEV_GPU_TEMP=40.0))
    assert gpu.gauges == {"gpu_temperature_celsius": 40.0}
    assert set(gpu.gaps) == set(OURS) - {"gpu_temperature_celsius"}
    assert gpu.gaps["gpu_gr_engine_active"] == "DCGM_FI_PROF_GR_ENGINE_ACTIVE is not on the page"
    assert gpu.gaps["gpu_memory_total_bytes"] == "DCGM_FI_DEV_FB_USED is not on the page"
    assert gpu.gaps["gpu_throttled_power_seconds"] == f"DCGM_FI_DEV_POWER_VIOLATION is not on the page ({OFF})"
    assert {name for name, why in gpu.gaps.items() if OFF in why} == {
        *(f"gpu_throttled_{cause}_seconds" for cause in ("power", "thermal", "hardware")),
        *(f"gpu_ecc_{kind}_errors" for kind in ("correctable", "uncorrectable")),
        *(name for name in LINKS if "pcie" not in name),
        "gpu_sm_active",
        "gpu_power_limit_watts",
    }


def mig(number, profile="1g.18gb", **values):
    return page(f'GPU_I_ID="{number}" GPU_I_PROFILE="{profile}"', **values)


REASON = "DCGM_FI_DEV_CLOCKS_EVENT_REASON_"
NEWER = {
    f"{REASON}SW_POWER_CAP_NS": 3e9,
    f"{REASON}SW_THERM_SLOWDOWN_NS": 1e9,
    f"{REASON}HW_POWER_BRAKE_SLOWDOWN_NS": 2e9,
}
ALL_NEWER = page(**NEWER, **{f"{REASON}HW_THERM_SLOWDOWN_NS": 5e8})
PARTS = page(DCGM_FI_DEV_FB_USED=100.0, DCGM_FI_DEV_FB_FREE=50.0, DCGM_FI_DEV_FB_TOTAL=9_999.0)
BLANK_PART = page(**{**FULL, "DCGM_FI_DEV_FB_FREE": 9223372036854775794.0})
SPLIT = page('pod="a"', DCGM_FI_DEV_GPU_UTIL=20.0) + page('pod="b"', DCGM_FI_DEV_GPU_UTIL=45.0)
WITH_WHOLE = page('exported_pod="a"', DCGM_FI_DEV_GPU_UTIL=20.0) + page('pod=""', DCGM_FI_DEV_GPU_UTIL=65.0)
SLICE = mig("1", **{name: value for name, value in FULL.items() if "_PROF_" not in name and "_FB_" not in name})
POWER, THERMAL, UTIL = "gpu_throttled_power_seconds", "gpu_throttled_thermal_seconds", "gpu_utilization_sampled"
LIMITS = {"DCGM_FI_DEV_POWER_MGMT_LIMIT": 700.0, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": 500.0}
NO_SHARE, NOT_MIG = "which is no share of time", "is measured for the whole GPU, not for a MIG instance"


@pytest.mark.parametrize(
    ("samples", "name", "expected"),
    [
        (ALL_NEWER, POWER, 3.0),
        (ALL_NEWER, THERMAL, 1.5),
        (ALL_NEWER, "gpu_throttled_hardware_seconds", 2.0),
        # Half a sum is no sum.
        (page(**NEWER), THERMAL, f"{REASON}HW_THERM_SLOWDOWN_NS is not on the page ({OFF})"),
        (PARTS, "gpu_memory_total_bytes", 150.0 * MIB),
        (PARTS, "gpu_memory_reserved_bytes", "DCGM_FI_DEV_FB_RESERVED is not on the page"),
        (page(DCGM_FI_DEV_FB_TOTAL=200.0), "gpu_memory_total_bytes", 200.0 * MIB),
        (BLANK_PART, "gpu_memory_total_bytes", f"DCGM_FI_DEV_FB_FREE is {ANY_BLANK}"),
        (page(**LIMITS), "gpu_power_limit_watts", 500.0),
        (page(DCGM_FI_DEV_POWER_MGMT_LIMIT=700.0), "gpu_power_limit_watts", 700.0),
        (page(DCGM_FI_PROF_SM_ACTIVE=1.004), "gpu_sm_active", 1.0),
        (page(DCGM_FI_PROF_SM_ACTIVE=71.0), "gpu_sm_active", f"DCGM_FI_PROF_SM_ACTIVE is 71, {NO_SHARE}"),
        (page(DCGM_FI_DEV_GPU_UTIL=-1.0), UTIL, f"DCGM_FI_DEV_GPU_UTIL is -1, {NO_SHARE}"),
        (SPLIT, UTIL, "DCGM_FI_DEV_GPU_UTIL has 2 different values for this GPU (one a pod): none is the whole GPU's"),
        (WITH_WHOLE, UTIL, pytest.approx(0.65)),
        (SLICE, "gpu_power_watts", f"DCGM_FI_DEV_POWER_USAGE {NOT_MIG}"),
        (SLICE, "gpu_energy_joules", f"DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION {NOT_MIG}"),
        # 0 there says nothing.
        (SLICE, UTIL, f"DCGM_FI_DEV_GPU_UTIL {NOT_MIG}"),
        (page(DCGM_FI_DEV_GPU_TEMP=40.0), "gpu_fault_events", "DCGM_FI_DEV_XID_ERRORS is not on the page"),
        (page(DCGM_FI_DEV_XID_ERRORS=2.0**63 - 14), "gpu_fault_events", f"DCGM_FI_DEV_XID_ERRORS is {ANY_BLANK}"),
    ],
)
def test_page_gives_value_or_reason(samples, name, expected):
    gpu = one(samples)
    told = {**gpu.gauges, **gpu.counters}
    assert not told.keys() & gpu.gaps.keys()
    assert {**told, **gpu.gaps}[name] == expected
    assert name != "gpu_fault_events" or read(samples, 0.0).faults == {}


@pytest.mark.parametrize(
    "printed", ["9223372036854775792", "140737488355328", "140737488355340", "2147483634", "NaN", "+Inf"]
)
def test_dcgm_blank_is_a_gap(printed):
    reason = "not a number" if printed in ("NaN", "+Inf") else ANY_BLANK
    gpu = one(page(**{**FULL, "DCGM_FI_DEV_GPU_TEMP": float(printed)}))
    assert "gpu_temperature_celsius" not in gpu.gauges
    assert gpu.gaps == {"gpu_temperature_celsius": f"DCGM_FI_DEV_GPU_TEMP is {reason}"}


NEW_LABELS = {"gpu": "3", "uuid": "GPU-a", "modelName": "NVIDIA H200", "hostname": "node-1"}


@pytest.mark.parametrize(
    "samples",
    [
        [(f"{name}_total", NEW_LABELS, value) for name, value in FULL.items()],
        [sample for pod in ("a", "b", "c") for sample in page(f'pod="{pod}"', **FULL)],
        # Series of links need no UUID.
        [*page(**FULL), ("DCGM_FI_DEV_NVLINK_ERRORS", {"gpu_uuid": "GPU-a", "nvlink": "1"}, 0.0)],
    ],
    ids=["spelling", "pods", "links"],
)
def test_other_labels_name_the_same_gpu(samples):
    assert one(samples) == one(page(**FULL))


def test_gpus_sort_by_index_if_any():
    gpu = one([("DCGM_FI_DEV_GPU_TEMP", {"UUID": "GPU-a"}, 40.0)])
    assert (gpu.index, gpu.product) == (None, "")
    samples = [("DCGM_FI_DEV_GPU_TEMP", {"UUID": f"GPU-{i}", "gpu": str(i)}, 40.0) for i in (10, 2, 0)]
    samples.append(("DCGM_FI_DEV_GPU_TEMP", {"UUID": "GPU-x"}, 40.0))
    found, _ = readouts(samples, 0.0)
    assert [gpu.index for gpu in found] == [0, 2, 10, None]


def test_pages_without_uuid_or_series():
    found, problems = readouts([("DCGM_FI_DEV_GPU_TEMP", {"gpu": "0"}, 40.0)], 0.0)
    assert (found, problems) == ((), ("1 DCGM series left out: no label UUID or uuid names their GPU",))
    found, problems = readouts([("process_start_time_seconds", {}, 1.0)], 0.0)
    assert found == ()
    assert problems == ("no DCGM series on the page: is this a dcgm-exporter (port 9400), and does it see a GPU?",)


def test_mig_instance_replaces_its_gpu():
    """Its numbers are in a golden file."""
    found, problems = readouts(
        [
            *mig("2", DCGM_FI_PROF_GR_ENGINE_ACTIVE=0.9),
            *mig("1", "3g.71gb", DCGM_FI_PROF_GR_ENGINE_ACTIVE=0.1),
            *page(DCGM_FI_PROF_GR_ENGINE_ACTIVE=0.4),
            ("DCGM_FI_DEV_GPU_TEMP", {"UUID": "GPU-b", "gpu": "1"}, 40.0),
        ],
        0.0,
    )
    assert problems == ()
    assert [(gpu.gpu, gpu.index, gpu.product) for gpu in found] == [
        ("GPU-b", 1, ""),
        ("GPU-a/1", None, "NVIDIA H200 MIG 3g.71gb"),
        ("GPU-a/2", None, "NVIDIA H200 MIG 1g.18gb"),
    ]
    assert found[2].gauges == {"gpu_gr_engine_active": 0.9}


def test_standing_codes_are_told_by_gpu():
    samples = [*page(DCGM_FI_DEV_XID_ERRORS=79.0), ("DCGM_FI_DEV_XID_ERRORS", {"UUID": "GPU-b", "gpu": "1"}, 0.0)]
    found = read(samples, 0.0)
    assert found.faults == {"GPU-a": frozenset({"xid-79"}), "GPU-b": frozenset()}
    assert not any(name.startswith("gpu_fault") for gpu in found.readouts for name in (*gpu.counters, *gpu.gaps))
    several = page('err_code="79"', DCGM_FI_DEV_XID_ERRORS=79.0) + page('err_code="48"', DCGM_FI_DEV_XID_ERRORS=48.0)
    assert read(several, 0.0).faults == {"GPU-a": frozenset({"xid-79", "xid-48"})}
    # A fault of the whole GPU reaches the instances that tell none.
    own, other = mig("1", DCGM_FI_DEV_XID_ERRORS=43.0), mig("2", DCGM_FI_PROF_GR_ENGINE_ACTIVE=0.5)
    shared = read([*own, *other, *page(DCGM_FI_DEV_XID_ERRORS=79.0)], 0.0)
    assert shared.faults == {"GPU-a/1": frozenset({"xid-43"}), "GPU-a/2": frozenset({"xid-79"})}


HOT = page(**{**FULL, "DCGM_FI_DEV_GPU_TEMP": math.nan})


@pytest.mark.parametrize(
    ("first", "second", "is_same"),
    [
        (page(**FULL), page(**FULL), True),
        (HOT, HOT, True),
        # No energy, no proof: the instance may be as idle as 30 s before.
        (mig("1", **FULL), mig("1", **FULL), False),
        (page(**FULL), HOT, False),
        (page(**FULL), [*page(**FULL), ("DCGM_FI_DEV_GPU_TEMP", {"UUID": "GPU-b"}, 1.0)], False),
        (page(**FULL), page(**{**FULL, "DCGM_FI_DEV_XID_ERRORS": 31.0}), False),
        *(
            (page(**FULL), page(**{**FULL, name: FULL[name] * 1.001}), False)
            for name in ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_PROF_DRAM_ACTIVE")
        ),
    ],
)
def test_repeated_scrape_is_one_refresh(first, second, is_same):
    earlier, later = read(first, 100.0), read(second, 115.0)
    assert earlier != later
    assert same_refresh(earlier, later) is is_same
