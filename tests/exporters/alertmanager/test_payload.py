"""What goes to Alertmanager: labels that never change, annotations that say everything, times.

Its sample configuration: accepted, routing by severity, and silencing what it claims to.
"""

import re
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from alert_path_servers import Alertmanager, alertmanager
from golden_text import check_golden, print_fields
from paths import ROOT
from test_incident_alerts import SUBJECT
from test_incidents import finding
from tools import tool
from waiting import CEILING_SECONDS, wait_for

from agent.durations import parse_duration
from exporters.alertmanager.payload import OWN_LABELS, VALID_RESENDS, AlertPayload, AlertSettings, present, timestamp
from exporters.prometheus_rules.alerts import ROWS as ITSELF
from exporters.prometheus_rules.alerts import alert_groups
from exporters.render.text import RUNBOOKS, alert_name
from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.external_alerts import Diagnosis, ExternalAlert
from rules.evaluator.incident_alerts import KEEP_SECONDS, IncidentAlert, step_incident_alerts
from rules.evaluator.incidents import group_incidents
from rules.verdicts.verdict import Cause, Finding, Status, Transition, Verdict

T = 1_790_000_000.0
SETTINGS = AlertSettings(resend_seconds=60)
PAGE = "KvCacheCascade"
CAUSE = Cause(
    cause="longer prompts", certainty=Certainty.LIKELY, evidence=("P95 900, 400 planned",), against=("few of them",)
)


def cascade(sentence: str = "The KV cache fills", stage: int = 3, ended_at: float | None = None) -> Finding:
    """A cascade of one replica that pages, with a first suspect and two actions."""
    made = finding(PAGE, T, ended_at, tier="t", replica="a")
    actions = ("Shed load", "Add one")
    worst = replace(made.worst, sentence=f"{sentence}; more", stage=stage, causes=(CAUSE,), actions=actions)
    return replace(made, worst=worst, transitions=tuple(replace(one, stage=stage) for one in made.transitions))


def alerts(known: Sequence[Finding], now: float, newest: Sequence[Verdict] = ()) -> tuple[IncidentAlert, ...]:
    return step_incident_alerts((), group_incidents(known, newest, now), now)


def posted(
    known: Sequence[Finding],
    after: float = 0.0,
    settings: AlertSettings = SETTINGS,
    newest: Sequence[Verdict] = (),
    waiting: float | None = None,
) -> tuple[AlertPayload, ...]:
    return present(alerts(known, T + after, newest), (), T + after, settings, {"t": waiting})


def test_alert_carries_labels_times_and_help() -> None:
    symptoms = [finding(rule, T + 20, tier="t", status=Status.WARNING) for rule in ("KvEviction", "QueueGrowing")]
    settings = replace(SETTINGS, external_url="https://sizewatch.example/")
    (page,) = posted([cascade(), *symptoms], 30, settings, waiting=1233.0)
    assert page.firing
    check_golden(__file__, "page.txt", print_fields(page.body))
    assert page.body["endsAt"] == timestamp(T + 30 + VALID_RESENDS * 60)


def test_page_names_relief_and_root_action() -> None:
    drift = finding("WorkloadDrift", T + 10, tier="t", status=Status.WARNING)
    (page,) = posted([cascade(), drift], 30)
    ticket = finding("QueueGrowing", T - 1000, tier="t", status=Status.WARNING)
    (other,) = posted([ticket, replace(drift, started_at=T - 10)], 30)
    for payload, name in ((page, PAGE), (other, "QueueGrowing")):
        assert payload.body["labels"]["alertname"] == alert_name(name)
        assert payload.body["annotations"]["root"] == "WorkloadDrift of t"
        assert "held_back" not in payload.body["annotations"]
    assert "At once: Shed load.\nNext: mend WorkloadDrift." in page.body["annotations"]["description"]
    assert "At once" not in other.body["annotations"]["description"]


def test_labels_stay_while_annotations_follow() -> None:
    known = cascade()
    milder = Transition(t=T + 60, status=Status.WARNING, stage=1, certainty=Certainty.CERTAIN)
    eased = replace(known, transitions=(*known.transitions, milder))
    (before,) = posted([known], 90, newest=[replace(known.worst, sentence="66 requests wait; more")])
    (after,) = posted([eased], 90, newest=[replace(known.worst, sentence="1,233 requests wait", stage=1)])
    assert (before.body["labels"], before.body["startsAt"]) == (after.body["labels"], after.body["startsAt"])
    for payload, words, stage in ((before, "66", "3 of 4, queueing"), (after, "1,233", "1 of 4, filling")):
        assert payload.body["annotations"]["summary"] == f"t: {words} requests wait since 14:13"
        assert payload.body["annotations"]["stage"] == stage


def test_external_labels_stand_beside_ours() -> None:
    (payload,) = posted([cascade()], settings=AlertSettings(external_labels={"cluster": "c", "tier": "other"}))
    assert (payload.body["labels"]["cluster"], payload.body["labels"]["tier"]) == ("c", "t")
    assert set(payload.body["labels"]) - {"cluster"} <= OWN_LABELS


@pytest.mark.parametrize(
    ("settings", "address"),
    [
        (AlertSettings(), f"{RUNBOOKS}#kvcachecascade"),
        (AlertSettings(external_url="https://a.example/below/"), "https://a.example/below/runbooks/KvCacheCascade"),
        (AlertSettings(runbooks="https://wiki.example/rb"), "https://wiki.example/rb#kvcachecascade"),
        (
            AlertSettings(external_url="https://a.example", runbooks="https://b.example"),
            "https://b.example#kvcachecascade",
        ),
    ],
)
def test_runbook_is_configured_or_own(settings: AlertSettings, address: str) -> None:
    assert posted([cascade()], settings=settings)[0].body["annotations"]["runbook_url"] == address


def test_resolved_alert_keeps_annotations() -> None:
    (one,) = posted([cascade(ended_at=T + 60)], 61 + KEEP_SECONDS, waiting=0.0)
    assert not one.firing
    assert (one.body["startsAt"], one.body["endsAt"]) == (timestamp(T), timestamp(T + 60))
    said = one.body["annotations"]
    assert said["summary"] == "t: The KV cache fills from 14:13 to 14:14"
    assert (said["stage"], said["queue"]) == ("3 of 4, queueing", "0 requests waiting")


def test_alert_never_ends_before_it_began() -> None:
    (state,) = alerts([cascade()], T)
    (one,) = present([replace(state, resolved_at=T - 5)], (), T, SETTINGS)
    assert one.body["startsAt"] == one.body["endsAt"]
    (ahead,) = present([state], (), T - 3600, SETTINGS)
    assert ahead.body["startsAt"] < ahead.body["endsAt"]


def test_halves_of_characters_are_replaced() -> None:
    (one,) = posted([cascade(sentence="a\ud800b")])
    assert one.body["annotations"]["description"].startswith("a?b since")


FOREIGN = ExternalAlert(
    name="ApiLatencyHigh",
    labels=(("alertname", "ApiLatencyHigh"),),
    summary="",
    started_at=T,
    ended_at=None,
    heard_at=T,
    tier="t",
    diagnosis=Diagnosis(
        rule=PAGE,
        subject=SUBJECT,
        began_at=T - 360,
        certain=True,
        sentence="this latency alert: cascade, began earlier",
    ),
)


def test_explanation_of_foreign_alert_is_info() -> None:
    (payload,) = present((), (FOREIGN,), T + 10, SETTINGS)
    check_golden(__file__, "foreign.txt", print_fields(payload.body))
    assert set(payload.body["labels"]) <= OWN_LABELS


@pytest.mark.parametrize(
    "changed",
    [
        replace(FOREIGN, diagnosis=None),
        replace(FOREIGN, diagnosis=replace(FOREIGN.diagnosis, certain=False)),  # type: ignore[type-var]
        replace(FOREIGN, tier=None),
        replace(FOREIGN, ended_at=T - 1000),
    ],
)
def test_without_a_certain_explanation_nothing_goes_out(changed: ExternalAlert) -> None:
    assert present((), (changed,), T, SETTINGS) == ()


def test_firing_foreign_alert_is_named() -> None:
    over = replace(FOREIGN, ended_at=T + 1)
    for several in ((over, FOREIGN), (FOREIGN, over)):
        (one,) = present((), several, T + 10, SETTINGS)
        assert one.firing


def test_a_time_is_cut_to_milliseconds() -> None:
    assert timestamp(1_790_000_000.9999) == "2026-09-21T14:13:20.999Z"


SAMPLE = ROOT / "examples" / "alertmanager.yml"
INHIBITIONS: list[dict[str, list[str]]] = yaml.safe_load(SAMPLE.read_text(encoding="utf-8"))["inhibit_rules"]
Labels = Mapping[str, str]


def amtool(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([tool("amtool"), *arguments], capture_output=True, text=True, timeout=CEILING_SECONDS)


def test_amtool_accepts_it() -> None:
    ran = amtool("check-config", str(SAMPLE))
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "SUCCESS" in ran.stdout


@pytest.fixture(scope="module")
def with_webhook(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The sample with the routes of the documentation to sizewatch's webhook and to another team."""
    page = (ROOT / "docs" / "alerting.md").read_text(encoding="utf-8")
    blocks = [yaml.safe_load(text) for text in re.findall(r"```yaml\n(.*?)```", page, re.DOTALL)]
    (theirs,) = (block for block in blocks if "route" in block)
    (diagnosis,) = (block for block in blocks if isinstance(block, list))
    sample = yaml.safe_load(SAMPLE.read_text(encoding="utf-8"))
    first, last = theirs["route"]["routes"]
    sample["route"]["routes"] = [first, *diagnosis, *sample["route"]["routes"], last]
    sample["receivers"] += [{"name": "sizewatch"}, {"name": "api-team"}]
    path = tmp_path_factory.mktemp("webhook") / "alertmanager.yml"
    path.write_text(yaml.safe_dump(sample), encoding="utf-8")
    return path


@pytest.mark.parametrize(
    ("alone", "webhook", "name", "labels"),
    [
        ("pages", "pages", "SizewatchKvCacheCascade", "severity=critical source=sizewatch"),
        ("tickets", "tickets", "SizewatchQueueGrowing", "severity=warning source=sizewatch"),
        ("tickets", "sizewatch,tickets", "SomethingElse", ""),
        ("tickets", "sizewatch,tickets", "ApiLatencyHigh", "severity=warning"),
        ("pages", "sizewatch,pages", "ApiDown", "severity=critical"),
        ("nowhere", "nowhere", "SizewatchGpuMemoryLow", "severity=info source=sizewatch"),
        ("outside", "outside", "SizewatchWatchdog", "severity=info source=sizewatch"),
        ("nowhere", "api-team", "SizewatchForeignAlertDiagnosis", "severity=info source=sizewatch"),
    ],
)
def test_routes_follow_severity_and_source(
    alone: str, webhook: str, name: str, labels: str, with_webhook: Path
) -> None:
    """The watchdog goes outside. The webhook's route takes no alert from a team."""
    for config, receivers in ((SAMPLE, alone), (with_webhook, webhook)):
        options = (f"--config.file={config}", f"--verify.receivers={receivers}", f"alertname={name}")
        ran = amtool("config", "routes", "test", *options, *labels.split())
        assert ran.returncode == 0, ran.stdout + ran.stderr


def test_inhibitions_name_existing_rules() -> None:
    named = set(re.findall(r'alertname!?="(\w+)"', str(INHIBITIONS)))
    assert named <= {alert_name(name) for name in (*BY_NAME, *(row.name for row in ITSELF))}
    assert len(INHIBITIONS) == 3


def fits(matcher: str, labels: Labels) -> bool:
    name, operator, value = re.fullmatch(r'(\w+)(=~|!=|=)"(.*)"', matcher).groups()  # type: ignore[union-attr]
    equal = bool(re.fullmatch(value if operator == "=~" else re.escape(value), labels.get(name, "")))
    return equal != (operator == "!=")


@pytest.mark.parametrize("row", INHIBITIONS[1:], ids=lambda row: row["source_matchers"][0])
def test_inhibitor_outlasts_what_it_inhibits(row: dict[str, list[str]]) -> None:
    alerts_of_rules = [alert for group in alert_groups() for alert in group["rules"]]
    kept = {
        side: [
            parse_duration(alert["keep_firing_for"])
            for alert in alerts_of_rules
            if alert["labels"]["severity"] != "info"
            and all(
                fits(matcher, {"tier": "t", **alert["labels"], "alertname": alert["alert"]}) for matcher in row[side]
            )
        ]
        for side in ("source_matchers", "target_matchers")
    }
    assert min(kept["source_matchers"]) >= max(kept["target_matchers"])


def alert(name: str, severity: str, **labels: str) -> dict[str, str]:
    return {"alertname": alert_name(name), "severity": severity, "source": "sizewatch", "tier": "t", **labels}


CASCADE, DOWN = alert("KvCacheCascade", "critical", replica="a"), alert("TierDown", "critical")
DEAD, SLOW = alert("TargetDown", "warning", replica="a"), alert("TtftDivergence", "warning")
BURN = alert("TtftSloBurn", "critical")
SILENCED: dict[str, tuple[Labels, Labels]] = {
    "its ticket": (CASCADE, alert("KvCacheCascade", "warning", replica="a")),
    "a replica": (DOWN, DEAD),
    "a latency": (DOWN, SLOW),
    "a page": (DOWN, BURN),
}
TOLD: dict[str, tuple[Labels, Labels]] = {
    "other replica": (CASCADE, alert("KvCacheCascade", "warning", replica="b")),
    "other replica stale": (DEAD, alert("TelemetryStale", "warning", replica="b")),
    "other tier": (DOWN, {**DEAD, "tier": "u"}),
    "other cluster": ({**DOWN, "cluster": "x"}, {**SLOW, "cluster": "y"}),
    "no symptom": (CASCADE, alert("GpuMemoryHigh", "warning")),
    "another page": (CASCADE, BURN),
}


@pytest.mark.server
def test_alertmanager_silences_only_what_is_meant(tmp_path: Path) -> None:
    """Each pair in a cluster of its own, so that the pairs do not meet."""
    quiet = {**yaml.safe_load(SAMPLE.read_text(encoding="utf-8")), "receivers": [{"name": "nowhere"}]}
    quiet["route"] = {"receiver": "nowhere", "group_wait": "0s", "group_by": ["..."]}
    (tmp_path / "alertmanager.yml").write_text(yaml.safe_dump(quiet), encoding="utf-8")
    pairs = {**SILENCED, **TOLD}
    silenced = {(what, target["alertname"], target["severity"]) for what, (_, target) in SILENCED.items()}
    with alertmanager(tmp_path, tmp_path / "alertmanager.yml") as manager:
        manager.post(*({"labels": {"cluster": what, **labels}} for what, pair in pairs.items() for labels in pair))
        # Routing takes its moment.
        wait_for(lambda: len(list_inhibited(manager)) >= len(silenced))
        assert list_inhibited(manager) == silenced


def list_inhibited(manager: Alertmanager) -> set[tuple[str, str, str]]:
    """Return cluster, name and severity of the inhibited alerts."""
    labels = (row["labels"] for row in manager.alerts() if row["status"]["inhibitedBy"])
    return {(row["cluster"], row["alertname"], row["severity"]) for row in labels}
