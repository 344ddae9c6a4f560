"""What the demo says on the terminal while it runs: each finding once, as it is found, and when it ends.

Owns the words. It reads the daemon's standings after each turn and writes lines; it judges nothing.
"""

from __future__ import annotations

import textwrap
from collections.abc import Callable, Iterable

from rules.episodes import Episode, Standing
from rules.verdicts import Certainty

WIDTH = 110


class Narrator:
    """Told the standings after each turn. `began` is the demo's first instant, on the daemon's clock."""

    def __init__(self, began: float, say: Callable[[str], None] = print) -> None:
        self._began = began
        self._say = say
        self._told: dict[tuple[str, str, float], tuple[int | None, Certainty]] = {}

    def listen(self, standings: Iterable[Standing], ended: Iterable[Episode]) -> None:
        """Says what is new."""
        for standing in standings:
            if standing.episode is not None:
                self._tell(standing.episode)
        for episode in ended:
            key = self._key(episode)
            if key in self._told and episode.ended_at is not None:
                del self._told[key]
                self._line(episode.ended_at, f"{episode.rule} ({episode.subject}) is over")

    def _tell(self, episode: Episode) -> None:
        now = (episode.worst.stage, episode.worst.certainty)
        if self._told.get(self._key(episode)) == now:
            return
        self._told[self._key(episode)] = now
        worst = episode.worst
        self._line(
            worst.t,
            f"{worst.status.value.upper()} {episode.rule} ({episode.subject}), {worst.certainty.value}: "
            f"{worst.sentence}",
        )
        if worst.actions:
            self._say(
                textwrap.fill(f"do: {worst.actions[0].text}", WIDTH, initial_indent=" " * 9, subsequent_indent=" " * 13)
            )

    def _key(self, episode: Episode) -> tuple[str, str, float]:
        return episode.rule, str(episode.subject), episode.started_at

    def _line(self, t: float, text: str) -> None:
        minutes, seconds = divmod(max(0, round(t - self._began)), 60)
        self._say(textwrap.fill(f"{minutes:3}:{seconds:02}   {text}", WIDTH, subsequent_indent=" " * 9))
