"""Failures and refusals by hand: 180 requests a minute are served where nothing else is said."""

from dataclasses import replace
from typing import Any

import pytest
from judging_samples import START, add_minute, context, each, minute, unknown, verdict
from prose import explain

from agent.scrape.scrapers import PageReader
from rules.confidence import Certainty
from rules.evaluator import tier_minutes, tier_rules
from rules.evaluator.scrape_rules import cascade_limits
from rules.plan.load_bins import build_tier_context as view_of
from rules.replicas.state import ReplicaState, apply_snapshot
from rules.telemetry.signals import Gap
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


# --- availability


def test_a_tier_that_answers_only_500_pages() -> None:
    found = verdict(BURN, context(), hour(48, served=0.0, http_requests_failed=180.0))
    assert (found.status, found.certainty) == (Status.CRITICAL, CERTAIN)
    assert found.sentence.startswith("20.0% of 10,800 requests in 1 h failed; the budget burns 20x too fast")
    assert found.details[:2] == (
        "14.4x is the limit over 1 h and 5 min",
        "100.0% of 900 requests in the last 5 min",
    )
    assert "99% are promised to be served (the default: the plan has no slo.availability)" in found.details


def test_planless_tier_pages_as_well() -> None:
    found = verdict(BURN, view_of("t", None), hour(48, served=0.0, http_requests_failed=180.0))
    assert (found.status, found.certainty) == (Status.CRITICAL, CERTAIN)


def test_planned_availability_decides() -> None:
    several = hour(0, requests_failed=180 * 0.02)
    assert verdict(BURN, context(), several).status is Status.OK
    strict = verdict(BURN, context(slo={"ttft_p99_seconds": 2.0, "availability": 0.999}), several)
    assert strict.status is Status.CRITICAL
    assert "99.9% are promised to be served" in strict.details


def test_a_fleet_that_serves_is_fine() -> None:
    found = verdict(BURN, context(), hour(60))
    assert (found.status, found.certainty) == (Status.OK, CERTAIN)


@pytest.mark.parametrize(
    "counters",
    [
        {"requests_aborted": 90.0},
        {"http_requests_refused": 600.0},
        {"http_requests_failed": 600.0, "admission_rejections": 600.0},
    ],
    ids=["clients left", "4xx", "503 of a full queue"],
)
def test_what_is_no_failure_burns_nothing(counters: dict[str, float]) -> None:
    assert verdict(BURN, context(), hour(30, **counters)).status is Status.OK


def test_untold_failures_are_never_ok() -> None:
    plain = each(60, minute)
    found = unknown(BURN, context(), plain)
    assert (found.reason, found.text) == (
        Gap.NOT_EXPOSED,
        "neither requests that failed nor HTTP answers 5xx are counted",
    )
    refusing = unknown(REFUSED, context(), plain)
    assert refusing.reason is Gap.NOT_EXPOSED
    assert "neither requests refused by a queue limit nor HTTP answers 4xx are counted" in refusing.text


def test_single_bad_minute_is_not_certain() -> None:
    several = each(20, lambda n: at(n, served=0.0, http_requests_failed=2000.0) if n == 19 else at(n))
    assert verdict(BURN, context(), several).certainty is LIKELY


# --- pages that lie, and restarts


def test_more_failures_than_requests_wake_nobody() -> None:
    lying = hour(40, served=30.0, http_requests_ok=30.0, requests_failed=5000.0)
    found = verdict(BURN, context(), lying)
    assert found.certainty is LIKELY
    assert "not certain: the page counts 5,000 failed requests of 30" in found.details


def test_restarted_counters_wake_nobody() -> None:
    """Served requests are missing for a part of each minute, failures are not."""
    several = [
        replace(one, short_seconds={"requests_finished": 30.0})
        for one in hour(40, served=60.0, http_requests_failed=120.0)
    ]
    found = verdict(BURN, context(), several)
    assert found.certainty is LIKELY
    assert "not certain: served and failed requests were counted over different times" in found.details


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


# --- causes


def fails_at(replica: str, **counters: float) -> dict[str, list[Window]]:
    whole = {name: hour(60) for name in ("a", "b", "c")}
    return whole | {replica: hour(20, served=0.0, http_requests_failed=180.0, **counters)}


def test_the_replica_that_fails_alone_is_named() -> None:
    found = verdict(BURN, context(), fails_at("b"))
    cause = next(one for one in found.causes if one.cause == "one replica")
    assert cause.certainty is CERTAIN
    assert cause.evidence == ("one replica: b, 100% of its requests, 0 at the other 2",)
    assert "First suspect: one replica: b" in found.sentence_with_suspect()


def test_stepless_engine_is_suspect() -> None:
    found = verdict(BURN, context(), fails_at("b", engine_steps=0.0))
    assert found.causes[0].cause == "engine stopped"
    assert found.causes[0].evidence[0].startswith("engine stopped: b takes no step while its front end answers")
    stepping = verdict(BURN, context(), fails_at("b"))
    assert "engine stopped" not in {one.cause for one in stepping.causes}


@pytest.mark.parametrize(
    ("counters", "cause"),
    [
        ({"kv_transfer_failures": 40.0}, "failed transfers"),
        ({"restarts": 1.0}, "restarts"),
        ({"gpu_fault_events": 2.0}, "hardware faults"),
    ],
)
def test_coincidence_is_a_cause(counters: dict[str, float], cause: str) -> None:
    several = hour(20, served=90.0, requests_failed=90.0, **counters)
    assert cause in {one.cause for one in verdict(BURN, context(), several).causes}
    assert cause not in {one.cause for one in verdict(BURN, context(), hour(20, requests_failed=90.0)).causes}


def test_later_faults_are_no_cause() -> None:
    """Requests fail for 57 minutes: so lately that the burn is not over."""

    def made(faults_from: int) -> list[Window]:
        return each(
            60,
            lambda n: at(
                n,
                served=90.0 if n < 57 else 180.0,
                requests_failed=90.0 if n < 57 else 0.0,
                gpu_fault_events=1.0 if n >= faults_from else 0.0,
            ),
        )

    assert "hardware faults" in {one.cause for one in verdict(BURN, context(), made(50)).causes}
    assert "hardware faults" not in {one.cause for one in verdict(BURN, context(), made(58)).causes}


def test_failed_transfers_explain_late_first_tokens_too() -> None:
    late = each(15, lambda n: minute(n, slow=90.0, counters={"kv_transfer_failures": 20.0, "requests_failed": 0.0}))
    promised = context(slo={"ttft_p99_seconds": 0.26})
    assert "failed transfers" in {one.cause for one in verdict("TtftSloBurn", promised, late).causes}


# --- refusals


def refusing(share: float, **named: Any) -> list[Window]:
    field = named.get("field", "admission_rejections")
    refused = 180 * share / (1 - share)
    more = {"http_requests_failed": refused} if field == "admission_rejections" else {}
    return each(15, lambda n: at(n, **{field: refused, **more}))


@pytest.mark.parametrize(
    ("share", "field", "status"),
    [
        (0.005, "admission_rejections", Status.OK),
        (0.05, "admission_rejections", Status.WARNING),
        (0.6, "admission_rejections", Status.CRITICAL),
        (0.04, "http_requests_refused", Status.OK),
        (0.2, "http_requests_refused", Status.WARNING),
    ],
)
def test_refusal_kinds_have_own_limits(share: float, field: str, status: Status) -> None:
    found = verdict(REFUSED, context(), refusing(share, field=field))
    assert (found.status, found.certainty) == (status, CERTAIN)
    assert found.sentence.startswith(f"{share:.1%} of ")


def test_the_sentence_says_which_kind_it_is() -> None:
    assert "refused for want of room (503); 1% is allowed" in verdict(REFUSED, context(), refusing(0.1)).sentence
    bad = verdict(REFUSED, context(), refusing(0.1, field="http_requests_refused"))
    assert "answered 4xx" in bad.sentence
    assert bad.causes[0].cause == "client requests"


def test_full_queue_says_overload() -> None:
    found = verdict(REFUSED, context(), refusing(0.6))
    assert "more load" in {one.cause for one in found.causes}


def test_refusals_that_are_over_are_over() -> None:
    several = each(15, lambda n: at(n, admission_rejections=60.0, http_requests_failed=60.0) if n < 8 else at(n))
    found = verdict(REFUSED, context(), several)
    assert found.status is Status.OK
    assert explain(found) == (
        "15.1% of requests were refused for want of room (503); 1% is allowed, and most of the time it was less; "
        "of 3,180 requests"
    )


def test_of_few_requests_nothing_is_said() -> None:
    assert unknown(REFUSED, context(), each(15, lambda n: at(n, served=4.0))).reason is Gap.TOO_FEW_REQUESTS


def test_idle_is_no_traffic() -> None:
    assert unknown(BURN, context(), each(15, lambda n: at(n, served=0.0))).reason is Gap.NO_TRAFFIC
    assert unknown(REFUSED, context(), each(15, lambda n: at(n, served=0.0))).reason is Gap.NO_TRAFFIC
