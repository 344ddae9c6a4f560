"""The report as a message: plain text, one line for the subject."""

from __future__ import annotations

import json
from dataclasses import replace

from report_samples import hours, plan, reported

from exporters.report.build import MOST_TIERS, message
from exporters.report.records import Report, report_json

HOSTILE = "<script>alert(1)</script>&amp;"


def found(**parts: object) -> Report:
    made, _ = reported(plan(model=HOSTILE), hours())
    return replace(made, **parts)  # type: ignore[arg-type]


def said(one: Report, link: str = "") -> tuple[str, str]:
    return message(json.loads(report_json(one)), link)


def test_message_has_headline_and_verdicts() -> None:
    one = found()
    subject, body = said(one, "https://w/reports/2026-11-09/report.html")
    assert subject == one.headline
    first, last = body.split("\n\n")
    assert first == one.tiers[0].verdict
    assert "USD a day" in first
    assert last == "Mon 02 Nov 00:00 UTC to Mon 09 Nov 00:00 UTC: https://w/reports/2026-11-09/report.html"


def test_a_made_up_history_says_so_first() -> None:
    assert said(found(simulated=True))[1].startswith("Simulated: none of this traffic is real")


def test_line_ends_begin_no_header() -> None:
    one = found(headline="Grow a\r\nBcc: everybody@example.com\x1b[2J\u2028x")
    assert said(one)[0] == "Grow a Bcc: everybody@example.com [2J x"
    assert len(said(found(headline="x" * 1000))[0]) == 180


def test_many_tiers_are_counted() -> None:
    one = found()
    body = said(replace(one, tiers=one.tiers * (MOST_TIERS + 3)))[1]
    assert body.count("USD a day") >= MOST_TIERS
    assert "3 more tiers are in the report." in body
