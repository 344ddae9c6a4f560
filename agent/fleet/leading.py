"""Which of several agents of one fleet speaks: all of them judge, and one posts alerts and sends reports.

Owns the thread that keeps the lease, and what goes on when a configuration takes the place of another. The election itself is
`agent.kubernetes.lease`'s. An agent that cannot ask the API does not lead: two that post are worse than a minute of silence.
"""

from __future__ import annotations

from dataclasses import replace

from agent.config.store_keys import Lease
from agent.kubernetes.api import KubernetesClient, KubernetesEndpoint, endpoint_from_pod
from agent.kubernetes.lease import REQUEST_SECONDS, Elector, Leadership


class LeaderElection:
    """One agent's part in the election of `keys`, from now until `stop`. Raises ApiTrouble where this is no pod."""

    def __init__(self, keys: Lease, server: KubernetesEndpoint | None = None) -> None:
        self.keys = keys
        found = server or endpoint_from_pod()
        self._api = KubernetesClient(replace(found, timeout_seconds=min(found.timeout_seconds, REQUEST_SECONDS)))
        self._elector = Elector(Leadership(self._api, keys.name, keys.namespace, keys.identity))
        self._elector.start()

    @property
    def leads(self) -> bool:
        """Whether this agent speaks now."""
        return self._elector.leads

    @property
    def trouble(self) -> str:
        """Why the lease could not be asked for last time, in words."""
        return self._elector.trouble

    def stop(self) -> None:
        """Gives the lease back."""
        self._elector.stop()
        self._api.close()
