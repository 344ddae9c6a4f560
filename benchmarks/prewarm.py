"""What pre-warming is worth on real traffic: simulated on traces, beside reacting and perfect foresight.

    python benchmarks/prewarm.py ../shared/traces/*.csv.gz --start 3m,5m

The last days of a trace (4, or 14 with bins of half an hour and more) are simulated minute by minute, each policy with the
knowledge of that time. One fixed setting is used for all traces. Traces of longer bins are turned into minutes by straight
lines, which reveal a slope before its bin is over, or with `--steps` by steps, which hide a change until its bin begins.
`--late-to-warm` is the price of a missing replica-minute. All
policies are compared without a margin; the last columns say what the margin of recommended counts costs on top.
Work beside requests is in `sizewatch prewarm --history FILE --explain`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import common
import numpy as np

from agent.durations import parse_duration
from agent.forecasting.csv_series import TraceError
from forecast.capacity.prewarm import LATE_TO_WARM, certainty, lead_minutes
from forecast.capacity.simulation import (
    Outcome,
    PolicyComparison,
    SimulatedDemand,
    cheapest_reacting,
    compare_policies,
    outcome,
    simulate_requests,
)
from forecast.lead.online import profile_outlook, run_lead_forecast
from forecast.series.binned import (
    DAY_MINUTES,
    MINUTE_SECONDS,
    Array,
    Series,
    bin_minutes,
    per_minute,
    rates,
    resample,
)
from rules.catalogue.registry import margin_of

BIN_MINUTES, COARSE_BIN_MINUTES = 5, 30
"""Bin length of the forecast, and from which the longer test is used: the shorter one has too few bins."""

TEST_DAYS, TEST_DAYS_COARSE, FEWEST_DAYS_BEFORE, MOST_DAYS_BEFORE = 4, 14, 5, 30
BOLDER = (0.5, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995)
"""Lower certainties to simulate, for comparison where reacting always has more violations."""

PEAK_REPLICAS = 40
"""Replicas of the highest minute. They set the capacity of a replica."""

MARGIN = margin_of()
"""The margin of a tier whose configuration changes no threshold."""


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Trial:
    """Demand per minute (requests/s), the rates of its bins, and its test minutes."""

    minutes: Array
    bins: Array
    bin_minutes: int
    test_start: int
    test_end: int


def prepare_trial(series: Series, steps: bool) -> Trial:
    """Return the trial of a history. Raise ValueError if it is too short. The test omits the last 20 minutes or two bins."""
    coarse = series if bin_minutes(series) >= BIN_MINUTES else resample(series, BIN_MINUTES * MINUTE_SECONDS)
    width = bin_minutes(coarse)
    per_day = DAY_MINUTES // width
    days = TEST_DAYS if width < COARSE_BIN_MINUTES else TEST_DAYS_COARSE
    if len(coarse) < (days + FEWEST_DAYS_BEFORE) * per_day:
        raise ValueError(f"{len(coarse) / per_day:.1f} days are too short: it takes {days + FEWEST_DAYS_BEFORE}")
    count = min(len(coarse), (MOST_DAYS_BEFORE + days) * per_day)
    bins = rates(coarse)[-count:]
    minutes = np.repeat(bins, width) if steps else per_minute(bins, width)
    if bin_minutes(series) == 1:
        # The observed minutes, with gaps filled from the bins.
        place = np.arange(len(minutes)) + round((coarse.time(len(coarse) - count) - series.start) / MINUTE_SECONDS)
        within = (place >= 0) & (place < len(series))
        own = np.where(within, series.values[np.clip(place, 0, len(series) - 1)] / series.bin_seconds, np.nan)
        minutes = np.where(np.isfinite(own), own, minutes)
    beyond = 4 if width < 10 else 2
    return Trial(
        minutes=minutes,
        bins=bins,
        bin_minutes=width,
        test_start=(count - days * per_day) * width,
        test_end=(count - beyond) * width,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """All policies in the test of one trace; `bolder` is pre-warming at lower certainties."""

    trace: str
    worth: PolicyComparison
    bolder: tuple[Outcome, ...]

    @property
    def equal_saving(self) -> float:
        """Return the share of replica-hours that pre-warming saves at as many violations as reacting.

        These are those of pre-warming, or the fewest that reacting reaches.
        """
        reacting = tuple(result for _, result in self.worth.reacting)
        violated = max(self.worth.prewarmed.violated, min(result.violated for result in reacting))
        hours = self.worth.prewarmed.replica_hours
        if violated > self.worth.prewarmed.violated:
            hours = hours_at((self.worth.prewarmed, *self.bolder), violated)
        return 1.0 - hours / hours_at(reacting, violated)


def hours_at(outcomes: tuple[Outcome, ...], violated: float) -> float:
    """Return the replica-hours of a policy at a share of violated minutes, interpolated on its frontier."""
    frontier: list[Outcome] = []
    for result in sorted(outcomes, key=lambda each: (each.violated, each.replica_hours)):
        if not frontier or result.replica_hours < frontier[-1].replica_hours:
            frontier.append(result)
    return float(np.interp(violated, [each.violated for each in frontier], [each.replica_hours for each in frontier]))


def run_trial(name: str, trial: Trial, lead: int, price: float) -> Result:
    """Compare all policies on one history with a cold start of `lead` minutes. Raise ValueError without demand."""
    minutes = trial.minutes[: trial.test_end]
    outlook = profile_outlook(trial.bins, trial.bin_minutes, lead, len(minutes) + 1)
    learnt = run_lead_forecast(minutes, outlook, lead)
    wanted = certainty(lead, price)
    quantile = learnt.quantile(wanted)
    start, end = trial.test_start, trial.test_end
    capacity = float(minutes[start:].max()) / PEAK_REPLICAS
    if not capacity > 0:
        raise ValueError("there is no demand in the test")

    def world_of(first: int, last: int) -> SimulatedDemand:
        before = float(minutes[first - 1])
        return SimulatedDemand(demand=minutes[first:last], before=before, capacity=capacity, lead=lead)

    world = world_of(start, end)
    worth = compare_policies(
        world,
        simulate_requests(world, quantile[start:end]),
        with_margin=simulate_requests(world, quantile[start:end], margin=MARGIN),
        chosen=cheapest_reacting(world_of(1, start), price),
        late_to_warm=price,
    )
    bolder = []
    for level in BOLDER:
        if level < wanted:
            bolder.append(outcome(world, simulate_requests(world, learnt.quantile(level)[start:end])))
    return Result(trace=name, worth=worth, bolder=tuple(bolder))


def _cost(result: Result, policy: Outcome) -> float:
    """Return replica-hours by those of perfect foresight."""
    return policy.replica_hours / result.worth.foresight.replica_hours


COLUMNS: tuple[tuple[str, str, Callable[[Result], float]], ...] = (
    ("violated", "{:.3%}", lambda result: result.worth.prewarmed.violated),
    ("late", "{:.4%}", lambda result: result.worth.prewarmed.late),
    ("cost", "{:.3f}", lambda result: _cost(result, result.worth.prewarmed)),
    ("static", "{:.2f}", lambda result: _cost(result, result.worth.static)),
    ("equal: saves", "{:.1%}", lambda result: result.equal_saving),
    ("chosen before", "{:g}", lambda result: result.worth.chosen),
    ("violated", "{:.2%}", lambda result: result.worth.reacted.violated),
    ("cost", "{:.2f}", lambda result: _cost(result, result.worth.reacted)),
    ("saved by price", "{:.1%}", lambda result: result.worth.saving),
    ("margin: violated", "{:.3%}", lambda result: result.worth.with_margin.violated),
    ("cost", "{:.3f}", lambda result: _cost(result, result.worth.with_margin)),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the tables. Return 2 where no trace could be simulated."""
    parser = common.build_parser(__doc__, start="3m,5m", late_to_warm=LATE_TO_WARM, steps=False)
    common.add_traces(parser, "+")
    options = parser.parse_args(arguments)
    count = 0
    for start in options.start.split(","):
        lead = lead_minutes(parse_duration(start))
        results = []
        for file in options.files:
            try:
                name, series = common.read_trace_until(file, options.end)
                results.append(run_trial(name, prepare_trial(series, options.steps), lead, options.late_to_warm))
            except (TraceError, ValueError) as error:
                print(f"skipped {file.name}: {error}", file=sys.stderr)
        count += len(results)
        level = certainty(lead, options.late_to_warm)
        print(f"\nCold start {start}, price {options.late_to_warm:g}, certainty {level:.5g}")
        if results:
            _print_results(results)
    return 0 if count else 2


def _print_results(results: list[Result]) -> None:
    """Print a row for each trace; the last one has the means, of costs the geometric ones."""
    print("cost: replica-hours by those of perfect foresight; equal: at as many violations as reacting, in hindsight")
    rows = []
    for result in results:
        rows.append((result.trace, *(form.format(of(result)) for _, form, of in COLUMNS)))
    means = []
    for title, form, of in COLUMNS:
        values = np.array([of(result) for result in results])
        mean = float(np.exp(np.log(values).mean())) if title in ("cost", "static") else float(values.mean())
        means.append(form.format(mean))
    head = ("trace", *(title for title, _, _ in COLUMNS))
    common.print_table(head, [*rows, ("mean", *means)])


if __name__ == "__main__":
    sys.exit(main())
