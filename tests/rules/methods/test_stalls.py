"""Engines and ranks that hold requests and do no work: each kind, and what must stay quiet."""

from dataclasses import dataclass, replace

import pytest
from evaluation_steps import EvaluationSteps
from judging_samples import START, context
from making import cumulative, read
from outcomes import FINE, GUESSED, PAGE_GUESSED, PAGED, WARNED, Wanted
from rule_cases import outcome

from agent.scrape.scrapers import PageReader
from rules.confidence import Certainty
from rules.methods.availability import planned_prefill_seconds
from rules.plan.load_bins import TierContext
from rules.replicas.stalls import NO_STALLS, count_held, step_stalls
from rules.telemetry.signals import Gap
from rules.telemetry.snapshots import Snapshot
from rules.verdicts.verdict import RuleResult, Status, Subject, Verdict


@dataclass(frozen=True, kw_only=True)
class Rank:
    """One data-parallel rank of vLLM: what it holds, and the steps that it has done."""

    running: int = 0
    waiting: int = 0
    deferred: int = 0
    kv: float = 0.0
    steps: int = 1000
    awake: int = 1

    def lines(self, name: int) -> str:
        values = {
            "num_requests_running": self.running,
            "num_requests_waiting": self.waiting,
            'num_requests_waiting_by_reason,reason="capacity"': self.waiting - self.deferred,
            'num_requests_waiting_by_reason,reason="deferred"': self.deferred,
            "kv_cache_usage_perc": self.kv,
            'engine_sleep_state,sleep_state="awake"': self.awake,
            "generation_tokens_total": self.steps * 8,
            "prompt_tokens_total": self.steps,
            "iteration_tokens_total_count": self.steps,
            'request_success_total,finished_reason="stop"': self.steps // 100,
        }
        lines = []
        for key, value in values.items():
            family, _, labels = key.partition(",")
            lines.append(f'vllm:{family}{{engine="{name}",model_name="m",{labels}}} {value}')
        return "\n".join(lines)


READER = PageReader("vllm")


def page(t: float, *ranks: Rank, answers: float = 500, started: float = START - 5000) -> Snapshot:
    """A page of vLLM; counters of its process and of HTTP answers move with the clock or as `answers` tells."""
    text = "\n".join(rank.lines(name) for name, rank in enumerate(ranks))
    text += f"\nprocess_start_time_seconds {started}\nprocess_cpu_seconds_total {t - START + 900}"
    text += f'\nhttp_requests_total{{handler="/v1/completions",method="POST",status="2xx"}} {answers}\n'
    return READER.read(text.encode(), t)


def stalled(steps: EvaluationSteps, replica: str = "a") -> RuleResult:
    return steps.rules["EngineStalled", Subject(tier="t", replica=replica)].result


def follow(
    *pages: Snapshot, view: TierContext | None = None, beside: str = "", steps: EvaluationSteps | None = None
) -> EvaluationSteps:
    """The evaluation of replica a's pages. `beside` is another replica that is up and idle."""
    steps = steps or EvaluationSteps({"t": view or context()})
    for one in pages:
        steps.apply_snapshot("t", "a", one)
        if beside:
            steps.apply_snapshot("t", beside, page(one.t, Rank(steps=5)))
        steps.step(one.t)
    return steps


def served(until: int = 30) -> list[Snapshot]:
    """Pages of an engine that works, up to so many seconds."""
    return [page(START + t, Rank(running=2, steps=1000 + t, kv=0.1)) for t in range(0, until + 1, 10)]


def frozen(seconds: int, *ranks: Rank, begin: int = 40) -> list[Snapshot]:
    return [page(START + t, *ranks) for t in range(begin, begin + seconds + 1, 10)]


def verdict(steps: EvaluationSteps) -> Wanted:
    return outcome(stalled(steps))


def is_stale(steps: EvaluationSteps) -> bool:
    found = steps.rules["TelemetryStale", Subject(tier="t", replica="a")].result
    return isinstance(found, Verdict) and found.status is not Status.OK


DEAD_CORES = [Rank(waiting=3), Rank(waiting=139), Rank(running=4, waiting=9, kv=0.8), Rank(running=1)]


@pytest.mark.parametrize("dead", DEAD_CORES)
def test_dead_core_becomes_certain(dead: Rank) -> None:
    steps = follow(*served(), *frozen(10, dead))
    assert verdict(steps) == GUESSED
    follow(*frozen(20, dead, begin=60), steps=steps)
    follow(*frozen(1800, dead, begin=90), steps=steps)
    assert verdict(steps) == PAGED, "nobody else answers"
    found = stalled(steps)
    assert f"it holds {dead.running} running and {dead.waiting} waiting requests" in found.sentence
    assert not any("shed" in action for action in found.actions)


@pytest.mark.parametrize("dead", [Rank(waiting=14), Rank(running=5, kv=0.4)])
def test_frozen_rank_is_named(dead: Rank) -> None:
    times = range(0, 200, 10)
    pages = [page(START + t, Rank(running=3, kv=0.2, steps=2000 + t), dead, answers=20 + t // 100) for t in times]
    steps = follow(*pages)
    assert verdict(steps) == WARNED
    assert stalled(steps).sentence.startswith("Rank 1 of 2 ranks has not stepped for 3 min")
    both = [page(START + 200 + t, Rank(running=3, steps=2190), dead, answers=21) for t in range(0, 100, 10)]
    assert verdict(follow(*both, steps=steps)) == PAGED


def test_stepping_engine_ends_it() -> None:
    dead = Rank(running=2, waiting=3, kv=0.3)
    steps = follow(*served(), *frozen(40, dead, begin=40), page(START + 90, Rank(running=2, steps=2000)))
    assert verdict(steps) == FINE
    slow = replace(dead, steps=2000)
    for begin, wanted in ((100, PAGE_GUESSED), (210, PAGE_GUESSED), (320, PAGED)):
        assert verdict(follow(*frozen(100, slow, begin=begin), steps=steps)) == wanted


def test_three_good_pages_are_needed() -> None:
    dead = Rank(waiting=14)
    steps = follow(*served(), page(START + 31, dead), page(START + 131, dead))
    assert verdict(steps) == PAGE_GUESSED
    assert verdict(follow(page(START + 141, dead), steps=steps)) == PAGED


def test_waiting_in_dead_rank_is_late() -> None:
    track, before = NO_STALLS, page(START, Rank(steps=1000), Rank())
    for t in range(10, 100, 10):
        one = page(START + t, Rank(running=2, steps=1000 + t), Rank(running=3, waiting=5, deferred=4))
        track, before = step_stalls(track, before, one), one
    assert count_held(track, before) == (5.0, 4.0), "four may wait for KV, and are not lost"


@pytest.mark.parametrize("cold_start", [None, 400.0])
def test_loading_engine_is_quiet(cold_start: float | None) -> None:
    view = context(cold_start_seconds=cold_start)
    new = [page(START + t, Rank(running=1, waiting=6, steps=0), started=START - 40) for t in range(0, 500, 10)]
    allowed = (cold_start or 300.0) - 40
    early = [one for one in new if one.t < START + allowed]
    steps = follow(*early, view=view)
    assert verdict(steps) is Gap.NO_TRAFFIC
    assert not is_stale(steps)
    assert verdict(follow(*new[len(early) :], steps=steps)) == PAGED
    assert is_stale(steps)


def test_decode_waiting_for_kv_is_quiet() -> None:
    view = replace(context(), pools={"a": "decode"})
    waits = Rank(waiting=20, deferred=20)
    for quiet in (waits, Rank(kv=0.7)):
        steps = follow(*served(), *frozen(900, quiet), view=view)
        assert not is_stale(steps), "KV is preallocated for requests that come"
    assert verdict(follow(*served(), *frozen(900, waits), view=view)) is Gap.NO_TRAFFIC
    for dead in (Rank(waiting=20), Rank(running=3, waiting=20, deferred=20)):
        steps = follow(*served(), *frozen(900, dead), view=view)
        assert verdict(steps) == PAGED, "it waits for room, or runs"
        assert is_stale(steps)


def reduced(one: Snapshot) -> Snapshot:
    """A page that does not count the steps."""
    return replace(one, counters={name: n for name, n in one.counters.items() if name != "engine_steps"})


def counting(one: Snapshot, **counters: float) -> Snapshot:
    return replace(one, counters={**one.counters, **counters})


def answering(dead: Rank, answers: float, begin: int = 40, end: int = 600) -> list[Snapshot]:
    return [page(START + t, dead, answers=answers) for t in range(begin, end, 10)]


def sglang(running: int, waiting: int) -> list[Snapshot]:
    """SGLang before it counted its passes keeps "1 running" after its last request."""
    levels = {"num_running_reqs": running, "num_queue_reqs": waiting, "token_usage": 0.1}
    counts = {"generation_tokens_total": 900, "num_requests_total": 30, "prompt_tokens_total": 5}
    times = {'inter_token_latency_seconds_bucket{le="+Inf"}': 800, "inter_token_latency_seconds_count": 800}
    text = "".join(f"sglang:{name} {value}\n" for name, value in {**levels, **counts, **times}.items())
    return [read(text, START + t, "sglang") for t in range(0, 900, 10)]


DEAD, QUEUE, HELD = Rank(running=3), Rank(waiting=14), Rank(running=4, kv=0.9)
GROWING = [page(START + 40 + t, Rank(waiting=3 + t // 10)) for t in range(0, 200, 10)]
IDLE_RANK = [page(START + t, Rank(running=3, steps=2000 + t), Rank(kv=0.1)) for t in range(0, 200, 10)]
RESTARTED = [page(START + t, Rank(steps=t), started=START + 165) for t in (170, 180)]
UNCOUNTED = [reduced(one) for one in (*served(), *frozen(600, DEAD))]
WORKING = [reduced(page(START + t, Rank(running=3, steps=1000 + t))) for t in range(40, 600, 10)]
PAUSES = {"requests_paused": 3.0}
PAUSED = [replace(one, gauges={**one.gauges, **PAUSES}) for one in frozen(600, Rank(running=3, waiting=6))]
ASLEEP = [*served(), *frozen(600, Rank(waiting=6, awake=0))]
BEFORE = page(START + 35, HELD)
TIMEOUTS = [page(START + t, HELD, answers=504 + t // 10) for t in range(600, 700, 10)]
ANSWERED = {"requests_arrived": 80.0, "http_requests_ok": 79.0, "http_requests_refused": 1.0}
ALL_ANSWERED = [counting(one, **ANSWERED) for one in frozen(600, Rank(running=1, kv=0.1))]

ROWS = [
    ([*served(), *GROWING], "", PAGED),
    ([*served(), *frozen(120, QUEUE)], "b", WARNED),
    # A rank without requests may be idle, as an engine may be, or sleep, or pause.
    (IDLE_RANK, "", FINE),
    ([*served(), *frozen(600, Rank(kv=0.2))], "", FINE),
    (ASLEEP, "", FINE),
    ([*served(), *PAUSED], "", FINE),
    # A restart begins anew.
    ([*served(), *frozen(120, QUEUE), *RESTARTED], "", FINE),
    # A page that does not count steps counts tokens.
    (UNCOUNTED, "", PAGED),
    ([replace(one, engine="tgi") for one in UNCOUNTED], "", Gap.NOT_EXPOSED),
    ([*UNCOUNTED[:4], *WORKING], "", FINE),
    # vLLM issue 29928: as many answers ended as requests were there.
    ([*served(), *answering(HELD, 504)], "", PAGE_GUESSED),
    ([*served(), BEFORE, *answering(HELD, 504)], "", PAGE_GUESSED),
    # Two of four still wait.
    ([*served(), BEFORE, *answering(HELD, 502)], "", PAGED),
    # New requests end without a step.
    ([*served(), *answering(HELD, 504), *TIMEOUTS], "", PAGED),
    (sglang(1, 0), "", Gap.NOT_EXPOSED),
    (sglang(1, 3), "", PAGED),
    (sglang(0, 3), "", PAGED),
    # SGLang refreshes its gauges every 30 s when it is idle.
    (ALL_ANSWERED, "", FINE),
    ([counting(one, http_requests_ok=70.0) for one in ALL_ANSWERED], "", PAGED),
]


@pytest.mark.parametrize(("pages", "beside", "wanted"), ROWS)
def test_engine_that_holds_requests(pages: list[Snapshot], beside: str, wanted: Wanted) -> None:
    assert verdict(follow(*pages, beside=beside)) == wanted


def test_silent_neighbour_serves_nobody() -> None:
    assert not is_stale(follow(*ASLEEP)), "a sleeping engine keeps its gauges until it wakes up"
    steps = EvaluationSteps({"t": context()})
    for one in (*served(), *frozen(120, QUEUE)):
        steps.apply_failed_scrape("t", "b", one.t)
        follow(one, steps=steps)
    assert verdict(steps) == PAGED


def test_planned_prefill_may_pass() -> None:
    long = {"prompt_tokens": {"p50": 4000, "p95": 60_000, "p99": 100_000}}
    alone = {"ttft_p50_seconds": 6.0, "ttft_p99_seconds": 9.0, "prompt_tokens_mean": 4000.0}
    view, busy = context(alone, workload=long), Rank(running=1, waiting=2, kv=0.5)
    assert planned_prefill_seconds(view.plan) == 150.0
    steps = follow(*served(), *frozen(100, busy), view=view)
    assert verdict(steps) == FINE
    assert verdict(follow(*frozen(100, busy, begin=150), steps=steps))[1] is Certainty.CERTAIN


def missed(steps: EvaluationSteps, rule: str) -> float | None:
    """The share of requests that broke the promise of a rule."""
    found = steps.rules[rule, Subject(tier="t")].result
    return found.observed.value


def counted(t: int, *ranks: Rank, started: float = START - 5000) -> Snapshot:
    """A page whose finished requests and first tokens follow the steps of all ranks."""
    one = page(START + t, *ranks, started=started)
    done = float(sum(rank.steps for rank in ranks))
    ttft = {"ttft_seconds": cumulative([0.1] * round(done))}
    counts = {"requests_finished": done, "requests_failed": 0.0, "http_requests_ok": done}
    return replace(one, counters={**one.counters, **counts}, histograms=ttft)


def test_stalled_requests_break_promises() -> None:
    dead = Rank(running=2, waiting=4)
    pages = [counted(t, Rank(running=3, steps=t), dead) for t in range(0, 600, 10)]
    steps = follow(*pages)
    assert missed(steps, "TtftSloBurn") == pytest.approx(4 / 540, rel=0.2)
    assert missed(steps, "AvailabilityBurn") == pytest.approx(6 / 540, rel=0.2)
    again = [counted(t, Rank(running=3, steps=t), Rank(), started=START + 590) for t in range(610, 900, 10)]
    follow(*again, steps=steps)
    assert missed(steps, "AvailabilityBurn") == pytest.approx(6 / 840, rel=0.2)
    for idle in (Rank(kv=0.3), Rank(waiting=9, deferred=9)):
        steps = follow(*(counted(t, Rank(running=3, steps=t), idle) for t in range(0, 600, 10)))
        assert missed(steps, "AvailabilityBurn") == 0, "an engine that works breaks no promise"
