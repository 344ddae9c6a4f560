"""Burn rates, failures and refusals by hand: 180 requests a minute, 1 % of which may be slower than the promised 0.26 s."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import pytest
from judging_samples import FAST, SLOW, START, add_minute, context, each, seen
from judging_samples import answered as judge_minutes
from judging_samples import minute as minute_of_two
from outcomes import EARLY, FINE, HIDDEN, PAGE_GUESSED, PAGED, UNPLANNED, UNSEEN, WARNED, Wanted
from rule_cases import Case, check_case, check_result, check_words, judge_cases, list_cases, outcome

from agent.scrape.scrapers import PageReader
from rules.confidence import Certainty
from rules.evaluator import rule_evaluation, tier_minutes
from rules.evaluator.rule_evaluation import cascade_limits
from rules.methods.burn_rate import format_span
from rules.plan import load_bins
from rules.plan.load_bins import BinnedWindow, TierContext
from rules.plan.load_bins import build_tier_context as view_of
from rules.replicas.state import ReplicaState, apply_snapshot
from rules.telemetry.windows import Window
from rules.verdicts import error_budget
from rules.verdicts.verdict import FIRING, RuleResult, Status, Unknown, Verdict

TTFT, TPOT, ITL, E2E = "TtftSloBurn", "TpotSloBurn", "ItlSloBurn", "E2eSloBurn"
EVERY = pytest.mark.parametrize("rule", [TTFT, TPOT, ITL, E2E])
FAMILIES = ("ttft_seconds", "tpot_seconds", "itl_seconds", "e2e_seconds")
PROMISED = dict.fromkeys(("ttft_p99_seconds", "tpot_p99_seconds", "itl_p99_seconds", "e2e_p99_seconds"), 0.26)
HOURLY = 180.0 * 60


def minute(number: float, **more: Any) -> Window:
    """A minute whose requests took as long by every family; each has one gap between two output events."""
    made = minute_of_two(number, **more)
    return replace(made, histograms=dict.fromkeys(FAMILIES, made.histograms["ttft_seconds"]))


def tier(**more: Any) -> TierContext:
    return context(slo=PROMISED, **more)


def hours(shares: Mapping[int, float], count: int = 72) -> list[BinnedWindow]:
    """So many hours before START; `shares` says of which of them (1 the latest) how much was slow."""
    made = []
    for back in range(count, 0, -1):
        hour = minute(-60 * back, seconds=3600.0, slow=HOURLY * shares.get(back, 0.0))
        made.append(load_bins.bin_window(hour, None, None))
    return made


def answered(
    rule: str,
    several: list[Window],
    past: Iterable[BinnedWindow] | None = None,
    seen_by: TierContext | None = None,
    minutes: Iterable[BinnedWindow] = (),
) -> RuleResult:
    """What the rule says after these minutes, with the past of three days from the history and its last minutes."""
    by = seen_by or tier()
    kept = tier_minutes.TierMinutes(budget=error_budget.restore_budget(by, list(past or []), list(minutes)))
    for one in several:
        kept = add_minute(kept, one, "a", by)
    now = several[-1].end
    return next(a for a in rule_evaluation.evaluate_tier_rules(kept, by, now) if a.rule == rule)


def hour(share: float, calm_from: int = 60) -> list[Window]:
    return each(60, lambda n: minute(n, slow=180 * share if n < calm_from else 0.0))


def gaps(number: int, requests: float, each: float, slow: float) -> Window:
    """A minute of requests with so many gaps each; `slow` is the share of long ones."""
    n = requests * each
    made = minute_of_two(number, rps=requests / 60)
    return replace(made, histograms={**made.histograms, "itl_seconds": seen({SLOW: n * slow, FAST: n * (1 - slow)})})


def events(share: float, requests: float = 180, number: float = 100) -> list[Window]:
    return each(60, lambda n: gaps(n, requests, number, share))


ENDED_EVENTS = each(60, lambda n: gaps(n, 180, 100, 0.2 if n < 55 else 0.0))
LADDER = [
    ("page_fast", {}, 0.16, 0.10 / 0.16, PAGED, "14.4x is the limit over 1 h and 5 min"),
    ("page_slow", range(1, 6), 0.07, 0.8, PAGED, "6x is the limit over 6 h and 30 min"),
    ("ticket_fast", range(1, 24), 0.035, 0.8, WARNED, "3x is the limit over 1 d and 2 h"),
    ("ticket_slow", range(1, 72), 0.012, 0.8, WARNED, "1x is the limit over 3 d and 6 h"),
]


@pytest.mark.parametrize(("rung", "past", "share", "less", "wanted", "limit"), LADDER, ids=[row[0] for row in LADDER])
@EVERY
def test_each_rung_fires_at_its_limit(
    rule: str, rung: str, past: Iterable[int], share: float, less: float, wanted: Wanted, limit: str
) -> None:
    check_result(answered(rule, hour(share), hours(dict.fromkeys(past, share))), wanted, limit)
    check_result(answered(rule, hour(share * less), hours(dict.fromkeys(past, share * less))), FINE)


# All slow for an hour spends what six hours may spend, but nothing is known of the other five.
OWN = tier(limits={TTFT: {"page_fast_burn": 200.0}})
OTHERS_OFF = dict.fromkeys(("page_slow_burn", "ticket_fast_burn", "ticket_slow_burn"), 90.0)
FEW_TTFT, FEW_ITL = (tier(limits={rule: {**OTHERS_OFF, "minimum_requests": 5.0}}) for rule in (TTFT, ITL))
# The promise lies in the bucket from 0.26 to 0.52 s.
INSIDE = context(slo=dict.fromkeys(PROMISED, 0.3))
BARE = [replace(one, histograms={}) for one in each(10, minute)]
BURST = each(60, lambda n: minute(n, rps=60.0, slow=3600) if n > 57 else minute(n, slow=9))
PAUSES = each(60, lambda n: minute(n, slow=120.0 if n % 10 == 0 else 0.0))
SILENCED = each(60, lambda n: minute(n, slow=54) if n < 55 else minute(n, rps=0.1))
TIMED = replace(tier(), itl_comparable=False)


def slow(count: int, share: float = 1.0) -> list[Window]:
    return each(count, lambda n: minute(n, slow=180 * share))


def burst(minutes: int) -> list[Window]:
    return each(60, lambda n: minute(n, rps=60.0, slow=3600) if n >= 60 - minutes else minute(n))


def lately(seconds: float) -> list[Window]:
    """Half of the requests took 1 s, of the last 35 minutes so long."""
    shapes = [seen({value: 90.0, FAST: 90.0}) for value in (1.0, seconds)]
    return each(60, lambda n: replace(minute(n), histograms=dict.fromkeys(FAMILIES, shapes[n >= 25])))


def row(
    name: str,
    several: list[Window],
    wanted: Wanted,
    past: Mapping[int, float] | None = None,
    seen_by: TierContext | None = None,
    rule: str = TTFT,
) -> Any:
    """A row; without a past the history has none, with an empty one three calm days."""
    return pytest.param(rule, several, None if past is None else hours(past), seen_by, wanted, id=name)


ROWS = [
    row("share and rate", hour(0.18), PAGED, past={}),
    row("healthy", hour(0.005), FINE, past={}),
    row("calm for two minutes", hour(0.3, calm_from=58), PAGED, past={}),
    row("calm for five minutes", hour(0.2, calm_from=55), FINE, past={}),
    # One minute in ten has two thirds of its requests slow, over hours: the ticket of a day lasts through the pauses.
    row("pauses of a burn", PAUSES, WARNED, past=dict.fromkeys(range(1, 24), 0.066)),
    row("40 minutes of six hours", slow(40), PAGE_GUESSED, seen_by=OWN),
    row("an hour of six", slow(60), PAGE_GUESSED, seen_by=OWN),
    row("six hours", slow(60, 0.5), PAGED, past=dict.fromkeys(range(1, 6), 0.5), seen_by=OWN),
    row("silence is no recovery", SILENCED, EARLY, past={}),
    # 14.4 x 60 min is what the hour may spend; all slow burns 100 a minute, so 8.64 minutes spend that much.
    row("8 minutes after a start", slow(8), PAGE_GUESSED),
    row("9 minutes after a start", slow(9), PAGED),
    row("4 minutes", slow(4), EARLY),
    row("5 minutes", slow(5), PAGE_GUESSED),
    row("a burst of two minutes", burst(2), PAGE_GUESSED, past={}),
    row("a burst of three minutes", burst(3), PAGED, past={}),
    row("a promise inside a bucket", hour(0.5), PAGE_GUESSED, past={}, seen_by=INSIDE),
    row("surely slow until now", lately(1.0), PAGED, past={}, seen_by=INSIDE),
    row("surely slow before", lately(SLOW), PAGE_GUESSED, past={}, seen_by=INSIDE),
    # Two slow ones of eleven a minute over the hour's end: more than allowed, and no proof.
    row("chance", each(60, lambda n: minute(n, rps=11 / 60, slow=2.0 if n > 35 else 1.0)), PAGE_GUESSED),
    # Two minutes with most of the last hour's requests, all slow, may be one event; a day at 5 % is certain.
    row("a certain ticket first", BURST, WARNED, past=dict.fromkeys(range(1, 24), 0.05)),
    row("a likely page alone", BURST, PAGE_GUESSED, past={}),
    # 15 % of 10,800 is two standard deviations above 14.4 %; 9 of 60 is none.
    row("barely above", hour(0.15), PAGE_GUESSED, past={}),
    row("9 of 60", each(60, lambda n: minute(n, rps=1 / 60, slow=float(n % 20 > 16))), FINE, seen_by=FEW_TTFT),
    row("a ladder of its own", hour(0.10), PAGED, past={}, seen_by=tier(limits={TTFT: {"page_fast_burn": 8.0}})),
    row("not measured", BARE, HIDDEN),
    row("no longer measured", [*slow(40, 0.0), *(replace(w, histograms={}) for w in slow(60, 0.0)[40:])], HIDDEN),
    row("idle", each(10, lambda n: minute(n, rps=0.0)), UNSEEN),
    row("too few", each(10, lambda n: minute(n, rps=0.05)), EARLY),
    row("no plan", slow(10), UNPLANNED, seen_by=load_bins.build_tier_context("t", None)),
    row("no promise", slow(10), UNPLANNED, seen_by=context(), rule=TPOT),
    row("output events", events(0.18), PAGED, past={}, rule=ITL),
    row("events since", ENDED_EVENTS, FINE, rule=ITL),
    # A thousand gaps a request are no thousand requests: 30 of them are too few, 60 leave 15 % to chance.
    row("events of 30 requests", events(0.5, 0.5, 1000), EARLY, rule=ITL),
    row("events of 60 requests", events(0.16, 1, 1000), FINE, seen_by=FEW_ITL, rule=ITL),
    row("events of many requests", events(0.16, 180, 1000), PAGED, seen_by=FEW_ITL, rule=ITL),
    row("timed tokens", hour(0.5), HIDDEN, past={}, seen_by=TIMED, rule=ITL),
]


@pytest.mark.parametrize(("rule", "several", "past", "seen_by", "wanted"), ROWS)
def test_burn_of_a_budget(
    rule: str, several: list[Window], past: Any, seen_by: TierContext | None, wanted: Wanted
) -> None:
    check_result(answered(rule, several, past, seen_by), wanted)


@EVERY
def test_old_burn_never_appears_later(rule: str) -> None:
    """Eight minutes of overload soon after a start, then only fast requests: at 27 minutes the pair of 6 h is evaluated."""
    several = each(60, lambda n: minute(n, rps=10.0, slow=600.0) if 4 <= n < 12 else minute(n, rps=1.0))
    results = [answered(rule, several[: n + 1]) for n in range(5, 60)]
    firing = [n for n, one in enumerate(results, 5) if isinstance(one, Verdict) and one.status in FIRING]
    assert max(firing) <= 12 + 5
    assert firing == list(range(min(firing), max(firing) + 1))
    assert "recovering, budget spent from 08:04 to 08:12 UTC; 0" in results[-1].sentence


def test_agent_restart_costs_no_page() -> None:
    """Twenty minutes at 20 x: too little by themselves, enough with the forty before them."""
    several = each(20, lambda n: minute(n, slow=36))
    assert outcome(answered(TTFT, several)) == PAGE_GUESSED
    before = [load_bins.bin_window(minute(n, slow=36), None, "a") for n in range(-40, 0)]
    assert outcome(answered(TTFT, several, hours({})[:-1], minutes=before)) == PAGED


@pytest.mark.parametrize(("seconds", "text"), [(300, "5 min"), (5400, "1.5 h"), (259_200, "3 d"), (40, "40 s")])
def test_windows_are_told_in_their_largest_unit(seconds: float, text: str) -> None:
    assert format_span(seconds) == text


BURN, REFUSED = "AvailabilityBurn", "RequestsRefused"
CERTAIN, LIKELY = Certainty.CERTAIN, Certainty.LIKELY
OK_COUNTERS = {"requests_failed": 0.0, "http_requests_failed": 0.0, "http_requests_refused": 0.0}


def at(number: int, served: float = 180.0, **counters: float) -> Window:
    """A minute; the HTTP answers 2xx are as many as were served."""
    told = {"http_requests_ok": served, **OK_COUNTERS, "engine_steps": 600.0, **counters}
    return minute_of_two(number, rps=served / 60, counters=told)


def failing_hour(failing_from: int, **counters: float) -> list[Window]:
    return each(60, lambda n: at(n, **counters) if n >= failing_from else at(n))


TIER, PLANLESS = context(), view_of("t", None)
PROMISING = context(slo={"ttft_p99_seconds": 2.0, "availability": 0.999})
FAILING = failing_hour(48, served=0.0, http_requests_failed=180.0)
TWO_PERCENT = failing_hour(0, requests_failed=180 * 0.02)
ONE_BAD_MINUTE = each(20, lambda n: at(n, served=0.0, http_requests_failed=2000.0) if n == 19 else at(n))
FULL_QUEUE = {"http_requests_failed": 600.0, "admission_rejections": 600.0}
LYING = failing_hour(40, served=30.0, http_requests_ok=30.0, requests_failed=5000.0)
SHORT = {"requests_finished": 30.0}
"""Served requests are missing for a part of each minute, failures are not."""

RESTARTED = [replace(one, short_seconds=SHORT) for one in failing_hour(40, served=60.0, http_requests_failed=120.0)]

NEITHER = each(60, minute_of_two)
SILENT = each(15, lambda n: at(n, served=0.0))

BURN_CASES = [
    Case("only 500s", TIER, FAILING, PAGED),
    Case("no plan", PLANLESS, FAILING, PAGED),
    Case("2 % where 1 % may fail", TIER, TWO_PERCENT, FINE),
    Case("2 % where 0.1 % may fail", PROMISING, TWO_PERCENT, PAGED),
    Case("all served", TIER, failing_hour(60), FINE),
    Case("clients left", TIER, failing_hour(30, requests_aborted=90.0), FINE),
    Case("4xx", TIER, failing_hour(30, http_requests_refused=600.0), FINE),
    Case("503 of a full queue", TIER, failing_hour(30, **FULL_QUEUE), FINE),
    Case("one bad minute", TIER, ONE_BAD_MINUTE, PAGE_GUESSED),
    Case("a page that lies", TIER, LYING, PAGE_GUESSED),
    Case("counters that restart", TIER, RESTARTED, PAGE_GUESSED),
    Case("not counted", TIER, NEITHER, HIDDEN),
    Case("idle", TIER, SILENT, UNSEEN),
]


def refusing(share: float, field: str = "admission_rejections") -> list[Window]:
    refused = 180 * share / (1 - share)
    more = {"http_requests_failed": refused} if field == "admission_rejections" else {}
    return each(15, lambda n: at(n, **{field: refused, **more}))


HTTP = "http_requests_refused"
ENDED = each(15, lambda n: at(n, admission_rejections=60.0, http_requests_failed=60.0) if n < 8 else at(n))
REFUSED_CASES = [
    Case("half a per cent", TIER, refusing(0.005), FINE),
    Case("five per cent", TIER, refusing(0.05), WARNED),
    Case("most", TIER, refusing(0.6), PAGED),
    Case("4 % of 4xx", TIER, refusing(0.04, HTTP), FINE),
    Case("20 % of 4xx", TIER, refusing(0.2, HTTP), WARNED),
    Case("for want of room", TIER, refusing(0.1), WARNED),
    Case("as bad requests", TIER, refusing(0.1, HTTP), WARNED),
    Case("over", TIER, ENDED, FINE),
    Case("few requests", TIER, each(15, lambda n: at(n, served=4.0)), EARLY),
    Case("not counted", TIER, NEITHER, HIDDEN),
    Case("idle", TIER, SILENT, UNSEEN),
]

CASES = list_cases({BURN: BURN_CASES, REFUSED: REFUSED_CASES})


@pytest.mark.parametrize(("rule", "case"), CASES, ids=str)
def test_failures_and_refusals(rule: str, case: Case) -> None:
    check_case(rule, case)


def test_words_read_as_the_golden() -> None:
    burns = ((one.id, answered(*one.values[:-1])) for one in ROWS)
    check_words(__file__, (*burns, *judge_cases(CASES)))


PAGE = """\
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{{engine="0",model_name="m"}} 0
# TYPE vllm:request_success_total counter
vllm:request_success_total{{engine="0",finished_reason="stop",model_name="m"}} {served}
vllm:request_success_total{{engine="0",finished_reason="error",model_name="m"}} {errors}
# TYPE http_requests_total counter
http_requests_total{{handler="/v1/completions",method="POST",status="2xx"}} {served}
http_requests_total{{handler="/v1/completions",method="POST",status="5xx"}} {errors}
"""


def judged(pages: list[tuple[float, float]]) -> RuleResult:
    """What the rule says after these pages of (served, errors), 15 s apart, none of which tells when its process began."""
    reader, replica, by = PageReader("vllm"), ReplicaState(tier="t", name="a"), context()
    kept = tier_minutes.TierMinutes()
    for number, (served, errors) in enumerate(pages):
        t = START + 15.0 * number
        page = reader.read(PAGE.format(served=served, errors=errors).encode(), t)
        replica, _, closed = apply_snapshot(replica, page, cascade_limits(by))
        if closed is not None:
            kept = add_minute(kept, closed, "a", by)
    return next(a for a in rule_evaluation.evaluate_tier_rules(kept, by, t) if a.rule == BURN)


def test_failing_page_is_certain_after_serving() -> None:
    """The counterpart of the pages below: the same numbers, told by one process."""
    serving = [(45.0 * n, 0.0) for n in range(200)]
    failing = [(45.0 * 199, 45.0 * n) for n in range(1, 41)]
    found = judged([*serving, *failing])
    assert (found.status, found.certainty) == (Status.CRITICAL, CERTAIN)


def test_restarting_process_wakes_nobody() -> None:
    """Served requests fall and failed ones grow, as if one counter alone were broken; always, or every other page."""
    assert isinstance(judged([(1000.0 - n, 45.0 * n) for n in range(240)]), Unknown)
    found = judged([(10.0 if n % 2 else 0.0, 45.0 * n) for n in range(240)])
    assert found.certainty is LIKELY


def fails_at(replica: str, **counters: float) -> dict[str, list[Window]]:
    whole = {name: failing_hour(60) for name in ("a", "b", "c")}
    return whole | {replica: failing_hour(20, served=0.0, http_requests_failed=180.0, **counters)}


def test_the_replica_that_fails_alone_is_named() -> None:
    found = judge_minutes(BURN, TIER, fails_at("b"))
    cause = next(one for one in found.causes if one.cause == "one replica")
    assert (cause.certainty, cause.evidence) == (CERTAIN, ("one replica: b, 100% of its requests, 0 at the other 2",))
    assert "First suspect: one replica: b" in found.sentence_with_suspect()
    stepless = judge_minutes(BURN, TIER, fails_at("b", engine_steps=0.0)).causes[0]
    assert stepless.cause == "engine stopped"
    assert stepless.evidence[0].startswith("engine stopped: no step at b while the front end answers")


COINCIDENCES = [
    ({"kv_transfer_failures": 40.0}, "failed transfers"),
    ({"restarts": 1.0}, "restarts"),
    ({"gpu_fault_events": 2.0}, "hardware faults"),
]
HALF = {"served": 90.0, "requests_failed": 90.0}


def faults_from(first: int) -> list[Window]:
    """Requests fail for 57 minutes: so lately that the burn is not over."""
    return each(60, lambda n: at(n, **(HALF if n < 57 else {}), gpu_fault_events=1.0 if n >= first else 0.0))


@pytest.mark.parametrize(
    ("rule", "replicas", "cause", "is_named"),
    [
        *(
            (BURN, failing_hour(20, served=90.0, requests_failed=90.0, **more), cause, True)
            for more, cause in COINCIDENCES
        ),
        *((BURN, failing_hour(20, requests_failed=90.0), cause, False) for _, cause in COINCIDENCES),
        (BURN, faults_from(50), "hardware faults", True),
        (BURN, faults_from(58), "hardware faults", False),
        (BURN, fails_at("b"), "engine stopped", False),
        (REFUSED, refusing(0.6), "more load", True),
        (REFUSED, refusing(0.1, HTTP), "client requests", True),
    ],
)
def test_coincidence_is_a_cause(rule: str, replicas: Any, cause: str, is_named: bool) -> None:
    assert (cause in {one.cause for one in judge_minutes(rule, TIER, replicas).causes}) is is_named


def test_failed_transfers_explain_late_first_tokens_too() -> None:
    late = each(
        15, lambda n: minute_of_two(n, slow=90.0, counters={"kv_transfer_failures": 20.0, "requests_failed": 0.0})
    )
    promised = context(slo={"ttft_p99_seconds": 0.26})
    assert "failed transfers" in {one.cause for one in judge_minutes("TtftSloBurn", promised, late).causes}
