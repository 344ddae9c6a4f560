"""The timeline: one line an entry, the newest last, from memory for the page and from the history for the command.

Releases of a tier's replicas: events of a change, and replaced pods.
"""

import json
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from daemon_runs import ask, configuration, further, running, write
from engine_server import answers_500, engines, pages
from making import bare_page
from paths import TESTS
from status_samples import NOW, agent_status, unplanned_tier
from test_incident_alerts import T, alert, make_finding
from waiting import wait_for

from agent.cli import main
from agent.config.files import load_plan
from agent.history.store import HistoryStore
from exporters.documents.replay import timeline_json, timeline_text
from exporters.status.page import SHOWN, render_page
from rules.catalogue.registry import BY_NAME
from rules.evaluator.external_alerts import attach_finding
from rules.evaluator.incidents import group_incidents
from rules.evaluator.observation import ClosedMinute, Observation, ReplicaScrape
from rules.evaluator.state import EvaluatorState
from rules.evaluator.step import Evaluator
from rules.evaluator.timeline import TimelineEvent, TimelineKind, list_entries
from rules.plan.load_bins import build_tier_context
from rules.plan.schema import Precision
from rules.telemetry.snapshots import Snapshot
from rules.verdicts.verdict import Subject
from tests.support.judging_samples import context


def event(
    after: float, kind: str = TimelineKind.RELOAD, tier: str | None = None, text: str = "read again"
) -> TimelineEvent:
    return TimelineEvent(t=T + after, kind=kind, tier=tier, replica=None, text=text)


FOREIGN = attach_finding(replace(alert(), tier="a", summary="P99 of 4 s"), [make_finding(stage=3)], T + 60)

DIAGNOSED = "this latency alert: KV cache cascade of a0, stage 3, began 6 min earlier"

CASCADE = group_incidents([make_finding(-360, 30, stage=3)])


def test_timeline_has_one_order() -> None:
    found = list_entries(CASCADE, [FOREIGN], [event(60), event(-900, TimelineKind.START)], T - 1000)
    kind = TimelineKind
    kinds = [kind.START, kind.INCIDENT, kind.EPISODE, kind.FOREIGN_ALERT, kind.RELOAD]
    assert [entry.kind for entry in found] == kinds
    assert [entry.lasts for entry in found] == [False, True, True, True, False]
    tiers = [event(0), event(1, tier="a"), event(2, tier="b")]
    foreign = [replace(FOREIGN, tier="b"), alert()]
    found = list_entries(group_incidents([make_finding(-5)]), foreign, tiers, T - 1000, tier="a")
    assert [entry.tier for entry in found] == ["a", "a", None, None, "a"]


def test_lasting_entries_stay_in_range() -> None:
    over, into, lasting = make_finding(-360, -200), make_finding(-360, -50), make_finding(-360)
    found = list_entries(group_incidents([over, into, lasting]), [], [event(-200), event(-50)], T - 100)
    findings = [(-360, T - 50), (-360, None)]
    assert [(entry.t - T, entry.ended_at) for entry in found] == [(-360, None), *findings, (-50, None)]


def test_it_is_written_a_line_an_entry() -> None:
    found = list_entries(CASCADE, [FOREIGN, alert("Disk")], [event(60, text="two\nlines")], T - 1000)
    title = BY_NAME["KvCacheCascade"].title
    head = f"2026-09-21 14:07:20  a/a0     page: {title}: critical from 21 Sep 14:07 to 14:13 (for 6 min)"
    below = f"2026-09-21 14:07:20  a/a0       critical, certain: {title}: critical (for 6 min)"
    assert timeline_text(found, T + 120, findings=True).splitlines()[:2] == [head, below]
    assert timeline_text(found, T + 120).splitlines() == [
        head,
        "2026-09-21 14:13:20  no tier  foreign alert: Disk (for 2 min, not over)",
        f"2026-09-21 14:13:20  a        foreign alert: ApiLatencyHigh: {DIAGNOSED}; P99 of 4 s (for 2 min, not over)",
        "2026-09-21 14:14:20  all      configuration: two lines",
    ]
    assert timeline_text((), T) == "Nothing happened, as far as is known."
    newer = list_entries([], [], [event(0, kind="moon_phase")], T - 1)
    assert "moon phase: read again" in timeline_text(newer, T)


def test_short_lines_and_whole_programs() -> None:
    found = list_entries([], [], [event(0, text="word " * 500)], T - 1)
    (line,) = timeline_text(found, T).splitlines()
    assert len(line) < 300
    assert line.endswith("word …")
    assert timeline_json(found, T - 1, T)["entries"][0]["text"] == "word " * 500


def test_findings_of_one_cause_are_one_line() -> None:
    symptom = replace(make_finding(-300), rule="TtftSloBurn", subject=Subject(tier="a"))
    found = list_entries(group_incidents([make_finding(-360, stage=3), symptom]), [], [], T - 1000)
    (row,) = timeline_text(found, T).splitlines()
    assert row.endswith("since 21 Sep 14:07 (1 symptom) (for 6 min, not over)")
    assert len(timeline_text(found, T, findings=True).splitlines()) == 3
    tier = unplanned_tier(findings=(make_finding(-360, stage=3), symptom), results=())
    assert render_page(agent_status(tiers=(tier,))).decode().count('<li><span class="since"><time') == 1


def test_programs_get_the_same() -> None:
    found = list_entries(CASCADE, [], [event(0)], T - 1000)
    title = BY_NAME["KvCacheCascade"].title
    keys = ("t", "ended_at", "lasts", "kind", "status", "text", "tier", "replica", "rule", "incident")
    where = ("a", "a0", "KvCacheCascade", f"a/a0/KvCacheCascade/{T - 360:.0f}")
    lasting = (T - 360, T + 30, True)
    incident = (*lasting, "incident", "page", f"{title}: critical from 21 Sep 14:07 to 14:13", *where)
    episode = (*lasting, "episode", "critical, certain", f"{title}: critical", *where)
    rows = [incident, episode, (T, None, False, "reload", None, "read again", *[None] * 4)]
    entries = [dict(zip(keys, row, strict=True)) for row in rows]
    document = {"schema": 1, "since": T - 1000, "until": T, "entries": entries}
    assert json.loads(json.dumps(timeline_json(found, T - 1000, T))) == document


def page(*events: TimelineEvent) -> str:
    return render_page(agent_status(tiers=(unplanned_tier(findings=(), results=()),), events=events)).decode()


def test_page_is_newest_first_and_escaped() -> None:
    hostile = replace(event(0, tier="<b>t", text="<script>alert(1)</script>"), t=NOW - 60)
    text = page(replace(hostile, t=NOW - 90, text="what came before"), hostile)
    assert "<script>" not in text
    assert "Timeline of the last day: 2 entries" in text
    assert text.index("&lt;script&gt;") < text.index("what came before")
    assert "Timeline" not in page()
    text = page(*(replace(event(0, text=f"number {n}."), t=NOW - 600 + n) for n in range(SHOWN + 5)))
    assert f"number {SHOWN + 4}." in text
    assert "number 4." not in text
    assert f"The newest {SHOWN}" in text


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    capsys.readouterr()
    code = main.main(["timeline", *words])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_daemon_tells_timeline_everywhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "sizewatch.yaml"
    with engines() as served:
        # The same engine as another process.
        restarted = tuple(later(body) for body in pages())
        write(tmp_path, configuration(served))
        with running(path) as daemon:
            served[0].act = answers_500
            assert wait_for(lambda: "Target down" in ask(daemon).decode())
            served[0].pages, served[0].act = restarted, None
            assert wait_for(lambda: any(e.kind == TimelineKind.RESTART for e in daemon.assembly.runtime.events)), (
                daemon.assembly.runtime.events
            )
            plan = yaml.safe_load(Path(configuration(served)["plan"]).read_text())
            plan["tiers"]["cpu-small"]["slo"]["ttft_p99_seconds"] = 9.0
            (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
            write(tmp_path, configuration(served, plan="plan.yaml"))
            daemon.ask_reload()
            assert wait_for(lambda: daemon.counts.config_reloads == 1)
            further(daemon)
            assert "the plan of cpu-small changed" in ask(daemon).decode()
            assert daemon.counts.cycle_errors == 0
        with running(path) as daemon:
            assert "the engine restarted" in ask(daemon).decode()
    code, out, err = run(capsys, "-c", str(path))
    assert (code, err) == (0, "")
    order = [
        "sizewatch started: sizewatch",
        f": {BY_NAME['TierDown'].title}: ",
        "cpu-small/r0  restart: the engine restarted",
        "configuration: the configuration was read again: 1 target",
        "cpu-small     plan changed: the plan of cpu-small changed",
        "sizewatch stopped",
        "sizewatch started",
        "sizewatch stopped",
    ]
    lines = iter(out.splitlines())
    for words in order:
        assert any(words in line for line in lines), (words, out)
    code, out, _ = run(capsys, "-c", str(path), "--since", "1h", "--tier", "cpu-small", "--format", "json")
    found = json.loads(out)
    assert {entry["kind"] for entry in found["entries"]} >= {"start", "stop", "restart", "plan", "reload", "episode"}
    assert [entry["t"] for entry in found["entries"]] == sorted(entry["t"] for entry in found["entries"])


def later(body: bytes) -> bytes:
    """The page of a process that started 1,000 s after the recorded one."""
    lines = []
    for line in body.decode().splitlines():
        name, _, value = line.rpartition(" ")
        moved = name.startswith("process_start_time_seconds") or name.partition("{")[0].endswith("_created")
        lines.append(f"{name} {float(value) + 1000!r}" if moved and not line.startswith("#") else line)
    return "\n".join(lines).encode() + b"\n"


def test_the_command_says_what_is_wrong(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def said(**keys: Any) -> tuple[int, str]:
        code, _, err = run(capsys, "-c", str(write(tmp_path, configuration([], **keys))), "--tier", "gold")
        return code, err

    code, err = said()
    assert code == 2
    assert "does not exist; `sizewatch run` makes it" in err
    (tmp_path / "sizewatch-data").mkdir()
    store = HistoryStore(tmp_path / "sizewatch-data" / "history.db")
    assert said() == (2, "sizewatch timeline: there is no tier gold; there are cpu-small\n")
    assert "there is no history" in said(role="node")[1]
    path = str(write(tmp_path, configuration([])))
    assert run(capsys, "-c", path)[:2] == (0, "Nothing happened, as far as is known.\n")
    store.book(spans=[replace(alert(after=time.time() - T), tier="away")])
    store.close()
    assert "away  foreign alert: ApiLatencyHigh" in run(capsys, "-c", path)[1]


class Fleet:
    """Replicas of tier t that tell their release, turn by turn."""

    def __init__(self) -> None:
        self.evaluator, self.state, self.t = Evaluator({"t": context()}), EvaluatorState(), T
        self.events: list[TimelineEvent] = []
        self.minutes: list[ClosedMinute] = []

    def turn(self, removed: tuple[str, ...] = (), **releases: str) -> list[str]:
        """The texts of the releases that this turn told."""
        self.t += 15
        pages = {name: _page(self.t, release) for name, release in releases.items()}
        scrapes = tuple(ReplicaScrape(tier="t", replica=name, t=self.t, snapshot=page) for name, page in pages.items())
        gone = frozenset(("t", name) for name in removed)
        result = self.evaluator.step(self.state, Observation(now=self.t, scrapes=scrapes, removed=gone))
        result.raise_defects()
        self.minutes += result.minutes
        found = [one for one in result.events if one.kind == TimelineKind.RELEASE]
        self.events += found
        return [one.text for one in found]

    @property
    def timeline(self) -> list[tuple[float, str]]:
        found = list_entries([], [], self.events, 0.0)
        return [(one.t, one.text) for one in found if one.kind == TimelineKind.RELEASE]


def _page(t: float, release: str) -> Snapshot:
    facts = {"engine_version": release, "cache_dtype": "fp8_e4m3"} if release else {"cache_dtype": "auto"}
    return bare_page(t, counters={"requests_finished": t - T}, facts=facts)


def test_changed_replicas_are_one_entry() -> None:
    fleet = Fleet()
    old = dict.fromkeys("abcd", "0.32.0")
    assert fleet.turn(**old) == fleet.turn(**old) == []
    assert fleet.turn(**{**old, "a": "0.33.0"}) == ["vllm 0.32.0 → 0.33.0"]
    began = fleet.t
    # A page whose release is not known yet is no change, nor is the builder's part of a release.
    assert fleet.turn(a="0.33.0+cpu", b="", c="0.33.0") == ["vllm 0.32.0 → 0.33.0"]
    assert fleet.turn(b="0.33.0") == ["vllm 0.32.0 → 0.33.0"]
    assert fleet.timeline == [(began, "vllm 0.32.0 → 0.33.0")]
    assert fleet.turn(a="0.32.0") == ["vllm 0.33.0 → 0.32.0"]
    assert fleet.timeline == [(began, "vllm 0.32.0 → 0.33.0"), (fleet.t, "vllm 0.33.0 → 0.32.0")]


def test_replaced_pods_change_release() -> None:
    fleet, at_once = Fleet(), Fleet()
    fleet.turn(a="0.32.0", b="0.32.0")
    assert fleet.turn(c="0.33.0") == ["vllm 0.32.0 → 0.33.0"]
    assert fleet.turn(d="0.32.0") == []
    assert fleet.turn(removed=("a", "b", "d"), e="0.33.0") == []
    assert [text for _, text in fleet.timeline] == ["vllm 0.32.0 → 0.33.0"]
    at_once.turn(a="0.32.0")
    at_once.turn(removed=("a",))
    assert at_once.turn(b="0.33.0") == ["vllm 0.32.0 → 0.33.0"]


def test_minute_knows_release_and_precision() -> None:
    fleet = Fleet()
    plan = load_plan(TESTS / "plans" / "cpu-small.yaml").tiers["cpu-small"]
    planned = plan.model_copy(update={"precision": Precision(weights="fp8", kv="bf16")})
    fleet.evaluator = Evaluator({"t": build_tier_context("t", planned)})
    for _ in range(6):
        fleet.turn(a="0.32.0", b="")
    for _ in range(6):
        fleet.turn(a="0.33.0", b="")
    served = {(one.replica, one.release, one.precision) for one in fleet.minutes}
    # What the page tells of the KV cache goes before the plan; "auto" tells nothing.
    assert served == {
        ("a", "vllm 0.32.0", "fp8/fp8_e4m3"),
        ("a", "vllm 0.33.0", "fp8/fp8_e4m3"),
        ("b", "vllm", "fp8/bf16"),
    }
