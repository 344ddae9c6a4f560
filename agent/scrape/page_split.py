"""Split of a page into its engines, and why a page is not of one."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from agent.errors import ScrapeError, ScrapeFailure
from rules.engines.reader import SeriesLayout, SeriesName
from rules.engines.registry import PROCESS_START, detect_engine, normalize_name
from rules.engines.several import SeveralEnginesError, find_declared_engine, find_router, split_page
from rules.engines.table import EngineTable


def split_engines(
    names: Sequence[SeriesName],
    engines: tuple[EngineTable, ...],
    configured: str | None,
    families: Iterable[str],
) -> tuple[str, dict[str, SeriesLayout]]:
    """Return the label that tells the engines of a page apart, and the layouts of those that are among `engines`.

    Raise ScrapeError: not_one_engine or inconsistent. `configured` is the name of the engine that it should be, if any."""
    plain = [(normalize_name(name), labels) for name, labels in names]
    if router := find_router(families, is_engine=detect_engine(plain, engines) is not None):
        raise ScrapeError(ScrapeFailure.NOT_ONE_ENGINE, router)
    try:
        label, layouts = split_page(names, engines)
    except SeveralEnginesError as error:
        raise ScrapeError(ScrapeFailure.NOT_ONE_ENGINE, f"{error}: nothing of it is judged") from error
    if layouts:
        return label, layouts
    declared = find_declared_engine(families, engines)
    text = f"not a page of {configured}, which is configured for it"
    if declared is not None and all(name == PROCESS_START or name.startswith("http_") for name, _ in plain):
        text = f"{declared.title}, but no series yet: the page has HELP and TYPE lines without samples"
    elif configured is None:
        known = ", ".join(sorted({e.label for e in engines})) or "none"
        text = f"no page of an engine that sizewatch reads ({known})"
    raise ScrapeError(ScrapeFailure.INCONSISTENT, text)
