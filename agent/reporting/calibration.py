"""Calibration of the plan from the history: hours under the present plan, by engine release and precision."""

from __future__ import annotations

from agent.config.load import LoadedConfig, build_tier_contexts, plan_versions
from agent.history.daily_queries import measured_views, pieces
from agent.history.reader import Reader
from agent.history.schema import DAY
from agent.version import VERSION
from exporters.documents.calibration import Calibration, CalibrationFile, calibrate, collect_calibrations
from rules.plan.load_bins import BinnedWindow, sum_by_bin


def read_calibration(
    store: Reader, loaded: LoadedConfig, since: float, until: float, tier: str | None = None
) -> CalibrationFile:
    """Return the calibration of one tier or all over [since, until), unix seconds. Raise HistoryError.

    Only hours under the present version of the plan count: another version has another curve.
    """
    made: list[tuple[str, Calibration | str]] = []
    versions = plan_versions(loaded)
    contexts = {name: view for name, view in build_tier_contexts(loaded).items() if tier in (None, name)}
    for name, context in measured_views(store, contexts, versions, until).items():
        if name not in versions:
            made.append((name, "it has no plan"))
            continue
        sums: dict[tuple[str, str], tuple[BinnedWindow, ...]] = {}
        # Day by day: weeks of hours do not fit into memory.
        for begin, end in pieces(since, until, DAY):
            for key, hours in store.bins_by_release(name, begin, end, versions[name]).items():
                sums[key] = sum_by_bin((*sums.get(key, ()), *hours))
        made += [(name, calibrate(context, *key, bins)) for key, bins in sorted(sums.items())]
        if not sums:
            made.append((name, "its history has no hour under the present plan"))
    return collect_calibrations(made, until, VERSION, bool(store.simulated_notice()))
