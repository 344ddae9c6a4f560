"""The bounds that an AIBrix PodAutoscaler is given, read by AIBrix's own rules (its package `scheduledbounds`)."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any

import pytest
from scaling_samples import BEHIND_AIBRIX, BEHIND_HPA, CHAT, SCHEDULES, UNSCHEDULED, WEEK, asked, objects, times

from exporters.autoscaling.formats import manifest_text
from exporters.autoscaling.records import Scaling

FIELDS = {"name", "timezone", "cron", "duration", "minReplicas"}
"""Of ScheduledReplicaBounds; `maxReplicas`, `startTime` and `endTime` are left to the base."""

CRON = re.compile(r"[0-5]?\d (1?\d|2[0-3]) \* \* (\*|[0-7](-[0-7])?(,[0-7])*)")
"""What its ParseCron takes and we write: one minute, an hour, no day of the month, no month."""


def spec_of(scaling: Scaling) -> dict[str, Any]:
    (one,) = objects(scaling, "aibrix")
    assert (one["apiVersion"], one["kind"]) == ("autoscaling.aibrix.ai/v1alpha1", "PodAutoscaler")
    assert one["metadata"] == {"name": "chat-pa", "namespace": "llm"}
    spec: dict[str, Any] = one["spec"]
    return spec


def minutes(duration: str) -> int:
    """As Go's time.ParseDuration, for hours and minutes."""
    found = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?", duration)
    assert found is not None
    assert duration
    return int(found[1] or 0) * 60 + int(found[2] or 0)


@pytest.mark.parametrize("name", SCHEDULES)
def test_its_windows_keep_what_the_schedule_asks_for_and_never_overlap(name: str) -> None:
    scaling = replace(BEHIND_AIBRIX, schedule=SCHEDULES[name])
    spec = spec_of(scaling)
    assert set(spec) == {"minReplicas", "maxReplicas", "scheduledBounds"}
    bounds = spec["scheduledBounds"]
    counts, taken = [spec["minReplicas"]] * WEEK, [False] * WEEK
    for bound in bounds:
        assert set(bound) == FIELDS
        assert CRON.fullmatch(bound["cron"])
        assert 0 < minutes(bound["duration"]) <= WEEK
        assert bound["minReplicas"] <= spec["maxReplicas"]
        for start in times(bound["cron"]):
            for minute in range(start, start + minutes(bound["duration"])):
                assert not taken[minute % WEEK], "AIBrix refuses windows that overlap"
                counts[minute % WEEK], taken[minute % WEEK] = bound["minReplicas"], True
    assert len({bound["name"] for bound in bounds}) == len(bounds), "names must differ"
    assert all(have >= need for have, need in zip(counts, asked(scaling), strict=True))
    if name != "restless":
        assert counts == asked(scaling)


def test_without_a_schedule_only_the_base_bounds_are_set() -> None:
    spec = spec_of(replace(BEHIND_AIBRIX, schedule=()))
    assert spec == {"minReplicas": 2, "maxReplicas": 14, "scheduledBounds": []}


def test_durations_are_written_as_go_reads_them() -> None:
    told = {bound["cron"]: bound["duration"] for bound in spec_of(BEHIND_AIBRIX)["scheduledBounds"]}
    assert (told["56 7 * * 1-5"], told["0 19 * * 1-5"]) == ("4h30m", "3h")


@pytest.mark.parametrize("scaling", [CHAT, BEHIND_HPA, UNSCHEDULED])
def test_it_wants_the_name_of_the_podautoscaler(scaling: Scaling) -> None:
    with pytest.raises(ValueError, match="needs the name of the PodAutoscaler that owns the replicas"):
        manifest_text(scaling, "aibrix")


def test_it_says_that_an_older_aibrix_drops_the_field_and_what_to_do_there() -> None:
    text = manifest_text(BEHIND_AIBRIX, "aibrix").replace("\n# ", " ")
    assert "has no such field and drops it in silence: use --format cronjob there" in text
    jobs = [one for one in objects(BEHIND_AIBRIX, "cronjob") if one["kind"] == "CronJob"]
    command = jobs[0]["spec"]["jobTemplate"]["spec"]["template"]["spec"]["containers"][0]["command"]
    assert command[2:4] == ["podautoscalers.autoscaling.aibrix.ai", "chat-pa"]
