"""Command `sizewatch report`: re-size report from the daemon's history, written to a directory and optionally sent."""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from types import SimpleNamespace

import click

from agent.cli.arguments import CANNOT_JUDGE, CONFIG, FINDING, FINE, output_folder, since_option
from agent.cli.terminal import tell_progress
from agent.config.load import LoadedConfig, find, load
from agent.durations import duration_text
from agent.errors import ConfigError, SizewatchError
from agent.files import EVERYBODY_READS, open_new_file
from agent.garbage import collect_rarely
from agent.history import reader
from agent.reporting.jobs import JobRunner
from agent.reporting.records import DeliveryJob
from agent.worker.process import ONE_THREAD
from rules.telemetry.windows import HOUR_SECONDS

FIRST_HOUR = "the history is younger than an hour, and reports are of full hours from then on"


class ReportOutputError(SizewatchError):
    """The report cannot be written to its directory."""


def parameters() -> tuple[click.Parameter, ...]:
    out = click.Option(
        ["--out"],
        type=output_folder,
        required=True,
        metavar="DIR",
        help="where to write it; made where it is not",
    )
    deliver = click.Option(["--deliver"], is_flag=True, help="send it to every destination of report.deliver too, once")
    return CONFIG, since_option("how far back, in full hours"), out, deliver


def run(options: SimpleNamespace) -> int:
    """Write report.json, report.md, report.html and plan.next.yaml. The exit code tells missing data and failed
    delivery."""
    # Jinja2 and the forecast libraries are imported on demand.
    os.environ.update(ONE_THREAD)
    collect_rarely()
    from agent.reporting.generate import files_of, load_report_inputs

    loaded = load(find(options.config))
    if options.deliver and not loaded.config.report.deliver:
        raise ConfigError((f"{loaded.path}: report.deliver: names no destination to send the report to",))
    if options.out.exists() and not options.out.is_dir():
        raise ReportOutputError(f"{options.out} is a file and cannot be written into; give with --out a directory")
    _make(options.out)
    texts, found = files_of(load_report_inputs(loaded, options.since, time.time(), tell_progress))
    files = {name: text.encode("utf-8", "replace") for name, text in texts.items()}
    _write(options.out, files)
    if found.simulated:
        print(reader.NOTE, file=sys.stderr)
    print(found.headline)
    for tier in found.tiers:
        print(f"  {tier.verdict}")
    print(f"{', '.join(files)} of the last {describe_span(found.until - found.since, options.since)} in {options.out}")
    arrived = not options.deliver or _deliver(loaded, options.out.absolute())
    if not arrived:
        return FINDING
    return FINE if any(tier.quality.hours_seen > 0 for tier in found.tiers) else CANNOT_JUDGE


def describe_span(used: float, asked: float) -> str:
    """Return the report's length, and why it is not the one asked for. Both are in seconds."""
    if used == asked:
        return duration_text(used)
    limits = "a report is of full hours, at least 1 and at most 13 weeks"
    return f"{duration_text(used)} (not {duration_text(asked)}: {FIRST_HOUR if used < HOUR_SECONDS else limits})"


def _deliver(loaded: LoadedConfig, out: Path) -> bool:
    """Send to every destination despite failures. Return whether all succeeded."""
    all_sent = True
    with tempfile.TemporaryDirectory(prefix="sizewatch-deliver-") as own:
        for one in loaded.config.report.deliver:
            # A receipt of its own: a manual delivery is sent every time.
            receipt = Path(own) / one.name
            job = DeliveryJob(folder=out.parent, name=out.name, destination=one, link="", receipt=receipt)
            trouble = JobRunner().run(job).trouble
            print(f"{one.name}: {f'not sent: {trouble}' if trouble else 'sent'}")
            all_sent = all_sent and not trouble
    return all_sent


def _make(place: Path) -> None:
    """Make the directory before the work of half a minute."""
    try:
        place.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise _unwritable(place, error) from error


def _unwritable(place: Path, error: OSError) -> ReportOutputError:
    return ReportOutputError(f"{place} cannot be written: {error.strerror or error}; give another --out")


def _write(place: Path, files: Mapping[str, bytes]) -> None:
    """Write each file atomically, so that a reader never sees a partial one."""
    try:
        for name, content in files.items():
            unfinished = place / f".{name}.{os.getpid()}"
            with open_new_file(unfinished, EVERYBODY_READS) as opened:
                opened.write(content)
            unfinished.replace(place / name)
    except OSError as error:
        raise _unwritable(place, error) from error
