"""Calibration of the plan from the history: hours under the present plan, by engine release and precision."""

from __future__ import annotations

from agent.config.load import LoadedConfig, build_tier_contexts, plan_versions
from agent.history.daily_queries import measured_views, pieces
from agent.history.reader import Reader
from agent.history.schema import DAY
from agent.version import VERSION
from exporters.documents.calibration import Calibration, CalibrationFile, calibrate
from exporters.render.text import format_rfc3339
from rules.plan.load_bins import BinnedWindow, sum_by_bin


def read_calibration(
    store: Reader, loaded: LoadedConfig, since: float, until: float, tier: str | None = None
) -> CalibrationFile:
    """Return the calibration of one tier or all over [since, until), unix seconds. Raise HistoryError.

    Only hours under the present version of the plan count: another version has another curve.
    """
    calibrations: list[Calibration] = []
    refused: dict[str, str] = {}
    versions = plan_versions(loaded)
    contexts = {name: view for name, view in build_tier_contexts(loaded).items() if tier in (None, name)}
    for name, context in measured_views(store, contexts, versions, until).items():
        if name not in versions:
            refused[name] = "it has no plan"
            continue
        sums: dict[tuple[str, str], tuple[BinnedWindow, ...]] = {}
        # Day by day: weeks of hours do not fit into memory.
        for begin, end in pieces(since, until, DAY):
            for key, hours in store.bins_by_release(name, begin, end, versions[name]).items():
                sums[key] = sum_by_bin((*sums.get(key, ()), *hours))
        made = [calibrate(context, release, precision, bins) for (release, precision), bins in sorted(sums.items())]
        usable = [part for part in made if isinstance(part, Calibration)]
        calibrations += usable
        if not usable:
            reasons = [part for part in made if isinstance(part, str)]
            refused[name] = reasons[-1] if reasons else "its history has no hour under the present plan"
    return CalibrationFile(
        made_at=format_rfc3339(until),
        sizewatch=VERSION,
        simulated=bool(store.simulated_notice()),
        calibrations=tuple(calibrations),
        not_calibrated=refused,
    )
