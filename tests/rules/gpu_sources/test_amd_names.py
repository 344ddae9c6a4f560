"""AMD's device-metrics-exporter: both namings, prefixes, partitions, blanks, faults."""

import re

import pytest
from gpu_pages import by_gpu, page_text, read_page

from rules.gpu_sources.amd import AMD, signature, strip_prefix
from rules.gpu_sources.dcgm import DCGM
from rules.gpu_sources.exporter import MIB, Ticks
from rules.telemetry.families import LINKS

MI300X, DPX = "made-amd-1.5-mi300x.prom", "made-amd-1.5-dpx.prom"
POWER_TICKS, HEAT_TICKS, HARDWARE = (f"gpu_throttled_{cause}_seconds" for cause in ("power", "thermal", "hardware"))
LABELS = {"gpu_id": "0", "serial_number": "S1", "gpu_partition_id": "0", "gpu_compute_partition_type": "spx"}


def one(labels: dict[str, str] | None = None, /, **values: float) -> tuple[dict[str, float], dict[str, str]]:
    """Values and gaps of the only GPU of a page."""
    samples = [(name, {**LABELS, **(labels or {})}, value) for name, value in values.items()]
    (gpu,) = AMD.read(samples, 0.0).readouts
    return {**gpu.gauges, **gpu.counters}, dict(gpu.gaps)


def test_full_amd_page_has_no_problem() -> None:
    """Its numbers are in a golden file."""
    page = read_page(page_text(MI300X), AMD, 7.0)
    assert page.problems == ()
    busy, idle = page.readouts
    assert (busy.t, busy.gpu, busy.index, busy.product) == (7.0, "692501000010", 0, "AMD Instinct MI300X OAM")
    assert (busy.pids, busy.gaps) == ((4021, 4022), {})
    assert (idle.gauges["gpu_gfx_active"], set(idle.gaps)) == (0.0, {"tensor_active"}), "an idle GPU is no gap"
    assert page.ticks["692501000010"] == Ticks(total=8_000_000, of={POWER_TICKS: 53_994, HEAT_TICKS: 150, HARDWARE: 0})
    assert page.faults == {"692501000010": None, "692501000011": frozenset({"afid-23"})}
    assert all("gpu_fault_events" not in gpu.gaps for gpu in page.readouts)


def test_the_prefix_is_the_operators_choice() -> None:
    prefixed = page_text(MI300X)
    for other in ("", "rack7_"):
        again = re.sub(r"\bamd_(?=gpu_|pcie_)", other, prefixed)
        assert read_page(again, AMD) == read_page(prefixed, AMD)
    assert strip_prefix("amd_gpu_clock") == strip_prefix("gpu_clock") == "gpu_clock"
    assert strip_prefix("node_exporter_pcie_speed") == "pcie_speed"
    # Names of others are not AMD's, and a name alone is not enough.
    assert strip_prefix("nv_gpu_power_usage") == "nv_gpu_power_usage"
    assert not AMD.wanted("nv_gpu_power_usage")
    assert not signature("nv_gpu_power_usage", {"gpu_uuid": "GPU-a"})
    assert not signature("sizewatch_gpu_power_watts", {"gpu_uuid": "x"})
    assert not signature("gpu_gfx_activity", {"instance": "x"})
    assert signature("amd_gpu_gfx_activity", {"gpu_id": "0"})


def test_amd_lacks_only_documented_names() -> None:
    """What DCGM tells and AMD cannot is named, with the reason, in the exporter's table."""
    told = set()
    for gpu in read_page(page_text(MI300X), AMD).readouts:
        told |= {*gpu.gauges, *gpu.counters}
    ticks = read_page(page_text(MI300X), AMD).ticks
    told |= {name for of in ticks.values() for name in of.of}
    nvidia = {row.ours for row in DCGM.fields} | {"gpu_memory_used_bytes", "gpu_memory_total_bytes"}
    same = {"gpu_gr_engine_active": "gpu_gfx_active", "gpu_utilization_sampled": "gpu_gfx_active"}
    lacking = {name for name in nvidia if same.get(name, name) not in told}
    assert lacking == {"gpu_sm_active", "gpu_power_limit_watts", *LINKS}
    assert lacking <= set(AMD.not_exposed)


POWER, HEAT = "gpu_power_watts", "gpu_temperature_celsius"
UNMEASURED, NO_SHARE = "is 0, which stands for not measured", "is 65535, which is no share of time"


@pytest.mark.parametrize(
    ("shown", "ours", "expected"),
    [
        ({"gpu_package_power": 600}, POWER, 600),
        ({"gpu_average_package_power": 131}, POWER, 131),
        ({"gpu_power_usage": 130}, POWER, 130),
        ({"gpu_junction_temperature": 70}, HEAT, 70),
        ({"gpu_edge_temperature": 60}, HEAT, 60),
        ({"gpu_package_power": 600, "gpu_average_package_power": 1}, POWER, 600),
        ({"gpu_package_power": 0, "gpu_average_package_power": 131}, POWER, 131),
        ({"gpu_junction_temperature": 0, "gpu_edge_temperature": 44}, HEAT, 44),
        ({"gpu_average_package_power": 0, "gpu_power_usage": 65535}, POWER, f"gpu_average_package_power {UNMEASURED}"),
        ({"gpu_total_vram": 1}, POWER, "gpu_package_power is not on the page"),
        ({"gpu_umc_activity": 0}, "dram_active", 0.0),
        ({"gpu_total_vram": 65535}, "gpu_memory_total_bytes", 65535 * MIB),
        ({"gpu_used_vram": 0}, "gpu_memory_used_bytes", f"gpu_used_vram {UNMEASURED}"),
        ({"gpu_gfx_activity": 65535}, "gpu_gfx_active", f"gpu_gfx_activity {NO_SHARE}"),
    ],
)
def test_sensor_gives_value_or_reason(shown: dict[str, float], ours: str, expected: float | str) -> None:
    """Generations have sensors of their own; the first that is there counts."""
    values, gaps = one(**shown)
    assert {**gaps, **values}[ours] == expected
    assert not gaps.keys() & values.keys()


@pytest.mark.parametrize(
    ("shown", "why"),
    [
        (float("nan"), "not a number"),
        (float("inf"), "not a number"),
        (0, "0, which stands for not measured"),
        (-1, "-1, which stands for not supported"),
        (65535, "65535, which stands for not supported"),
        (4294967295, "4294967295, which stands for not supported"),
        (2.0**64, "18446744073709551616, which stands for not supported"),
    ],
)
def test_amd_blank_is_a_gap(shown: float, why: str) -> None:
    values, gaps = one(gpu_package_power=shown)
    assert values == {}
    assert gaps["gpu_power_watts"] == f"gpu_package_power is {why}"


def test_whole_gpu_sensors_stay_on_partition_0() -> None:
    page = read_page(page_text(DPX), AMD)
    first, second = (by_gpu(page)[f"692501000010/{n}"] for n in (0, 1))
    assert [gpu.product for gpu in (first, second)] == ["AMD Instinct MI300X OAM DPX partition"] * 2
    assert [gpu.index for gpu in (first, second)] == [0, 1]
    told = "is measured for the whole GPU, not for a partition (DPX); it stands on partition 0"
    for name in ("gpu_power_watts", "gpu_energy_joules", "gpu_temperature_celsius", "dram_active"):
        assert second.gaps[name].endswith(told)
    assert list(page.ticks) == ["692501000010/0"]
    assert "not for a partition (DPX)" in second.gaps["gpu_throttled_power_seconds"]


def test_partition_activity_is_its_dies_mean() -> None:
    """gpu_gfx_activity holds for a GPU in one piece alone; the golden file of a partitioned one has its dies' mean."""

    dies = [("gpu_gfx_busy_instantaneous", {**LABELS, "xcc_index": str(n)}, v) for n, v in ((0, 40.0), (1, 65535.0))]
    one_is_blank = AMD.read([dies[0], ("gpu_gfx_busy_instantaneous", LABELS, float("nan"))], 0.0).readouts[0]
    assert one_is_blank.gauges["gpu_gfx_active"] == pytest.approx(0.4)
    assert "no share of time" in AMD.read(dies, 0.0).readouts[0].gaps["gpu_gfx_active"]
    values, gaps = one({"gpu_compute_partition_type": "cpx"}, gpu_gfx_activity=50, gpu_total_vram=24000)
    assert "gpu_gfx_active" not in values
    assert gaps["gpu_gfx_active"] == (
        "gpu_gfx_activity holds for a GPU in one piece, and gpu_gfx_busy_instantaneous is not on the page"
    )


def test_partial_throttling_names_missing_part() -> None:
    samples = [
        ("gpu_violation_current_accumulated_counter", LABELS, 100.0),
        ("gpu_violation_ppt_residency_accumulated", LABELS, 7.0),
        ("gpu_violation_vr_thermal_residency_accumulated", LABELS, 7.0),
    ]
    page = AMD.read(samples, 0.0)
    assert page.ticks["S1"].of == {"gpu_throttled_power_seconds": 7.0}
    assert page.readouts[0].gaps["gpu_throttled_thermal_seconds"] == (
        "gpu_violation_socket_thermal_residency_accumulated is not on the page"
    )
    _, gaps = one(gpu_total_vram=100)
    assert gaps["gpu_throttled_power_seconds"] == (
        "gpu_violation_current_accumulated_counter is not on the page (MI300 and newer have it)"
    )


def test_faults_known_from_first_printed_one() -> None:
    older = AMD.read([("gpu_total_vram", LABELS, 100.0)], 0.0)
    assert older.faults == {}
    assert "gpu_afid_errors is not on the page" in older.readouts[0].gaps["gpu_fault_events"]
    several = [("gpu_afid_errors", {**LABELS, "afid_index": str(n)}, code) for n, code in ((0, 30.0), (1, 25.0))]
    assert AMD.read(several, 0.0).faults == {"S1": frozenset({"afid-30", "afid-25"})}


@pytest.mark.parametrize(
    ("labels", "names", "products"),
    [
        ([{**LABELS, "gpu_id": str(number)} for number in (0, 3)], ["S1#0", "S1#3"], ["", ""]),
        ([{**LABELS, "gpu_uuid": "U-1"}], ["U-1"], [""]),
        ([{"gpu_id": "4"}], ["amd-4"], [""]),
        # A part's number is no product.
        ([{**LABELS, "card_model": "102-D67305-00"}], ["S1"], [""]),
        ([{**LABELS, "card_model": "AMD Instinct MI355X OAM"}], ["S1"], ["AMD Instinct MI355X OAM"]),
    ],
)
def test_labels_name_gpu_and_product(labels: list[dict[str, str]], names: list[str], products: list[str]) -> None:
    page = AMD.read([("gpu_total_vram", own, 100.0) for own in labels], 0.0)
    assert [gpu.gpu for gpu in page.readouts] == names
    assert [gpu.product for gpu in page.readouts] == products
    told = "2 GPUs are called S1; export the label gpu_uuid to tell them apart for good"
    assert page.problems == ((told,) if len(labels) > 1 else ())


def test_amd_page_without_gpus_is_told() -> None:
    assert AMD.read([("gpu_total_vram", {}, 1.0)], 0.0).problems == (
        "1 AMD series left out: no label gpu_id, gpu_uuid or serial_number names their GPU",
    )
    (said,) = AMD.read([], 0.0).problems
    assert said.startswith("no GPU series on the page: is this a device-metrics-exporter (port 5000)")
