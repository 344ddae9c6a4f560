"""What the panels' expressions come to, on series whose answer is known by hand."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from promtool import Case, differences

from exporters.grafana import dashboards as q
from exporters.grafana.dashboards import SCOPES
from exporters.metrics import names

MODEL = ',model="m"'


def series(metric: str, tier: str, replica: str = "", *, agent: str = "a", pool: str = "mixed", more: str = "") -> str:
    of_replica = f',pool="{pool}",replica="{replica}"' if replica else ""
    return f'sizewatch_{metric}{{instance="{agent}",job="s",tier="{tier}"{of_replica}{more}}}'


def told() -> dict[str, str]:
    """Tier t: two replicas of unlike releases, each seen by two agents; tier u beside it; tier d in two pools."""
    found = {}
    for agent in ("a", "b"):
        for replica, each, release in (("r1", 30, "1"), ("r2", 60, "2")):
            one: dict[str, str] = {
                series("requests_finished_total", "t", replica, agent=agent, more=MODEL): f"0+{each}x60",
                series("generation_tokens_total", "t", replica, agent=agent, more=MODEL): f"0+{each * 100}x60",
                series("target_up", "t", replica, agent=agent): "1x60",
                series(
                    "replica_info", "t", replica, agent=agent, more=f'{MODEL},engine="e",engine_version="{release}"'
                ): "1x60",
            }
            # Half a second for nearly all on the one, one second on the other.
            for le, share in (("0.5", 0.9 if release == "1" else 0.0), ("1.0", 1.0), ("+Inf", 1.0)):
                buckets = series("ttft_seconds_bucket", "t", replica, agent=agent, more=f'{MODEL},le="{le}"')
                one[buckets] = f"0+{each * share:g}x60"
            found |= one
    found |= {
        series("requests_finished_total", "u", "r", more=MODEL): "0+1500x60",
        series("target_up", "u", "r"): "0x60",
        series("requests_finished_total", "d", "p", pool="prefill", more=MODEL): "0+45x60",
        series("requests_finished_total", "d", "d", pool="decode", more=MODEL): "0+30x60",
        series("target_up", "d", "p", pool="prefill"): "1x60",
        series("target_up", "d", "d", pool="decode"): "1x60",
        series("surplus_replicas", "t"): "1.5x60",
        series("fleet_utilization_ratio", "t"): "0.25x60",
        series("verdict", "t", "r1", more=',rule="A"').replace(',pool="mixed"', ""): "2x60",
        series("verdict_certain", "t", "r1", more=',rule="A"').replace(',pool="mixed"', ""): "0x60",
        series("verdict", "t", more=',replica="",rule="B"'): "1x60",
        series("verdict", "e", more=',replica="",rule="B"'): "0x60",
        series("verdict_certain", "t", more=',replica="",rule="B"'): "1x60",
    }
    for agent, root, severity in (
        ("a", "A", "critical"),
        ("b", "A", "critical"),
        ("a", "B", "warning"),
        ("a", "C", "info"),
    ):
        found[series("incident", "t", agent=agent, more=f',root="{root}",severity="{severity}"')] = "1x60"
    for tier in ("t", "u", "d"):
        found |= {
            series("capacity_rps", tier): "12x60",
            series("plan_gpus_per_replica", tier): "4x60",
            series("plan_slo_ttft_p99_seconds", tier): "2x60",
            series("plan_gpu_hour_price", tier, more=',currency="EUR"'): "2x60",
        }
    return found


EXPECTED: dict[tuple[str, str], tuple[str, float]] = {
    ("both agents count once", "t"): (q.FINISHED, 6.0),
    ("a tier is not added to another", "u"): (q.FINISHED, 100.0),
    ("a request in two pools counts once", "d"): (q.FINISHED, 3.0),
    ("running replicas", "t"): (q.REPLICAS_UP, 2.0),
    ("replicas of all pools", "d"): (q.REPLICAS_UP, 2.0),
    ("work by capacity", "t"): (q.of_tier(names.FLEET_UTILIZATION), 0.25),
    ("money of running GPUs", "t"): (q.MONEY_PER_HOUR, 16.0),
    ("cost of a million tokens", "t"): (q.COST_PER_MILLION, 16e6 / (600 * 3600)),
    ("tokens a GPU", "t"): (q.divide(q.GENERATED, q.GPUS_UP, q.ON_TIER), 600 / 8),
    ("requests for money", "t"): (q.REQUESTS_FOR_MONEY, 3600 * 6 / 16),
    ("money for what is surplus", "t"): (q.SURPLUS_MONEY, 1.5 * 4 * 2),
    # The second release: 99 % of requests between 0.5 and 1 s.
    ("the slower release", "t"): (q.TTFT_SHARE, (0.5 + 0.5 * 0.99) / 2),
    ("only what is certain", "t"): (q.WORST_VERDICT, 1.0),
    ("incidents but notes, of two agents once", "t"): (q.INCIDENT_COUNT, 2.0),
    ("no incident is none", "e"): (q.INCIDENT_COUNT, 0.0),
}
"""What is asked and of which tier: the expression, and what it should come to."""


def only(expr: str, tier: str) -> str:
    """The expression for one tier, as Grafana would send it."""
    values = {"cluster": ".*", "tier": tier, "__rate_interval": "5m"}
    scoped = expr.replace(q.SCOPE, SCOPES["tiers"]).replace(q.OF_TIER, SCOPES["tiers"])
    return re.sub(r"\$(\w+)", lambda name: values[name[1]], scoped)


def lines(quantile: float) -> str:
    """The expression of a quantile: a line for each release."""
    return only(q.quantile(quantile, "ttft_seconds"), "t")


@pytest.mark.slow
def test_the_numbers_are_right(tmp_path: Path) -> None:
    values = [
        ("10m", f"abs(vector(scalar({only(expr, tier)})) - {value!r}) < bool {1e-9 * (value or 1.0)!r}", 1.0)
        for (_, tier), (expr, value) in EXPECTED.items()
    ]
    release = 'label_replace(vector(1), "engine_version", "1", "", "")'
    first = f"{lines(0.5)} and on (engine_version) {release}"
    values += [("10m", f"count({lines(0.5)})", 2.0), ("10m", f"vector(scalar({first}))", 0.5 * 0.5 / 0.9)]
    for expr in (q.COST_PER_MILLION, q.REQUESTS_FOR_MONEY):
        values.append(("10m", f"vector(1) unless on () ({only(expr, 'u')})", 1.0))
    # One agent sees an upgrade a scrape before the other.
    late = series("replica_info", "t", "r1", agent="c", more=f'{MODEL},engine="e",engine_version="0"')
    still = {name: "5x60" if "_bucket{" in name else samples for name, samples in told().items()}
    cases = [
        Case(name="numbers, releases apart, no cost of a stopped tier", series=told(), values=values),
        Case(name="a late agent", series={**told(), late: "1x60"}, values=[("10m", f"count({lines(0.5)})", 2.0)]),
        Case(name="no request", series=still, values=[("10m", f"vector(1) unless on () ({lines(0.99)})", 1.0)]),
    ]
    assert not differences(tmp_path, None, cases)


def test_expressions_use_names_of_metrics() -> None:
    assert {name.partition("{")[0] for name in told()} <= {m.name for m in names.ALL} | {names.bucket("ttft_seconds")}
