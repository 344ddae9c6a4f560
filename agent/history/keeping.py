"""What the daemon does with its history, turn by turn and hour by hour; nothing of it can stop a turn.

Owns the order of writing (minutes first, then episodes), the buffer while the file cannot take them, retention and the
kept answer of Step 13. SQL is the store's business.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping

from agent.history.booking import Booking, Buffer
from agent.history.reader import Event, Reader
from agent.history.store import Store
from agent.history.troubles import HistoryTrouble
from exporters.check_text import check_json, headline
from rules.episodes import Ended, Episode
from rules.slices import TierView
from rules.step13 import FIRST_WEEK_SECONDS, Step13, step13


class Keeping:
    """The daemon's side of one history file. `trouble` says in words why it cannot be written now, None when it can."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._waiting: list[Ended] = []
        self.buffer = Buffer()
        self.trouble: str | None = None

    def turn(self, minutes: Iterable[Booking], ended: Iterable[Ended], still_open: Iterable[Episode]) -> None:
        """Books closed minutes and saves episodes; what cannot be written waits for the next turn."""
        self._waiting.extend(ended)
        bookings, lasting = tuple(minutes), tuple(still_open)
        try:
            self.buffer.add(bookings)
            self.buffer.drain(self._store.book)
            if self._waiting or lasting:
                self._store.save_episode(*self._waiting, *lasting)
            self._waiting.clear()
            self.trouble = None
        except HistoryTrouble as trouble:
            self.trouble = str(trouble)
            del self._waiting[:-MOST_WAITING]

    def event(self, t: float, kind: str, text: str, tier: str | None = None, replica: str | None = None) -> None:
        """Something that explains numbers later; lost, and told, if the history cannot take it now."""
        try:
            self._store.add_event(Event(t=t, kind=kind, tier=tier, replica=replica, text=text))
        except HistoryTrouble as trouble:
            self.trouble = str(trouble)

    def recent(self, since: float) -> list[Episode]:
        """Ended episodes since then, for a daemon that starts anew. Raises HistoryTrouble."""
        return [episode for episode in self._store.episodes(since) if episode.ended_at is not None]

    def upkeep(self, views: Mapping[str, TierView], versions: Mapping[str, str], now: float) -> dict[str, str]:
        """Retention, and Step 13 of every plan version whose first week is over; returns the sentence of each tier."""
        try:
            self._store.prune(now)
            return {
                tier: text
                for tier, version in versions.items()
                if (text := self._step13(views[tier], version, now)) is not None
            }
        except HistoryTrouble as trouble:
            self.trouble = str(trouble)
            return {}

    def _step13(self, view: TierView, version: str, now: float) -> str | None:
        """The kept answer, or the answer now if the first week of this plan version is over, or None."""
        seen, answered = f"first-seen/{view.tier}/{version}", f"step13/{view.tier}/{version}"
        kept = self._store.kept(answered)
        if kept is not None:
            return str(json.loads(kept)["sentence"])
        first = self._store.kept(seen)
        if first is None:
            self._store.keep(seen, json.dumps(now))
            return None
        if now - float(json.loads(first)) < FIRST_WEEK_SECONDS:
            return None
        found = check_tier(self._store, view, version, float(json.loads(first)), now)
        self._store.keep(answered, json.dumps({"sentence": headline(found), "t": now, **check_json([found])}))
        self._store.add_event(Event(t=now, kind="step13", tier=view.tier, replica=None, text=headline(found)))
        return headline(found)

    def close(self) -> None:
        self._store.close()


MOST_WAITING = 1000
"""Ended episodes and spans that wait for a history that cannot be written; older ones are lost."""


def check_tier(store: Reader, view: TierView, version: str, since: float, now: float) -> Step13:
    """Step 13 of a tier over [since, now), from the hour sums of its plan version. Raises HistoryTrouble."""
    return step13(view, store.bins(view.tier, since, now, version), now)
