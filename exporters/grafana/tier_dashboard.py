"""Dashboard Tier: a tier from its verdict down to its GPUs, with the plan in every panel.

Rows of detail are folded. Panels come from the modules by subject. A new panel is an entry here.
"""

from __future__ import annotations

from exporters.grafana import forecast_dashboard, gpu_panels, memory_panels, plan_panels, request_panels
from exporters.grafana.queries import ABOUT_A_TIER, TIER_UID, marks
from exporters.grafana.queries import TIER as W
from exporters.grafana.records import Dashboard, Section

TIER = Dashboard(
    uid=TIER_UID,
    title="sizewatch: Tier",
    description="One tier against its plan: what is found, requests, saturation, caches, GPUs, the forecast.",
    since="6h",
    variables=ABOUT_A_TIER,
    marks=marks(W),
    sections=(
        Section(
            title="Now",
            panels=(
                *plan_panels.numbers(W),
                plan_panels.incidents_table(W, height=5),
                plan_panels.findings_table(W),
                plan_panels.unknowns(W),
                plan_panels.verdicts_over_time(W, height=4),
            ),
        ),
        Section(
            title="Requests: rate, errors, duration",
            panels=(
                request_panels.traffic(W),
                request_panels.unserved_shares(W),
                *(request_panels.latency(W, which) for which in ("ttft", "tpot")),
            ),
        ),
        Section(
            title="Saturation and the KV cache",
            panels=(
                memory_panels.queue(W),
                memory_panels.kv_level(W),
                memory_panels.evictions(W),
                memory_panels.cascade(W),
            ),
        ),
        Section(title="Lengths", panels=request_panels.both_lengths(W)),
        Section(
            title="Requests in detail",
            panels=(
                request_panels.unserved(W),
                request_panels.errors(W),
                request_panels.latency(W, "itl"),
                request_panels.times_of_requests(W),
            ),
            folded=True,
        ),
        Section(
            title="Caches, speculation and adapters",
            panels=(
                memory_panels.prefix_hits(W),
                memory_panels.tokens_a_round(W),
                memory_panels.acceptance(W),
                memory_panels.adapters(W),
                memory_panels.residency(W),
                *memory_panels.offloading(W),
                request_panels.tokens(W, width=16),
            ),
            folded=True,
        ),
        Section(title="GPUs", panels=gpu_panels.all_gpu_panels(W), folded=True),
        Section(title="Forecast", panels=(forecast_dashboard.demand(W), forecast_dashboard.replicas(W)), folded=True),
    ),
)
