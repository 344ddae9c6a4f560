"""Calibrations in words: one for a terminal, and what changed from one to another."""

from __future__ import annotations

from collections.abc import Iterator

from rich.console import RenderableType

from exporters.documents.calibration import UNITS, Calibration, CalibrationFile, Factor, average
from exporters.render.terminal import terminal_text, text_grid
from exporters.render.text import format_duration, format_reading
from rules.telemetry.signals import Reading
from rules.telemetry.wording import number

MOST_ROWS = 24
"""Most rows of single load bins: with the rest of a tier they fit on one screen."""

LATENCIES = ("TTFT P50", "TTFT P99", "TPOT P50", "TPOT P99", "in system")
WORDS = dict(zip(UNITS, (*LATENCIES, "GPU", "KV cache", "prefix hits", "prompts", "outputs"), strict=True))
"""Words of each metric in the table."""


def calibration_text(made: CalibrationFile) -> str:
    """Return the file for a terminal."""
    parts: list[RenderableType] = []
    for row in made.calibrations:
        what = " ".join(part for part in (row.engine, row.engine_release, row.precision) if part)
        span = format_duration(row.observed_replica_seconds)
        parts += [
            f"{row.tier}: {row.model} on {row.gpus_per_replica} x {row.gpu_product}, {what}",
            f"  {row.requests:,.0f} requests in {span} of replicas, {row.begin} to {row.end}",
        ]
        if row.capacity is not None:
            capacity = row.capacity
            measured = Reading(value=capacity.measured, low=capacity.low, high=capacity.high, n=row.requests)
            text = format_reading(measured, "per_second")
            parts.append(f"  capacity of a replica: planned {capacity.planned:.3g} rps, now {text} ({capacity.source})")
        parts += _factor_parts(row)
        missing = set()
        for load in row.bins:
            missing |= {(metric, why) for metric, why in load.missing.items() if metric not in row.factors}
        parts += [*(f"  not compared: {WORDS[metric]}: {why}" for metric, why in sorted(missing)), ""]
    parts += [f"{tier}: not calibrated: {why}" for tier, why in made.not_calibrated.items()]
    return terminal_text(*parts).rstrip()


def _factor_parts(made: Calibration) -> Iterator[RenderableType]:
    """Yield the factors over all loads and at each, at the fullest loads if all of them are too many for a screen."""
    rows, name = [], "all loads"
    for metric, factor in made.factors.items():
        rows.append((name, WORDS[metric], "", "", factor_text(factor), ""))
        name = ""
    compared = [load for load in made.bins if load.measures]
    fullest = sorted(compared, key=lambda load: load.requests, reverse=True)[: max(1, MOST_ROWS // len(rows))]
    for load in (load for load in compared if load in fullest):
        name = f"{load.bin}: {load.requests_per_second:.3g} rps"
        for measure in load.measures:
            unit = UNITS[measure.metric]
            measured = Reading(value=measure.measured, low=measure.low, high=measure.high, n=measure.n)
            cells = (number(measure.predicted, unit), format_reading(measured, unit), factor_text(measure.factor))
            rows.append((name, WORDS[measure.metric], *cells, f"{measure.n:,.0f}"))
            name = ""
    yield text_grid(rows, ("bin: load", "metric", "predicted", "measured (95 %)", "measured / predicted", "n"), words=2)
    rest = [f"{load.requests_per_second:.3g} rps" for load in compared if load not in fullest]
    if rest:
        yield f"  in the file only: {', '.join(rest)}"


def factor_text(factor: Factor) -> str:
    """Return a factor in words: "1.18x (1.1 to 1.3)", "at least 1.2x"."""
    low = "" if factor.low is None else f"{factor.low:.3g}"
    high = "" if factor.high is None else f"{factor.high:.3g}"
    if not low and not high:
        bounds = "not bounded"
    elif not high:
        bounds = f"at least {low}"
    else:
        bounds = f"{low} to {high}" if low else f"at most {high}"
    return bounds if factor.value is None else f"{factor.value:.3g}x ({bounds})"


def compare_calibrations(before: CalibrationFile, after: CalibrationFile) -> list[str]:
    """Return what changed from one file to another, a line for each metric of each tier that both have.

    Factors of one load bin are of the same prediction, so their ratio compares production with production at equal load.
    """
    lines = []
    for new in after.calibrations:
        for old in before.calibrations:
            if (old.tier, old.gpu_product) != (new.tier, new.gpu_product):
                continue
            name = f"{new.tier}: {_name(new)} against {_name(old)}"
            ratios = _ratios(old, new)
            lines += [f"{name}: {metric} {factor_text(ratio)} at equal load" for metric, ratio in ratios.items()]
            if not ratios:
                lines.append(f"{name}: no metric was measured at the same load in both")
    return lines


def _name(row: Calibration) -> str:
    return " ".join(part for part in (row.engine_release or "unknown release", row.precision) if part)


def _ratios(old: Calibration, new: Calibration) -> dict[str, Factor]:
    known = {(load.bin, measure.metric): measure for load in old.bins for measure in load.measures}
    weighted: dict[str, list[tuple[Factor, float]]] = {}
    for load in new.bins:
        for measure in load.measures:
            earlier = known.get((load.bin, measure.metric))
            if earlier is not None:
                ratio = _divide(measure.factor, earlier.factor)
                weighted.setdefault(measure.metric, []).append((ratio, min(measure.n, earlier.n)))
    return {metric: average(rows) for metric, rows in weighted.items()}


def _divide(new: Factor, old: Factor) -> Factor:
    return Factor(
        value=_quotient(new.value, old.value), low=_quotient(new.low, old.high), high=_quotient(new.high, old.low)
    )


def _quotient(upper: float | None, lower: float | None) -> float | None:
    return upper / lower if upper is not None and lower else None
