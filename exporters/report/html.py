"""Renderer of report.html: a single file without scripts or external resources.

The layout is `report.html.j2` and the style is `report.css`. The template escapes every text; only charts are markup.
"""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from exporters.render.svg_charts import draw_scale
from exporters.render.text import SIGNS, icon, strip_control_characters
from exporters.report import charts, data_quality, findings, wording
from exporters.report.records import Report, ReportNumber
from rules.plan.money import figure
from rules.verdicts.verdict import Status

HERE = Path(__file__).parent


def report_html(report: Report) -> str:
    """Return the whole page."""
    template = _environment().get_template("report.html.j2")
    page = template.render(
        report=report,
        style=Markup((HERE / "report.css").read_text(encoding="utf-8")),
        icon=icon(_worst(report)),
        curve_chart=lambda part: Markup(charts.curve_chart(part)),
        rates_chart=lambda part: Markup(charts.rates_chart(part, report.since, report.until, report.zone)),
        week_chart=lambda part: Markup(charts.week_chart(part)),
        scale=_scale,
        instant=lambda t: wording.instant(t, report.zone),
        sign=lambda status: SIGNS.get(status, "?"),
    )
    return strip_control_characters(page)


def _environment() -> Environment:
    made = Environment(
        loader=FileSystemLoader(HERE), autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    made.filters["words"] = wording.words
    made.filters["bounds"] = wording.bounds
    made.filters["plain"] = wording.number_text
    made.filters["money"] = wording.money
    made.globals["trend"] = wording.trend
    made.globals["times"] = wording.times
    made.filters["figure"] = figure
    made.filters["coded"] = _coded
    made.globals["w"] = wording
    made.globals["h"] = findings
    made.globals["q"] = data_quality
    return made


def _coded(text: str) -> Markup:
    """Return the text with backtick spans as code."""
    parts = [escape(part) for part in text.split("`")]
    return Markup("").join(Markup("<code>{}</code>").format(p) if n % 2 else p for n, p in enumerate(parts))


def _worst(report: Report) -> Status:
    states = {tier.status for tier in report.tiers}
    order = (Status.CRITICAL, Status.WARNING, Status.OK)
    return next((status for status in order if status.value in states), Status.UNKNOWN)


def _scale(reading: ReportNumber, unit: str) -> Markup:
    """Return a small bar for a share, empty for other units, which have no maximum."""
    if unit != "ratio" or reading.gap or reading.value is None:
        return Markup("")
    low = reading.low if reading.low is not None else reading.value
    return Markup(
        draw_scale(
            (low, reading.high if reading.high is not None else reading.value),
            (reading.value,),
            1.0,
        )
    )
