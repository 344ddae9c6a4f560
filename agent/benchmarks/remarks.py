"""The words for what a reader of a measured point must know, each once.

Owns texts only; which of them a point gets is decided in `agent.benchmarks.points` and, for what one tool alone can
say, in that tool's file. A new remark is a constant here; its placeholders are filled by whoever gives it.
"""

BURST = (
    "{requests} requests were sent as fast as possible: a queue that drains is no load, so its latencies are left out"
)
CENSORED = "the generator sent {sent:.4g} of {asked:.4g} requested rps: the server is at least this bad"
BEHIND = (
    "completed {completed:.4g} of {asked:.4g} requested rps though the generator kept up: a backlog, or a short run"
)
UNTOLD_LIMIT = (
    "completed {completed:.4g} of {asked:.4g} requested rps; whether generator or server was the limit is not told"
)
NO_LOAD = "the file tells neither rate nor concurrency, so neither an open nor a closed loop"
BESIDE_RATES = "one client at a time, the lowest load of a sweep whose others are open loops"
TRACE = "arrivals were {kind}, not a steady rate"
LAST_ONE = "P99 of {requests} requests is that of the slowest"
NEAR_LAST = "P99 of {requests} requests is close to the slowest"
UNBOUNDED = "; the true P99 is above the slowest with a probability of {missed:.0%}, and nothing bounds it"
START_KEPT = "closed loop: TTFT P99 is that of the start burst, {clients:.4g} of {requests} requests"
START_LEFT_OUT = "TTFT is of the {rest} requests after the start burst of {clients:.4g}"
UNSUCCESSFUL = "{failed} of {all} requests did not succeed and are not in the latencies"
CUT_OFF = "{cut_off} of {all} requests were under way at the end and are not in the latencies"
CHUNKED_REMARK = "several tokens came in one chunk, so ITL counts gaps of nearly 0 s: compare TPOT"
CONTRADICTION = "which cannot be"
"""In every sentence about counters of an engine that contradict each other: what they say is left out."""

LOCAL_CLOCK = "the file's date has no time zone and was read as UTC"
ODD_DRAFTS = (
    "acceptance per drafted token is left out: drafts were {drafts:.3g} tokens long on average, no whole number"
)
NO_DRAFT_LENGTH = "acceptance per drafted token is left out: the file does not tell how long the drafts were"
