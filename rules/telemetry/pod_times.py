"""When a replica's pod was asked for and what became of it, by its own status. The record only; `rules.replicas.starts` uses it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PodTimes:
    """Unix seconds, as the cluster's clocks tell them, to the second; None where they are not known or not to be believed.

    `asked_at` is when the pod was made, `scheduled_at` when a node was found for it, `container_at` when the engine's
    container of now was started, `ready_at` when the pod was Ready, so that traffic could come. The first two are None once the
    container was restarted in its pod. They and `ready_at` are None unless the pod was seen before it was Ready: a condition
    tells when it last changed, not when it first did, and the process of now need not be the pod's first.
    """

    asked_at: float | None = None
    scheduled_at: float | None = None
    container_at: float | None = None
    ready_at: float | None = None
