"""The numbers and formulas of the field guide against catalogue, `plan check`, `plan show` and the report of one fleet.

Rows are data: guide.yaml. The expression `ours` of a row uses the names of this module. It reads the number
from the product.
"""

# ruff: noqa: F401 - expressions of the table use these imports.
import contextlib
import io
import math
import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import chain
from pathlib import Path
from typing import Any

import pytest
import yaml
from judging_samples import gauge
from report_samples import DAY, HOUR, WEEK, hour, reported

from agent.cli.main import main
from agent.config.files import load_plan
from exporters.report.formats import report_markdown
from exporters.report.records import Report, TierReport
from rules import sizing
from rules.catalogue.registry import BY_NAME as RULES
from rules.catalogue.registry import CATALOGUE, margin_of
from rules.engines.registry import ENGINES
from rules.methods.utilization import compute_idle_replicas
from rules.plan import checks, money, replica_count
from rules.plan.curve import OperatingPoint, operating_point
from rules.plan.gpus import planned_kv_tokens
from rules.plan.load_bins import build_tier_context
from rules.plan.schema import Fleet, TierPlan
from rules.resize import fleet_cost
from rules.resize.fleet_cost import planned_cost
from rules.telemetry import readings
from rules.telemetry.signals import BY_NAME, Reading
from rules.telemetry.windows import Window

HERE = Path(__file__).parent
PLAN = HERE / "plan.yaml"
TABLE: dict[str, Any] = yaml.safe_load((HERE / "guide.yaml").read_text())
ROWS: list[dict[str, Any]] = TABLE["rows"]
RPS, REPLICAS = 50.0, 13
KEYS = {"at", "says", "number", "ours", "within", "differs", "is", "not_exposed", "feeds", "no_place"}
SURFACES = ["check", "show", "report"]
NUMBER = re.compile(r"(?<![P\d.])\d+(?:\.\d+)?")


def tier(name: str, **changes: Any) -> TierPlan:
    return load_plan(PLAN).tiers[name].model_copy(update=changes)


@cache
def whole_report() -> Report:
    """Return the report on a week in which tier t serves 50 rps with 13 replicas."""
    whole = {"adapters_running": 6.0, "gpu_gr_engine_active": 0.5}
    whole |= {"gpu_memory_used_bytes": 68 * 2.0**30, "gpu_memory_total_bytes": 80 * 2.0**30}
    whole |= {"gpu_nvlink_tx_bytes_per_second": 25e9, "gpu_pcie_rx_bytes_per_second": 4e9}
    levels = {name: gauge(value, seconds=REPLICAS * HOUR) for name, value in whole.items()}
    requests, seconds = RPS * HOUR, REPLICAS * HOUR
    counts = {
        "prefix_queried_tokens": 1000 * requests,
        "prefix_hit_tokens": 200 * requests,
        "spec_drafts": 1000.0,
        "spec_draft_tokens": 5000.0,
        "spec_accepted_tokens": 2689.28,
        "kv_offload_load_seconds": 15.0,
        "kv_offload_load_transfers": 1000.0,
        "estimated_flops": 99e12 * seconds,
        "estimated_read_bytes": 1.675e12 * seconds,
        "estimated_write_bytes": 0.0,
    }
    served = (hour(number, RPS, REPLICAS, prompts=1000, outputs=200) for number in range(168))
    week = [replace(w, counters={**w.counters, **counts}, gauges={**w.gauges, **levels}) for w in served]
    return reported(load_plan(PLAN), week)[0]


@cache
def surfaces() -> Mapping[str, str]:
    """Return the texts that a person reads, each on one line."""
    texts = {"report": report_markdown(whole_report())}
    for command in ("check", "show"):
        with contextlib.redirect_stdout(io.StringIO()) as printed:
            main(["plan", command, str(PLAN)])
        texts[command] = printed.getvalue()
    return {name: " ".join(text.split()) for name, text in texts.items()}


def the_report() -> TierReport:
    return whole_report().tiers[0]


def limit(rule: str, threshold: str) -> float:
    return CATALOGUE[rule].thresholds[threshold].value


def numbers(text: str) -> list[float]:
    """Return the numbers of a text; percentages are ratios."""
    return [float(digits) / (100 if "%" in text else 1) for digits in NUMBER.findall(text)]


def target(key: str) -> list[float] | float:
    """Return the numbers of a target in the report's monitoring table."""
    values = numbers(next(row.target.text for row in the_report().monitoring if row.key == key))
    return values if len(values) > 1 else values[0]


def observed(key: str) -> float | None:
    return next(row.observed.value for row in the_report().monitoring if row.key == key)


def read(signal: str, running: float = 0.0, **counters: float) -> float | None:
    """Return a signal of 100 s of one replica of tier fp16 with these counts."""
    basis, levels = build_tier_context("fp16", tier("fp16")).basis, {"requests_running": gauge(running, seconds=100.0)}
    span = {"start": 0.0, "end": 100.0, "expected_seconds": 100.0, "covered_seconds": 100.0}
    value = readings.read(BY_NAME[signal], Window(**span, counters=counters, gauges=levels), basis)
    return value.value


def point(name: str) -> OperatingPoint | None:
    return operating_point(tier(name))


def fleet(peak: float, usable: float, safety: float) -> int:
    return replica_count.count_fleet(peak, usable, safety, margin_of())


def surplus(ready: float, busiest: float, minimum_warm: int) -> float:
    """Return the replicas that nobody needs; `busiest` is the work of the busiest hour in full replicas."""
    plan = tier("t", fleet=Fleet(instances=10, minimum_warm=minimum_warm))
    return compute_idle_replicas(plan, ready, busiest, margin_of()).replicas


def price(utilization: float) -> float:
    """Return the planned cost of tier t's tokens at this use of the fleet."""
    cost = tier("t").cost
    priced = tier("t", cost=cost.model_copy(update={"planned_utilization": utilization}))
    planned = planned_cost(priced)
    assert planned.per_million_tokens is not None
    return planned.per_million_tokens


def cost(name: str) -> float | None:
    return next(row.per_million_tokens for row in the_report().costs if row.name == name)


def fits(key: str, what: str, quantile: str) -> list[float]:
    """Return the range of a guardrail, by this length in production."""
    fit = next(row for row in the_report().guardrails if row.key == key)
    lengths = the_report().workload.lengths
    length = next(row.observed.value for row in lengths if (row.what, row.quantile) == (what, quantile))
    assert length
    return [fit.low / length, fit.high / length]


def answer(question: str, term: str) -> float:
    return next(row.numbers[term].value for row in the_report().questions if row.key == question)


def pd_ratio(name: str) -> float:
    """Return prefill by decode replicas for the planned peak, before rounding."""
    counts = replica_count.count_pools(tier(name), RPS, margin_of())
    prefill, decode = (counts[pool].demand_rps / counts[pool].capacity.rps for pool in ("prefill", "decode"))
    return prefill / decode


def name_of(row: Mapping[str, Any]) -> str:
    return f"{row['at']}: {row['says']}"


def with_key(key: str) -> list[Any]:
    return [pytest.param(row, id=name_of(row)) for row in ROWS if key in row]


@pytest.mark.parametrize("row", with_key("ours"))
def test_the_number_is_where_the_product_has_it(row: Mapping[str, Any]) -> None:
    value = eval(row["ours"], {**globals(), "report": the_report()})
    value = list(value) if isinstance(value, tuple) else value
    close = {"rel": row.get("within", 1e-9)}
    assert value == pytest.approx(row["is"] if "differs" in row else row["number"], **close)
    if "differs" in row:
        assert row["differs"]
        assert "number" not in row or value != pytest.approx(row["number"], **close), "it does not differ"
    else:
        assert "is" not in row


@pytest.mark.parametrize("surface", SURFACES)
def test_the_number_is_in_the_text(surface: str) -> None:
    texts = [(name_of(row), row[surface]) for row in ROWS if surface in row]
    assert [(name, text) for name, text in texts if text not in surfaces()[surface]] == []
    assert len(texts) > 5


@pytest.mark.parametrize("row", with_key("not_exposed"))
def test_no_engine_exposes_it_and_the_row_names_every_engine(row: Mapping[str, Any]) -> None:
    sources = [f"{source.family} {source.source}" for engine in ENGINES for source in engine.rows]
    assert [source for source in sources if re.search(row["feeds"], source)] == []
    unnamed = [engine.title for engine in ENGINES if engine.title not in row["not_exposed"]]
    assert unnamed == [], "name them in the row's `not_exposed` in guide.yaml"


def test_every_row_has_a_place_or_a_reason() -> None:
    reasons = ("ours", "not_exposed", "no_place", *SURFACES)
    assert [name_of(row) for row in ROWS if not any(row.get(key) for key in reasons)] == []
    assert {key for row in ROWS for key in row} <= KEYS | set(SURFACES)
    assert all("ours" not in row for row in ROWS if "not_exposed" in row or "no_place" in row)


@pytest.mark.parametrize("metric", TABLE["metrics"])
def test_every_number_of_the_monitoring_table_has_a_row(metric: str) -> None:
    rows = [row for row in ROWS if row["at"] == f"9.3 {metric}"]
    assert rows
    lists = (row["number"] if isinstance(row["number"], list) else [row["number"]] for row in rows if "number" in row)
    assert set(TABLE["metrics"][metric]) <= set(chain.from_iterable(lists))


def test_every_metric_of_the_monitoring_table_is_in_the_report() -> None:
    metrics = {row["at"] for row in ROWS if row["at"].startswith("9.3 ") and "report" in row}
    assert {f"9.3 {metric}" for metric in TABLE["metrics"]} == metrics
