"""Actions of the rules about requests that wait, by what makes them wait; actions of the burns."""

from __future__ import annotations

from rules.verdicts.rule import LatencyPattern

SEE_THE_LOAD = "Check first whether it is the load: only load above what replicas take needs more replicas"

ADD_REPLICAS = "Add replicas of this tier, or shed load at the gateway: each further request costs all of them"

KEEP_REPLICAS = "Do not add replicas for it: the load is within what they can take"

SPREAD = "Check that the load is spread evenly over the replicas"

_SEE = "Check the first suspect; a cause with evidence comes before more hardware"

BEYOND_KNEE = (ADD_REPLICAS, SPREAD, "Benchmark up to the load that production reaches")

BEYOND_HELD_UP = (
    KEEP_REPLICAS,
    "Look for what holds requests in the system: a slow machine (clocks, throttling, neighbours), long prompts or outputs",
    SPREAD,
    "If the load itself is above the benchmark's highest, benchmark up to it",
)

BEYOND_SLOWED = (
    BEYOND_HELD_UP[1],
    "Until it is found: shed load at the gateway, or add replicas: requests wait at all of them",
    "Benchmark again with production's lengths if they are not those of the benchmark",
)

BEYOND_EITHER = (
    "Put an operating point into the plan: it separates too much load from requests held up",
    *BEYOND_HELD_UP[1:],
)
"""What to do about requests beyond the benchmark: too many for the replicas, held up in the system, or not known which."""

_QUEUE = (
    ADD_REPLICAS,
    "Shed load at the gateway at the circuit breaker's depth until they are there",
    "If one replica alone queues, look at the routing",
)

_QUEUE_HELD_UP = (*BEYOND_HELD_UP[:2], *_QUEUE[2:])

_QUEUE_EITHER = (*BEYOND_EITHER[:2], "If nothing holds them up: add replicas of this tier", *_QUEUE[1:])


BEYOND_LEVERS = {
    LatencyPattern.KNEE: BEYOND_KNEE,
    LatencyPattern.HELD_UP: BEYOND_HELD_UP,
    LatencyPattern.SLOWED: BEYOND_SLOWED,
    LatencyPattern.EITHER: BEYOND_EITHER,
}
QUEUE_LEVERS = {
    LatencyPattern.KNEE: _QUEUE,
    LatencyPattern.HELD_UP: _QUEUE_HELD_UP,
    LatencyPattern.SLOWED: BEYOND_SLOWED,
    LatencyPattern.EITHER: _QUEUE_EITHER,
}
"""Actions by what makes requests wait. Those of another pattern would cost money or make it worse (guide 9.3)."""

TTFT_BURN_ACTIONS = (
    _SEE,
    "If requests queue: add replicas, or spread the load evenly over those there are",
    "Add replicas of this tier: it is smaller than its traffic",
    "If prefill takes the time: chunked prefill, so that a long prompt does not hold up the short ones",
    "For a large fleet whose TTFT and ITL cannot both be met: prefill and decode on replicas of their own",
)
TPOT_BURN_ACTIONS = (
    _SEE,
    "Chunked prefill with a smaller --max-num-batched-tokens: a prefill step then holds up decoding for less time",
    "For a large fleet: prefill and decode on replicas of their own",
    "Add replicas, or lower the number of requests at once (--max-num-seqs): the decode batch is too large",
    "If a small batch is slow too, use another tier or a quantised model: the GPUs are too weak",
)
E2E_BURN_ACTIONS = (
    _SEE,
    "If first tokens are late: add replicas, or spread the load evenly over those there are",
    "If outputs are longer than planned: limit max_tokens at the gateway, or promise more time",
    "If tokens come slowly: lower the number of requests at once (--max-num-seqs), or add replicas",
)
