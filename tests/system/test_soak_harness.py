"""The bound of `make soak` on Python's blocks: what fills and what comes and goes is no leak, three blocks a turn are."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from math import isnan

import pytest
from paths import ROOT

sys.path.append(str(ROOT / "benchmarks"))

from soak_bounds import BLOCKS_A_TURN, Cycle, Sample, judged, slope
from soak_memory import Held

CYCLE = Cycle(turns=480, full=600)
LOOK = 60


def sample(turns: int, blocks: int) -> Sample:
    return Sample(
        seconds=float(turns),
        turns=turns,
        now=15.0 * turns,
        rss_bytes=80_000_000,
        files=20,
        threads=20,
        series=1_400,
        generations=1,
        history_bytes=0,
        log_bytes=0,
        left_out=0,
        defects=0,
        reloads=turns // 240,
        posts=0,
        held=Held(turns=turns // LOOK * LOOK, blocks=blocks),
    )


def load(turns: int) -> int:
    """Blocks of a process that fills for 540 turns, and holds less after each renaming of its pods."""
    return 300_000 + 100 * min(turns, 540) + 40 * (turns % 240) + 2_000 * (turns // 240 % 2)


def found(blocks: Callable[[int], int], turns: int) -> tuple[bool, str]:
    samples = [sample(at, blocks(at // LOOK * LOOK)) for at in range(20, turns, 7)]
    (one,) = (one for one in judged(samples, 2, CYCLE) if one.what == "Python's blocks grow")
    return one.holds, one.found


@pytest.mark.parametrize("turns", [1_150, 1_300, 3_000])
def test_what_fills_and_what_comes_and_goes_with_the_pods_is_no_leak(turns: int) -> None:
    assert found(load, turns) == (True, "+0.00 a turn")


@pytest.mark.parametrize("turns", [1_150, 1_300, 3_000])
def test_a_list_that_grows_by_three_blocks_a_turn_is_a_leak_in_short_runs_too(turns: int) -> None:
    assert BLOCKS_A_TURN < 3
    assert found(lambda at: load(at) + 3 * at, turns) == (False, "+3.00 a turn")


def test_a_run_that_ends_before_anything_can_be_compared_has_not_held() -> None:
    assert found(load, 1_080) == (False, "not known before turn 1080")


def test_a_slow_machine_gets_the_turns_that_it_needs() -> None:
    assert not CYCLE.is_over(2_999, 301.0, 5.0)
    assert CYCLE.is_over(3_000, 301.0, 5.0)
    assert CYCLE.is_over(2_999, 1_201.0, 5.0)


def test_memory_that_fills_at_first_is_no_growth_and_without_a_later_sample_nothing_is_known() -> None:
    def grown(turns: int) -> tuple[bool, str]:
        samples = [
            replace(sample(at, 300_000), rss_bytes=60_000_000 + 10_000 * min(at, 600)) for at in range(20, turns, 7)
        ]
        one = judged(samples, 2, CYCLE)[0]
        return one.holds, one.found

    assert grown(1_100) == (True, "+0.000 MB a 1000 turns")
    assert grown(500) == (False, "not known before turn 600")


def test_growth_is_known_from_four_different_turns_after_what_fills() -> None:
    def grown(*turns: int) -> float:
        return slope([replace(sample(at, 0), rss_bytes=2 * at) for at in turns], 600, lambda one: one.rss_bytes)

    assert grown(600, 700, 800, 900) == 2.0
    assert isnan(grown(599, 700, 800, 900))
    assert isnan(grown(600, 700, 800, 800, 800))


def test_a_run_of_three_samples_is_refused() -> None:
    with pytest.raises(ValueError, match="3 samples are too few"):
        judged([sample(at, 300_000) for at in (1, 2, 3)], 2, CYCLE)
