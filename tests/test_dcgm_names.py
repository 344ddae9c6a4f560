"""dcgm-exporter pages: units, blanks, label spellings, shared and partitioned GPUs, refreshes."""

import math
import re
from pathlib import Path

import pytest

from rules.gpu_names.dcgm import FIELDS, OURS, readouts, same_refresh
from rules.gpu_readout import GPU_NAMES

SHARED_PAGES = Path(__file__).parents[2] / "shared" / "pages"
MIB = 1024 * 1024
ANY_BLANK = "blank (not found, not supported or not permitted)"
SAMPLE = re.compile(r"(\w+)\{(.*)\} (\S+)$")
LABEL = re.compile(r'(\w+)="([^"]*)"')


def parse(text):
    """The samples of a well-formed page whose label values hold no escapes (the product's own parser is not ours)."""
    matches = [SAMPLE.match(line) for line in text.splitlines()]
    return [(m[1], dict(LABEL.findall(m[2])), float(m[3])) for m in matches if m]


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
    "DCGM_FI_DEV_GPU_UTIL": 97.0,
    "DCGM_FI_DEV_FB_USED": 120_000.0,
    "DCGM_FI_DEV_FB_FREE": 23_000.0,
    "DCGM_FI_DEV_FB_RESERVED": 771.0,
    "DCGM_FI_DEV_POWER_USAGE": 512.5,
    "DCGM_FI_DEV_ENFORCED_POWER_LIMIT": 700.0,
    "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION": 123_456_789.0,
    "DCGM_FI_DEV_GPU_TEMP": 61.0,
    "DCGM_FI_DEV_SM_CLOCK": 1980.0,
    "DCGM_FI_DEV_XID_ERRORS": 0.0,
}


def one(samples):
    found, problems = readouts(samples, 100.0)
    assert problems == ()
    assert len(found) == 1
    return found[0]


# ---- names and units ----


def test_a_full_page_comes_out_in_base_units():
    gpu = one(page(**FULL))
    assert (gpu.t, gpu.gpu, gpu.index, gpu.product, gpu.pids) == (100.0, "GPU-a", 3, "NVIDIA H200", ())
    assert gpu.counters == {"gpu_energy_joules": pytest.approx(123_456.789)}
    assert gpu.gauges == {
        "gpu_gr_engine_active": 0.93,
        "gpu_sm_active": 0.71,
        "tensor_active": 0.31,
        "dram_active": 0.62,
        "gpu_utilization_sampled": pytest.approx(0.97),
        "gpu_memory_used_bytes": 120_771.0 * MIB,
        "gpu_memory_total_bytes": 143_771.0 * MIB,
        "gpu_memory_reserved_bytes": 771.0 * MIB,
        "gpu_power_watts": 512.5,
        "gpu_power_limit_watts": 700.0,
        "gpu_temperature_celsius": 61.0,
    }
    assert gpu.gaps == {}
    assert gpu.sampled == {"gpu_utilization_sampled", "gpu_power_watts"}


def test_every_name_given_is_in_the_table_of_names():
    assert set(OURS) <= set(GPU_NAMES)
    assert {row.ours for row in FIELDS} <= set(OURS)


def test_every_field_that_is_not_on_the_page_is_a_gap_that_names_it():
    gpu = one(page(DCGM_FI_DEV_GPU_TEMP=40.0))
    assert gpu.gauges == {"gpu_temperature_celsius": 40.0}
    assert set(gpu.gaps) == set(OURS) - {"gpu_temperature_celsius"}
    assert gpu.gaps["gpu_gr_engine_active"] == "DCGM_FI_PROF_GR_ENGINE_ACTIVE is not on the page"
    assert gpu.gaps["gpu_memory_total_bytes"] == "DCGM_FI_DEV_FB_USED is not on the page"


def test_the_total_is_the_sum_of_its_parts_and_fb_total_only_where_a_part_is_missing():
    parts = {"DCGM_FI_DEV_FB_USED": 100.0, "DCGM_FI_DEV_FB_FREE": 50.0, "DCGM_FI_DEV_FB_TOTAL": 9_999.0}
    gpu = one(page(**parts))
    assert gpu.gauges["gpu_memory_total_bytes"] == 150.0 * MIB
    assert gpu.gaps["gpu_memory_reserved_bytes"] == "DCGM_FI_DEV_FB_RESERVED is not on the page"
    gpu = one(page(DCGM_FI_DEV_FB_TOTAL=200.0))
    assert gpu.gauges == {"gpu_memory_total_bytes": 200.0 * MIB}


def test_the_enforced_power_limit_is_preferred_to_the_one_that_was_set():
    gpu = one(page(DCGM_FI_DEV_POWER_MGMT_LIMIT=700.0, DCGM_FI_DEV_ENFORCED_POWER_LIMIT=500.0))
    assert gpu.gauges["gpu_power_limit_watts"] == 500.0
    gpu = one(page(DCGM_FI_DEV_POWER_MGMT_LIMIT=700.0))
    assert gpu.gauges["gpu_power_limit_watts"] == 700.0
    assert "gpu_power_limit_watts" not in gpu.gaps


# ---- blanks ----


@pytest.mark.parametrize(
    ("printed", "reason"),
    [
        ("9223372036854775792", ANY_BLANK),
        ("9223372036854775794", ANY_BLANK),
        ("9.223372036854776e+18", ANY_BLANK),
        ("140737488355328", "blank"),
        ("140737488355329.000000", "not found"),
        ("140737488355330", "not supported"),
        ("140737488355331", "not permitted"),
        ("140737488355340", "blank"),
        ("2147483632", "blank"),
        ("2147483634", "not supported"),
        ("NaN", "not a number"),
        ("+Inf", "not a number"),
    ],
)
def test_a_blank_is_a_gap_and_no_number(printed, reason):
    gpu = one(page(**{**FULL, "DCGM_FI_DEV_GPU_TEMP": float(printed)}))
    assert "gpu_temperature_celsius" not in gpu.gauges
    assert gpu.gaps == {"gpu_temperature_celsius": f"DCGM_FI_DEV_GPU_TEMP is {reason}"}


def test_a_blank_part_of_the_memory_leaves_out_the_sum_too():
    gpu = one(page(**{**FULL, "DCGM_FI_DEV_FB_FREE": 9223372036854775794.0}))
    assert gpu.gaps == {"gpu_memory_total_bytes": f"DCGM_FI_DEV_FB_FREE is {ANY_BLANK}"}


def test_a_share_of_time_above_one_is_rounding_or_a_gap():
    assert one(page(DCGM_FI_PROF_SM_ACTIVE=1.004)).gauges["gpu_sm_active"] == 1.0
    gpu = one(page(DCGM_FI_PROF_SM_ACTIVE=71.0, DCGM_FI_DEV_GPU_UTIL=-1.0))
    assert gpu.gauges == {}
    assert gpu.gaps["gpu_sm_active"] == "DCGM_FI_PROF_SM_ACTIVE is 71, which is no share of time"
    assert gpu.gaps["gpu_utilization_sampled"] == "DCGM_FI_DEV_GPU_UTIL is -1, which is no share of time"


# ---- labels ----


def test_old_and_new_label_spellings_name_the_same_gpu():
    old = page(**FULL)
    new = [
        (name, {"gpu": "3", "uuid": "GPU-a", "modelName": "NVIDIA H200", "hostname": "node-1"}, value)
        for name, value in FULL.items()
    ]
    assert readouts(new, 100.0) == readouts(old, 100.0)


def test_a_gpu_without_index_or_model_is_still_a_gpu():
    gpu = one([("DCGM_FI_DEV_GPU_TEMP", {"UUID": "GPU-a"}, 40.0)])
    assert (gpu.index, gpu.product) == (None, "")


def test_gpus_come_in_the_order_of_their_index():
    samples = [("DCGM_FI_DEV_GPU_TEMP", {"UUID": f"GPU-{i}", "gpu": str(i)}, 40.0) for i in (10, 2, 0)]
    samples.append(("DCGM_FI_DEV_GPU_TEMP", {"UUID": "GPU-x"}, 40.0))
    found, _ = readouts(samples, 0.0)
    assert [gpu.index for gpu in found] == [0, 2, 10, None]


def test_series_without_a_uuid_are_left_out_and_said():
    found, problems = readouts([("DCGM_FI_DEV_GPU_TEMP", {"gpu": "0"}, 40.0)], 0.0)
    assert (found, problems) == ((), ("1 DCGM series left out: no label UUID or uuid names their GPU",))


def test_a_page_without_dcgm_series_is_said():
    found, problems = readouts([("process_start_time_seconds", {}, 1.0)], 0.0)
    assert found == ()
    assert problems == ("no DCGM series on the page: is this a dcgm-exporter (port 9400), and does it see a GPU?",)


# ---- shared and partitioned GPUs ----


def test_a_gpu_shared_by_pods_is_one_gpu_and_nothing_is_summed():
    shared = [sample for pod in ("a", "b", "c") for sample in page(f'pod="{pod}"', **FULL)]
    assert one(shared) == one(page(**FULL))


def test_values_of_single_pods_are_not_taken_for_the_whole_gpu():
    split = page('pod="a"', DCGM_FI_DEV_GPU_UTIL=20.0) + page('pod="b"', DCGM_FI_DEV_GPU_UTIL=45.0)
    gpu = one(split)
    assert "gpu_utilization_sampled" not in gpu.gauges
    assert gpu.gaps["gpu_utilization_sampled"] == (
        "DCGM_FI_DEV_GPU_UTIL has 2 different values for this GPU (one a pod): none is the whole GPU's"
    )


def test_the_series_without_a_pod_is_the_whole_gpus():
    split = page('exported_pod="a"', DCGM_FI_DEV_GPU_UTIL=20.0) + page('pod=""', DCGM_FI_DEV_GPU_UTIL=65.0)
    assert one(split).gauges["gpu_utilization_sampled"] == pytest.approx(0.65)


def test_mig_instances_are_left_out_and_named_and_their_power_is_not_summed():
    instances = [
        sample
        for number in ("1", "2")
        for sample in page(f'GPU_I_ID="{number}" GPU_I_PROFILE="1g.18gb"', DCGM_FI_DEV_POWER_USAGE=300.0)
    ]
    found, problems = readouts([*instances, ("DCGM_FI_DEV_GPU_TEMP", {"UUID": "GPU-b", "gpu": "1"}, 40.0)], 0.0)
    assert [gpu.gpu for gpu in found] == ["GPU-b"]
    assert problems == ("GPU GPU-a: 2 series of MIG instances left out: MIG is not supported yet",)


# ---- refreshes ----


def test_two_scrapes_of_one_refresh_are_the_same_refresh():
    first, _ = readouts(page(**FULL), 100.0)
    second, _ = readouts(page(**FULL), 115.0)
    assert first != second
    assert same_refresh(first, second)


@pytest.mark.parametrize("name", ["DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", "DCGM_FI_PROF_DRAM_ACTIVE"])
def test_any_value_that_moved_is_another_refresh(name):
    first, _ = readouts(page(**FULL), 100.0)
    second, _ = readouts(page(**{**FULL, name: FULL[name] * 1.001}), 115.0)
    assert not same_refresh(first, second)


def test_a_gpu_more_or_a_new_gap_is_another_refresh():
    first, _ = readouts(page(**FULL), 100.0)
    more, _ = readouts([*page(**FULL), ("DCGM_FI_DEV_GPU_TEMP", {"UUID": "GPU-b"}, 1.0)], 100.0)
    gap, _ = readouts(page(**{**FULL, "DCGM_FI_DEV_GPU_TEMP": math.nan}), 100.0)
    assert not same_refresh(first, more)
    assert not same_refresh(first, gap)
    assert same_refresh(gap, readouts(page(**{**FULL, "DCGM_FI_DEV_GPU_TEMP": math.nan}), 130.0)[0])


# ---- pages of others ----


def shared_page(name):
    path = SHARED_PAGES / name
    if not path.exists():
        pytest.skip(f"../shared/pages/{name} is not here")
    return parse(path.read_text(encoding="utf-8"))


def test_a_real_t4_page_of_an_older_exporter_is_read():
    found, problems = readouts(shared_page("dcgm-exporter-t4-datadog.prom"), 0.0)
    assert problems == ()
    t4 = {gpu.gpu: gpu for gpu in found}["GPU-20c56d28-0da5-6d26-a36a-e7af1ce2586e"]
    assert (t4.index, t4.product) == (0, "Tesla T4")
    assert t4.counters == {"gpu_energy_joules": pytest.approx(128_996.013)}
    assert t4.gauges["gpu_memory_total_bytes"] == 15_109 * MIB
    assert t4.gauges["gpu_utilization_sampled"] == 0.0
    assert t4.gauges["gpu_power_watts"] == pytest.approx(8.969)
    assert t4.gaps["gpu_gr_engine_active"] == "DCGM_FI_PROF_GR_ENGINE_ACTIVE is not on the page"
    a10g = {gpu.gpu: gpu for gpu in found}["GPU-abc"]
    assert a10g.gauges == {"dram_active": pytest.approx(3e-6)}


def test_a_gpu_of_which_the_page_says_nothing_we_read_has_gaps_for_everything():
    # The README's GPU says clocks and memory temperature only, the latter blank; neither is a name of ours.
    found, problems = readouts(shared_page("dcgm-exporter-readme-blank-value.prom"), 0.0)
    assert problems == ()
    assert [(gpu.gpu, gpu.counters, gpu.gauges) for gpu in found] == [
        ("GPU-604ac76c-d9cf-fef3-62e9-d92044ab6e52", {}, {})
    ]
    assert set(found[0].gaps) == set(OURS)


def test_series_of_links_and_switches_without_a_uuid_are_no_problem():
    samples = [*page(**FULL), ("DCGM_FI_DEV_NVLINK_ERRORS", {"gpu_uuid": "GPU-a", "nvlink": "1"}, 0.0)]
    assert one(samples) == one(page(**FULL))
