"""The report as a message and as a picture: plain text, one line for the subject, drawn without any font of the machine."""

from __future__ import annotations

import json
import struct
from dataclasses import replace

import resvg_py
from report_samples import hours, plan, reported

from exporters.report import picture
from exporters.report.build import MOST_TIERS, message, report_json
from exporters.report.records import Report

HOSTILE = "<script>alert(1)</script>&amp;"


def found(**parts: object) -> Report:
    made, _ = reported(plan(model=HOSTILE), hours())
    return replace(made, **parts)  # type: ignore[arg-type]


def said(one: Report, link: str = "") -> tuple[str, str]:
    told = message(json.loads(report_json(one)), link)
    return told.subject, told.body


def test_the_subject_is_the_headline_and_each_tier_says_its_verdict_with_the_money() -> None:
    one = found()
    subject, body = said(one, "https://w/reports/2026-11-09/report.html")
    assert subject == one.headline
    first, last = body.split("\n\n")
    assert first == one.tiers[0].verdict
    assert "USD a day" in first
    assert last == "Mon 02 Nov 00:00 UTC to Mon 09 Nov 00:00 UTC: https://w/reports/2026-11-09/report.html"


def test_a_made_up_history_says_so_first() -> None:
    assert said(found(simulated=True))[1].startswith("Simulated: none of this traffic is real")


def test_a_name_with_line_ends_begins_no_header_and_no_paragraph() -> None:
    one = found(headline="Grow a\r\nBcc: everybody@example.com\x1b[2J\u2028x")
    assert said(one)[0] == "Grow a Bcc: everybody@example.com [2J x"
    assert len(said(found(headline="x" * 1000))[0]) == 180


def test_of_many_tiers_the_first_are_told_and_the_others_counted() -> None:
    one = found()
    body = said(replace(one, tiers=one.tiers * (MOST_TIERS + 3)))[1]
    assert body.count("USD a day") >= MOST_TIERS
    assert "3 more tiers are in the report." in body


def size(png: bytes) -> tuple[int, int]:
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    return struct.unpack(">II", png[16:24])  # type: ignore[return-value]


def test_the_picture_is_drawn_with_its_own_fonts_alone() -> None:
    one = found()
    drawn = picture.png(one)
    assert size(drawn)[0] == 1280
    # Without text it is another picture: so the text is there, from our fonts, with those of the machine left out.
    bare = resvg_py.svg_to_bytes(svg_string=picture.svg(one), skip_system_fonts=True)
    assert len(bare) < 0.8 * len(drawn)
    assert all(font.is_file() for font in picture.FONTS)
    assert "Bitstream" in (picture.HERE / "fonts" / "LICENSE.txt").read_text()


def test_the_picture_takes_no_markup_from_a_name() -> None:
    drawn = picture.svg(found(headline=f"Grow {HOSTILE} \x00\ud800"))
    assert "<script" not in drawn
    assert "&lt;script&gt;alert(1)" in drawn
    assert size(picture.png(found(headline=f"Grow {HOSTILE} \x00\ud800")))[0] == 1280


def test_every_colour_of_the_page_is_known_to_the_picture() -> None:
    assert "var(" not in picture.style()
    assert ".chart .rate-line{" in picture.style()


def test_a_tier_without_traffic_has_a_picture_that_says_so() -> None:
    bare, _ = reported(plan(curve=None, workload=None), [], since=0.0, until=3600.0)
    assert "No chart: too little was seen" in picture.svg(bare)
    assert picture.png(bare)
