from dataclasses import replace

import recorded
from evaluation_steps import EvaluationSteps
from judging_samples import context, gauge, minute, minutes, seen

from agent.config.files import load_plan
from agent.scrape.scrapers import PageReader
from agent.sources.recording import load, scrapes
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow
from rules.plan.load_bins import build_tier_context as view_of
from rules.telemetry.windows import Window


def placed(*windows: Window) -> tuple[BinnedWindow, ...]:
    return minutes(context(), {"a": windows}).binned


def queue(number: float, mean: float, most: float, change: float, rps: float = 1.0, begun: float = 60.0) -> Window:
    """A minute with this queue; fewer in the system than the benchmark's 8, so that the curve itself finds nothing."""
    gauges = {"requests_waiting": gauge(mean, high=most), "requests_running": gauge(0.0)}
    return minute(number, rps=rps, change=change, gauges=gauges, histograms={"ttft_seconds": seen({0.08: begun})})


def test_minute_without_queue_stays_in_place() -> None:
    first, second = placed(minute(0), minute(1, change=30))
    assert (first.bin, second.bin) == (1, 1)
    assert (second.outside, second.leftover) == ("", 0)


def test_growing_queue_is_load_beyond() -> None:
    _, growing = placed(queue(0, 0.2, 1, 0), queue(1, 3, 6, 9))
    assert growing.bin is None
    assert growing.beyond == "69 requests arrived, 60 finished, and the queue grew to 6"
    assert growing.leftover == 6
    assert placed(queue(0, 0.2, 1, 0), queue(1, 3, 6, 2.9))[-1].bin == 0
    assert placed(queue(0, 0.2, 1, 0), queue(1, 3, 6, 3.0))[-1].beyond
    assert placed(queue(0, 0.0, 0, 0), queue(1, 0.9, 6, 9))[-1].bin == 0
    assert placed(queue(0, 3.0, 6, 0), queue(1, 3.0, 6, 9))[-1].bin == 0


def test_levelled_queue_is_still_overload() -> None:
    binned = placed(queue(0, 0.2, 1, 0), queue(1, 3, 6, 20), queue(2, 5, 6, -1))
    assert binned[-1].beyond == "139 requests arrived, 120 finished, and the queue grew to 6"


def test_waiting_requests_are_worked_off_outside() -> None:
    binned = placed(queue(0, 0.2, 1, 0), queue(1, 4, 7, 20), queue(2, 3, 7, -5, begun=4), queue(3, 1, 3, -3), minute(4))
    assert [s.bin for s in binned] == [0, None, None, None, 1]
    assert binned[2].backlog == "7 requests that an overload had left waiting were worked off"
    assert binned[3].backlog == "3 requests that an overload had left waiting were worked off"
    assert [s.beyond for s in binned[2:]] == ["", "", ""]
    assert [s.outside != "" for s in binned] == [False, True, True, True, False]
    assert binned[3].leftover == 0
    assert placed(queue(0, 0.2, 1, 0), queue(1, 4, 7, 20), queue(2, 0, 0, -7, begun=1))[-1].bin == 0


def test_a_steady_queue_is_compared() -> None:
    # It stays at three to five, as many begin as arrive: after the overload's leftover the minutes count again.
    binned = placed(queue(0, 0.2, 1, 0), queue(1, 4, 5, 5), *(queue(n, 4, 5, 0) for n in range(2, 8)))
    assert [s.bin for s in binned] == [0, None, None, 0, 0, 0, 0, 0]


def test_load_beyond_leaves_its_queue_behind() -> None:
    over = minute(0, rps=7.0, gauges={"requests_waiting": gauge(2.0, high=5)}, in_system=3)
    after = placed(over, queue(1, 2, 5, -4))[-1]
    assert after.backlog.startswith("5 requests")


def test_briefly_known_queue_is_no_mean() -> None:
    known = queue(0, mean=3.0, most=5, change=0.0)
    unseen = replace(known, gauges={})
    assert load_bins.mean_waiting(placed(known, queue(1, mean=5.0, most=5, change=0.0))) == 4.0
    assert load_bins.mean_waiting((*placed(known), *placed(unseen))) == 3.0
    assert load_bins.mean_waiting((*placed(known), *placed(unseen), *placed(unseen))) is None


def test_each_replica_has_its_own_backlog() -> None:
    both = minutes(context(), {"a": [queue(0, 0.2, 1, 0), queue(1, 4, 7, 20)], "b": [minute(0), queue(1.5, 2, 3, 0)]})
    assert {s.replica: s.bin for s in both.binned[-2:]} == {"a": None, "b": 0}


def test_gap_forgets_the_old_queue() -> None:
    late = placed(queue(0, 0.2, 1, 0), queue(1, 4, 7, 20), queue(3.6, 3, 7, -5))[-1]
    assert late.bin == 0


def test_held_back_requests_are_no_queue() -> None:
    held = queue(1, 4, 7, 20)
    told = replace(held, gauges={**held.gauges, "requests_waiting_capacity": gauge(0)})
    assert placed(queue(0, 0.2, 1, 0), told)[-1].bin == 0


def test_backlog_needs_curve_and_queue_gauge() -> None:
    bare = minutes(view_of("t", None), {"a": [queue(0, 0.2, 1, 0), queue(1, 4, 7, 20)]}).binned[-1]
    assert (bare.bin, bare.outside) == (None, "")
    blind = replace(queue(1, 4, 7, 20), gauges={})
    assert placed(queue(0, 0.2, 1, 0), blind)[-1].bin == 0


def test_jammed_cascade_is_no_light_load() -> None:
    plan = load_plan(recorded.PLANS / "cpu-small-open.yaml")
    recording, _ = load(recorded.folder("kv_cascade"))
    watcher, reader = EvaluationSteps({"cpu-small": view_of("cpu-small", plan.tiers["cpu-small"])}), PageReader("vllm")
    for scrape in scrapes(recording, []):
        assert scrape.body is not None
        watcher.apply_snapshot("cpu-small", "r", reader.read(scrape.body, scrape.t))
    watcher.flush()
    # Minutes: light, filling, growing, growing with a burst, worked off, light again.
    assert [s.bin for s in watcher.minutes["cpu-small"].binned] == [0, 0, None, None, None, 0]
    assert [bool(s.beyond) for s in watcher.minutes["cpu-small"].binned] == [False, False, True, True, False, False]
