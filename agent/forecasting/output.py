"""What the forecast's commands write into files: rows of forecasts, pictures.

Owns the columns of a file of forecasts and the words for a file that cannot be written. A further column belongs at the
end: programs read it by its place too.
"""

from __future__ import annotations

import csv
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np

from agent.errors import SizewatchError
from agent.forecasting.timestamps import TimeStyle
from forecast.backtest.walk import BacktestRun

COLUMNS = ("origin", "target", "horizon_minutes", "method", "q05", "q50", "q95", "q99")


class OutputError(SizewatchError):
    """A file cannot be written."""

    def __init__(self, path: Path, error: OSError) -> None:
        super().__init__(f"{path}: cannot be written: {error.strerror or error}")


def must_be_writable(*paths: Path | None) -> None:
    """Asked before long work, whose result would be lost; it leaves no file behind. Raises NotWritten."""
    for path in paths:
        # What stands behind a pipe would take an opening and closing for all that comes.
        if path is None or (path.exists() and not path.is_file() and not path.is_dir()):
            continue
        new = not path.exists()
        try:
            with path.open("a", encoding="utf-8"):
                pass
            if new:
                path.unlink()
        except OSError as error:
            raise OutputError(path, error) from error


def write_text(path: Path, text: str) -> None:
    """A whole file. Raises NotWritten."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise OutputError(path, error) from error


def write_forecasts(path: Path, walk: BacktestRun, times: TimeStyle) -> None:
    """Every forecast of the test, one a row, amounts per bin. Raises NotWritten.

    `origin` is the moment at which it was made: the start of the first bin not seen yet. `target` is the start of the bin
    that it is of. Times are written as `times` does.
    """
    try:
        with path.open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(_rows(walk, times))
    except OSError as error:
        raise OutputError(path, error) from error


def _rows(walk: BacktestRun, times: TimeStyle) -> Iterator[Iterable[str]]:
    series = walk.window.series
    clock = {index: times.text(series.time(index)) for index in range(walk.window.test, len(series))}
    for one in walk.forecasts:
        minutes = f"{one.horizon_seconds / 60:g}"
        for row, (origin, targets) in enumerate(zip(one.origins.tolist(), one.targets.tolist(), strict=True)):
            for column, target in enumerate(targets):
                said = one.quantiles[:, row, column]
                if np.isfinite(said).all():
                    yield clock[origin], clock[target], minutes, one.method, *(f"{value:.8g}" for value in said)
