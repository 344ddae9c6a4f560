"""Answers of /healthz and /readyz, from a few facts about the cycles. They need neither a worker nor the status."""

from __future__ import annotations

from agent.http_server.reply import Reply, text_reply
from rules.light_dataclass import light_dataclass

MOST_FAILED_TURNS = 3
"""Failed turns in a row that make an agent ill: one may be an accident, and the next comes after an interval."""

NOT_YET = text_reply("503 Service Unavailable", "the first turn has not succeeded yet")


@light_dataclass(frozen=True, slots=True, kw_only=True)
class TurnProgress:
    """Progress of the cycles. `seconds_since_turn` counts from the end of the last one that succeeded, None before the
    first. `failed_in_row` cycles have failed since."""

    seconds_since_turn: float | None = None
    failed_in_row: int = 0


def health_reply(progress: TurnProgress, up_seconds: float, stuck_after_seconds: float) -> Reply:
    """Return 503 when cycles have stopped or fail, or when none has succeeded in time since the start."""
    since = progress.seconds_since_turn
    ill = ""
    if progress.failed_in_row >= MOST_FAILED_TURNS:
        ill = f"the last {progress.failed_in_row} turns failed, the agent's log says why"
    elif since is None:
        if up_seconds > stuck_after_seconds:
            ill = f"no turn has succeeded in the {up_seconds:.0f} s since the start"
    elif since > stuck_after_seconds:
        ill = f"the last turn ended {since:.0f} s ago"
    return text_reply("503 Service Unavailable", ill) if ill else text_reply("200 OK", "ok")


def ready_reply(progress: TurnProgress, up_seconds: float, stuck_after_seconds: float) -> Reply:
    """Return 200 after a cycle that succeeded, until /healthz is 503."""
    if progress.seconds_since_turn is None:
        return NOT_YET
    reply = health_reply(progress, up_seconds, stuck_after_seconds)
    return text_reply("200 OK", "ready") if reply.status == "200 OK" else reply
