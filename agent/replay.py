"""Replay: the judgement of the daemon over a recording.

Owns the walk through a recording's scrapes and the windows of its step grid. The judgement is `agent.cycle`'s, scrape
by scrape, whatever the step; the step only sets how windows are shown.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from agent.collect.reader import PageReader
from agent.cycle import Watcher
from agent.errors import ScrapeError
from agent.recording import Recording, Scrape, scrapes
from rules import watch_long, windows
from rules.engines.registry import itl_comparable
from rules.episodes import Ended, Standing
from rules.plan import Plan
from rules.signals import Gap
from rules.slices import TierView, view
from rules.windows import Window

DEFAULT_STEP_SECONDS = 60.0

DAYS_ARE_NEEDED = "a recording is judged by its minutes, this needs days of history"


@dataclass(frozen=True, slots=True, kw_only=True)
class ShownWindow:
    """A window of the step grid; `replica` None for the whole tier."""

    tier: str
    replica: str | None
    window: Window


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """What a replay found. `standings` are as they stood at the end, `ended` what ended before; `engines` are the engines of
    each tier as people call them."""

    name: str
    start: float
    end: float
    windows: tuple[ShownWindow, ...]
    ended: tuple[Ended, ...]
    standings: tuple[Standing, ...]
    views: Mapping[str, TierView]
    engines: Mapping[str, tuple[str, ...]]
    problems: tuple[str, ...]

    def whole(self) -> dict[str, Window]:
        """All that was seen of each tier, as one window."""
        tiers: dict[str, list[Window]] = {}
        for shown in self.windows:
            if shown.replica is None:
                tiers.setdefault(shown.tier, []).append(shown.window)
        return {tier: windows.add(group) for tier, group in tiers.items()}


def replay(
    recording: Recording, plan: Plan | None, step_seconds: float = DEFAULT_STEP_SECONDS, problems: tuple[str, ...] = ()
) -> Replayed:
    """Judges a recording against a plan. Lines and pages that cannot be used are named in the result's problems."""
    met = [*problems, *_unplanned(recording, plan)]
    watcher = Watcher(_views(recording, plan))
    readers = [PageReader(target.engine) for target in recording.targets]
    grid = _Grid(step_seconds)
    ended: list[Ended] = []
    start = end = math.nan
    for scrape in scrapes(recording, met):
        start = scrape.t if math.isnan(start) else start
        end = scrape.t
        window = _take(watcher, recording, readers, scrape, met)
        if window is not None:
            target = recording.targets[scrape.target]
            grid.book(target.tier, target.replica, window, start)
        ended.extend(watcher.turn(scrape.t)[0])
    watcher.flush()
    if not math.isnan(end):
        for tier in watcher.views.values():
            watcher.told(watch_long.unanswered(tier, end, Gap.TOO_FEW_REQUESTS, DAYS_ARE_NEEDED))
        ended.extend(watcher.turn(end)[0])
    return Replayed(
        name=recording.name,
        start=start,
        end=end,
        windows=grid.shown(),
        ended=tuple(ended),
        standings=tuple(watcher.standings.values()),
        views=watcher.views,
        engines=_engines(recording, readers),
        problems=tuple(met),
    )


def _views(recording: Recording, plan: Plan | None) -> dict[str, TierView]:
    views = {}
    for target in recording.targets:
        tier = plan.tiers.get(target.tier) if plan else None
        comparable = itl_comparable(target.engine or (tier.engine if tier else None))
        pools = {other.replica: other.pool for other in recording.targets if other.tier == target.tier}
        views[target.tier] = view(target.tier, tier, comparable, pools=pools)
    return views


def _engines(recording: Recording, readers: list[PageReader]) -> dict[str, tuple[str, ...]]:
    labels: dict[str, dict[str, None]] = {}
    for target, reader in zip(recording.targets, readers, strict=True):
        if reader.families:
            labels.setdefault(target.tier, {})[reader.engine.label] = None
    return {tier: tuple(names) for tier, names in labels.items()}


def _unplanned(recording: Recording, plan: Plan | None) -> list[str]:
    tiers = sorted({target.tier for target in recording.targets})
    known = plan.tiers if plan is not None else tiers
    return [
        f"{recording.folder}: tier {tier} is not in the plan: it is compared with nothing"
        for tier in tiers
        if tier not in known
    ]


def _take(
    watcher: Watcher, recording: Recording, readers: list[PageReader], scrape: Scrape, problems: list[str]
) -> Window | None:
    target = recording.targets[scrape.target]
    if scrape.body is None:
        return watcher.no_page(target.tier, target.replica, scrape.t, trouble=scrape.error)
    try:
        page = readers[scrape.target].read(scrape.body, scrape.t)
    except ScrapeError as error:
        problems.append(f"{target.path}: page at {scrape.t:.3f}: {error}")
        return watcher.no_page(target.tier, target.replica, scrape.t, trouble=str(error))
    return watcher.page(target.tier, target.replica, page)


class _Grid:
    """Scrape windows added up by step: each belongs to the cell that its middle lies in, so its edges stay scrapes."""

    def __init__(self, step_seconds: float) -> None:
        self._step = step_seconds
        self._cells: dict[tuple[str, str, int], list[Window]] = {}

    def book(self, tier: str, replica: str, window: Window, origin: float) -> None:
        cell = math.floor(((window.start + window.end) / 2 - origin) / self._step)
        self._cells.setdefault((tier, replica, cell), []).append(window)

    def shown(self) -> tuple[ShownWindow, ...]:
        replicas = {key: windows.add(group) for key, group in self._cells.items()}
        tiers: dict[tuple[str, int], list[Window]] = {}
        for (tier, _, cell), window in replicas.items():
            tiers.setdefault((tier, cell), []).append(window)
        shown = [ShownWindow(tier=t, replica=r, window=w) for (t, r, _), w in replicas.items()]
        shown.extend(ShownWindow(tier=t, replica=None, window=windows.add(group)) for (t, _), group in tiers.items())
        return tuple(sorted(shown, key=lambda s: (s.window.start, s.tier, s.replica or "")))
