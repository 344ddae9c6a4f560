from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from judging_samples import context, each, gauge, minute, seen, verdict
from recorded import findings, replayed

from rules.causes import explain
from rules.confidence import Certainty
from rules.telemetry.signals import Gap
from rules.telemetry.windows import Window
from rules.verdicts.verdict import Cause, Status, Verdict

TTFT, TPOT = "TtftDivergence", "TpotDivergence"
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
    latencies = {
        family: seen({0.4: 180 * share, 0.08: 180 * (1 - share)}) for family in ("ttft_seconds", "tpot_seconds")
    }
    return minute(
        number,
        counters={"prefix_queried_tokens": 14400.0, "prefix_hit_tokens": 8640.0, **(counters or {})},
        gauges={"requests_waiting_capacity": gauge(0.0), "requests_waiting_deferred": gauge(0.0), **(gauges or {})},
        histograms={
            **latencies,
            "prompt_tokens_per_request": seen({prompts: 180}, LENGTHS),
            "generation_tokens_per_request": seen({outputs: 180}, LENGTHS),
        },
    )


def found(
    rule: str = TTFT,
    curve: Mapping[str, Any] | None = None,
    requests: int = 600,
    plan: Mapping[str, Any] | None = None,
    **changes: Any,
) -> Verdict:
    parts = {"workload": WORKLOAD, "lora": None, **(plan or {})}
    made = verdict(
        rule,
        context(requests=requests, curve=curve, **{k: v for k, v in parts.items() if v}),
        each(5, lambda n: slow(n, **changes)),
    )
    assert made.status is Status.WARNING
    return made


def first(made: Verdict) -> Cause:
    suspect = made.causes[0].evidence[0]
    assert suspect not in made.sentence
    assert made.sentence_with_suspect() == f"{made.sentence}. First suspect: {suspect}"
    return made.causes[0]


@pytest.mark.parametrize(
    ("mean", "cause", "text"),
    [
        (40.0, "prompt lengths", "prompts are longer than planned: mean 80 tokens, 40 benchmarked"),
        (70.0, "slower machine", "not prompt lengths: mean 80 tokens, 70 benchmarked"),
    ],
)
def test_benchmark_lengths_stand_for_planned(mean: float, cause: str, text: str) -> None:
    measured = [{"prompt_tokens_mean": mean}] * 3
    made = verdict(TTFT, context(*measured, workload={"prefix_hit_ratio": 0.6}), each(5, slow))
    assert first(made).cause == cause
    assert text in first(made).evidence


def test_what_nothing_explains_is_the_machine() -> None:
    made = found()
    cause = first(made)
    assert (cause.cause, cause.certainty) == ("slower machine", Certainty.LIKELY)
    assert cause.against == ("cannot be excluded: throttling",)
    assert cause.evidence[0].startswith(
        "the machine is slower than the benchmarked one (neighbours, clocks): load, queue, "
    )
    assert cause.evidence[1:] == (
        "not prefix hits: 60% where the plan has 60%",
        "not adapters held back: requests wait 0 s each for adapter slots or KV loads",
        "not prompt lengths: P95 50 to 100 tokens, 100 planned",
        "not output lengths: P95 0 to 50 tokens, 60 planned",
        "not adapters: none are served",
        "not speculation: it does not run",
        "not evictions: 0 preemptions for 900 finished requests (0.0%) in 5 min",
        "not queueing: 0 requests waiting a replica on average",
        "not benchmark: an open-loop sweep with 600 to 600 requests a point; a P99 needs open arrivals and 300 requests",
    )


MACHINE, SPECULATION = "slower machine", "speculation"
CLOSED, DRAFTING = {"loop": "closed"}, {"speculation": {"draft_tokens": 4, "acceptance": 0.75}}


def hits(ratio: float) -> dict[str, Any]:
    return {"counters": {"prefix_hit_tokens": ratio * 14400}}


def level(family: str, mean: float) -> dict[str, Any]:
    return {"gauges": {family: gauge(mean)}}


def drafts(rounds: float, accepted: float, planned: bool = True) -> dict[str, Any]:
    counted = {"spec_drafts": rounds, "spec_draft_tokens": 4 * rounds, "spec_accepted_tokens": accepted}
    return {"counters": counted, "plan": DRAFTING if planned else {}}


@pytest.mark.parametrize(
    ("rule", "changes", "cause", "text"),
    [
        (TTFT, {"prompts": 110.0}, MACHINE, ""),  # the bucket begins at 100, not above 1.2 x 100
        (TTFT, {"prompts": 150.0}, MACHINE, ""),  # it begins at 120: just not
        (TTFT, {"prompts": 300.0}, "prompt lengths", "longer than planned: P95 above 200 tokens, 100 planned"),
        (TPOT, {"outputs": 110.0}, "output lengths", "longer than planned: P95 100 to 120 tokens, 60 planned"),
        (TTFT, hits(0.49), "prefix hits", "fewer prefix hits: 49% where the plan has 60%"),
        (TTFT, hits(0.52), "prefix hits", "52%"),
        (TTFT, hits(0.56), MACHINE, ""),
        (TTFT, {"counters": {"preemptions": 10.0}}, "evictions", "50 preemptions for 900 finished requests (5.6%)"),
        (TTFT, {"counters": {"preemptions": 9.0}}, MACHINE, ""),
        (TTFT, level("requests_waiting_deferred", 0.3), "adapters held back", "100 ms each for adapter slots"),
        (TTFT, level("requests_waiting_deferred", 0.015), MACHINE, ""),
        (TPOT, level("requests_waiting_deferred", 0.3), MACHINE, ""),
        (TPOT, level("adapters_running", 1.5), "adapters", "1.5 LoRA adapters are served at a time"),
        (TPOT, level("adapters_running", 0.0), MACHINE, ""),
        (TPOT, {**level("adapters_running", 1.5), "plan": {"lora": {"max_adapters": 4}}}, MACHINE, ""),
        (TTFT, level("requests_waiting_capacity", 0.6), "queueing", "queueing: 0.6 requests waiting a replica"),
        (TPOT, level("requests_waiting_capacity", 0.6), MACHINE, ""),
        (TPOT, drafts(100.0, 40.0, planned=False), SPECULATION, "drafted tokens are accepted, the plan has none"),
        (TPOT, drafts(100.0, 210.0), MACHINE, ""),
        (TPOT, drafts(100.0, 100.0), SPECULATION, "52% of drafted tokens are accepted, 75% planned"),
        (TPOT, drafts(0.0, 0.0), SPECULATION, "it does not run, the plan has it"),
        (TTFT, {"curve": CLOSED, "requests": 192}, "benchmark", "a closed-loop sweep with 192 to 192 requests a point"),
        (TTFT, {"curve": CLOSED}, "benchmark", "a closed-loop sweep with 600 to 600 requests a point; a P99"),
        (TTFT, {"requests": 299}, "benchmark", "an open-loop sweep with 299 to 299 requests a point; a P99 needs open"),
        (TTFT, {"requests": 300}, MACHINE, ""),
    ],
)
def test_suspects_follow_own_evidence(rule: str, changes: dict[str, Any], cause: str, text: str) -> None:
    made = first(found(rule, **changes))
    assert made.cause == cause
    assert text in made.evidence[0]
    assert made.certainty is Certainty.LIKELY or cause not in (MACHINE, "benchmark")
    assert cause == MACHINE or len(made.evidence) == 1


def test_small_hit_loss_is_likely() -> None:
    assert [first(found(**hits(ratio))).certainty.value for ratio in (0.49, 0.52)] == ["certain", "likely"]


def test_counters_prove_before_suspicion() -> None:
    made = found(
        curve={"loop": "closed"},
        prompts=300.0,
        counters={"preemptions": 36.0},
        gauges={"requests_waiting_capacity": gauge(2.0)},
    )
    assert [(c.cause, c.certainty.value) for c in made.causes] == [
        ("prompt lengths", "certain"),
        ("evictions", "certain"),
        ("queueing", "likely"),
        ("benchmark", "likely"),
    ]


def test_unscraped_gauge_excludes_nothing() -> None:
    gone = [replace(one, gaps={"adapters_running": Gap.NOT_SCRAPED}) for one in each(5, slow)]
    made = verdict(TTFT, context(workload=WORKLOAD), gone)
    assert first(made).against == ("cannot be excluded: adapters, throttling",)


def test_slow_minutes_must_show_it() -> None:
    """All preemptions lie in the fast minute: they are many in all, and none where it was slow."""

    def evicting(number: int) -> Window:
        fast = number == 1
        return slow(number, {"preemptions": 180.0 if fast else 0.0}, share=0.0 if fast else 0.3)

    def everywhere(number: int) -> Window:
        return slow(number, {"preemptions": 36.0}, share=0.0 if number == 1 else 0.3)

    for made, certainty in ((evicting, Certainty.LIKELY), (everywhere, Certainty.CERTAIN)):
        causes_ = {c.cause: c.certainty for c in verdict(TTFT, context(workload=WORKLOAD), each(5, made)).causes}
        assert causes_["evictions"] is certainty


def test_suspicion_follows_proof() -> None:
    made = found(counters={"prefix_hit_tokens": 0.52 * 14400, "preemptions": 36.0})
    assert [(c.cause, c.certainty.value) for c in made.causes] == [("evictions", "certain"), ("prefix hits", "likely")]


def test_slow_minutes_need_no_planned_hits() -> None:
    def turned(number: int, **more: Any) -> Window:
        late = number >= 2
        return slow(number, {"prefix_hit_tokens": 0.0 if late else 13000.0}, share=0.3 if late else 0.0, **more)

    def recovered(number: int) -> Window:
        fast = number == 3
        return slow(number, {"prefix_hit_tokens": 13000.0 if fast else 0.0}, share=0.0 if fast else 0.3)

    def longer(number: int) -> Window:
        return turned(number, prompts=110.0 if number >= 2 else 80.0)

    def few_before(number: int) -> Window:
        made = turned(number)
        return made if number >= 2 else replace(made, counters={**made.counters, "requests_finished": 9.0})

    unplanned = context(workload={"prompt_tokens": WORKLOAD["prompt_tokens"]})
    made = verdict(TTFT, unplanned, each(5, turned))
    assert first(made).evidence == ("fewer prefix hits: 0% in the slow minutes, 90% before",)
    # What was never there before was not lost, nor what other prompts had, nor what nine requests a minute tell.
    for other in (recovered, longer, few_before):
        late = verdict(TTFT, unplanned, each(6, other))
        assert late.causes
        assert not any("before" in c.evidence[0] for c in late.causes)
    even = verdict(TTFT, unplanned, each(5, slow))
    assert first(even).cause == "slower machine"
    assert first(even).against == ("cannot be excluded: prefix hits, output lengths, throttling",)


def test_unknowable_is_said_beside_suspect() -> None:
    made = verdict(TTFT, context(), each(5, lambda n: minute(n, slow=18)))
    assert first(made).against == (
        "cannot be excluded: prefix hits, adapters held back, prompt lengths, output lengths, throttling",
    )


def test_only_the_curve_explains_comparison() -> None:
    made = each(
        8, lambda n: slow(n) if n < 7 else replace(slow(n, prompts=300.0), counters={"requests_finished": 600.0})
    )
    assert first(verdict(TTFT, context(workload=WORKLOAD), made)).cause == "slower machine"


def test_lengths_and_load_explain_evictions() -> None:
    made = verdict(
        "KvEviction", context(workload=WORKLOAD), each(5, lambda n: slow(n, {"preemptions": 60.0}, prompts=300.0))
    )
    assert [c.cause for c in made.causes] == ["prompt lengths"]
    over = verdict("LoadBeyondBenchmark", context(workload=WORKLOAD), each(5, lambda n: minute(n, rps=7.0)))
    assert first(over).evidence == ("more load than planned: 7 rps arrive at a replica, 6 rps are usable",)
    bare = verdict("KvEviction", context(), each(5, lambda n: minute(n, counters={"preemptions": 60.0})))
    assert bare.causes == ()
    assert "suspect" not in bare.sentence


def test_arrivals_count_as_load() -> None:
    made = verdict(
        "KvEviction",
        context(workload=WORKLOAD),
        each(5, lambda n: minute(n, change=200, counters={"preemptions": 60.0})),
    )
    assert first(made).evidence == ("more load than planned: 6.33 rps arrive at a replica, 6 rps are usable",)


def test_what_does_not_fire_is_not_explained() -> None:
    fine = verdict(TTFT, context(workload=WORKLOAD), each(5, lambda n: slow(n, share=0.0)))
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


@pytest.mark.parametrize("name", ["steady", "diurnal"])
def test_open_loop_divergence_is_certain(name: str) -> None:
    for rule in (TTFT, TPOT):
        worst = findings(replayed(name, "cpu-small-open"))[rule].worst
        assert worst.certainty is Certainty.CERTAIN
        assert first(worst).cause == "slower machine"


CACHED = {"prefix_hit_ratio": 0.95}
HITS = "PrefixHitDivergence"


def against_cached(rule: str, planned: float | None = None, **counters: float) -> Verdict:
    """Five slow minutes with few prefix hits, against a benchmark that found 95 % of its prompts in the cache."""
    workload = {**WORKLOAD, "prefix_hit_ratio": planned} if planned is not None else None
    of = context(CACHED, CACHED, CACHED, workload=workload)
    return verdict(rule, of, each(5, lambda n: slow(n, {"prefix_hit_tokens": 1440.0, **counters})))


def test_cached_benchmark_is_first_suspect() -> None:
    made = against_cached(HITS)
    assert first(made) == Cause(
        cause="benchmark",
        certainty=Certainty.LIKELY,
        evidence=("benchmark: repeated prompts, 95% of its prompt tokens were cached, the plan names none",),
    )


def test_planned_hits_decide_the_benchmark() -> None:
    assert first(against_cached(HITS, planned=0.1)).certainty is Certainty.CERTAIN
    assert against_cached(HITS, planned=0.9).causes == ()
    assert [c.cause for c in against_cached(HITS, planned=0.9, preemptions=36.0).causes] == ["evictions"]


def test_lost_hits_name_both() -> None:
    made = against_cached(TTFT)
    assert [(c.cause, c.certainty.value) for c in made.causes] == [("prefix hits", "certain"), ("benchmark", "likely")]
    assert first(made).evidence == ("fewer prefix hits: 10% where the benchmark had 95%",)


@pytest.mark.parametrize("name", ["steady_quiet", "diurnal_quiet"])
def test_cached_sweep_is_first_suspect(name: str) -> None:
    worst = findings(replayed(name, "cpu-small-cached"))[HITS].worst
    assert worst.certainty is Certainty.CERTAIN
    assert first(worst).cause == "benchmark"
