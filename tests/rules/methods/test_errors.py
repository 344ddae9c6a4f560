"""Failures and refusals by hand: 180 requests a minute are served where nothing else is said."""

from dataclasses import replace
from typing import Any

import pytest
from judging_samples import START, add_minute, context, each, minute, verdict
from rule_cases import EARLY, FINE, HIDDEN, PAGE_GUESSED, PAGED, UNSEEN, WARNED, Case, check_case

from agent.scrape.scrapers import PageReader
from rules.confidence import Certainty
from rules.evaluator import tier_minutes, tier_rules
from rules.evaluator.scrape_rules import cascade_limits
from rules.plan.load_bins import build_tier_context as view_of
from rules.replicas.state import ReplicaState, apply_snapshot
from rules.telemetry.windows import Window
from rules.verdicts.verdict import RuleResult, Status, Unknown

BURN, REFUSED = "AvailabilityBurn", "RequestsRefused"
CERTAIN, LIKELY = Certainty.CERTAIN, Certainty.LIKELY
OK_COUNTERS = {"requests_failed": 0.0, "http_requests_failed": 0.0, "http_requests_refused": 0.0}


def at(number: int, served: float = 180.0, **counters: float) -> Window:
    """A minute; the HTTP answers 2xx are as many as were served."""
    told = {"http_requests_ok": served, **OK_COUNTERS, "engine_steps": 600.0, **counters}
    return minute(number, rps=served / 60, counters=told)


def hour(failing_from: int, **counters: float) -> list[Window]:
    return each(60, lambda n: at(n, **counters) if n >= failing_from else at(n))


TIER, BARE = context(), view_of("t", None)
STRICT = context(slo={"ttft_p99_seconds": 2.0, "availability": 0.999})
FAILING = hour(48, served=0.0, http_requests_failed=180.0)
TWO_PERCENT = hour(0, requests_failed=180 * 0.02)
ONE_BAD_MINUTE = each(20, lambda n: at(n, served=0.0, http_requests_failed=2000.0) if n == 19 else at(n))
FULL_QUEUE = {"http_requests_failed": 600.0, "admission_rejections": 600.0}
LYING = hour(40, served=30.0, http_requests_ok=30.0, requests_failed=5000.0)
RESTARTED = [
    replace(one, short_seconds={"requests_finished": 30.0}) for one in hour(40, served=60.0, http_requests_failed=120.0)
]
"""Served requests are missing for a part of each minute, failures are not."""

SILENT = each(15, lambda n: at(n, served=0.0))
ONLY_500 = (
    "20.0% of 10,800 requests in 1 h failed; the budget burns 20x too fast; 14.4x is the limit over 1 h and 5 min; "
    "100.0% of 900 requests in the last 5 min"
)
DEFAULT = "99% are promised to be served (the default: the plan has no slo.availability)"
UNCOUNTED = "neither requests that failed nor HTTP answers 5xx are counted"

BURN_CASES = [
    Case("only 500s", TIER, FAILING, PAGED, ONLY_500),
    Case("the default promise", TIER, FAILING, PAGED, DEFAULT),
    Case("no plan", BARE, FAILING, PAGED),
    Case("2 % where 1 % may fail", TIER, TWO_PERCENT, FINE),
    Case("2 % where 0.1 % may fail", STRICT, TWO_PERCENT, PAGED, "99.9% are promised to be served"),
    Case("all served", TIER, hour(60), FINE),
    Case("clients left", TIER, hour(30, requests_aborted=90.0), FINE),
    Case("4xx", TIER, hour(30, http_requests_refused=600.0), FINE),
    Case("503 of a full queue", TIER, hour(30, **FULL_QUEUE), FINE),
    Case("one bad minute", TIER, ONE_BAD_MINUTE, PAGE_GUESSED),
    Case("a page that lies", TIER, LYING, PAGE_GUESSED, "not certain: the page counts 5,000 failed requests of 30"),
    Case("counters that restart", TIER, RESTARTED, PAGE_GUESSED, "served and failed requests were counted"),
    Case("not counted", TIER, each(60, minute), HIDDEN, UNCOUNTED),
    Case("idle", TIER, SILENT, UNSEEN),
]


def refusing(share: float, field: str = "admission_rejections") -> list[Window]:
    refused = 180 * share / (1 - share)
    more = {"http_requests_failed": refused} if field == "admission_rejections" else {}
    return each(15, lambda n: at(n, **{field: refused, **more}))


HTTP = "http_requests_refused"
ENDED = each(15, lambda n: at(n, admission_rejections=60.0, http_requests_failed=60.0) if n < 8 else at(n))
REFUSED_CASES = [
    Case("half a per cent", TIER, refusing(0.005), FINE, "0.5% of "),
    Case("five per cent", TIER, refusing(0.05), WARNED, "5.0% of "),
    Case("most", TIER, refusing(0.6), PAGED, "60.0% of "),
    Case("4 % of 4xx", TIER, refusing(0.04, HTTP), FINE, "4.0% of "),
    Case("20 % of 4xx", TIER, refusing(0.2, HTTP), WARNED, "20.0% of "),
    Case("for want of room", TIER, refusing(0.1), WARNED, "refused for want of room (503); 1% is allowed"),
    Case("as bad requests", TIER, refusing(0.1, HTTP), WARNED, "answered 4xx"),
    Case("over", TIER, ENDED, FINE, "15.1% of requests were refused for want of room (503); 1% is allowed"),
    Case("few requests", TIER, each(15, lambda n: at(n, served=4.0)), EARLY),
    Case("not counted", TIER, each(60, minute), HIDDEN, "refused by a queue limit nor HTTP answers 4xx are counted"),
    Case("idle", TIER, SILENT, UNSEEN),
]


@pytest.mark.parametrize(
    ("rule", "case"), [*((BURN, case) for case in BURN_CASES), *((REFUSED, case) for case in REFUSED_CASES)], ids=str
)
def test_failures_and_refusals(rule: str, case: Case) -> None:
    check_case(rule, case)


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
    return next(a for a in tier_rules.evaluate_tier_rules(kept, by, t) if a.rule == BURN)


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
    whole = {name: hour(60) for name in ("a", "b", "c")}
    return whole | {replica: hour(20, served=0.0, http_requests_failed=180.0, **counters)}


def test_the_replica_that_fails_alone_is_named() -> None:
    found = verdict(BURN, TIER, fails_at("b"))
    cause = next(one for one in found.causes if one.cause == "one replica")
    assert (cause.certainty, cause.evidence) == (CERTAIN, ("one replica: b, 100% of its requests, 0 at the other 2",))
    assert "First suspect: one replica: b" in found.sentence_with_suspect()


def test_stepless_engine_is_suspect() -> None:
    cause = verdict(BURN, TIER, fails_at("b", engine_steps=0.0)).causes[0]
    assert cause.cause == "engine stopped"
    assert cause.evidence[0].startswith("engine stopped: b takes no step while its front end answers")


def faults_from(first: int) -> list[Window]:
    """Requests fail for 57 minutes: so lately that the burn is not over."""
    failing = {"served": 90.0, "requests_failed": 90.0}
    return each(60, lambda n: at(n, **(failing if n < 57 else {}), gpu_fault_events=1.0 if n >= first else 0.0))


COINCIDENCES = [
    ({"kv_transfer_failures": 40.0}, "failed transfers"),
    ({"restarts": 1.0}, "restarts"),
    ({"gpu_fault_events": 2.0}, "hardware faults"),
]


@pytest.mark.parametrize(
    ("rule", "replicas", "cause", "is_named"),
    [
        *((BURN, hour(20, served=90.0, requests_failed=90.0, **more), cause, True) for more, cause in COINCIDENCES),
        *((BURN, hour(20, requests_failed=90.0), cause, False) for _, cause in COINCIDENCES),
        (BURN, faults_from(50), "hardware faults", True),
        (BURN, faults_from(58), "hardware faults", False),
        (BURN, fails_at("b"), "engine stopped", False),
        (REFUSED, refusing(0.6), "more load", True),
        (REFUSED, refusing(0.1, HTTP), "client requests", True),
    ],
)
def test_coincidence_is_a_cause(rule: str, replicas: Any, cause: str, is_named: bool) -> None:
    assert (cause in {one.cause for one in verdict(rule, TIER, replicas).causes}) is is_named


def test_failed_transfers_explain_late_first_tokens_too() -> None:
    late = each(15, lambda n: minute(n, slow=90.0, counters={"kv_transfer_failures": 20.0, "requests_failed": 0.0}))
    promised = context(slo={"ttft_p99_seconds": 0.26})
    assert "failed transfers" in {one.cause for one in verdict("TtftSloBurn", promised, late).causes}
