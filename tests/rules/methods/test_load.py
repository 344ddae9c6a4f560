import pytest
from judging_samples import context, each, gauge, minute, unknown, verdict
from prose import explain

from rules.confidence import Certainty
from rules.plan.load_bins import build_tier_context as bare
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window, gap_window
from rules.verdicts.verdict import Status, Verdict

RULE = "LoadBeyondBenchmark"


def said(found: Verdict) -> tuple[Status, Certainty]:
    return found.status, found.certainty


def queue(number: int, waiting: float, change: float, rps: float = 3.0) -> Window:
    return minute(number, rps=rps, waiting=waiting, in_system=4.0 + waiting / 100, change=change)


def test_load_inside_the_benchmark_is_fine() -> None:
    found = verdict(RULE, context(), each(5, lambda n: minute(n, rps=5.9)))
    assert said(found) == (Status.OK, Certainty.CERTAIN)
    assert found.sentence == "At most 5.9 rps a replica; the benchmark goes to 6 rps"


def test_minutes_beyond_decide_certainty() -> None:
    def beyond(minutes: int) -> Verdict:
        return verdict(RULE, context(), each(5, lambda n: minute(n, rps=7.0 if n >= 5 - minutes else 3.0)))

    assert said(beyond(3)) == (Status.WARNING, Certainty.CERTAIN)
    assert beyond(3).sentence == ("a is beyond the benchmarked load; more load than replicas take")
    assert beyond(3).details == (
        "in 3 minutes: 7 completed rps is above 6, the highest load the benchmark vouches for",
        "7 rps arrive at a replica, 6 rps are usable",
    )
    assert said(beyond(2)) == (Status.WARNING, Certainty.LIKELY)
    assert said(beyond(1)) == (Status.OK, Certainty.CERTAIN)
    assert beyond(1).sentence == "Beyond the benchmark for 1 of 5 minutes seen; too short for a finding"
    assert beyond(1).details[0].startswith("7 completed rps")


def test_system_requests_beyond_count() -> None:
    found = verdict(RULE, context(), each(5, lambda n: minute(n, rps=1.0, in_system=9.0)))
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert "9 requests in the system are more than the benchmark's highest, 8" in explain(found)
    assert verdict(RULE, context(), each(5, lambda n: minute(n, rps=1.0, in_system=7.9))).status is Status.OK


def test_an_overload_that_is_over_is_over() -> None:
    found = verdict(RULE, context(), each(12, lambda n: minute(n, rps=7.0 if n < 9 else 3.0)))
    assert said(found) == (Status.OK, Certainty.CERTAIN)
    assert found.sentence.startswith("Beyond the benchmark for 9 of 12 minutes seen; over by now")


def test_half_of_the_last_quarter_is_enough() -> None:
    # Sixteen minutes: fifteen are in the hold, of which the last three count; two of them are beyond, then one.
    two = each(16, lambda n: minute(n, rps=7.0 if n in (10, 13, 14) else 3.0))
    assert verdict(RULE, context(), two).status is Status.WARNING
    one = each(16, lambda n: minute(n, rps=7.0 if n in (9, 10, 13) else 3.0))
    assert verdict(RULE, context(), one).status is Status.OK


def test_one_replica_of_many_is_named() -> None:
    replicas = {f"r{i}": each(5, lambda n, i=i: minute(n, rps=7.0 if i == 2 else 3.0)) for i in range(8)}
    found = verdict(RULE, context(), replicas)
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert found.sentence.startswith("r2 (1 of 8 replicas) is beyond the benchmarked load; ")
    replicas = {f"r{i}": each(5, lambda n, i=i: minute(n, rps=7.0 if i < 2 else 3.0)) for i in range(8)}
    several = verdict(RULE, context(), replicas)
    assert several.sentence.startswith("2 of 8 replicas are beyond the benchmarked load; ")
    assert "r0, r1" in several.details


def test_scattered_minutes_are_no_overload() -> None:
    replicas = {f"r{i}": each(5, lambda n, i=i: minute(n, rps=7.0 if i == n else 3.0)) for i in range(5)}
    assert verdict(RULE, context(), replicas).status is Status.OK


def test_queue_growing_in_thirds_is_likely() -> None:
    # Growth too small to show in any one minute: 0.7 more arrive than finish.
    found = verdict(RULE, context(), each(9, lambda n: queue(n, 0.3 + n / 3, 0.7)))
    assert said(found) == (Status.WARNING, Certainty.LIKELY)
    assert found.sentence.startswith("More requests arrive at a than finish; ")
    assert found.details[:2] == ("0.6, 1.6, then 2.6 were waiting", "3 rps finish, the benchmark reached 6 rps")


@pytest.mark.parametrize(
    ("waiting", "change"),
    [
        (lambda n: 2.0 + n / 10, 0.7),  # it does not double
        (lambda n: 0.05 * n, 0.7),  # less than one waits
        (lambda n: 0.3 + n / 3, -0.1),  # no more arrive than finish
        (lambda n: 3.0 - n / 4, 0.7),  # it shrinks
    ],
)
def test_fleeting_queue_is_no_overload(waiting, change) -> None:  # type: ignore[no-untyped-def]
    assert verdict(RULE, context(), each(9, lambda n: queue(n, waiting(n), change))).status is Status.OK


def test_held_back_requests_queue_nothing() -> None:
    def held(number: int) -> Window:
        return minute(
            number, waiting=0.3 + number / 3, in_system=4, change=0.7, gauges={"requests_waiting_capacity": gauge(0.0)}
        )

    assert verdict(RULE, context(), each(9, held)).status is Status.OK


def test_other_rules_wait_while_beyond() -> None:
    beyond = each(5, lambda n: minute(n, rps=7.0 if n >= 2 else 3.0, slow=30))
    found = unknown("TtftDivergence", context(), beyond)
    assert found.reason is Gap.OUTSIDE_BENCHMARK
    assert found.text.startswith("7 completed rps is above 6")
    growing = each(9, lambda n: queue(n, 0.3 + n / 3, 0.7))
    assert unknown("TtftDivergence", context(), growing).text.startswith("more requests arrive than finish")


def test_larger_inside_part_is_compared() -> None:
    made = each(9, lambda n: minute(n, rps=7.0 if n < 4 else 3.0, slow=18))
    assert verdict("TtftDivergence", context(), made).status is Status.WARNING
    made = each(9, lambda n: minute(n, rps=7.0 if n < 5 else 3.0, slow=18))
    assert unknown("TtftDivergence", context(), made).reason is Gap.OUTSIDE_BENCHMARK


def test_idle_minutes_outweigh_nothing() -> None:
    made = each(12, lambda n: minute(n, rps=0.0) if n < 7 else minute(n, rps=7.0 if n < 10 else 3.0, slow=18))
    assert unknown("TtftDivergence", context(), made).reason is Gap.OUTSIDE_BENCHMARK


def test_late_overload_ends_no_divergence() -> None:
    made = each(12, lambda n: minute(n, slow=18) if n < 9 else minute(n, rps=7.0, slow=18))
    assert unknown("TtftDivergence", context(), made).reason is Gap.OUTSIDE_BENCHMARK


def test_calm_replicas_are_still_compared() -> None:
    replicas = {f"r{i}": each(5, lambda n, i=i: minute(n, rps=7.0 if i == 0 else 3.0, slow=18)) for i in range(3)}
    found = verdict("TtftDivergence", context(), replicas)
    assert said(found) == (Status.WARNING, Certainty.CERTAIN)
    assert "1,800 requests" in explain(found)


def test_nothing_is_beyond_without_data() -> None:
    found = unknown(RULE, bare("t", None), each(5, minute))
    assert (found.reason, found.text) == (Gap.NOT_IN_PLAN, "the plan has no benchmark curve for this tier")
    down = [gap_window(w.start, w.end, Gap.SCRAPE_FAILED) for w in each(5, minute)]
    assert unknown(RULE, context(), down).reason is Gap.SCRAPE_FAILED
