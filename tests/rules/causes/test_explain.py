"""Causes of what a rule finds, and what late first tokens waited for (180 requests a minute, 0.26 s promised)."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from golden_text import check_golden
from judging_samples import answered, context, each, gauge, minute, minutes, seen
from recorded import findings, replayed

from rules.catalogue.registry import REMEDIES
from rules.causes import explain
from rules.confidence import Certainty
from rules.plan.load_bins import TierContext
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Cause, Status, Verdict

TTFT, TPOT, BURN = "TtftDivergence", "TpotDivergence", "TtftSloBurn"
WORKLOAD = {
    "prompt_tokens": {"p50": 80, "p95": 100, "p99": 128},
    "generation_tokens": {"p50": 40, "p95": 60, "p99": 64},
    "prefix_hit_ratio": 0.6,
}
LENGTHS = (50.0, 100.0, 120.0, 200.0, float("inf"))


def slow(
    number: int,
    counters: Mapping[str, float] | None = None,
    gauges: Mapping[str, Any] | None = None,
    prompts: float = 80.0,
    outputs: float = 40.0,
    share: float = 0.1,
) -> Window:
    """A minute at 3 rps with a share of slow requests in every latency, and nothing that explains them."""
    latencies = seen({0.4: 180 * share, 0.08: 180 * (1 - share)})
    lengths = {"prompt_tokens_per_request": prompts, "generation_tokens_per_request": outputs}
    return minute(
        number,
        counters={"prefix_queried_tokens": 14400.0, "prefix_hit_tokens": 8640.0, **(counters or {})},
        gauges={"requests_waiting_capacity": gauge(0.0), "requests_waiting_deferred": gauge(0.0), **(gauges or {})},
        histograms={
            **dict.fromkeys(("ttft_seconds", "tpot_seconds"), latencies),
            **{family: seen({tokens: 180}, LENGTHS) for family, tokens in lengths.items()},
        },
    )


def found(
    rule: str = TTFT,
    curve: Mapping[str, Any] | None = None,
    requests: int = 600,
    plan: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Verdict:
    tier = context(requests=requests, curve=curve, workload=WORKLOAD, **(plan or {}))
    made = answered(rule, tier, each(5, lambda n: slow(n, **changes)))
    assert made.status is Status.WARNING
    return made


def certainties(made: Verdict) -> list[tuple[str, str]]:
    return [(cause.cause, cause.certainty.value) for cause in made.causes]


def first(made: Verdict) -> Cause:
    suspect = made.causes[0].evidence[0]
    assert suspect not in made.sentence
    assert made.rule not in (TTFT, TPOT, BURN, HITS) or made.actions[0] == REMEDIES[made.causes[0].cause]
    assert made.sentence_with_suspect() == f"{made.sentence}. First suspect: {suspect}"
    return made.causes[0]


TWICE = "prompts are longer than benchmarked: mean 80 tokens, 40 benchmarked"
WITH_MEAN = {"prompt_tokens": {**WORKLOAD["prompt_tokens"], "mean": 80}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("rule", "mean", "planned", "cause", "text"),
    [
        (TTFT, 40.0, {}, "prompt lengths", TWICE),
        (TTFT, 70.0, {}, "slower machine", "not prompt lengths: mean 80 tokens, 70 benchmarked"),
        (TTFT, 40.0, WORKLOAD, "prompt lengths", TWICE),
        (TTFT, 40.0, WITH_MEAN, "prompt lengths", TWICE),
        (BURN, 40.0, WORKLOAD, "prompt lengths", TWICE),
        (BURN, 40.0, WITH_MEAN, "slower machine", "not prompt lengths: P95 50 to 100 tokens, 100 planned"),
    ],
)
def test_mean_is_compared_with_benchmark(
    rule: str, mean: float, planned: dict[str, Any], cause: str, text: str
) -> None:
    measured, workload = [{"prompt_tokens_mean": mean}] * 3, {"prefix_hit_ratio": 0.6, **planned}
    of = context(*measured, workload=workload, slo={"ttft_p99_seconds": 0.26})
    made = answered(rule, of, each(20, lambda n: slow(n, share=0.2)))
    assert first(made).cause == cause
    assert text in first(made).evidence


@pytest.mark.parametrize(("pool", "is_named"), [("prefill", True), ("decode", False)])
def test_hits_are_those_of_prefill(pool: str, is_named: bool) -> None:
    of = replace(context(workload={"prefix_hit_ratio": 0.6}), pools={"prefill": "prefill", "decode": "decode"})
    lost = each(5, lambda n: slow(n, {"prefix_hit_tokens": 0.0}))
    made = answered(TTFT, of, {name: lost if name == pool else each(5, slow) for name in of.pools})
    assert ("prefix hits" in dict(certainties(made))) is is_named


MACHINE, SPECULATION, HITS = "slower machine", "speculation", "PrefixHitDivergence"
DEMAND = "DemandExceedsCapacity"
CLOSED, DRAFTING = {"loop": "closed"}, {"speculation": {"draft_tokens": 4, "acceptance": 0.75}}


def hits(ratio: float) -> dict[str, Any]:
    return {"counters": {"prefix_hit_tokens": ratio * 14400}}


def level(family: str, mean: float) -> dict[str, Any]:
    return {"gauges": {family: gauge(mean)}}


def drafts(rounds: float, accepted: float, planned: bool = True) -> dict[str, Any]:
    counted = {"spec_drafts": rounds, "spec_draft_tokens": 4 * rounds, "spec_accepted_tokens": accepted}
    return {"counters": counted, "plan": DRAFTING if planned else {}}


ROWS: list[tuple[str, dict[str, Any], str]] = [
    (TTFT, {}, MACHINE),
    (TTFT, {"prompts": 110.0}, MACHINE),  # the bucket begins at 100, not above 1.2 x 100
    (TTFT, {"prompts": 150.0}, MACHINE),  # it begins at 120: just not
    (TTFT, {"prompts": 300.0}, "prompt lengths"),
    (TPOT, {"outputs": 110.0}, "output lengths"),
    (TTFT, hits(0.52), "prefix hits"),
    (TTFT, hits(0.56), MACHINE),
    (TTFT, {"counters": {"preemptions": 10.0}}, "evictions"),
    (TTFT, {"counters": {"preemptions": 9.0}}, MACHINE),
    (TTFT, level("requests_waiting_deferred", 0.3), "adapters held back"),
    (TTFT, level("requests_waiting_deferred", 0.015), MACHINE),
    (TPOT, level("requests_waiting_deferred", 0.3), MACHINE),
    (TPOT, level("adapters_running", 1.5), "adapters"),
    (TPOT, level("adapters_running", 0.0), MACHINE),
    (TPOT, {**level("adapters_running", 1.5), "plan": {"lora": {"max_adapters": 4}}}, MACHINE),
    (TTFT, level("requests_waiting_capacity", 0.6), "queueing"),
    (TPOT, level("requests_waiting_capacity", 0.6), MACHINE),
    (TPOT, drafts(100.0, 40.0, planned=False), SPECULATION),
    (TPOT, drafts(100.0, 300.0, planned=False), MACHINE),
    (TPOT, drafts(100.0, 210.0), MACHINE),
    (TPOT, drafts(100.0, 100.0), SPECULATION),
    (TPOT, drafts(0.0, 0.0), SPECULATION),
    (TTFT, {"curve": CLOSED}, "benchmark"),
    (TTFT, {"requests": 299}, "benchmark"),
    (TTFT, {"requests": 300}, MACHINE),
    (DEMAND, {"outputs": 150.0, "plan": {"operating_point": {"c_max": 2, "usable_rps": 2}}}, "output lengths"),
]


@pytest.mark.parametrize(("rule", "changes", "cause"), ROWS)
def test_suspects_follow_own_evidence(rule: str, changes: dict[str, Any], cause: str) -> None:
    made = first(found(rule, **changes))
    assert made.cause == cause
    assert made.certainty is Certainty.LIKELY or cause not in (MACHINE, "benchmark")
    assert cause == MACHINE or len(made.evidence) == 1


def test_counters_prove_before_suspicion() -> None:
    deferred = {"requests_waiting_capacity": gauge(2.0)}
    made = found(curve=CLOSED, prompts=300.0, counters={"preemptions": 36.0}, gauges=deferred)
    proven, suspected = ("prompt lengths", "evictions"), ("queueing", "benchmark")
    assert certainties(made) == [*((name, "certain") for name in proven), *((name, "likely") for name in suspected)]
    assert [first(found(**hits(ratio))).certainty.value for ratio in (0.49, 0.52)] == ["certain", "likely"]
    made = found(counters={"prefix_hit_tokens": 0.52 * 14400, "preemptions": 36.0})
    assert certainties(made) == [("evictions", "certain"), ("prefix hits", "likely")]


def test_unknowable_is_said_beside_suspect() -> None:
    gone = [replace(one, gaps={"adapters_running": Gap.NOT_SCRAPED}) for one in each(5, slow)]
    made = answered(TTFT, context(workload=WORKLOAD), gone)
    assert first(made).against == ("cannot be excluded: adapters, throttling",)
    unknown = "prefix hits, adapters held back, prompt lengths, output lengths, throttling"
    made = answered(TTFT, context(), each(5, lambda n: minute(n, slow=18)))
    assert first(made).against == (f"cannot be excluded: {unknown}",)


def test_slow_minutes_must_show_it() -> None:
    """All preemptions lie in the fast minute: they are many in all, and none where it was slow."""
    for fast, late, certainty in ((180.0, 0.0, "likely"), (36.0, 36.0, "certain")):
        made = [slow(n, {"preemptions": fast if n == 1 else late}, share=0.0 if n == 1 else 0.3) for n in range(5)]
        assert ("evictions", certainty) in certainties(answered(TTFT, context(workload=WORKLOAD), made))
    # Few of all requests are longer, but those of the slow minutes are.
    made = [slow(n, prompts=300.0, share=0.3 if n > 4 else 0.0) for n in range(8)]
    usual = {"prompt_tokens_per_request": seen({80.0: 6000}, LENGTHS)}
    made[:5] = [replace(one, histograms={**one.histograms, **usual}) for one in made[:5]]
    for mean, sure in (({}, "likely"), ({"prompt_tokens_mean": 60.0}, "certain")):
        assert certainties(answered(TTFT, context(*[mean] * 3, workload=WORKLOAD), made))[0] == ("prompt lengths", sure)


def test_slow_minutes_need_no_planned_hits() -> None:
    def turned(number: int, **more: Any) -> Window:
        late = number >= 2
        return slow(number, {"prefix_hit_tokens": 0.0 if late else 13000.0}, share=0.3 if late else 0.0, **more)

    recovered = [turned(0 if n == 3 else 2) for n in range(6)]
    recovered = [replace(one, start=minute(n).start, end=minute(n).end) for n, one in enumerate(recovered)]
    longer = [turned(n, prompts=110.0 if n >= 2 else 80.0) for n in range(6)]
    few_before = each(6, turned)
    few_before[:2] = [replace(one, counters={**one.counters, "requests_finished": 9.0}) for one in few_before[:2]]
    unplanned = context(workload={"prompt_tokens": WORKLOAD["prompt_tokens"]})
    lost = ("fewer prefix hits: 0% in the slow minutes, 90% before",)
    assert first(answered(TTFT, unplanned, each(5, turned))).evidence == lost
    # What was never there before was not lost, nor what other prompts had, nor what nine requests a minute tell.
    for other in (recovered, longer, few_before):
        late = answered(TTFT, unplanned, other)
        assert late.causes
        assert not any("before" in c.evidence[0] for c in late.causes)
    for most, more in ((13.0, ""), (14.0, ", bursts (up to 14 requests at a replica, 3.0 on average)")):
        peak = {"requests_running": replace(gauge(3.0), maximum=most)}
        windows = [replace(window, gauges={**window.gauges, **peak}) for window in each(5, slow)]
        even = first(answered(TTFT, unplanned, windows))
        assert even.cause == "slower machine"
        assert even.against[0] == f"cannot be excluded: prefix hits, output lengths, throttling{more}"


def test_machine_delays_every_token() -> None:
    for waited, token, cause in ((0.02, 0.02, "prefill"), (0.1, 0.02, "queueing"), (0.1, 0.4, MACHINE)):
        parts = {"tpot_seconds": seen({token: 180.0}), "queue_seconds": seen({waited: 180.0}, (0.01, 0.02, 0.1))}
        made = [replace(window, histograms={**window.histograms, **parts}) for window in each(5, slow)]
        assert certainties(answered(TTFT, context(workload=WORKLOAD), made)) == [(cause, "likely")]


def test_only_the_curve_explains_comparison() -> None:
    made = each(8, slow)
    made[7] = replace(slow(7, prompts=300.0), counters={"requests_finished": 600.0})
    assert first(answered(TTFT, context(workload=WORKLOAD), made)).cause == "slower machine"


def test_lengths_and_load_explain_evictions() -> None:
    known, load = context(workload=WORKLOAD), "more load than planned: {} rps arrive at a replica, 6 rps are usable"
    made = answered("KvEviction", known, each(5, lambda n: slow(n, {"preemptions": 60.0}, prompts=300.0)))
    assert [c.cause for c in made.causes] == ["prompt lengths"]
    over = answered("LoadBeyondBenchmark", known, each(5, lambda n: minute(n, rps=7.0)))
    assert first(over).evidence == (load.format(7),)
    evicting = {"counters": {"preemptions": 60.0}}
    arriving = answered("KvEviction", known, each(5, lambda n: minute(n, change=200, **evicting)))
    assert first(arriving).evidence == (load.format(6.33),)
    bare = answered("KvEviction", context(), each(5, lambda n: minute(n, **evicting)))
    assert bare.causes == ()
    assert "suspect" not in bare.sentence
    fine = answered(TTFT, known, each(5, lambda n: slow(n, share=0.0)))
    assert explain.add_causes(fine, context(), ()) is fine
    assert fine.causes == ()


@pytest.mark.parametrize(
    ("name", "rule", "suspects"),
    [
        ("steady", TPOT, ["benchmark"]),
        ("diurnal", TPOT, ["benchmark"]),
        ("prefix", TTFT, ["prefix hits", "prompt lengths", "queueing", "benchmark"]),
        ("routing", TTFT, ["routing", "prefix hits", "prompt lengths", "benchmark"]),
        ("lora", TTFT, ["adapters held back", "adapters", "benchmark"]),
        ("lora", TPOT, ["adapters", "benchmark"]),
        ("specdecode", TPOT, ["speculation", "benchmark"]),
        ("kv_cascade", "KvCacheCascade", ["prompt lengths", "output lengths"]),
        ("kv_cascade", "KvEviction", ["prompt lengths", "output lengths"]),
    ],
)
def test_recordings_name_their_causes(name: str, rule: str, suspects: list[str]) -> None:
    worst = findings(replayed(name, "cpu-small"))[rule].worst
    assert [c.cause for c in worst.causes] == suspects
    assert first(worst)


@pytest.mark.parametrize(
    ("name", "plan", "rule", "cause"),
    [
        *((name, "open", rule, "slower machine") for name in ("steady", "diurnal") for rule in (TTFT, TPOT)),
        *((name, "cached", HITS, "benchmark") for name in ("steady_quiet", "diurnal_quiet")),
    ],
)
def test_recorded_divergence_is_certain(name: str, plan: str, rule: str, cause: str) -> None:
    worst = findings(replayed(name, f"cpu-small-{plan}"))[rule].worst
    assert worst.certainty is Certainty.CERTAIN
    assert first(worst).cause == cause


CACHED = {"prefix_hit_ratio": 0.95}


def against_cached(rule: str, planned: float | None = None, **counters: float) -> Verdict:
    """Five slow minutes with few prefix hits, against a benchmark that found 95 % of its prompts in the cache."""
    workload = {**WORKLOAD, "prefix_hit_ratio": planned} if planned is not None else None
    of = context(CACHED, CACHED, CACHED, workload=workload)
    return answered(rule, of, each(5, lambda n: slow(n, {"prefix_hit_tokens": 1440.0, **counters})))


def test_cached_benchmark_is_first_suspect() -> None:
    text = "benchmark: repeated prompts, 95% of its prompt tokens were cached, the plan names none"
    likely = Cause(cause="benchmark", certainty=Certainty.LIKELY, evidence=(text,))
    assert first(against_cached(HITS)) == likely
    assert first(against_cached(HITS, planned=0.1)).certainty is Certainty.CERTAIN
    assert against_cached(HITS, planned=0.9).causes == ()
    assert [c.cause for c in against_cached(HITS, planned=0.9, preemptions=36.0).causes] == ["evictions"]
    made = against_cached(TTFT)
    assert certainties(made) == [("prefix hits", "certain"), ("benchmark", "likely")]
    assert first(made).evidence == ("fewer prefix hits: 10%, 95% in the benchmark",)


def tier(**more: Any) -> TierContext:
    return context(slo={"ttft_p99_seconds": 0.26, "tpot_p99_seconds": 0.26}, **more)


def late(number: int, queue: float | None = None, prefill: float | None = None, **more: Any) -> Window:
    """A minute with 40 late first tokens; `queue` and `prefill` of all requests took longer than the promise alone."""
    made = minute(number, slow=40, **more)
    parts = {"queue_seconds": queue, "prefill_seconds": prefill}
    known: Mapping[str, Any] = {name: seen({0.4: n, 0.01: 180 - n}) for name, n in parts.items() if n is not None}
    return replace(made, histograms={**made.histograms, **known})


def found_late(by: TierContext | None = None, **parts: Any) -> Verdict:
    return answered(BURN, by or tier(), each(20, lambda n: late(n, **parts)))


def cause(made: Verdict, name: str) -> Cause | None:
    return next((one for one in made.causes if one.cause == name), None)


CERTAIN, LIKELY = Certainty.CERTAIN, Certainty.LIKELY


def deferred(level: float) -> dict[str, Any]:
    return {"queue": 0.0, "prefill": 0.0, "gauges": {"requests_waiting_deferred": gauge(level)}}


LATE: list[tuple[dict[str, Any], str, Certainty | None]] = [
    ({"queue": 38.0, "prefill": 0.0, "waiting": 2.0, "in_system": 5.0}, "queueing", CERTAIN),
    ({"queue": 38.0, "prefill": 0.0, "waiting": 2.0, "in_system": 5.0}, "prefill", None),
    ({"queue": 0.0, "prefill": 30.0}, "prefill", CERTAIN),
    ({"queue": 0.0, "prefill": 30.0}, "queueing", None),
    *(({"queue": 10.0, "prefill": 10.0}, name, LIKELY) for name in ("queueing", "prefill")),
    # Nobody notices a hundredth.
    *(({"queue": 1.9, "prefill": 1.9}, name, None) for name in ("queueing", "prefill")),
    ({"queue": 2.1, "prefill": 0.0}, "queueing", LIKELY),
    # Requests that are held back are compared with the promise.
    (deferred(0.06), "adapters held back", CERTAIN),
    (deferred(0.03), "adapters held back", None),
    # The gauge stands for the histograms.
    ({"waiting": 2.0, "in_system": 5.0}, "queueing", LIKELY),
]


@pytest.mark.parametrize(("parts", "name", "certainty"), LATE)
def test_what_late_first_tokens_waited_for(parts: dict[str, Any], name: str, certainty: Certainty | None) -> None:
    suspect = cause(found_late(**parts), name)
    assert (suspect and suspect.certainty) == certainty


def test_adapters_without_a_plan_are_likely() -> None:
    running, view = level("adapters_running", 1.5), replace(context(), plan=None)
    booked = minutes(view, {"a": each(5, lambda n: slow(n, **running))}).binned
    explained = explain.add_causes(replace(found(TTFT), rule=BURN, causes=()), view, booked)
    assert cause(explained, "adapters").certainty is LIKELY


def test_evidence_reads_as_the_golden() -> None:
    """Of all suspects, what is for and against each."""
    results = [*(found(rule, **changes) for rule, changes, _ in ROWS), *(found_late(**parts) for parts, _, _ in LATE)]
    texts = []
    for made in results:
        texts.append(f"---- {made.rule}")
        texts += [f"{one.cause}, {one.certainty}: {'; '.join((*one.evidence, *one.against))}" for one in made.causes]
    check_golden(__file__, "explain.txt", "\n".join(texts))


def test_exclusions_point_to_machine() -> None:
    excluded = "not queueing: {} spent more than 260 ms in the queue alone, and 600 first tokens came late"
    quick = {"tpot_seconds": seen({0.02: 180.0})}
    machine = cause(found_late(queue=0.0, prefill=0.0, histograms=quick), "slower machine")
    assert excluded.format("0 requests") in " ".join(machine.evidence)
    assert any(text.startswith("not prefill: ") for text in machine.evidence)
    made = each(20, lambda n: late(n, queue=1.0 if n == 19 else 0.0, prefill=0.0))
    told = [text for one in answered(BURN, tier(), made).causes for text in (*one.evidence, *one.against)]
    assert excluded.format("1 request") in " ".join(told)


def test_stepless_engine_is_first_suspect() -> None:
    held = {"requests_held": gauge(7.0)}
    made = answered(BURN, tier(), each(20, lambda n: late(n, gauges=held if n > 10 else {})))
    assert certainties(made)[0] == ("engine stopped", "certain")
    assert "(it holds 7 requests)" in made.causes[0].evidence[0]
    assert cause(found_late(), "engine stopped") is None


NOT_HELD = {f"gpu_throttled_{what}_seconds": 0.0 for what in ("power", "thermal", "hardware")}
NOT_HELD["gpu_throttled_covered_seconds"] = 60.0


def throttled(**seconds: float) -> Verdict:
    """Seconds of each minute for which clocks were held down."""
    counters = NOT_HELD | {f"gpu_throttled_{what}_seconds": value for what, value in seconds.items()}
    return answered(BURN, tier(), each(20, lambda n: late(n, queue=0.0, prefill=0.0, counters=counters)))


HELD = [("thermal", "heat", CERTAIN), ("hardware", "the board", CERTAIN), ("power", "the power limit", LIKELY)]


@pytest.mark.parametrize(("what", "word", "certainty"), HELD)
def test_held_clocks_are_a_cause(what: str, word: str, certainty: Certainty) -> None:
    one, text = cause(throttled(**{what: 12.0}), "throttling"), f"clocks were held down by {word} 20% of the time"
    assert (one.certainty, one.evidence) == (certainty, (f"throttling: {text}",))
    assert cause(throttled(**{what: 2.9}), "throttling") is None


@pytest.mark.parametrize("late_at", ["hot", "b"])
def test_one_throttled_replica_of_six(late_at: str) -> None:
    """Its late requests prove it; the mean of 3 % would exclude it. Late ones of another replica are not its."""
    hot, cool = ({**NOT_HELD, "gpu_throttled_thermal_seconds": seconds} for seconds in (12.0, 0.0))
    made = {name: each(20, lambda n: minute(n, counters=cool)) for name in "bcdef"}
    made["hot"] = each(20, lambda n: minute(n, counters=hot))
    made[late_at] = each(20, lambda n: minute(n, slow=170, counters=made[late_at][0].counters))
    one = cause(answered(BURN, tier(), made), "throttling")
    text = "throttling: clocks were held down by heat 20% of the time at hot"
    assert (one and (one.certainty, one.evidence)) == ((CERTAIN, (text,)) if late_at == "hot" else None)


def test_throttling_precedes_power_limit() -> None:
    assert "by heat 10%" in cause(throttled(power=50.0, thermal=6.0), "throttling").evidence[0]
    machine = cause(throttled(power=1.2), "slower machine")
    assert "not throttling: clocks were held down by the power limit 2% of the time" in machine.evidence
    assert "throttling" in found_late(queue=0.0).causes[0].against[0]


@pytest.mark.parametrize(("factor", "certainty"), [(1.2, CERTAIN), (0.9, None)])
def test_overload_breaks_the_promise(factor: float, certainty: Certainty | None) -> None:
    usable = tier().capacity.rps
    made = answered(BURN, tier(), each(20, lambda n: minute(n, rps=usable * factor, slow=200)))
    one = cause(made, "more load")
    assert (one and one.certainty) == certainty
