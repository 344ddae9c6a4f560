"""What held windows remember equals what is asked of the windows themselves."""

from dataclasses import replace

from judging_samples import context, each, minute, minutes

from rules.plan.load_bins import BinnedWindow, sum_load_bins
from rules.telemetry import histograms
from rules.telemetry.signals import Gap
from rules.telemetry.windows import gap_window, sum_families
from rules.verdicts.held_windows import HeldWindows, hold

FAMILIES = ("requests_finished", "requests_running", "ttft_seconds")


def held() -> HeldWindows:
    made = {name: each(6, lambda number: minute(number, rps=1.0 + number)) for name in ("a", "b")}
    return HeldWindows(minutes(context(), made).binned)


def test_sums_are_those_of_the_windows() -> None:
    one = held()
    several = [binned.window for binned in one]
    assert one.sum_families(FAMILIES) == sum_families(several, FAMILIES)
    assert one.sum_parts("ttft_seconds") == histograms.sum_histograms(
        part for window in several for part in window.histograms.get("ttft_seconds", ())
    )
    inside = [binned for binned in one if binned.bin in range(len(context().curve.points))]
    assert one.by_load_bin(context().curve) == sum_load_bins(inside) != {}


def test_minute_has_all_windows_in_order() -> None:
    periods = held().periods(60.0)
    assert list(periods) == sorted(periods)
    assert [sorted(binned.replica or "" for binned in group) for group in periods.values()] == [["a", "b"]] * 6
    assert held().on_curve == tuple(binned for binned in held() if binned.bin is not None)


def test_answers_cache_by_argument() -> None:
    asked: list[float] = []

    def count(windows: HeldWindows, factor: float) -> float:
        asked.append(factor)
        return len(windows) * factor

    one = held()
    assert [one.once(count, 1.0), one.once(count, 2.0), one.once(count, 1.0)] == [12.0, 24.0, 12.0]
    assert asked == [1.0, 2.0]
    assert one.once(lambda windows, factor: len(windows) / factor, 2.0) == 6.0
    assert one.sum_families(FAMILIES) is one.sum_families(reversed(FAMILIES))


def test_held_windows_are_held_as_they_are() -> None:
    one = held()
    assert hold(one) is one
    assert hold(tuple(one)) == one


def test_inner_window_ends_nothing() -> None:
    spans = [(0.0, 100.0), (10.0, 20.0), (90.0, 120.0)]
    seen = [gap_window(begin, end, Gap.SCRAPE_FAILED) for begin, end in spans]
    held = HeldWindows(
        BinnedWindow(replica="a", window=replace(one, covered_seconds=one.span), rps=None, in_system=None)
        for one in seen
    )
    assert held.watched_seconds == 120.0
