"""The utilization trap of one tier of two, found by role fleet in a week: its last day is read from a real VictoriaMetrics."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from fleet_past import book_past
from paths import TESTS
from status_samples import window
from store_servers import Sample, victoria_metrics

from agent.config.files import load_plan
from agent.config.load import LoadedConfig, build_tier_contexts, parse_config, plan_versions
from agent.config.store import StoreConfig
from agent.history.service import HistoryService
from agent.history.store import HistoryStore
from agent.prometheus.api import StoreApi
from rules.confidence import Certainty
from rules.evaluator.observation import ClosedMinute
from rules.plan.load_bins import TierContext, bin_window
from rules.verdicts.verdict import Status, Verdict

PLANS = TESTS / "plans"
HOUR, DAY = 3600.0, 86_400.0
END = 1_790_000_000.0 // DAY * DAY
BEGIN = END - 7 * DAY - 7200.0
STORED = END - DAY
"""From here on the store has it; the six days before are in the history already, an hour a window."""
EVERY = 60.0
"""As far apart as scrapes may stand for a gauge to hold between them."""

LOADS = {"idle": 2.5, "busy": 5.2}
"""Requests a second of each tier's one replica; at its operating point it takes 7.3."""


def told() -> Iterator[Sample]:
    """What an agent exports of a replica of each tier, at an even load."""
    for tier, rps in LOADS.items():
        labels = {"tier": tier, "replica": f"{tier}-0", "pool": "mixed", "instance": "node:19095"}
        engine = {**labels, "model": "m"}
        for place in range(int((END - STORED) / EVERY)):
            t = STORED + place * EVERY
            requests = rps * place * EVERY
            yield "sizewatch_target_up", labels, t, 1.0
            yield "sizewatch_target_last_success_timestamp_seconds", labels, t, t - 1.0
            for name, value in (
                ("requests_finished_total", requests),
                ("prompt_tokens_total", 128.1 * requests),
                ("generation_tokens_total", 64 * requests),
                ("requests_running", 4 * rps),
                ("requests_waiting", 0.0),
                ("kv_utilization_ratio", 0.1 * rps),
                ("kv_utilization_max_ratio", 0.1 * rps),
            ):
                yield f"sizewatch_{name}", engine, t, value


def days_before(contexts: Mapping[str, TierContext], versions: Mapping[str, str]) -> Iterator[ClosedMinute]:
    """What was booked of the same load in the days before."""
    for tier, rps in LOADS.items():
        for place in range(int((STORED - BEGIN) / HOUR)):
            hour = window(BEGIN + (place + 1) * HOUR, HOUR, rps=rps, running=4 * rps, kv=0.1 * rps)
            tokens = {"prompt_tokens": 128.1 * rps * HOUR, "generation_tokens": 64 * rps * HOUR}
            hour = replace(hour, counters={**hour.counters, **tokens})
            slices = bin_window(hour, contexts[tier].curve, f"{tier}-0")
            yield ClosedMinute(tier=tier, plan_version=versions[tier], slice=slices)


@pytest.mark.server
def test_the_tier_that_idles_is_in_the_trap_and_its_neighbour_is_not(tmp_path: Path) -> None:
    plan = load_plan(PLANS / "cpu-small.yaml")
    one = plan.tiers["cpu-small"]
    # Nobody keeps it on purpose.
    one = one.model_copy(update={"fleet": one.fleet.model_copy(update={"minimum_warm": None}) if one.fleet else None})
    loaded = LoadedConfig(
        path=tmp_path / "sizewatch.yaml",
        config=parse_config(
            {"role": "fleet", "store": {"url": "http://127.0.0.1:1"}, "fleet": {"cycle": "5m"}}, environment={}
        ),
        plan=plan.model_copy(update={"tiers": {"idle": one, "busy": one}}),
        warnings=(),
    )
    with victoria_metrics(tmp_path) as there, HistoryStore(tmp_path / "history.db") as store:
        there.write(told())
        api = StoreApi(StoreConfig(url=there.url, timeout_seconds=30.0))
        store.book(days_before(build_tier_contexts(loaded), plan_versions(loaded)))
        book_past(loaded, api, store, STORED, END)
    keeping = HistoryService(lambda: HistoryStore(tmp_path / "history.db"))
    results = keeping.long_answers(build_tier_contexts(loaded), plan_versions(loaded), END + 60)
    keeping.close()
    found = {a.subject.tier: a for a in results if a.rule == "UtilizationTrap"}
    idle, busy = found["idle"], found["busy"]
    assert isinstance(idle, Verdict), idle
    assert (idle.status, idle.certainty) == (Status.WARNING, Certainty.CERTAIN), idle.sentence
    assert replace(idle.observed, n=0).value == pytest.approx(2.5 / 7.34, rel=0.02)  # type: ignore[arg-type, type-var]
    assert isinstance(busy, Verdict)
    assert busy.status is Status.OK
