"""Pre-warming against reacting at equal violations, on frontiers that can be checked by hand."""

import numpy as np
import pytest

from forecast.simulation import Outcome, World, foresight
from forecast.simulation_verdict import UTILISATIONS, Choice, Worth, hours_at, worth


def outcome(violated: float, hours: float) -> Outcome:
    return Outcome(violated=violated, late=violated / 4, replica_hours=hours, most_replicas=9, starts=3)


REACTING = tuple(
    zip(UTILISATIONS[:4], (outcome(0.0, 24), outcome(0.01, 16), outcome(0.03, 18), outcome(0.05, 10)), strict=True)
)


def made(prewarmed: Outcome, *bolder: Outcome, reacting: tuple[tuple[float, Outcome], ...] = REACTING) -> Worth:
    return Worth(
        static=outcome(0.0, 40), reacting=reacting, prewarmed=prewarmed, bolder=bolder, foresight=outcome(0.0, 10)
    )


@pytest.mark.parametrize(
    ("violated", "hours"), [(0.0, 24), (0.005, 20), (0.01, 16), (0.02, 14.5), (0.03, 13), (0.05, 10), (0.5, 10)]
)
def test_the_frontier_is_straight_between_outcomes_that_no_other_beats(violated: float, hours: float) -> None:
    assert hours_at(tuple(one for _, one in REACTING), violated) == pytest.approx(hours)


def test_the_cheaper_one_at_equal_violations_is_recommended() -> None:
    cheaper, dearer = made(outcome(0.005, 15)), made(outcome(0.005, 21))
    assert (cheaper.choice, cheaper.saving) == (Choice.PREWARM, pytest.approx(0.25))
    assert (dearer.choice, dearer.saving) == (Choice.REACT, pytest.approx(-0.05))
    assert cheaper.sentence == (
        "pre-warm: 15 replica-hours with 0.50 % of the minutes short of capacity; reacting takes 20"
    )
    assert dearer.sentence.startswith("react: 20 replica-hours with 0.50 %")


def test_where_always_the_peak_would_have_cost_no_more_it_is_said() -> None:
    assert made(outcome(0.0, 40)).sentence.endswith("at the certainty in use always 9 replicas would have cost no more")
    assert "always" not in made(outcome(0.0, 39)).sentence


def test_equally_dear_is_better_done_the_simple_way() -> None:
    assert made(outcome(0.01, 16)).choice is Choice.REACT
    assert made(outcome(0.01, 15.7)).choice is Choice.REACT
    assert made(outcome(0.01, 15.6)).choice is Choice.PREWARM


def test_where_reacting_cannot_be_as_careful_ours_is_priced_at_what_it_can() -> None:
    reckless = REACTING[1:]
    both = made(outcome(0.002, 30), outcome(0.02, 8), reacting=reckless)
    assert both.equal_violated == pytest.approx(0.01)
    assert both.equal_hours == (pytest.approx(30 - 22 * 8 / 18), 16)
    assert both.choice is Choice.REACT
    assert made(outcome(0.002, 20), outcome(0.006, 12), reacting=reckless).choice is Choice.PREWARM


def test_everything_is_simulated_in_the_same_world() -> None:
    demand = np.tile([1.0, 2.0, 8.0, 3.0], 50)
    world = World(demand=demand, before=1.0, capacity=1.0, lead=2)
    found = worth(world, foresight(world))
    assert [utilisation for utilisation, _ in found.reacting] == list(UTILISATIONS)
    assert found.relative_cost == 1.0
    assert found.static.most_replicas == 8
    assert found.static.violated == 0.0


def test_without_any_outcome_there_is_no_frontier() -> None:
    with pytest.raises(ValueError, match="no policy"):
        hours_at((), 0.1)
