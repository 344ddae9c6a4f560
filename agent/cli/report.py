"""Command `sizewatch report`: re-size report from the daemon's history, written to a directory and optionally sent."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from agent.cli.arguments import CONFIG, PATH, Exit, Parameters, flag, option, since_option
from agent.cli.loading import load_config, writing
from agent.cli.terminal import tell_progress
from agent.config.load import LoadedConfig
from agent.durations import duration_text
from agent.errors import ConfigError
from agent.files import EVERYBODY_READS, write_files
from agent.garbage import collect_rarely
from agent.history import store
from agent.reporting.service import JobRunner
from agent.worker.process import ONE_THREAD


def parameters() -> Parameters:
    out = option("--out", "DIR", "where to write it; made where it is not", PATH, required=True)
    deliver = flag("--deliver", "send it to every destination of report.deliver too, once")
    return CONFIG, since_option("how far back, in full hours"), out, deliver


def run(options: SimpleNamespace) -> int:
    """Write the report and plan.next.yaml. The exit code tells missing data and failed delivery."""
    # Jinja2 and the forecast libraries are imported on demand.
    os.environ.update(ONE_THREAD)
    collect_rarely()
    from agent.reporting.generate import make_files

    loaded = load_config(options)
    if options.deliver and not loaded.config.report.deliver:
        raise ConfigError((f"{loaded.path}: report.deliver: names no destination to send the report to",))
    with writing(options.out):
        # Before the work of half a minute, which may end without a report.
        missing = [folder for folder in (options.out, *options.out.parents) if not folder.exists()]
        options.out.mkdir(parents=True, exist_ok=True)
        for folder in missing:
            folder.rmdir()
    now = time.time()
    texts, report = make_files(loaded, options.since, now, now, tell_progress)
    with writing(options.out):
        options.out.mkdir(parents=True, exist_ok=True)
        write_files({options.out / name: text for name, text in texts.items()}, EVERYBODY_READS)
    if report.simulated:
        print(store.NOTE, file=sys.stderr)
    print(report.headline)
    for tier in report.tiers:
        print(f"  {tier.verdict}")
    span = describe_span(report.until - report.since, options.since)
    print(f"{', '.join(texts)} of the last {span} in {options.out}")
    if options.deliver and not _deliver(loaded, options.out.absolute()):
        return Exit.FINDING
    if any(tier.quality.hours_seen > 0 for tier in report.tiers):
        return Exit.FINE
    return Exit.CANNOT_JUDGE


def describe_span(used: float, wanted: float) -> str:
    """Return the report's length, and why it is not the one wanted. Both are in seconds."""
    why = f" (not {duration_text(wanted)}: a report is of full hours of the history, at most 13 weeks)"
    return duration_text(used) + (why if used != wanted else "")


def _deliver(loaded: LoadedConfig, out: Path) -> bool:
    all_sent = True
    for destination in loaded.config.report.deliver:
        trouble = JobRunner().deliver(out, destination, "").trouble
        print(f"{destination.name}: {f'not sent: {trouble}' if trouble else 'sent'}")
        all_sent = all_sent and not trouble
    return all_sent
