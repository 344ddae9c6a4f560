"""`sizewatch report`: the re-size report from the history that the daemon keeps, written into a directory."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Mapping
from pathlib import Path

from agent.commands.arguments import add_config, duration
from agent.config import Loaded, find, load
from agent.durations import duration_text
from agent.errors import BadConfig, SizewatchError
from agent.forecasting.child import ONE_THREAD
from agent.history.store import Store
from agent.reporting.gathering import Asked, gather
from agent.version import VERSION
from agent.views import versions_of, views_of
from exporters.report.past import Past

FINE, CANNOT_JUDGE = 0, 3
HOUR_SECONDS, WEEK_SECONDS = 3600.0, 604_800.0


class ReportProblem(SizewatchError):
    """The report cannot be written where it should stand."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument(
        "--since",
        type=duration,
        default=WEEK_SECONDS,
        metavar="7d",
        help="how far back (default 7d; 13 weeks are kept)",
    )
    parser.add_argument(
        "--out", type=Path, required=True, metavar="DIR", help="where to write it; made where it is not"
    )


def run(options: argparse.Namespace) -> int:
    """Writes report.json, report.md, report.html and plan.next.yaml; the exit code says whether anything was seen."""
    # Jinja2 and the forecast's libraries are loaded when a report is written, and not with the command line.
    os.environ.update(ONE_THREAD)
    from agent.reporting.writing import files_of

    loaded = load(find(options.config))
    past = _past(loaded, options.since, time.time())
    texts, found = files_of(past)
    _write(options.out, texts)
    print(found.headline)
    for tier in found.tiers:
        print(f"  {tier.verdict}")
    print(f"{', '.join(texts)} of the last {duration_text(options.since)} in {options.out}")
    return FINE if any(tier.quality.hours_seen > 0 for tier in found.tiers) else CANNOT_JUDGE


def _past(loaded: Loaded, seconds: float, now: float) -> Past:
    if loaded.config.history_path is None:
        raise BadConfig(
            (f"{loaded.path}: data_dir: there is no history to report on; role node keeps none unless it is given",)
        )
    from agent.reporting.prewarming import prewarming

    # Full hours: the history keeps no smaller part of a tier's load bins for weeks.
    until = now // HOUR_SECONDS * HOUR_SECONDS
    with Store.open_reader(loaded.config.history_path) as store:
        asked = Asked(
            views=views_of(loaded),
            versions=versions_of(loaded),
            plan=loaded.plan,
            since=until - max(HOUR_SECONDS, seconds // HOUR_SECONDS * HOUR_SECONDS),
            until=until,
            zone=loaded.config.forecast.zone,
            version=VERSION,
            forecasting=loaded.config.forecast.enabled,
            prewarming=prewarming(loaded, now),
        )
        return gather(store, asked)


def _write(folder: Path, texts: Mapping[str, str]) -> None:
    """Each file whole or not at all: a reader never sees half of one."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for name, text in texts.items():
            unfinished = folder / f".{name}.{os.getpid()}"
            unfinished.write_text(text, encoding="utf-8")
            unfinished.replace(folder / name)
    except OSError as error:
        raise ReportProblem(f"{folder} cannot be written: {error.strerror or error}; give another --out") from error
