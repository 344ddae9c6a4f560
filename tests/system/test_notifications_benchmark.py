"""Stories that the benchmark of notifications plays: counters of one process go on, and those of a new one begin anew."""

from __future__ import annotations

import re
import sys
from typing import Any

import pytest
from paths import ROOT

sys.path.append(str(ROOT / "benchmarks"))

import notifications
from notifications import SCENES, Dead, Part, Scene, Story, describe

BEGAN = 1_800_000_000.0
STEP = 15


def value(page: bytes | None, name: str) -> float | None:
    """The sum of a family's series on a page; None while the engine is dead."""
    if page is None:
        return None
    found = re.findall(rf"^{name}(?:\{{.*?\}})? (\S+)$", page.decode(), re.MULTILINE)
    assert found, name
    return sum(map(float, found))


def played(scene: Scene, seconds: int) -> list[tuple[float | None, float | None]]:
    """Finished requests and time of start at each scrape."""
    story = Story(scene, BEGAN)
    pages = [story.page(elapsed) for elapsed in range(0, seconds, STEP)]
    return [(value(page, "vllm:request_success_total"), value(page, "process_start_time_seconds")) for page in pages]


def test_a_recording_that_is_repeated_is_one_process() -> None:
    pages = played(SCENES["slow-later"], 1500)
    finished = [count for count, _ in pages if count is not None]
    assert len(finished) == len(pages)
    assert finished == sorted(finished)
    assert finished[-1] > 3 * finished[len(finished) // 4]
    assert len({start for _, start in pages}) == 1


def test_after_a_death_a_new_process_begins_at_zero() -> None:
    scene = Scene(
        plan=notifications.CLOSED,
        parts=(Part(recording="steady_quiet", end=100), Dead(seconds=60), Part(recording="steady_quiet")),
        event=100,
        expected=notifications.PAGE,
    )
    pages = played(scene, 400)
    dead = [at * STEP for at, (count, _) in enumerate(pages) if count is None]
    assert (dead[0], dead[-1]) == (105, 150)
    first, after = pages[0], pages[dead[-1] // STEP + 1]
    assert 0 <= (after[0] or 0.0) < 60
    assert (after[1] or 0.0) > (first[1] or 0.0) + 100


def test_a_restart_inside_a_recording_is_played_as_it_was() -> None:
    pages = played(SCENES["restart"], 260)
    assert [count is None for count, _ in pages].count(True) >= 5
    assert len({start for _, start in pages if start is not None}) == 3


@pytest.mark.parametrize(
    ("sent", "over", "fine"), [(1, 1, True), (2, 2, False), (0, 0, False), (1, 0, False), (1, 2, False)]
)
def test_the_count_of_messages_decides(sent: int, over: int, fine: bool) -> None:
    text, found = describe(
        [message("firing")] * sent + [message("resolved")] * over, {"killed": SCENES["killed"]}, BEGAN
    )
    assert found is fine
    assert text.count("70 s  pages    firing    TierDown:firing") == sent


def message(status: str) -> dict[str, Any]:
    alert = {"labels": {"alertname": "TierDown", "tier": "killed"}, "status": status}
    return {"at": BEGAN + 550, "receiver": "pages", "status": status, "alerts": [alert]}
