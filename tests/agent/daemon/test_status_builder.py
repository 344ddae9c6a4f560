"""Status of the daemon: what pages and metrics print about the same findings."""

from __future__ import annotations

import dataclasses

from loops import scrape_loop
from status_samples import NOW, cascading_tier

from agent.scrape.scrapers import Scrapers
from exporters.metrics.exposition import render_metrics
from exporters.status.page import render_page
from rules.evaluator.alert_state import AlertKey, AlertState, Phase
from rules.verdicts.finding import RuleState


def test_every_surface_ends_a_finding_with_its_alert() -> None:
    """A rule without verdicts for long resolves its alert. Pages and metrics must not show it as open then."""
    tier = cascading_tier()
    (finding,) = (one for one in tier.findings if one.rule == "KvCacheCascade" and one.ended_at is None)
    parts = scrape_loop((), {tier.name: tier.context}, Scrapers(()), lambda: NOW)
    parts.loop.state.rules[finding.rule, finding.subject] = RuleState(result=finding.worst, finding=finding)
    open_ = parts.status(NOW)
    assert [one.ended_at for one in open_.incidents[tier.name]] == [None]
    key = AlertKey(rule=finding.rule, subject=finding.subject)
    state = AlertState(
        key=key, phase=Phase.RESOLVED, since=finding.started_at, resolved_at=NOW - 60.0, loudness="page", verdict=finding.worst
    )
    parts.loop.state.alerts[key] = state
    closed = parts.status(NOW)
    (incident,) = closed.incidents[tier.name]
    assert (incident.ended_at, closed.incident_alerts[tier.name]) == (NOW - 60.0, ())
    assert [one.ended_at for one in closed.timeline if one.rule == finding.rule] == [NOW - 60.0] * 2
    for status, shown in ((open_, True), (dataclasses.replace(closed, tiers=closed.tiers), False)):
        page = render_metrics(status).decode()
        assert ('sizewatch_incident{tier="l40s-qwen14b"' in page) is shown
        assert ('class="incident' in render_page(status).decode()) is shown
