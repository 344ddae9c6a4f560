"""Command `sizewatch import`: back fill of an embedded history from a Prometheus-compatible store.

`agent.replay.back_fill_writer` decides what may be recorded, and keeps an interrupted import safe.
"""

from __future__ import annotations

import argparse
import sys
import time
from contextlib import closing
from datetime import datetime
from pathlib import Path

from agent.cli.arguments import CANNOT_JUDGE, FINE
from agent.cli.store_arguments import LONGEST_SECONDS, StoreQuery, add_stored, open_store_query
from agent.cli.terminal import tell_progress
from agent.config.config import HISTORY_FILE
from agent.config.load import DEFAULT_DATA_DIR
from agent.durations import duration_text
from agent.errors import ConfigError
from agent.files import DataDir
from agent.history.store import HistoryStore
from agent.replay.back_fill_writer import BackFillProgress, Stretch, fill_history, last_whole_minute
from rules.evaluator.timeline import TimelineEvent, TimelineKind

KEPT_UP_PIECES = 24
"""Hours of data between two runs of history upkeep."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--plan", type=Path, metavar="PLAN", help="sizing plan under which it is booked; default that of -c"
    )
    parser.add_argument("--data-dir", metavar="DIR", help="folder of the history; default that of -c")
    add_stored(parser)


def run(options: argparse.Namespace) -> int:
    """Import the past. Raise ConfigError if another sizewatch holds the history: both would count the same minutes."""
    asked = open_store_query(options)
    now = time.time()
    span = (asked.since, min(asked.until, last_whole_minute(now)))
    if now - asked.since > LONGEST_SECONDS:
        raise ConfigError(("--from is longer ago than a history is kept, which is 91d",))
    if span[1] - span[0] < 60.0:
        raise ConfigError(("there is no whole minute in that time; the newest five minutes are left to the daemon",))
    folder = Path(options.data_dir or asked.loaded.config.data_dir or DEFAULT_DATA_DIR)
    named = Path("--data-dir") if options.data_dir else asked.loaded.path
    ours = DataDir(folder, named)
    try:
        with closing(asked.api), HistoryStore(folder / HISTORY_FILE) as store:
            return _import(asked, store, span, now)
    except KeyboardInterrupt:
        _tell("interrupted; what was booked stays, and the same command goes on from there")
        raise
    finally:
        ours.close()


def _import(asked: StoreQuery, store: HistoryStore, span: Stretch, now: float) -> int:
    progress = _Progress(store, span, now)
    found = fill_history(asked.loaded, asked.api, store, span, told=progress.tell)
    progress.keep_up()
    for tier, seconds in (found.left_alone or {}).items():
        if seconds:
            _tell(f"{tier}: {seconds / 3600:.3g} h of it were booked before and are left alone")
    text = f"{found.minutes} minutes of replicas from {_local(span[0])} to {_local(span[1])} were booked from {asked.api.place}"
    if found.minutes:
        store.add_event(TimelineEvent(t=now, kind=TimelineKind.BACK_FILL, tier=None, replica=None, text=text))
    print(text)
    if found.error:
        _tell(f"{found.error}; what was booked stays, and the same command goes on from there")
        return CANNOT_JUDGE
    if not found.minutes and not any((found.left_alone or {}).values()):
        _tell("the store has nothing of that time: are the tier, its selector and its replica label right?")
        return CANNOT_JUDGE
    return FINE


class _Progress:
    """Progress output, and upkeep of a history that grows by weeks at once."""

    def __init__(self, store: HistoryStore, span: Stretch, now: float) -> None:
        self._store, self._span, self._now = store, span, now

    def tell(self, piece: Stretch, so_far: BackFillProgress) -> None:
        if so_far.hours % KEPT_UP_PIECES == 0:
            self.keep_up()
        done = min(1.0, so_far.hours * 3600.0 / (self._span[1] - self._span[0]))
        booked = duration_text(round(so_far.hours * 3600.0))
        tell_progress(done, f"{_local(piece[0])}: {booked} read, {so_far.minutes} minutes of replicas booked")

    def keep_up(self) -> None:
        self._store.seal(self._now)
        self._store.prune(self._now)


def _local(t: float) -> str:
    return datetime.fromtimestamp(t).astimezone().isoformat(" ", "minutes")


def _tell(text: str) -> None:
    print(f"sizewatch import: {text}", file=sys.stderr)
