"""The status page and its JSON twin, read as a browser and a program would read them."""

import base64
import hashlib
import json
import math
import re
import xml.etree.ElementTree as ET
from collections.abc import Iterator
from dataclasses import replace
from html.parser import HTMLParser
from typing import Any

import pytest
from status_samples import (
    NOW,
    agent_status,
    cascading_tier,
    judged,
    plan,
    planned_tier,
    replica,
    unplanned_tier,
    window,
)

from exporters.render.svg_charts import draw_panel
from exporters.status import page_trend
from exporters.status.active_findings import (
    list_active_findings,
    list_active_incidents,
    list_notes,
    pending_rules,
    tier_state,
    unknowns,
)
from exporters.status.page import PAUSED, page_policy, render_page
from exporters.status.page_incident import INCIDENTS_SHOWN
from exporters.status.page_trend import charts
from exporters.status.plan_comparison import ROWS, compare_with_plan
from exporters.status.records import AgentHealth, AgentStatus, TierStatus, TrendPoint
from exporters.status.status_json import status_json
from exporters.status.tier_overview import headline, list_incidents, summarize_tier
from rules.catalogue.registry import BY_NAME
from rules.confidence import Certainty
from rules.evaluator.incidents import group_incidents
from rules.plan import load_bins
from rules.plan.capacity import stated_capacity
from rules.telemetry.signals import Gap, Missing, Reading
from rules.telemetry.work import CapacitySource
from rules.verdicts.finding import Finding, Transition
from rules.verdicts.rule import Severity
from rules.verdicts.verdict import FIRING, Cause, MissedObjective, Status, Subject, Unknown, Verdict

VOID = {"meta", "link", "br", "hr", "img", "input"}


class Read(HTMLParser):
    """What a browser sees: the text, every tag with its attributes, and whether tags close as they open."""

    def __init__(self, page: bytes) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page.decode())
        self.close()
        assert self.open == []

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(data)


def read(status: AgentStatus | None = None, **options: Any) -> Read:
    return Read(render_page(status or agent_status(), **options))


def with_tiers(*tiers: TierStatus, **changes: Any) -> AgentStatus:
    return replace(agent_status(), tiers=tiers, **changes)


def collapsed(text: str) -> str:
    return re.sub(r"\s+", " ", text)


def test_every_tier_and_every_firing_sentence_stands_on_the_page() -> None:
    status = agent_status()
    page = read(status)
    fired = [a for tier in status.tiers for a in tier.results if isinstance(a, Verdict) and a.status in FIRING]
    assert len(fired) >= 4
    for tier in status.tiers:
        assert tier.name in page.text
    for verdict in fired:
        assert collapsed(verdict.sentence) in page.text
    for one in (
        one
        for tier in status.tiers
        for one in list_active_incidents(tier, status.incidents[tier.name])[:INCIDENTS_SHOWN]
    ):
        action, worst = one.root.verdict.actions[0], one.worst.verdict
        assert action in page.text
        assert f"Runbook: {one.root.verdict.rule}" in page.text
        assert f"{worst.status.value}, {worst.certainty.value}" in page.text


def test_the_first_line_counts_incidents_and_names_the_worst_of_the_whole_installation() -> None:
    found = headline(agent_status())
    assert found.status is Status.CRITICAL
    title = BY_NAME["KvCacheCascade"].title
    count = len(list_incidents(agent_status()))
    assert found.text == f"{count} incidents in 2 of 3 tiers: {title} in l40s-qwen14b"
    (incident,) = list_active_incidents(
        cascading_tier(), group_incidents(cascading_tier().findings, cascading_tier().results, NOW)
    )
    assert found.sentence == f"{incident.sentence}."
    pending = sum(len(pending_rules(tier)) for tier in agent_status().tiers)
    assert found.note == f"mi300x-mixtral has no plan. {pending} rules cannot be judged now."
    one = headline(with_tiers(cascading_tier(), planned_tier_without_findings()))
    assert one.text == f"1 incident in l40s-qwen14b: {title}"
    page = read()
    assert f"Critical: {found.text}" in page.text
    assert page.text.index("l40s-qwen14b ■ critical") < page.text.index("h100-llama70b-fp8 ▲ warning")


def test_a_finding_says_since_when() -> None:
    assert "since 14:06 UTC (7 min)" in read().text


def test_suspects_stand_with_their_evidence_in_order() -> None:
    tier = cascading_tier()
    (slow,) = [a for a in tier.results if isinstance(a, Verdict) and a.rule == "TtftDivergence"]
    causes = (
        Cause(cause="evictions", certainty=Certainty.CERTAIN, evidence=("5 preemptions", "KV cache full")),
        Cause(cause="queueing", certainty=Certainty.LIKELY, evidence=("9 waiting",), against=("arrivals are steady",)),
    )
    told = replace(tier, results=(replace(slow, status=Status.WARNING, causes=causes),), findings=())
    text = read(with_tiers(told)).text
    assert "First suspect: 5 preemptions" in text
    assert "Suspects evictions KV cache full 9 waiting (likely) but arrivals are steady" in text
    assert text.count("5 preemptions") == 1


def test_numbers_stand_beside_the_plan_with_their_bounds_and_the_load() -> None:
    text = read(with_tiers(planned_tier())).text
    assert (
        "TTFT P99 last 5 min 882 ms known within 750 ms to 1 s plan 2 s SLO 520 ms to 1 s at this load ✓ within the SLO"
        in text
    )
    assert "plan 12 rps usable" in text
    assert (
        "Prefix cache hits last 5 min 33.2% plan 60.0% of prompt tokens 62.0% at this load ▲ warning, certain" in text
    )
    assert "1.62 USD plan 1.68 USD at 60% of capacity" in text


def test_a_tier_without_a_plan_says_so_at_every_number_and_still_shows_what_is_measured() -> None:
    text = read(with_tiers(unplanned_tier())).text
    (numbers,) = [compare_with_plan(unplanned_tier())]
    assert all(one.planned is None for one in numbers)
    assert text.count("not in plan ? not judged") >= 3
    assert "as planned" not in text
    assert "TTFT P99 last 5 min 790 ms known within 750 ms to 1 s" in text
    assert "GPU utilisation last 5 min not exposed" in text


def test_a_capacity_that_no_plan_names_is_not_said_to_be_0_by_the_plan() -> None:
    tier = planned_tier()
    seen = replace(stated_capacity(3.0, "seen"), source=CapacitySource.PRODUCTION, planned_rps=None, high=None)
    for capacity, text in (
        (seen, "usable, at least, by production"),
        (replace(seen, planned_rps=4.0, high=5.0), "usable, by production (4 by the plan)"),
    ):
        rows = compare_with_plan(replace(tier, context=load_bins.with_capacity(tier.context, capacity)))
        (tile,) = (one for one in rows if one.row.key == "completed_rps_per_replica")
        assert tile.planned is not None
        assert tile.planned.text == text


def test_what_cannot_be_judged_is_folded_away_with_its_reason() -> None:
    tier = planned_tier_without_findings()
    page = read(with_tiers(tier))
    assert f"No verdict now: {BY_NAME[pending_rules(tier)[0]].title}" in page.text
    lacking = {one.rule for one in unknowns(tier) if one.reason in (Gap.NOT_IN_PLAN, Gap.NOT_EXPOSED)}
    assert f"{len(lacking)} rules need what plan or engine lacks." in page.text
    unplanned = read(with_tiers(unplanned_tier())).text
    assert "not in plan: the plan has no benchmark curve for this tier" in unplanned
    assert "No verdict is pending. " in unplanned
    folded = [attributes for tag, attributes in page.tags if tag == "details" and "id" not in attributes]
    assert folded
    assert all("open" not in attributes for attributes in folded)


def test_a_replica_that_is_down_says_only_that() -> None:
    page = read(with_tiers(planned_tier()))
    assert "3 of 4 replicas up , 13 planned" in page.text
    row = page.text[page.text.index("h100-4 connection refused") :]
    assert row.startswith("h100-4 connection refused ▲ down, 9 missed, last page 2 min ago vllm after 0.29.0 – – – –")


def test_replicas_tell_their_load_their_cache_and_their_gpus() -> None:
    text = read(with_tiers(cascading_tier())).text
    assert "l40s-2 ✓ up vllm after 0.29.0 60 58 97.0% ■ cascade 4: user-visible 1: busy 70%, memory 89%, 61 °C" in text


def test_episodes_of_the_last_day_and_step_13_are_on_the_page() -> None:
    text = read(with_tiers(planned_tier())).text
    assert (
        "1 ended in the last day 05:50 UTC, for 4 min ▲ warning, certain h100-llama70b-fp8, h100-2: Target down."
        in text
    )
    assert "TTFT, TPOT and GPU utilisation confirmed up to 78 % of usable rps" in text


def shapes(tier: TierStatus, title: str) -> ET.Element:
    (chart,) = [chart for chart in charts(tier, NOW) if chart.title == title]
    return ET.fromstring(draw_panel(chart.panel))


def test_a_gap_is_drawn_as_a_gap() -> None:
    svg = shapes(planned_tier(), "TTFT P99")
    lines = svg.findall("polyline")
    assert len(lines) == 2
    ends = [float(line.get("points", "").split()[-1].split(",")[0]) for line in lines]
    starts = [float(line.get("points", "").split()[0].split(",")[0]) for line in lines]
    holes = [rect for rect in svg.findall("rect") if rect.get("class") == "hole"]
    assert len(holes) == 6
    assert all(ends[0] <= float(hole.get("x", "")) < starts[1] for hole in holes)
    assert {title.text for hole in holes for title in hole} == {"scrape failed"}


def test_minutes_that_are_simply_missing_are_a_gap_too() -> None:
    tier = unplanned_tier()
    short = replace(tier, trend=(*tier.trend[:3], *tier.trend[7:]))
    svg = shapes(short, "KV cache in use")
    assert len(svg.findall("polyline")) == 2
    assert [title.text for rect in svg.findall("rect") for title in rect] == ["no minute was closed"]


def test_a_single_minute_is_a_dot_and_no_minute_is_said_in_words() -> None:
    tier = unplanned_tier()
    svg = shapes(replace(tier, trend=tier.trend[-1:]), "KV cache in use")
    assert len(svg.findall("circle")) == 1
    assert svg.findall("polyline") == []
    empty = shapes(replace(tier, trend=()), "KV cache in use")
    assert empty.get("aria-label") == "KV cache in use, last hour: no data"


def points(svg: ET.Element, name: str) -> list[tuple[float, float]]:
    (found,) = [shape for shape in svg if shape.get("class") == name]
    return [(float(x), float(y)) for x, y in (pair.split(",") for pair in found.get("points", "").split())]


def test_the_band_reaches_from_the_lower_to_the_upper_bound_and_an_open_bound_to_the_top() -> None:
    def trend(high: float | None) -> tuple[TrendPoint, ...]:
        reading = Reading(value=1.0, low=0.5, high=high, n=100)
        return tuple(TrendPoint(t=NOW - ago, readings={"ttft_p99_seconds": reading}) for ago in (120, 60))

    tier = planned_tier()
    closed = shapes(replace(tier, trend=trend(2.0)), "TTFT P99")
    top, bottom = 18.0, 114.0
    scale = 2.5
    heights = sorted({y for _, y in points(closed, "ttft area")})
    assert heights == pytest.approx(
        [bottom - 2.0 / scale * (bottom - top), bottom - 0.5 / scale * (bottom - top)], abs=0.06
    )
    opened = shapes(replace(tier, trend=trend(None)), "TTFT P99")
    assert min(y for _, y in points(opened, "ttft area")) == top


def test_waiting_requests_stand_on_the_running_ones() -> None:
    svg = shapes(cascading_tier(), "Requests")
    running, waiting = points(svg, "running line"), points(svg, "waiting line")
    assert len(running) == len(waiting) == 60
    assert all(w[1] <= r[1] for r, w in zip(running, waiting, strict=True))
    assert waiting[-1][1] < running[-1][1]


def test_the_plan_is_drawn_across_and_the_beginning_of_a_finding_is_marked() -> None:
    svg = shapes(cascading_tier(), "TTFT P99")
    texts = [text.text for text in svg.iter("text")]
    assert "SLO 2 s" in texts
    titles = [title.text for title in svg.iter("title")]
    assert "KV cache cascade: since 14:06 UTC" in titles


HOSTILE = "<script>alert(1)</script>\"'&<b>"


def test_a_hostile_name_appears_as_text_wherever_it_comes_from() -> None:
    context = load_bins.build_tier_context(HOSTILE, plan(HOSTILE, HOSTILE))
    gone = Unknown(t=NOW, rule="TtftDivergence", subject=Subject(tier=HOSTILE), reason=Gap.STALE, text=HOSTILE)
    tier = planned_tier()
    fired = next(a for a in tier.results if isinstance(a, Verdict) and a.status in FIRING)
    fired = replace(fired, subject=Subject(tier=HOSTILE, replica=HOSTILE), sentence=HOSTILE, rule=HOSTILE)
    point = TrendPoint(t=NOW, readings={"kv_utilization": Missing(gap=Gap.STALE, text=HOSTILE)})
    mean = replica(
        HOSTILE,
        HOSTILE,
        model=HOSTILE,
        engine=HOSTILE,
        versions=HOSTILE,
        url=HOSTILE,
        pool=HOSTILE,
        problems=(HOSTILE,),
    )
    hostile = TierStatus(
        context=context,
        recent=None,
        results=(fired, gone),
        trend=(point,),
        replicas=(mean,),
        step13=HOSTILE,
        findings=(),
    )
    page = read(
        with_tiers(
            hostile, simulated=HOSTILE, version=HOSTILE, role=HOSTILE, health=AgentHealth(gpu_problems=(HOSTILE,))
        )
    )
    assert "script" not in {tag for tag, _ in page.tags}
    assert "b" in {tag for tag, _ in page.tags}
    assert page.text.count("<script>alert(1)</script>") >= 15


def test_a_name_that_cannot_be_encoded_costs_its_letters_and_not_the_page() -> None:
    tier = unplanned_tier(replicas=(replica("t", "a\ud800b"),))
    assert "a\ufffdb" in read(with_tiers(tier)).text


def test_the_page_needs_no_script_no_other_file_and_no_style_attribute() -> None:
    page = read()
    tags = {tag for tag, _ in page.tags}
    assert not tags & {"script", "img", "iframe", "object", "embed", "form"}
    for tag, attributes in page.tags:
        assert "style" not in attributes
        assert not [key for key in attributes if key.startswith("on")]
        if tag == "link":
            assert attributes["href"].startswith("data:image/svg+xml,")
        if tag == "a":
            assert not attributes["href"].startswith(("http:", "https:", "//"))


def test_the_style_sheet_on_the_page_is_the_one_that_the_policy_allows() -> None:
    page = render_page(agent_status())
    (styles,) = re.findall(rb"<style>(.*?)</style>", page, re.DOTALL)
    digest = base64.b64encode(hashlib.sha256(styles).digest()).decode()
    assert f"; style-src 'sha256-{digest}'; " in page_policy(page)


def test_colour_never_stands_without_a_word() -> None:
    page = render_page(agent_status()).decode()
    signs = re.findall(r'<span class="sign (\w+)"><b aria-hidden="true">(.)</b>(.*?)</span>', page)
    headline_sign = [sign for sign in signs if not sign[2].strip()]
    assert len(signs) > 30
    assert len(headline_sign) == 1  # its word follows it in the heading
    assert "</span>Critical: " in page


def test_the_page_comes_again_by_itself_and_keeps_still_when_asked() -> None:
    assert ("meta", {"http-equiv": "refresh", "content": "5"}) in read().tags
    still = read(paused=True)
    assert "refresh" not in {attributes.get("http-equiv") for tag, attributes in still.tags if tag == "meta"}
    assert all("open" in attributes for tag, attributes in still.tags if tag == "details")
    assert ("a", {"href": f"?{PAUSED}"}) in read().tags


def test_many_findings_and_many_replicas_do_not_hide_the_page() -> None:
    tier = planned_tier()
    down = next(a for a in tier.results if isinstance(a, Verdict) and a.rule == "TargetDown" and a.status in FIRING)
    results = tuple(replace(down, subject=Subject(tier=tier.name, replica=f"r{number}")) for number in range(40))
    replicas = tuple(replica(tier.name, f"r{number}", up=number != 39, misses=number // 39 * 5) for number in range(40))
    page = read(with_tiers(replace(tier, results=results, findings=(), replicas=replicas)))
    assert "34 more incidents" in page.text or "40 replicas" in page.text
    assert "24 more replicas" in page.text
    assert page.text.index("r39 ▲ down, 5 missed") < page.text.index("r0 ✓ up")
    assert all(f"r{number}" in page.text for number in range(40))


def silent_tier() -> TierStatus:
    """A finding whose rule can no longer judge: its last answer is unknown, its episode goes on."""
    tier = planned_tier()
    fired = next(a for a in tier.results if a.rule == "PrefixHitDivergence")
    gone = Unknown(t=NOW, rule=fired.rule, subject=fired.subject, reason=Gap.SCRAPE_FAILED, text="no replica answers")
    return replace(tier, results=tuple(gone if a is fired else a for a in tier.results))


def test_a_finding_whose_rule_fell_silent_stays_and_says_so() -> None:
    tier = silent_tier()
    (found,) = [one for one in list_active_findings(tier) if one.verdict.rule == "PrefixHitDivergence"]
    assert found.silent is not None
    assert "No verdict now: scrape failed: no replica answers." in read(with_tiers(tier)).text


def planned_tier_without_findings() -> TierStatus:
    tier = planned_tier()
    quiet = tuple(a for a in tier.results if not (isinstance(a, Verdict) and a.status in FIRING))
    return replace(tier, results=quiet, findings=())


def healthy() -> TierStatus:
    name = "quiet"
    context = load_bins.build_tier_context(name, plan("m", "NVIDIA L40S"))
    hours = {"q-1": [window(NOW - 60 * ago) for ago in reversed(range(60))]}
    return TierStatus(
        context=context, recent=hours["q-1"][-1], results=judged(context, hours), replicas=(replica(name, "q-1"),)
    )


def test_a_quiet_installation_says_so_in_one_line() -> None:
    status = with_tiers(healthy())
    assert tier_state(status.tiers[0]) is Status.OK
    page = read(status)
    assert "✓ 1 tier as planned" in page.text
    assert "quiet ✓ as planned" in page.text


def test_before_the_first_verdict_nothing_is_called_fine() -> None:
    tier = TierStatus(
        context=load_bins.build_tier_context("new", None),
        recent=None,
        replicas=(replica("new", "n-1", last_seen=None),),
    )
    status = with_tiers(tier)
    assert headline(status).status is Status.UNKNOWN
    text = read(status).text
    assert "No verdict yet" in text
    assert "new ? no verdict yet" in text
    assert "no data in the last 5 minutes" in text


def test_an_agent_without_tiers_says_what_to_do() -> None:
    text = read(with_tiers()).text
    assert "Nothing is watched" in text
    assert "Name a tier with its targets in the configuration" in text


@pytest.mark.parametrize(
    ("health", "words"),
    [
        (AgentHealth(last_cycle_at=NOW - 61), "The last cycle ended 1 min ago: this page is that old."),
        (
            AgentHealth(history_trouble="the disk is full", unbooked_minutes=4),
            "History write failed: the disk is full. 4 minutes are buffered.",
        ),
        (AgentHealth(dropped_minutes=9), "The history lost 9 replica-minutes."),
        (
            AgentHealth(config_trouble="targets[0].url: missing"),
            "the previous configuration is active: targets[0].url: missing",
        ),
        (AgentHealth(gpu_problems=("GPU 3 fell off the bus",)), "GPU 3 fell off the bus"),
    ],
)
def test_trouble_of_the_agent_itself_stands_at_the_top(health: AgentHealth, words: str) -> None:
    page = read(replace(agent_status(), health=health))
    assert words in page.text
    assert page.text.index(words) < page.text.index("Runbook:")


def test_what_is_simulated_is_told_first() -> None:
    banner = "Simulated: recorded engines, stand-in GPUs"
    text = read(agent_status(simulated=banner)).text
    assert text.index(banner) < text.index("Critical:")
    assert banner not in read().text


def test_every_row_of_the_comparison_is_read_from_a_window_and_from_a_plan() -> None:
    for one in compare_with_plan(planned_tier()):
        assert isinstance(one.now, Reading) or one.row.optional, one.row.key
        assert one.planned is not None, one.row.key
    assert len({row.key for row in ROWS}) == len(ROWS)


def test_a_promise_of_output_events_or_of_whole_requests_has_its_row() -> None:
    tier = planned_tier()
    plan = tier.context.plan
    assert plan is not None
    for promised in (None, 0.4):
        slo = plan.slo.model_copy(update={"itl_p99_seconds": promised, "e2e_p99_seconds": promised})
        context = replace(tier.context, plan=plan.model_copy(update={"slo": slo}))
        found = [one.row.key for one in compare_with_plan(replace(tier, context=context))]
        assert ({"itl_p99_seconds", "e2e_p99_seconds"} <= set(found)) == (promised is not None)
        assert found[:2] == ["ttft_p99_seconds", "tpot_p99_seconds"]


def test_the_worst_answer_of_several_replicas_colours_a_number() -> None:
    (kv,) = [one for one in compare_with_plan(cascading_tier()) if one.row.key == "kv_utilization"]
    assert isinstance(kv.judged, Verdict)
    assert kv.judged.subject.replica == "l40s-2"
    (down,) = [one for one in compare_with_plan(planned_tier()) if one.row.key == "kv_utilization"]
    assert isinstance(down.judged, Verdict)  # one replica cannot be judged, the others can


def walk(value: Any) -> Iterator[Any]:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    yield value
    for part in parts:
        yield from walk(part)


def test_the_json_twin_says_the_same_as_the_page() -> None:
    status = agent_status()
    found = json.loads(json.dumps(status_json(status), allow_nan=False))
    assert found["schema"] == 1
    assert found["verdict"]["text"] == headline(status).text
    for tier, told in zip(status.tiers, found["tiers"], strict=True):
        assert told["tier"] == tier.name
        assert told["status"] == tier_state(tier).value
        every = (*list_active_findings(tier), *list_notes(tier))
        assert [v["sentence"] for v in told["verdicts"]] == [one.verdict.sentence for one in every]
        assert [v["started_at"] for v in told["verdicts"]] == [one.since for one in every]
        assert [v["note"] for v in told["verdicts"]] == [one.is_note for one in every]
        assert [u["rule"] for u in told["unknowns"]] == [u.rule for u in unknowns(tier)]
        assert [number["key"] for number in told["numbers"]] == [one.row.key for one in compare_with_plan(tier)]
        assert len(told["trend"]) == len(tier.trend)
        assert [r["replica"] for r in told["replicas"]] == [r.name for r in tier.replicas]
    ttft = found["tiers"][0]["numbers"][0]
    assert (ttft["now"]["low"], ttft["now"]["high"], ttft["planned"]["value"]) == (0.75, 1.0, 2.0)
    assert {alert["severity"] for alert in found["alerts"]} == {"critical", "warning"}


def test_a_number_that_is_none_becomes_null_in_json() -> None:
    gauges = {"requests_running": math.nan, "requests_waiting": math.inf}
    found = status_json(with_tiers(unplanned_tier(replicas=(replica("t", "r", gauges=gauges),))))
    assert json.loads(json.dumps(found, allow_nan=False))["tiers"][0]["replicas"][0]["gauges"] == {
        "requests_running": None,
        "requests_waiting": None,
    }


def test_the_address_of_a_replica_stands_behind_its_name() -> None:
    tier = unplanned_tier(replicas=(replica("t", "r", url="http://r.t.svc:8000/metrics"),))
    assert 'title="http://r.t.svc:8000/metrics"' in render_page(with_tiers(tier)).decode()


def test_what_is_for_the_report_only_spoils_no_tier_and_stands_apart() -> None:
    tier = healthy()
    low = next(a for a in tier.results if a.rule == "GpuComputeLow")
    assert isinstance(low, Verdict)
    noted = replace(low, status=Status.WARNING, sentence="GPU utilisation while serving 7.7%")
    quiet = replace(tier, results=tuple(noted if a is low else a for a in tier.results))
    assert tier_state(quiet) is Status.OK
    assert list_active_findings(quiet) == ()
    assert [one.verdict for one in list_notes(quiet)] == [noted]
    page = read(with_tiers(quiet))
    assert "1 note" in page.text
    assert noted.sentence in page.text
    assert "quiet ✓ as planned" in page.text


def test_a_note_stands_at_the_number_that_it_is_about() -> None:
    tier = healthy()
    low = next(a for a in tier.results if a.rule == "GpuComputeLow")
    assert isinstance(low, Verdict)
    notes = (replace(low, rule=rule, status=Status.WARNING) for rule in ("KvCacheUnderused", "ForecastDegraded"))
    rows = compare_with_plan(replace(tier, results=(*(a for a in tier.results if a is not low), *notes)))
    assert {one.row.key: one.note.verdict.rule for one in rows if one.note} == {"kv_utilization": "KvCacheUnderused"}


def test_findings_of_one_cause_are_one_card_with_its_symptoms_folded() -> None:
    tier = explained_tier()
    page = read(with_tiers(tier))
    (incident,) = list_active_incidents(tier, group_incidents(tier.findings, tier.results))
    assert incident.root.verdict.rule == "KvEviction"
    assert [one.verdict.rule for one in incident.symptoms] == ["TtftDivergence"]
    assert page.text.count("Evidence: 2 findings") == 1
    assert page.text.count("Runbook:") == 1
    told = status_json(with_tiers(tier))
    (said,) = told["incidents"]
    assert (said["root"], said["id"]) == ("KvEviction", incident.id)
    assert [one["rule"] for one in said["findings"]] == ["KvEviction", "TtftDivergence"]


def test_an_incident_that_pages_says_what_helps_at_once_before_the_action_of_its_root() -> None:
    tier = explained_tier()
    root, symptom = tier.findings
    relief = "Shed load"
    burn = replace(symptom.worst, rule="TtftSloBurn", status=Status.CRITICAL, actions=(relief,))
    page = replace(symptom, rule="TtftSloBurn", worst=burn)
    text = read(with_tiers(replace(tier, findings=(root, page), results=(root.worst, burn)))).text
    assert f"At once: Shed load Then: {root.worst.actions[0]} Runbook:" in text
    assert f"Do first: {root.worst.actions[0]}" in read(with_tiers(tier)).text


def test_an_incident_whose_root_has_ended_keeps_its_card_until_its_symptoms_end() -> None:
    tier = explained_tier()
    root, symptom = tier.findings
    ended = replace(tier, findings=(replace(root, ended_at=NOW - 60.0), symptom), results=tier.results[1:])
    (incident,) = list_active_incidents(ended, group_incidents(ended.findings, ended.results))
    assert (incident.root.verdict.rule, incident.worst.verdict.rule) == ("KvEviction", "TtftDivergence")
    assert "Evidence: 2 findings" in read(with_tiers(ended)).text


def test_a_rule_that_came_back_is_in_the_later_incident() -> None:
    tier = explained_tier()
    earlier = tuple(replace(one, started_at=NOW - 9000.0, ended_at=NOW - 8000.0) for one in tier.findings)
    known = group_incidents((*tier.findings, *earlier), tier.results)
    (shown,) = list_active_incidents(tier, known)
    later = known[-1]
    assert (shown.id, shown.started_at, shown.sentence) == (later.id, NOW - 600.0, later.sentence)


def test_the_overview_says_since_when_the_incident_lasts_also_where_its_root_began_later() -> None:
    tier = explained_tier()
    root, symptom = tier.findings
    status = with_tiers(replace(tier, findings=(replace(root, started_at=symptom.started_at + 60.0), symptom)))
    line = summarize_tier(status, status.tiers[0])
    assert (line.incident, line.since) == (BY_NAME["KvEviction"].title, symptom.started_at)


def explained_tier() -> TierStatus:
    """Evictions since ten minutes, and the time to first token that they explain since five."""
    tier = planned_tier()
    fired = next(a for a in tier.results if isinstance(a, Verdict) and a.status in FIRING and a.subject.replica is None)
    pairs = []
    for rule, minutes in (("KvEviction", 10), ("TtftDivergence", 5)):
        verdict = replace(fired, rule=rule, sentence=f"{rule} is seen", causes=())
        begin = NOW - minutes * 60.0
        change = Transition(t=begin, status=verdict.status, stage=None, certainty=verdict.certainty)
        pairs.append(
            (
                verdict,
                Finding(
                    rule=rule,
                    subject=verdict.subject,
                    started_at=begin,
                    ended_at=None,
                    worst=verdict,
                    transitions=(change,),
                ),
            )
        )
    return replace(tier, results=tuple(v for v, _ in pairs), findings=tuple(f for _, f in pairs))


@pytest.mark.parametrize(
    ("text", "shown"),
    [("190", "190 running"), ("≥ 3", "≥ 3 running"), ("scrape failed", "running: scrape failed")],
)
def test_a_missing_level_is_a_reason_and_no_number(text: str, shown: str) -> None:
    assert page_trend._named(text, "running") == shown


def test_a_plan_for_another_model_than_the_engines_is_a_banner() -> None:
    tier = planned_tier()
    assert tier.context.plan is not None

    def text_with(model: str) -> str:
        replicas = tuple(replace(one, model=model) for one in tier.replicas)
        return read(agent_status(tiers=(replace(tier, replicas=replicas),))).text

    planned = tier.context.plan.model
    for model in (planned, "", f"adapter,{planned}"):
        assert "the plan is for" not in text_with(model)
    first, more = tier.replicas[0].name, len(tier.replicas) - 1
    banner = f"the plan is for {planned}, {first} and {more} more serve acme/giant-405b"
    assert banner in text_with("acme/giant-405b")


@pytest.mark.parametrize(
    ("share", "words"),
    [
        (Reading(value=0.01, low=0.0, high=0.06, n=68), "up to 6.0% of 68 requests may have missed an objective"),
        (Reading(value=0.0, low=0.0, high=0.0, n=68), "no objective was missed by 68 requests"),
        (Reading(value=0.4, low=0.3, high=0.6, n=680), "40.0% of 680 requests miss the 2 s TTFT objective"),
    ],
)
def test_the_impact_denies_nothing_that_its_bounds_allow(share: Reading, words: str) -> None:
    tier = cascading_tier()
    if share.high == 0.0:
        assert words not in shown_with(tier, share), "a certain cascade of stage 4 is felt"
        paging = [one.rule for one in tier.results if BY_NAME[one.rule].severity is Severity.PAGE]
        tickets = tuple(one for one in tier.results if one.rule not in paging)
        tier = replace(tier, results=tickets, findings=tuple(one for one in tier.findings if one.rule not in paging))
    assert words in shown_with(tier, share)


def shown_with(tier: TierStatus, share: Reading) -> str:
    """The page while every firing verdict carries this share of missed requests."""
    missed = MissedObjective(objective="TTFT", limit_seconds=2.0, share=share)
    firing = [isinstance(one, Verdict) and one.status in FIRING for one in tier.results]
    results = tuple(
        replace(one, missed=missed) if fires else one  # type: ignore[call-arg]
        for one, fires in zip(tier.results, firing, strict=True)
    )
    return read(agent_status(tiers=(replace(tier, results=results),))).text
