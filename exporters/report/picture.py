"""report.png: headline and key charts of each tier as a picture, for chats and mails.

Charts come from `exporters.report.charts`, with the light colours of the page inlined. Only the two bundled fonts are
used, so every machine draws the same picture. A missing glyph is dropped or drawn as a box. The module is imported only
where a report is written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cache
from html import escape
from pathlib import Path

import resvg_py

from exporters.render.text import SIGNS, blank_unprintable, shorten, wrap
from exporters.report import charts
from exporters.report.records import Report, TierReport
from exporters.report.wording import SIMULATED, instant
from rules.verdicts.verdict import SEVERITY, Status

HERE = Path(__file__).parent
FONTS = (HERE / "fonts" / "DejaVuSans.ttf", HERE / "fonts" / "DejaVuSans-Bold.ttf")
FAMILY = "DejaVu Sans"

MOST_TIERS = 3
"""Maximum number of tiers, worst first. A larger picture is unreadable on a phone."""

WIDTH, MARGIN, GAP = 1280, 32, 24
COLUMN = (WIDTH - 2 * MARGIN - GAP) / 2
CHART = COLUMN * charts.HEIGHT / charts.WIDTH
LINE, LETTERS = 24, 138
"""Height of a text line, and the number of characters in it."""


def png(found: Report) -> bytes:
    return resvg_py.svg_to_bytes(
        svg_string=svg(found),
        skip_system_fonts=True,
        font_files=[str(font) for font in FONTS],
        font_family=FAMILY,
        sans_serif_family=FAMILY,
    )


def svg(found: Report) -> str:
    shown = sorted(found.tiers, key=lambda tier: -SEVERITY[Status(tier.status)])[:MOST_TIERS]
    y, parts = float(MARGIN), []
    for height, part in (*_top(found), *(row for tier in shown for row in _tier(tier, found))):
        parts.append(f'<g transform="translate({MARGIN} {y:g})">{part}</g>')
        y += height
    left_out = len(found.tiers) - len(shown)
    if left_out:
        parts.append(_text(MARGIN, y + 20, f"{left_out} more tiers are in the report", "soft"))
        y += LINE
    y += MARGIN
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {y:g}" width="{WIDTH}" height="{y:g}">'
        f'<style>{style()}</style><rect class="page" width="{WIDTH}" height="{y:g}"/>{"".join(parts)}</svg>'
    )


Row = tuple[float, str]
"""Height of a row and its markup."""


def _top(found: Report) -> Iterator[Row]:
    if found.simulated:
        yield LINE + 6, _text(0, 18, SIMULATED, "banner")
    period = f"{instant(found.since, found.zone)} to {instant(found.until, found.zone)}"
    yield LINE, _text(0, 16, f"sizewatch: {period}", "soft")
    for line in _lines(found.headline, 72):
        yield 36, _text(0, 27, line, "headline")
    yield 8, ""


def _tier(tier: TierReport, found: Report) -> Iterator[Row]:
    state = Status(tier.status)
    yield 18, f'<line class="base" x1="0" x2="{WIDTH - 2 * MARGIN}" y1="6" y2="6"/>'
    name = shorten(f"{SIGNS[state]} {tier.tier}", 40)
    yield (
        34,
        _text(0, 22, name, f"name {state.value}") + _text(560, 22, shorten(f"{tier.model}, {tier.gpu}", 70), "soft"),
    )
    for line in _lines(tier.verdict, LETTERS)[:4]:
        yield LINE, _text(0, 17, line, "verdict")
    drawn = [
        (title, chart)
        for title, chart in (
            ("TTFT P99 against the load of a replica: production and plan", charts.curve_chart(tier.curve)),
            ("Requests a second", charts.rates_chart(tier.workload, found.since, found.until, found.zone)),
        )
        if chart
    ]
    if drawn:
        titles = (_text(place * (COLUMN + GAP), 20, title, "soft") for place, (title, _) in enumerate(drawn))
        yield LINE + 6, "".join(titles)
        yield CHART + 10, "".join(_placed(chart, place * (COLUMN + GAP)) for place, (_, chart) in enumerate(drawn))
    else:
        yield LINE + 8, _text(0, 17, "No chart: too little was seen in this time.", "soft")


def _placed(chart: str, x: float) -> str:
    place = f'<svg x="{x:g}" y="0" width="{COLUMN:g}" height="{CHART:.1f}" '
    return chart.replace("<svg ", place, 1)


def _text(x: float, y: float, text: str, kind: str) -> str:
    return f'<text x="{x:g}" y="{y:g}" class="{kind}">{escape(blank_unprintable(text))}</text>'


def _lines(text: str, most: int) -> list[str]:
    return wrap(" ".join(shorten(word, most) for word in text.split()), width=most) or [""]


OWN_STYLE = """
text{font-family:"DejaVu Sans";fill:var(--ink);font-size:15px}
.page{fill:var(--card)}.base{stroke:var(--rule)}
.soft{fill:var(--soft)}.banner{fill:var(--limit);font-weight:bold}
.headline{font-size:25px;font-weight:bold}.verdict{font-size:16px}
.name{font-size:20px;font-weight:bold}.name.ok{fill:var(--ok)}.name.warning{fill:var(--warning)}
.name.critical{fill:var(--critical)}.name.unknown{fill:var(--unknown)}
"""


@cache
def style() -> str:
    """Return the CSS of the picture and of its charts, in the light colours of the page."""
    page = (HERE / "report.css").read_text("utf-8")
    light = dict(re.findall(r"(--[a-z0-9-]+):([^;}]+)", page.partition("@media")[0]))
    # Indented rules apply to phones or printers.
    of_charts = "".join(re.findall(r"(?m)(?:^|(?<=\}))\.chart [^{}]*\{[^{}]*\}", page))
    return re.sub(r"var\((--[a-z0-9-]+)\)", lambda name: _colour(light[name[1]]), OWN_STYLE + of_charts)


def _colour(text: str) -> str:
    """Return #rrggbbaa as a colour that every SVG renderer accepts."""
    if len(text) != 9:
        return text
    red, green, blue, alpha = (int(text[place : place + 2], 16) for place in (1, 3, 5, 7))
    return f"rgba({red},{green},{blue},{alpha / 255:.2f})"
