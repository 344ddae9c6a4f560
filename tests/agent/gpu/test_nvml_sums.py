"""Sums over time for one GPU, each checked by hand."""

import pytest

from agent.gpu.nvml_sums import BusySum, EnergySum, ThrottleSum

SECOND = 1_000_000


@pytest.mark.parametrize(
    ("busy", "samples", "at", "expected"),
    [
        # 0.2 s x 1.0 + 0.5 s x 0.5 + 1.0 s x 0.0
        (BusySum(last_sample=SECOND), [(1.2, 1.0), (1.7, 0.5), (2.7, 0.0)], 10.0, (0.45, 1.7)),
        # 15 s later the buffer begins at 6 s: what happened between 1 s and 6 s is known to nobody.
        (BusySum(last_sample=SECOND), [(6.0, 1.0), (6.5, 1.0), (7.5, 0.5)], 15.0, (1.0, 1.5)),
        # A ratio that cannot be covers nothing, and samples may come in any order and twice.
        (BusySum(last_sample=0), [(1.0, 42_949_672.95), (2.0, 0.5)], 2.0, (0.5, 1.0)),
        (BusySum(last_sample=0), [(1.0, 0.0), (0.5, 1.0), (1.0, 0.0)], 1.0, (0.5, 1.0)),
    ],
)
def test_sample_stands_for_time_before_it(busy, samples, at, expected):
    busy.add_samples([(round(seconds * SECOND), ratio) for seconds, ratio in samples], at=at)
    assert (busy.total, busy.covered_seconds) == pytest.approx(expected)


def test_samples_after_a_poll_count_once():
    busy = BusySum(last_sample=1_000_000, until=100.0)
    busy.add_poll(0.0, at=115.0)
    # 4 s later; the newest sample (20.0 s) is now, so the poll reached the driver's 16.0 s.
    samples = [(stamp, 1.0) for stamp in range(14_000_000, 20_000_001, 1_000_000)]
    busy.add_samples(samples, at=119.0)
    assert (busy.total, busy.covered_seconds) == pytest.approx((4.0, 15.0 + 4.0))


def test_fallen_energy_total_covers_nothing():
    energy = EnergySum()
    energy.add_total(9_000_000, at=0.0)
    energy.add_total(3_000, at=15.0)
    assert (energy.total, energy.covered_seconds) == (0.0, 0.0)
    energy.add_total(1_503_000, at=30.0)
    assert (energy.total, energy.covered_seconds) == pytest.approx((1_500.0, 15.0))


def test_total_after_polls_counts_once():
    energy = EnergySum()
    energy.add_total(1_000_000, at=0.0)
    energy.add_poll(300.0, at=10.0)
    energy.add_total(7_000_000, at=20.0)
    assert (energy.total, energy.covered_seconds) == pytest.approx((3_000.0, 10.0))


BOTH = {"power": True, "board": True}
POWER = {"power": True, "board": False}


@pytest.mark.parametrize(
    ("steps", "seconds", "covered"),
    [
        # Another means starts again.
        ([({"power": 10**9}, {"board": True}, 0), ({}, BOTH, 10)], (0.0, 0.0), 0.0),
        ([({"power": 10**9}, {"board": True}, 0), ({}, BOTH, 10), ({}, POWER, 15)], (5.0, 0.0), 5.0),
        # An unknown cause stops the cover, and so does an outage.
        ([({}, BOTH, 0), ({}, BOTH, 10), ({}, {"power": True}, 20), ({}, BOTH, 30)], (10.0, 10.0), 10.0),
        ([({}, BOTH, 0), ({}, BOTH, 600)], (0.0, 0.0), 0.0),
    ],
)
def test_throttling_is_covered_by_one_means(steps, seconds, covered):
    held = ThrottleSum()
    for totals, active, at in steps:
        held.add(totals, active, at=float(at))
        assert held.known == {*totals, *active}
    assert (held.seconds, held.covered_seconds) == (dict(zip(BOTH, seconds, strict=True)), covered)
