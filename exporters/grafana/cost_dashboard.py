"""Dashboard Cost and utilisation: cost and use of the hardware by tier (guide 8.4, 9.2).

Each question of the guide has a section. A new panel is a function here and an entry below.
"""

from __future__ import annotations

from exporters.grafana import gpu_panels, memory_panels, plan_panels
from exporters.grafana import queries as q
from exporters.grafana.queries import ABOUT_TIERS, COST_UID, marks
from exporters.grafana.queries import TIERS as W
from exporters.grafana.records import (
    COUNT,
    MONEY,
    RATIO,
    RED,
    Dashboard,
    Panel,
    Query,
    Section,
    falling_thresholds,
    rising_thresholds,
    signal_unit,
)
from exporters.metrics import names

TIER = "{{cluster}} {{tier}}"
POOL = "{{cluster}} {{tier}} {{pool}}"
GIBIBYTE = 2**30


def _by_gpus(amount: str) -> str:
    """Return an amount of a tier by its running GPUs."""
    return q.divide(amount, q.gpus_up(W), f"on ({', '.join(q.BY_TIER)})")


def _lines(title: str, text: str, unit: str, *queries: tuple[str, str], width: int = 8) -> Panel:
    rows = tuple(Query(expr=expr, legend=legend) for expr, legend in queries)
    return Panel(title=title, description=text, unit=unit, queries=rows, width=width)


def _tokens_per_gpu() -> Panel:
    generated = q.total(W, "generation_tokens", q.BY_TIER)
    return _lines(
        "Generated tokens per second and GPU",
        "Of the GPUs of running replicas, as many as the plan gives each: 3,600 times this are the tokens per GPU-hour, "
        "which must not fall from week to week at like traffic. Holds for the lengths below.",
        signal_unit("generation_tokens_per_second"),
        (_by_gpus(generated), TIER),
        width=12,
    )


def _rps_per_gpu() -> Panel:
    finished = q.aggregate_tier(q.total(W, "requests_finished"))
    shown = (_by_gpus(finished), TIER)
    return _lines("Requests per second and GPU", "Holds for the lengths below.", "reqps", shown, width=12)


def _tokens_per_memory() -> Panel:
    installed = q.aggregate("sum", q.BY_TIER, q.level(W, "gpu_memory_total_bytes"))
    ratio = q.divide(q.total(W, "generation_tokens", q.BY_TIER), f"{installed} / {GIBIBYTE}")
    return _lines(
        "Generated tokens per second and GiB of GPU memory",
        "How much work the memory does that is paid for.",
        signal_unit("generation_tokens_per_second"),
        (ratio, TIER),
    )


def _energy() -> Panel:
    joules = q.total(W, "gpu_energy_joules", q.BY_TIER)
    return _lines(
        "Energy per generated token",
        "From the GPUs' energy counters.",
        "joule",
        (q.divide(joules, q.total(W, "generation_tokens", q.BY_TIER)), TIER),
    )


def _bought() -> Panel:
    finished = q.aggregate_tier(q.total(W, "requests_finished"))
    each = f"3600 * {finished}\n/ on ({', '.join(q.BY_TIER)}) group_right ()\n({q.money_per_hour(W)} > 0)"
    return _lines(
        "Requests for one unit of money",
        "Finished requests by what the running GPUs cost in the same time. Holds for the lengths below.",
        COUNT,
        (each, f"{TIER} {{{{currency}}}}"),
    )


def _latency_for_money() -> Panel:
    worst = q.aggregate_tier(q.quantile(W, 0.99, "ttft_seconds"))
    replica = q.price_of(W, q.metric_by_tier(W, names.PLAN_GPUS))
    return _lines(
        "TTFT P99, times the price of a replica-hour",
        "TTFT per money the other way up: less is better in both. For tiers of one model at like load and lengths.",
        "none",
        (f"{replica}\n* on ({', '.join(q.BY_TIER)}) group_left ()\n({worst})", f"{TIER} {{{{currency}}}}"),
    )


def _idle_money() -> Panel:
    surplus = q.multiply(q.metric_by_tier(W, names.SURPLUS_REPLICAS), q.metric_by_tier(W, names.PLAN_GPUS))
    return _lines(
        "Money per hour for surplus replicas",
        "Ready replicas beyond what the busiest hour of a week and the minimum warm count need, at the plan's price.",
        MONEY,
        (q.price_of(W, surplus), f"{TIER} {{{{currency}}}}"),
    )


def _bound() -> Panel:
    labels = q.BY_POOL
    prefill, decode = (
        q.aggregate("sum", labels, q.histogram_rate(W, f"{phase}_seconds", "sum")) for phase in ("prefill", "decode")
    )
    return _lines(
        "Share of a request's time in prefill",
        "Prefill by prefill and decode, over all requests. High: prompts decide what a replica can take; low: outputs do.",
        RATIO,
        (q.divide(prefill, f"({prefill} + {decode})"), POOL),
    )


def _useless() -> Panel:
    rows = (("failed", "requests_failed"), ("left", "requests_aborted"), ("cut off", "requests_ended_by_length"))
    finished = q.total(W, "requests_finished")
    return _lines(
        "Requests that failed, were left or cut off",
        "As a share of finished requests. Left: aborted, nobody read the answer. Cut off: at the token limit.",
        RATIO,
        *((q.divide(q.total(W, family), finished), f"{word} {POOL}") for word, family in rows),
        width=24,
    )


def _computed() -> Panel:
    ratio = q.divide(q.total(W, "prompt_tokens_computed"), q.total(W, "prompt_tokens"))
    return _lines(
        "Prompt tokens computed",
        "By all prompt tokens: the rest came from a cache; above 1 work is repeated.",
        RATIO,
        (ratio, POOL),
        width=12,
    )


def _lengths(what: str, family: str) -> Panel:
    rows = ((q.quantile(W, at, family), f"P{at * 100:.0f} {POOL} {{{{engine_version}}}}") for at in (0.5, 0.95))
    return _lines(f"{what} length", f"{names.metric(family).text}.", signal_unit("prompt_tokens_p50"), *rows, width=12)


COST = Dashboard(
    uid=COST_UID,
    title="sizewatch: Cost and utilisation",
    description="Is the hardware used, what does money buy, and which lever would be worth most?",
    since="2d",
    variables=ABOUT_TIERS,
    marks=marks(W),
    sections=(
        Section(
            title="Money",
            panels=(plan_panels.money(W), plan_panels.cost(W), _bought(), _latency_for_money(), _idle_money()),
        ),
        Section(
            title="How much of it is used",
            panels=(
                Panel(
                    title="Fleet utilisation",
                    description="The utilization trap is a week below its limit with a KV cache that is not full: half the load, "
                    "twice the cost of a token (guide 9.2). Beyond the upper limit there is no headroom.",
                    unit=RATIO,
                    queries=(Query(expr=q.load(W), legend=TIER),),
                    steps=(
                        *falling_thresholds("UtilizationTrap", "below"),
                        *rising_thresholds(("NoHeadroom", "above", RED))[1:],
                    ),
                    width=12,
                ),
                Panel(
                    title="KV cache in use",
                    description="Mean over the replicas. Below the limit in its fullest hours, memory is paid for and not used.",
                    unit=RATIO,
                    queries=(Query(expr=q.aggregate("avg", q.BY_POOL, q.level(W, "kv_utilization")), legend=POOL),),
                    steps=falling_thresholds("KvCacheUnderused", "below"),
                    top=1.0,
                    width=12,
                ),
                *gpu_panels.all_gpu_panels(W)[:3],
            ),
        ),
        Section(
            title="What the hardware gives",
            panels=(_tokens_per_gpu(), _rps_per_gpu(), _tokens_per_memory(), _energy(), _bound()),
        ),
        Section(
            title="How much of it does useful work",
            panels=(
                _useless(),
                memory_panels.evictions(
                    W,
                    legend=POOL,
                    description="Preemptions per finished request: each is computed a second time.",
                    width=12,
                ),
                _computed(),
            ),
        ),
        Section(
            title="The lengths it all holds for",
            panels=(
                _lengths("Prompt", "prompt_tokens_per_request"),
                _lengths("Output", "generation_tokens_per_request"),
            ),
        ),
    ),
)
