"""Recording rules: per tier and pool and never across them, of names that exist, with the values that they claim."""

from __future__ import annotations

import re
from pathlib import Path

from paths import ROOT
from promql_parser import parse
from promtool import Case, differences

from exporters.metrics import names
from exporters.prometheus_rules.recording_rules import recording_groups

FILE = ROOT / "rules" / "prometheus" / "sizewatch-recording.yaml"
ROWS = [row for group in recording_groups() for row in group.rows]
EXPORTED = {metric.name for metric in names.ALL}


def test_every_name_says_level_metric_and_operation() -> None:
    for row in ROWS:
        assert re.fullmatch(r"tier:sizewatch_[a-z0-9_]+:(p\d\d_rate5m|rate5m|ratio_rate5m|sum|mean|max)", row.name)
    assert len({row.name for row in ROWS}) == len(ROWS)


def test_nothing_is_read_that_nobody_exports_or_records_before() -> None:
    recorded: set[str] = set()
    for row in ROWS:
        assert str(parse(row.expr))
        for name in re.findall(r"(?:tier:)?sizewatch_\w+(?::\w+)?", row.expr):
            known = name in recorded if name.startswith("tier:") else re.sub(r"_bucket$", "", name) in EXPORTED
            assert known, f"{row.name} reads {name}"
        recorded.add(row.name)


def test_tiers_are_never_added_up_and_pools_only_where_gpus_are_counted() -> None:
    for row in ROWS:
        away = {label.strip() for labels in re.findall(r"without \(([^)]*)\)", row.expr) for label in labels.split(",")}
        assert names.TIER not in away
        assert not re.search(r"\b(sum|avg|max|min|count|group)\s*(by\b|\()", row.expr)
        assert names.POOL not in away or "gpu" in row.name


def engine(metric: str, tier: str, replica: str, pool: str = "mixed", more: str = "") -> str:
    return f'sizewatch_{metric}{{instance="a",job="s",tier="{tier}",pool="{pool}",replica="{replica}",model="m"{more}}}'


def test_records_have_the_values_that_their_names_claim(tmp_path: Path) -> None:
    """Tier t: two replicas in one pool, each seen by two agents; tier u beside it must not count."""
    told = {}
    for replica, each in (("r1", 30), ("r2", 60)):
        told[engine("requests_finished_total", "t", replica)] = f"0+{each}x60"
        told[engine("requests_finished_total", "t", replica).replace('"a"', '"b"')] = f"0+{each}x60"
        told[engine("generation_tokens_total", "t", replica)] = f"0+{each * 100}x60"
        told[engine("target_up", "t", replica).replace(',model="m"', "")] = "1x60"
        told[engine("kv_utilization_ratio", "t", replica)] = f"{each / 100}x60"
        for le, share in (("0.5", 0.9), ("1.0", 1.0), ("+Inf", 1.0)):
            told[engine("ttft_seconds_bucket", "t", replica, more=f',le="{le}"')] = f"0+{each * share:g}x60"
    told[engine("requests_finished_total", "u", "r")] = "0+1500x60"
    told[engine("preemptions_total", "t", "r1")] = "0+9x60"
    told[engine("requests_running", "t", "p1", pool="prefill")] = "7x60"
    told[engine("requests_running", "t", "d1", pool="decode")] = "5x60"
    plan = '{instance="a",job="s",tier="t"'
    told |= {
        f"sizewatch_capacity_rps{plan}}}": "12x60",
        f"sizewatch_plan_gpus_per_replica{plan}}}": "4x60",
        f'sizewatch_plan_gpu_hour_price{plan},currency="EUR"}}': "2x60",
    }
    expected = {
        'tier:sizewatch_requests_finished_total:rate5m{tier="t"}': 6.0,
        'tier:sizewatch_requests_finished_total:rate5m{tier="u"}': 100.0,
        'tier:sizewatch_ttft_seconds:p50_rate5m{tier="t"}': 0.5 * 0.5 / 0.9,
        'tier:sizewatch_ttft_seconds:p99_rate5m{tier="t"}': 0.5 + 0.5 * 0.09 / 0.1,
        'tier:sizewatch_ttft_seconds:p95_rate5m{tier="t"}': 0.75,
        'tier:sizewatch_preemptions_per_request:ratio_rate5m{tier="t"}': 0.1,
        'tier:sizewatch_kv_utilization_ratio:mean{tier="t"}': 0.45,
        'tier:sizewatch_requests_running:sum{tier="t",pool="prefill"}': 7.0,
        'tier:sizewatch_requests_running:sum{tier="t",pool="decode"}': 5.0,
        'tier:sizewatch_load:ratio_rate5m{tier="t"}': 6 / 24,
        'tier:sizewatch_tokens_per_gpu_hour:rate5m{tier="t"}': 600 * 3600 / 8,
        'tier:sizewatch_cost_per_million_tokens:rate5m{tier="t",currency="EUR"}': 2e6 / (600 * 3600 / 8),
    }
    values = [("10m", f"abs(vector(scalar({name})) / {v!r} - 1) < bool 1e-9", 1.0) for name, v in expected.items()]
    assert not differences(tmp_path, FILE, [Case(series=told, values=values)])
