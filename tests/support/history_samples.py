"""Minutes for the tests of the history: made-up ones of whole numbers, so that sums are exact, and real ones."""

import math

import making
import recorded

from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from rules.evaluator.observation import ClosedMinute
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow
from rules.replicas.state import ScrapeTrack, record_failure, record_success
from rules.telemetry import windows
from rules.telemetry.histograms import Histogram
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window

START = 1_700_006_400.0
"""A full hour."""

EDGES = (0.5, 1.0, 2.0, math.inf)


def window(minute: int, finished: float = 60.0, covered: float = 60.0) -> Window:
    """The window of the minute `minute` minutes after START."""
    start = START + 60.0 * minute
    if covered == 0:
        return windows.gap_window(start, start + 60.0, Gap.SCRAPE_FAILED)
    ttft = Histogram(edges=EDGES, counts=(finished - 1, 1.0, 0.0, 0.0), total=2 * finished)
    return making.window(
        start,
        covered_seconds=covered,
        counters={"requests_finished": finished, "preemptions": 0.0},
        histograms={"ttft_seconds": (ttft,)},
        gauges=dict.fromkeys(("requests_running", "requests_waiting"), making.gauge(4.0, covered, 1.0, 9.0)),
    )


def booking(
    minute: int,
    replica: str = "r0",
    bin: int | None = 1,
    *,
    beyond: str = "",
    tier: str = "h100",
    plan: str = "v1",
    finished: float = 60.0,
    covered: float = 60.0,
) -> ClosedMinute:
    """A closed minute of a replica in a load bin."""
    one = load_bins.bin_window(window(minute, finished, covered), None, replica, bin)
    if beyond:
        one = BinnedWindow(replica=replica, window=one.window, rps=one.rps, in_system=one.in_system, beyond=beyond)
    return ClosedMinute(tier=tier, plan_version=plan, slice=one)


def finished(several: tuple[BinnedWindow, ...]) -> float:
    """Requests finished over slices."""
    return sum(one.window.counters.get("requests_finished", 0.0) for one in several)


def recorded_minutes(name: str) -> list[Window]:
    """The minutes of a recording's first replica, those with failed scrapes and restarts included."""
    recording, _ = load(recorded.folder(name))
    reader, track = PageReader(recording.targets[0].engine), ScrapeTrack()
    minutes: dict[float, list[Window]] = {}
    for scrape in scrapes(recording, []):
        if scrape.target != 0:
            continue
        if scrape.body is None:
            track, one = record_failure(track, scrape.t)
        else:
            track, one = record_success(track, reader.read(scrape.body, scrape.t))
        if one is not None:
            minutes.setdefault(windows.minute_of(one), []).append(one)
    return [windows.sum_windows(group) for group in minutes.values()]
