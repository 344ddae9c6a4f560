"""Reader of the history file. Each query is one statement, so its result is of one instant while the daemon writes."""

from __future__ import annotations

import json
import sqlite3
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Self, TypeVar

from agent.history import codec
from agent.history.errors import MOST_QUOTED, HistoryErrorKind, translate_sqlite_errors, trouble
from agent.history.schema import HOURS, MINUTES, QUARTERS, SumTable
from agent.history.write_buffer import (
    DEMAND_SELECT,
    REQUESTS_SELECT,
    TOLD_SELECT,
    minute_sums,
    numbers,
    requests_of,
)
from exporters.render.text import quote_external_text
from rules.evaluator.external_alerts import ExternalAlert
from rules.evaluator.timeline import TimelineEvent
from rules.plan.load_bins import BinnedWindow
from rules.replicas.track import Spans, add_spans
from rules.telemetry import arrivals
from rules.telemetry.arrivals import MinuteDemand
from rules.verdicts.finding import Finding, UnknownSpan

T = TypeVar("T")


class Reader:
    """Answers from one history file. Safe to call from several threads; each call waits for the one before it.

    Made by `Store.open_reader`, or as the reading half of a Store. Every method may raise HistoryError.
    """

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        self._path = path
        self._connection = connection
        self._lock = threading.RLock()

    def close(self) -> None:
        """Lets go of the file; a second call does nothing."""
        with self._lock, translate_sqlite_errors(self._path):
            self._connection.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    def minutes(
        self, tier: str, since: float, until: float, plan_version: str | None = None
    ) -> tuple[BinnedWindow, ...]:
        """The minutes of each replica that begin in [since, until), oldest first.

        Bins are those of the curve that each minute was booked under. A minute seen at two loads (an agent restarted
        within it) is two slices.
        """
        return self._slices(MINUTES, tier, since, until, plan_version)

    def has_rows_since(self, tier: str, since: float) -> bool:
        """Return whether a minute of any of the tier's replicas that began then or later was booked; none is read."""
        statement = (
            f"SELECT EXISTS (SELECT 1 FROM {MINUTES.table} AS row CROSS JOIN series ON series.id = row.series"
            " WHERE start >= ? AND tier = ?)"
        )
        return bool(self._ask(statement, (since, tier))[0][0])

    def replica_bins(
        self, tier: str, since: float, until: float, plan_version: str | None = None
    ) -> tuple[BinnedWindow, ...]:
        """The quarters of an hour of each replica and load bin that begin in [since, until), oldest first."""
        return self._slices(QUARTERS, tier, since, until, plan_version)

    def bins(self, tier: str, since: float, until: float, plan_version: str | None = None) -> tuple[BinnedWindow, ...]:
        """The hours of each load bin of the whole tier that begin in [since, until), oldest first.

        Without `plan_version` all versions: compare bins only within one (`plan_versions`), for each has its own curve.
        """
        return self._slices(HOURS, tier, since, until, plan_version)

    def plan_versions(self, tier: str, since: float, until: float) -> tuple[str, ...]:
        """The plan versions under which hours of [since, until) were booked, the newest hour's last."""
        statement = (
            f"SELECT plan FROM {HOURS.table} AS row CROSS JOIN series ON series.id = row.series"
            " WHERE start >= ? AND start < ? AND tier = ? GROUP BY plan ORDER BY max(start), plan"
        )
        return tuple(plan for (plan,) in self._ask(statement, (since, until, tier)))

    def _slices(
        self, kind: SumTable, tier: str, since: float, until: float, plan: str | None
    ) -> tuple[BinnedWindow, ...]:
        # CROSS JOIN: by time first, as the tables are ordered; SQLite without statistics may begin with the series.
        statement = (
            f"SELECT replica, bin, beyond, body FROM {kind.table} AS row CROSS JOIN series ON series.id = row.series"
            " WHERE start >= :since AND start < :until AND tier = :tier AND (:plan IS NULL OR plan = :plan)"
            " ORDER BY start, replica, bin, series.id"
        )
        rows = self._ask(statement, {"tier": tier, "since": since, "until": until, "plan": plan})
        return self._read(rows, codec.decode_slice, kind.table)

    @property
    def newest_minute_end(self) -> float | None:
        """The end of the newest minute, unix seconds; None where there is none."""
        (start,) = self._ask("SELECT max(start) FROM minutes", ())[0]
        return None if start is None else float(start + MINUTES.seconds)

    def demand(self, tier: str, since: float, until: float) -> tuple[MinuteDemand, ...]:
        """What arrived at the tier in each minute that begins in [since, until), oldest first; minutes of which nothing was
        booked are left out.

        The newest minutes are still growing: a minute is whole when every replica has booked the one after it, two scrape
        intervals after its end.
        """
        before = since - arrivals.REQUEST_MINUTES * MINUTES.seconds
        rows = self._ask(DEMAND_SELECT, (before, until, tier))
        sums = self._read(rows, minute_sums, "demand")
        return tuple(one for one in arrivals.list_demand(sums) if one.start >= since)

    def list_booked_times(self, tier: str, since: float) -> Spans:
        """When, from `since` on (unix seconds), something was booked of a tier: as its demand tells, and so nothing of a tier that
        has prefill pools alone."""
        found = self._ask(TOLD_SELECT, {"tier": tier, "since": since})
        found = list(self._read(found, numbers, "demand"))
        return add_spans((), ((max(first, since), last) for first, last in found))

    def requests(self, tier: str, since: float, until: float) -> tuple[MinuteDemand, ...]:
        """The same without tokens and waiting requests, which are missing in it: of many weeks a third of the time."""
        rows = self._ask(REQUESTS_SELECT, (since, until, tier))
        return self._read(rows, requests_of, "demand")

    def findings(self, since: float, tier: str | None = None) -> tuple[Finding, ...]:
        """The episodes that lasted into [since, ...), oldest first; open ones have no `ended_at`."""
        return self._spans(codec.EPISODE, Finding, since, tier)

    def unknowns(self, since: float, tier: str | None = None) -> tuple[UnknownSpan, ...]:
        """The spans of [since, ...) in which a rule could not judge, oldest first; open ones have no `ended_at`."""
        return self._spans(codec.UNKNOWN, UnknownSpan, since, tier)

    def foreign_alerts(self, since: float, tier: str | None = None) -> tuple[ExternalAlert, ...]:
        """The alerts of others that lasted into [since, ...), oldest first; those that fire have no `ended_at`."""
        return self._spans(codec.FOREIGN, ExternalAlert, since, tier)

    def _spans(self, kind: str, span: type[T], since: float, tier: str | None) -> tuple[T, ...]:
        rows = self._ask(
            "SELECT body FROM spans WHERE kind = :kind AND (ended_at IS NULL OR ended_at >= :since)"
            " AND (:tier IS NULL OR tier = :tier) ORDER BY started_at, tier, replica, rule",
            {"kind": kind, "since": since, "tier": tier},
        )
        return self._read(rows, partial(codec.decode_span, span), "spans")

    def _read(self, rows: Sequence[tuple[Any, ...]], read: Callable[..., T], table: str) -> tuple[T, ...]:
        try:
            return tuple(read(*row) for row in rows)
        except (ValueError, RecursionError) as error:
            raise trouble(
                HistoryErrorKind.CORRUPT, self._path, f"{table} holds {quote_external_text(str(error), MOST_QUOTED)}"
            ) from error

    def events(self, since: float) -> tuple[TimelineEvent, ...]:
        """The events of [since, ...), oldest first."""
        rows = self._ask("SELECT t, kind, tier, replica, text FROM events WHERE t >= ? ORDER BY t, id", (since,))
        return self._read(rows, _event, "events")

    def read_value(self, name: str) -> str | None:
        """The JSON text kept under a name, None where nothing is."""
        rows = self._ask("SELECT value FROM kept WHERE name = ?", (name,))
        return rows[0][0] if rows else None

    def _ask(self, statement: str, values: Sequence[Any] | Mapping[str, Any]) -> list[tuple[Any, ...]]:
        with self._lock, translate_sqlite_errors(self._path):
            return self._connection.execute(statement, values).fetchall()


def _event(t: float, kind: str, tier: str | None, replica: str | None, text: str) -> TimelineEvent:
    numbers(t)
    if not all(isinstance(one, str) for one in (kind, tier or "", replica or "", text)):
        raise ValueError("an event whose words are no text")
    return TimelineEvent(t=t, kind=kind, tier=tier, replica=replica, text=text)


KEPT = "simulated"
"""Under this name a simulated history holds `text`, `seed`, `begin` and `end`; one of a real fleet has nothing there."""

NOTE = "SIMULATED: made-up traffic, engines, GPUs and prices (sizewatch demo --history). None of it was ever measured."


def simulated_notice(history: Reader) -> str:
    """What to say of a history whose weeks were made up; "" of a real one. Raises HistoryError."""
    kept = history.read_value(KEPT)
    return "" if kept is None else str(json.loads(kept)["text"])


def print_simulated_notice(history: Reader) -> None:
    """Says it on stderr before a command prints what it found there; nothing of a real history."""
    text = simulated_notice(history)
    if text:
        print(text, file=sys.stderr)
