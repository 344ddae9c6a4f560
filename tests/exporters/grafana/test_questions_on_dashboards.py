"""Every question of the guide's 8.4 has its answer in the report and on a dashboard, with the lengths beside it on both."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from panels import list_panels
from paths import ROOT

from exporters.grafana.dashboards import DASHBOARDS, dashboard_json
from exporters.report.guide_tables import QUESTIONS

DOCS = ROOT / "docs" / "dashboards.md"

PANELS: Mapping[str, tuple[tuple[str, str], ...]] = {
    "efficiency": (
        ("sizewatch-forecast", "Generated tokens per second and GPU"),
        ("sizewatch-tier", "GPU busy"),
        ("sizewatch-tier", "GPU units active"),
    ),
    "contract": (
        ("sizewatch-tier", "TTFT: P50 and P99"),
        ("sizewatch-tier", "TPOT: P50 and P99"),
        ("sizewatch-tier", "Requests that did not end by themselves"),
        ("sizewatch-fleet", "TTFT and TPOT P99 by what is promised"),
    ),
    "unit": (("sizewatch-tier", "Used now"), ("sizewatch-fleet", "Fleet utilisation")),
    "dollar": (
        ("sizewatch-forecast", "Cost per million generated tokens"),
        ("sizewatch-forecast", "Requests for one unit of money"),
        ("sizewatch-forecast", "TTFT P99, times the price of a replica-hour"),
        ("sizewatch-forecast", "Requests per second and GPU"),
    ),
    "useful": (
        ("sizewatch-fleet", "Fleet utilisation"),
        ("sizewatch-tier", "Requests that did not end by themselves"),
        ("sizewatch-forecast", "Prompt tokens computed"),
        ("sizewatch-tier", "Requests in the system"),
    ),
    "bound": (("sizewatch-forecast", "Share of a request's time in prefill"), ("sizewatch-tier", "GPU units active")),
    "memory": (
        ("sizewatch-forecast", "Generated tokens per second and GiB of GPU memory"),
        ("sizewatch-tier", "KV cache in use"),
    ),
    "representative": (("sizewatch-tier", "Findings now"), ("sizewatch-tier", "TTFT: P50 and P99")),
    "fairly": (
        ("sizewatch-forecast", "Generated tokens per second and GPU"),
        ("sizewatch-tier", "Prompt and output length"),
    ),
}
"""By the question's key: dashboard and title of the panels that answer it."""


def titles(uid: str) -> set[str]:
    (found,) = (one for one in DASHBOARDS if one.uid == uid)
    return {panel["title"] for panel in list_panels(dashboard_json(found)) if panel.get("targets")}


def test_the_questions_are_those_of_the_guide() -> None:
    assert list(QUESTIONS) == list(PANELS)


@pytest.mark.parametrize("key", PANELS)
def test_a_question_has_panels_that_answer_it(key: str) -> None:
    assert [(uid, title) for uid, title in PANELS[key] if title not in titles(uid)] == []


def test_docs_have_every_dashboards_picture() -> None:
    text = DOCS.read_text(encoding="utf-8")
    for one in DASHBOARDS:
        picture = f"images/dashboard-{one.uid.removeprefix('sizewatch-')}.webp"
        assert f'src="{picture}"' in text, one.uid
        assert (DOCS.parent / picture).stat().st_size > 20_000
