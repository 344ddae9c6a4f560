"""Every question of the guide's 8.4 has its answer in the report and on a dashboard, with the lengths beside it on both."""

from __future__ import annotations

from paths import ROOT
from promql import list_panels

from exporters.grafana.dashboards import DASHBOARDS, dashboard_json
from exporters.report.guide_tables import QUESTIONS

DOCS = ROOT / "docs" / "dashboards.md"

PANELS = (
    ("efficiency", "forecast", "Generated tokens per second and GPU"),
    ("efficiency", "tier", "GPU busy"),
    ("efficiency", "tier", "GPU units active"),
    ("contract", "tier", "TTFT: P50 and P99"),
    ("contract", "tier", "TPOT: P50 and P99"),
    ("contract", "tier", "Requests that did not end by themselves"),
    ("contract", "fleet", "TTFT and TPOT P99 by what is promised"),
    ("unit", "tier", "Used now"),
    ("unit", "fleet", "Fleet utilisation"),
    ("dollar", "forecast", "Cost per million generated tokens"),
    ("dollar", "forecast", "Requests for one unit of money"),
    ("dollar", "forecast", "TTFT P99, times the price of a replica-hour"),
    ("dollar", "forecast", "Requests per second and GPU"),
    ("useful", "fleet", "Fleet utilisation"),
    ("useful", "tier", "Requests that did not end by themselves"),
    ("useful", "forecast", "Prompt tokens computed"),
    ("useful", "tier", "Requests in the system"),
    ("bound", "forecast", "Share of a request's time in prefill"),
    ("bound", "tier", "GPU units active"),
    ("memory", "forecast", "Generated tokens per second and GiB of GPU memory"),
    ("memory", "tier", "KV cache in use"),
    ("representative", "tier", "Findings now"),
    ("representative", "tier", "TTFT: P50 and P99"),
    ("fairly", "forecast", "Generated tokens per second and GPU"),
    ("fairly", "tier", "Prompt and output length"),
)
"""Key of a question, dashboard and title of a panel that answers it."""


def test_each_question_has_panels() -> None:
    assert list(QUESTIONS) == list(dict.fromkeys(key for key, _, _ in PANELS))
    shown = {
        (one.uid.removeprefix("sizewatch-"), panel["title"])
        for one in DASHBOARDS
        for panel in list_panels(dashboard_json(one))
        if panel.get("targets")
    }
    assert {(dashboard, title) for _, dashboard, title in PANELS} <= shown


def test_docs_have_every_dashboards_picture() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for one in DASHBOARDS:
        picture = f"images/dashboard-{one.uid.removeprefix('sizewatch-')}.webp"
        assert f'src="{picture}"' in text, one.uid
        assert (DOCS.parent / picture).stat().st_size > 20_000
