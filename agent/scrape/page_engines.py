"""Replicas of the targets whose pages hold several engines."""

from __future__ import annotations

from collections.abc import Container
from dataclasses import replace

from agent.errors import ScrapeError, ScrapeFailure
from agent.scrape.scrapers import ScrapeResult, Target

GONE_SECONDS = 3600.0
"""Seconds after which an engine that its page no longer tells of is no replica any more: it was scaled down."""

TargetKey = tuple[str, str]


def name_replica(replica: str, engine: str) -> str:
    """Return the replica name of an engine of a target's page."""
    return f"{replica}/{engine}" if engine else replica


def target_of_engine(target: Target, engine: str) -> Target:
    """Return the target of an engine of a page. Which GPU is whose is not known where there are several."""
    return replace(target, replica=name_replica(target.replica, engine), gpus=()) if engine else target


class PageEngines:
    """Engines of each page that holds several, with the time of the last page that told of each (unix seconds)."""

    def __init__(self) -> None:
        self._seen: dict[TargetKey, dict[str, float]] = {}

    def targets(self, target: Target) -> tuple[Target, ...]:
        """Return a target, or in its place those of its page's engines."""
        return tuple(target_of_engine(target, name) for name in self._seen.get(target.key) or ("",))

    def split(self, target: Target, result: ScrapeResult) -> dict[TargetKey, ScrapeResult]:
        """Return the results of a target's engines by replica. One that its page no longer tells of has failed."""
        if result.engines:
            known = self._seen.get(target.key, {}) | dict.fromkeys(result.engines, result.t)
            self._seen[target.key] = {name: t for name, t in known.items() if result.t - t < GONE_SECONDS}
        elif result.snapshot is not None or (result.error and result.error.kind is ScrapeFailure.NOT_ONE_ENGINE):
            self._seen.pop(target.key, None)
        names = self._seen.get(target.key)
        if not names:
            return {target.key: result}
        gone = ScrapeError(ScrapeFailure.INCONSISTENT, "the page of several engines no longer tells of this one")
        return {
            target_of_engine(target, name).key: replace(
                result,
                snapshot=result.engines.get(name),
                error=gone if result.engines and name not in result.engines else result.error,
                engines={},
            )
            for name in names
        }

    def retain(self, keys: Container[TargetKey]) -> None:
        """Drop the engines of all other targets."""
        self._seen = {key: engines for key, engines in self._seen.items() if key in keys}
