"""Status of the daemon: what pages and metrics print about the same findings."""

from loops import scrape_loop
from status_samples import NOW, cascading_tier

from agent.scrape.scrapers import Scrapers
from exporters.metrics.exposition import render
from exporters.status.page import render_page
from rules.evaluator.alert_severity import RESOLVED_KEPT_SECONDS
from rules.telemetry.signals import Gap
from rules.verdicts.verdict import UNASKED_SECONDS, Finding, RuleState, Unknown, step_rule_state


def test_unasked_finding_is_open_nowhere() -> None:
    """Such as speculation that was switched off. An alert of it must not come back, and a page not show it."""
    tier = cascading_tier()
    (finding,) = (one for one in tier.findings if one.rule == "KvCacheCascade" and one.ended_at is None)
    parts = scrape_loop((), {tier.name: tier.context}, Scrapers(()), lambda: NOW)
    key, state = (finding.rule, finding.subject), RuleState(result=finding.worst, finding=finding)
    for waited in (0.0, UNASKED_SECONDS, UNASKED_SECONDS + 1.0, UNASKED_SECONDS + RESOLVED_KEPT_SECONDS + 60.0):
        off = Unknown(rule=finding.rule, subject=finding.subject, t=NOW + waited, reason=Gap.NOT_EXPOSED, text="")
        state, ended = step_rule_state(state, off)
        parts.loop.state.rules[key] = state
        parts.runtime.past.extend(one for one in ended if isinstance(one, Finding))
        status, shown = parts.status(NOW + waited), waited <= UNASKED_SECONDS
        (incident,) = status.incidents[tier.name]
        assert incident.ended_at == (None if shown else NOW + UNASKED_SECONDS + 1.0)
        assert bool(status.incident_alerts[tier.name]) is shown
        assert ("sizewatch_incident{" in render(status, "text/plain")[0].decode()) is shown
        assert ('class="incident' in render_page(status).decode()) is shown
        assert [one.ended_at for one in status.timeline] == [incident.ended_at] * 2
