"""What pre-warming is worth on real traffic: simulated on traces, beside reacting and perfect foresight.

    python benchmarks/prewarm.py ../shared/traces/*.csv.gz --start 3m,5m

Owns the table only: the protocol is `prewarm_trial`'s, and one fixed setting is used for all traces. Where a
trace has no minutes of its own both ways between its bins are simulated: straight lines (the baselines' way; they tell
where a bin is going before it is over) and steps. The means are over traces, of each way separately; native minutes count
in both. All strategies are compared without a margin. The last three columns say what the margin of recommended counts
costs on top, from the same forecast at the same certainty. A further column is a row in `COLUMNS`.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from math import exp, log
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from prewarm_trial import Interpolation, ShortHistoryError, TrialResult, prepare_trial, run_trial

from agent.durations import duration_text, parse_duration
from agent.forecasting.csv_series import TraceError, read_trace
from forecast.capacity.prewarm import LATE_TO_WARM, certainty, hold_minutes, lead_minutes
from forecast.capacity.simulation import Choice, PolicyComparison
from forecast.series.binned import bin_minutes, truncate_at
from rules.catalogue.registry import margin_of

LATE_HELP = "cost of a minute without one replica that is needed, in minutes of a warm one (default: %(default)g)"
END_HELP = "take the trace only up to this time, ISO 8601 in UTC; can be repeated"
SHOWN_UTILISATIONS = (0.4, 0.5, 0.7, 0.9)
MARGIN = margin_of()
"""The margin of a tier whose configuration changes no threshold."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One trace, one way between its bins, one cold start."""

    trace: str
    between: Interpolation
    tried: TrialResult


def _reacting(worth: PolicyComparison) -> str:
    by = dict(worth.reacting)
    shown = (by[utilisation] for utilisation in SHOWN_UTILISATIONS)
    return " ".join(
        f"{100 * one.violated:5.2f}/{one.replica_hours / worth.foresight.replica_hours:.2f}" for one in shown
    )


def _chosen(worth: PolicyComparison) -> str:
    one = worth.reacted
    return f"{worth.chosen:g}: {100 * one.violated:.2f}/{one.replica_hours / worth.foresight.replica_hours:.2f}"


def _equal(tried: TrialResult) -> str:
    return "/".join(f"{hours / tried.worth.foresight.replica_hours:.3f}" for hours in tried.equal_hours)


COLUMNS: tuple[tuple[str, int, Callable[[Row], str]], ...] = (
    ("trace", 26, lambda row: row.trace[:26]),
    ("minutes", 7, lambda row: row.between),
    ("violated %", 10, lambda row: f"{100 * row.tried.worth.prewarmed.violated:.3f}"),
    ("late %", 7, lambda row: f"{100 * row.tried.worth.prewarmed.late:.4f}"),
    ("cost", 6, lambda row: f"{row.tried.relative_cost:.3f}"),
    ("static", 6, lambda row: f"{row.tried.worth.static.replica_hours / row.tried.worth.foresight.replica_hours:.2f}"),
    ("reacting at " + " ".join(f"{one:g}" for one in SHOWN_UTILISATIONS), 43, lambda row: _reacting(row.tried.worth)),
    ("equal at %", 10, lambda row: f"{100 * row.tried.equal_violated:.3f}"),
    ("ours/reacting", 13, lambda row: _equal(row.tried)),
    ("saves %", 7, lambda row: f"{100 * row.tried.equal_saving:.1f}"),
    ("chosen before", 15, lambda row: _chosen(row.tried.worth)),
    ("by price %", 10, lambda row: f"{100 * row.tried.worth.saving:.1f}"),
    ("recommends", 10, lambda row: row.tried.worth.choice),
    ("said before", 11, lambda row: row.tried.before.choice),
    ("with margin violated %", 22, lambda row: f"{100 * row.tried.worth.with_margin.violated:.3f}"),
    ("cost", 6, lambda row: f"{row.tried.relative_cost_with_margin:.3f}"),
    ("margin alone", 12, lambda row: f"{row.tried.margin_cost:.3f}"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the tables; 2 where no trace could be simulated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "files", nargs="+", type=Path, metavar="FILE", help="CSV: timestamp,requests[,...]; also gzipped"
    )
    parser.add_argument("--start", default="3m,5m", help="cold starts to simulate (default: %(default)s)")
    parser.add_argument("--end", action="append", default=[], metavar="TRACE=TIME", help=END_HELP)
    parser.add_argument("--late-to-warm", type=float, default=LATE_TO_WARM, metavar="MINUTES", help=LATE_HELP)
    given = parser.parse_args(arguments)
    try:
        leads = [lead_minutes(parse_duration(text)) for text in given.start.split(",")]
        ends = dict(_end(text) for text in given.end)
    except ValueError as wrong:
        parser.error(str(wrong))
    rows = {
        lead: [row for file in given.files for row in _rows(file, lead, given.late_to_warm, ends)] for lead in leads
    }
    for lead, found in rows.items():
        _print_table(lead, found, given.late_to_warm)
    return 0 if any(rows.values()) else 2


def _end(text: str) -> tuple[str, float]:
    name, found, moment = text.partition("=")
    if not found:
        raise ValueError(f"--end takes TRACE=TIME, not '{text}'")
    return name, datetime.fromisoformat(moment).replace(tzinfo=UTC).timestamp()


def _rows(file: Path, lead: int, late_to_warm: float, ends: Mapping[str, float]) -> list[Row]:
    name = file.name.removesuffix(".gz").removesuffix(".csv")
    try:
        whole = read_trace(file).requests
        series = truncate_at(whole, ends[name]) if name in ends else whole
        ways = (Interpolation.NATIVE,) if bin_minutes(series) == 1 else (Interpolation.LINEAR, Interpolation.STEP)
        trials = [prepare_trial(series, way) for way in ways]
        found = [
            Row(
                trace=name,
                between=one.between,
                tried=run_trial(one, lead, late_to_warm=late_to_warm, margin=MARGIN),
            )
            for one in trials
        ]
    except (TraceError, ShortHistoryError, ValueError) as wrong:
        print(f"skipped {name}: {wrong}", file=sys.stderr)
        return []
    print(f"done {name}, start {lead} min", file=sys.stderr)
    return found


def _print_table(lead: int, rows: list[Row], late_to_warm: float) -> None:
    print(
        f"\nCold start {duration_text(60.0 * lead)}: a missing minute costs {late_to_warm:g} warm ones, so the quantile is "
        f"{certainty(lead, late_to_warm):.5g}; hold {hold_minutes(lead)} minutes; the same for all traces"
    )
    print("cost and reacting (violated %/cost): replica-hours by those of perfect foresight")
    print(
        "equal: pre-warming and reacting at as many violations (ours, or the fewest that reacting reaches), in hindsight"
    )
    print(
        "chosen before: reacting at the utilisation that was cheapest in the time before; by price: what ours saves of it"
    )
    print(
        f"with margin: same forecast, same certainty, at most {MARGIN.target_utilization:.0%} of capacity used, from "
        f"{MARGIN.survives_loss_from} replicas on one may be lost; cost by the same perfect foresight; margin alone: "
        "replica-hours by those without it"
    )
    print("  ".join(_cell(title, width, place) for place, (title, width, _) in enumerate(COLUMNS)))
    for row in rows:
        print("  ".join(_cell(cell(row), width, place) for place, (_, width, cell) in enumerate(COLUMNS)))
    for way in (Interpolation.LINEAR, Interpolation.STEP):
        _print_mean(way, [row for row in rows if row.between in (way, Interpolation.NATIVE)])
    for row in rows:
        worth = row.tried.worth
        if worth.choice is Choice.REACT or worth.prewarmed.replica_hours >= worth.static.replica_hours:
            print(f"{row.trace} ({row.between}): {worth.sentence}")


def _cell(text: str, width: int, place: int) -> str:
    return text.rjust(width) if place else text.ljust(width)


def _print_mean(way: Interpolation, rows: list[Row]) -> None:
    if not rows:
        return
    trials = [row.tried for row in rows]
    worths = [one.worth for one in trials]
    violated = [100 * one.prewarmed.violated for one in worths]
    late = _mean([100 * one.prewarmed.late for one in worths])
    cost = _geometric([one.relative_cost for one in trials])
    by_reacting = _geometric([1 - one.equal_saving for one in trials])
    reacted = [100 * one.reacted.violated for one in worths]
    hours = _geometric([one.reacted.replica_hours / one.foresight.replica_hours for one in worths])
    by_price = _geometric([1 - one.saving for one in worths])
    print(
        f"{len(rows)} traces, {way} between bins: violated {_mean(violated):.3f} % (worst {max(violated):.2f} %), "
        f"late {late:.3f} %, cost {cost:.3f}, by reacting at equal violations {by_reacting:.3f}"
    )
    print(
        f"{len(rows)} traces, {way} between bins: reacting as chosen before violated {_mean(reacted):.3f} %, cost {hours:.3f}; "
        f"ours by its price {by_price:.3f}"
    )
    roomy = [100 * one.with_margin.violated for one in worths]
    print(
        f"{len(rows)} traces, {way} between bins: with the margin violated {_mean(roomy):.3f} % (worst {max(roomy):.2f} %), "
        f"late {_mean([100 * one.with_margin.late for one in worths]):.3f} %, "
        f"cost {_geometric([one.relative_cost_with_margin for one in trials]):.3f}, "
        f"the margin alone {_geometric([one.margin_cost for one in trials]):.3f}"
    )


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _geometric(values: Sequence[float]) -> float:
    return exp(_mean([log(value) for value in values]))


if __name__ == "__main__":
    sys.exit(main())
