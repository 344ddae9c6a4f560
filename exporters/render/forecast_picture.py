"""What came and what was expected, as one picture: the past as a line, the median ahead, and the band above it.

Owns which lines are drawn, the scale, the marks of the hours, and a picture that stands alone (its colours are in it). The
drawing is `exporters.render.svg_charts`. A bin that is not known is a gap, never a zero.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import groupby
from zoneinfo import ZoneInfo

from exporters.render.svg_charts import (
    HEIGHT,
    LONGEST_STEP_SECONDS,
    WIDTH,
    ChartGap,
    ChartLine,
    ChartMarker,
    ChartPoint,
    SvgChart,
    draw_panel,
)
from rules.telemetry.wording import number
from rules.verdicts.projection import ForecastPoint

Seen = tuple[float, float | None]
"""When a bin starts (unix seconds), and its requests per second; None where it is not known."""

SCALE = 3
"""Pixels a unit: the picture is read in a report, not in a corner of a page."""

_STEPS = (1, 3, 6, 12, 24, 48, 168)
"""Hours between marks of the axis; the first that leaves room."""

_MOST_MARKS = 9

_EDGE = 0.06
"""The share of the width at its right end where a mark's words would run into those before it."""

_KEY = "blue: came; orange: expected median; bands: to 95%, 99%"

_STYLE = """\
svg{background:#fff}text{font-family:sans-serif}.base{stroke:#c9ced6}.label{fill:#5a6472;font-size:7.5px}
.line{fill:none;stroke:#1f4e79;stroke-width:1}.dot{fill:#1f4e79}.area{fill:none}.far.line{stroke:none}
.far.area{fill:#dce8f4}.near.area{fill:#b3cde6}.near.line{stroke:#c2571a}.near.dot,.far.dot{fill:#c2571a}
.hole{fill:#eef0f3}.moment line{stroke:#5a6472;stroke-dasharray:2 2}.moment path{fill:#5a6472}"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Picture:
    """What came (`seen`) and what was expected (`ahead`), both in the order of time, in bins of `bin_seconds`.

    `made_at` (unix seconds) is marked, where there is one; `title` is told to who cannot see it.
    """

    title: str
    zone: str
    bin_seconds: float
    seen: tuple[Seen, ...]
    ahead: tuple[ForecastPoint, ...]
    made_at: float | None = None


def picture_svg(picture: Picture) -> str:
    """A whole SVG document. Raises ValueError where nothing is to be drawn."""
    times = [t for t, _ in picture.seen] + [point.t for point in picture.ahead]
    if not times:
        raise ValueError("nothing was seen and nothing is expected: there is no picture of that")
    panel = draw_panel(_panel(picture, min(times), max(times) + picture.bin_seconds))
    size = f'width="{WIDTH * SCALE:g}" height="{HEIGHT * SCALE:g}" viewBox="0 0 {WIDTH:g} {HEIGHT:g}"'
    return f'<svg xmlns="http://www.w3.org/2000/svg" {size}><style>{_STYLE}</style>{_key()}{panel}</svg>\n'


def _key() -> str:
    return f'<text class="label" x="0" y="11">{_KEY}</text>'


def _panel(picture: Picture, start: float, end: float) -> SvgChart:
    known = [value for _, value in picture.seen if value is not None]
    top = max([*known, *(point.q99 for point in picture.ahead)], default=0.0) or 1.0
    squeeze = (LONGEST_STEP_SECONDS * 2 / 3) / picture.bin_seconds  # the charts take what is 90 s apart for a gap
    made = picture.made_at
    return SvgChart(
        start=start * squeeze,
        end=end * squeeze,
        lines=_forecast_lines(picture, squeeze),
        top=top * 1.05,
        top_text=number(top * 1.05, "per_second"),
        ticks=tuple((t * squeeze, text) for t, text in _ticks(start, end, picture.zone)),
        limit=None,
        moments=() if made is None else (ChartMarker(t=made * squeeze, text="the forecast was made", name="made"),),
        spoken=picture.title,
    )


def _forecast_lines(picture: Picture, squeeze: float) -> tuple[ChartLine, ...]:
    seen = tuple(ChartPoint(t=t * squeeze, low=v, value=v, high=v) for t, v in picture.seen if v is not None)
    far = tuple(ChartPoint(t=p.t * squeeze, low=p.q50, value=p.q50, high=p.q99) for p in picture.ahead)
    near = tuple(ChartPoint(t=p.t * squeeze, low=p.q50, value=p.q50, high=p.q95) for p in picture.ahead)
    return (
        ChartLine(name="far", marks=far, holes=tuple(_forecast_gaps(picture.seen, picture.bin_seconds, squeeze))),
        ChartLine(name="near", marks=near),
        ChartLine(name="seen", marks=seen, band=False),
    )


def _forecast_gaps(seen: Sequence[Seen], bin_seconds: float, squeeze: float) -> Iterable[ChartGap]:
    """Bins that are not known, those in a row together."""
    for missing, bins in groupby(seen, key=lambda one: one[1] is None):
        times = [t for t, _ in bins]
        if missing:
            yield ChartGap(start=times[0] * squeeze, end=(times[-1] + bin_seconds) * squeeze, reason="not known")


def _ticks(start: float, end: float, zone: str) -> list[tuple[float, str]]:
    """Marks at full local hours, not more than are read; whole days carry their date."""
    hours = (end - start) / 3600.0
    step = next((hours_apart for hours_apart in _STEPS if hours / hours_apart <= _MOST_MARKS), max(_STEPS))
    midnight = datetime.fromtimestamp(start, ZoneInfo(zone)).replace(hour=0, minute=0, second=0, microsecond=0)
    marks = []
    for count in range(int(hours / step) + 48 // step + 2):
        local = midnight + timedelta(hours=count * step)
        if start <= local.timestamp() < end - _EDGE * (end - start):
            marks.append((local.timestamp(), local.strftime("%a %d" if step >= 24 or local.hour == 0 else "%H:%M")))
    return marks
