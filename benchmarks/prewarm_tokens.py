"""What counting work instead of requests is worth: pre-warming by both, on traces that have tokens.

    python benchmarks/prewarm_tokens.py ../shared/traces/servegen_m*.csv.gz --start 3m,5m

The simulation and its price are those of `sizewatch prewarm --history FILE --explain`: the newest week, judged by work, the time
before to learn from. A replica takes 1/40 of the highest minute's work in requests of the trace's mean lengths. "equal misses"
lowers what a replica is taken to carry, for requests alone, until they are short in no more minutes than work is: in hindsight,
which nobody has.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from agent.durations import duration_text, parse_duration
from agent.forecasting.csv_series import TraceError
from agent.forecasting.input_series import input_from_csv
from agent.forecasting.messages import ForecastRequest
from agent.forecasting.prewarm_value import split_last_week
from agent.forecasting.responses import DemandBins
from forecast.capacity.prewarm import certainty, late_to_warm, lead_minutes
from forecast.capacity.simulation import Outcome, outcome, simulate_requests
from forecast.lead.online import run_past
from forecast.series.binned import Series

PEAK_REPLICAS = 40
SHARES = np.arange(1.0, 0.29, -0.01)
"""Shares of its capacity that a replica is taken to carry, for requests alone."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints a row per trace and start; 2 where no trace could be simulated."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("files", nargs="+", type=Path, metavar="FILE", help="CSV with prompt_tokens and output_tokens")
    parser.add_argument("--start", default="3m,5m", help="cold starts to simulate (default: %(default)s)")
    given = parser.parse_args(arguments)
    rows = [row for file in given.files for text in given.start.split(",") if (row := _row(file, parse_duration(text)))]
    head = (
        "trace",
        "start",
        "work: short",
        "hours",
        "requests: short",
        "hours",
        "cost by work",
        "equal misses: hours",
        "share",
    )
    widths = [max(len(row[place]) for row in (head, *rows)) for place in range(len(head))]
    for row in (head, *rows):
        print("  ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip())
    return 0 if rows else 2


def _row(file: Path, start: float) -> tuple[str, ...] | None:
    name = file.name.removesuffix(".gz").removesuffix(".csv")
    try:
        given = input_from_csv(file, None, None)
    except TraceError as wrong:
        print(f"skipped {name}: {wrong}", file=sys.stderr)
        return None
    if given.requests is None:
        print(f"skipped {name}: it has no tokens", file=sys.stderr)
        return None
    work, requests = (_minutes(one) for one in (given.series, given.requests))
    lead, usable_rps = lead_minutes(start), float(np.nanmax(work)) / PEAK_REPLICAS
    level, width = certainty(lead), round(given.series.bin_seconds / 60)
    weeks = [
        split_last_week(rates, np.ones(len(rates)), run_past(rates, width, lead), level, usable_rps, None)
        for rates in (work, requests)
    ]
    if weeks[0] is None or weeks[1] is None:
        print(f"skipped {name}: {len(work) / 1440:.1f} days are too short", file=sys.stderr)
        return None
    judged, by_requests = weeks[0][0], weeks[1][0]
    price = late_to_warm(lead, level)
    ours = outcome(judged.world, simulate_requests(judged.world, judged.quantile))

    def alone(share: float) -> Outcome:
        world = replace(by_requests.world, capacity=share * usable_rps)
        return outcome(judged.world, simulate_requests(world, by_requests.quantile))

    plain = alone(1.0)
    equal = next(((share, one) for share in SHARES if (one := alone(share)).violated <= ours.violated), None)
    return (
        name,
        duration_text(60.0 * lead),
        f"{ours.violated:.2%}",
        f"{ours.replica_hours:,.0f}",
        f"{plain.violated:.2%}",
        f"{plain.replica_hours:,.0f}",
        f"{ours.priced(price) / plain.priced(price) - 1:+.0%}",
        "never" if equal is None else f"{equal[1].replica_hours / ours.replica_hours - 1:+.0%}",
        "" if equal is None else f"{equal[0]:.0%}",
    )


def _minutes(series: Series) -> np.ndarray:
    asked = ForecastRequest(
        tier="trace", now=series.end, settled_until=series.end, history="", bin_seconds=series.bin_seconds, zone="UTC"
    )
    return np.array(DemandBins(asked, series).rates)


if __name__ == "__main__":
    sys.exit(main())
