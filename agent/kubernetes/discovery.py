"""Discovery of targets among the pods of a node, and the reasons of excluded pods.

A replica is called as its pod, `namespace/name`: two pods of one name are two replicas.

A pod can lead a scrape only to its own address: the host is its podIP, the path is bounded, redirects are not followed
and no credentials are sent.
"""

from __future__ import annotations

import ipaddress
import re
from collections import defaultdict
from collections.abc import Container, Iterable, Iterator
from dataclasses import dataclass

from agent.config.discovery import Kubernetes
from agent.config.values import unknown_key_text
from agent.kubernetes.pod_tier import AmbiguousTierError, TierCandidates, is_trusted, tier_of
from agent.kubernetes.pods import LWS, Pod, Port
from rules.engines.registry import ENGINES

DEFAULT_PATH = "/metrics"

MOST_TARGETS = 64
"""Maximum pods that are watched: an engine on each of seven instances of 8 GPUs, and some more. 112 took more than 128 MiB."""

POOLS = ("mixed", "prefill", "decode")
SCHEMES = ("http", "https")

_PATH = re.compile(r"/(?!/)[A-Za-z0-9._~!$&'()*+,;=:/%-]{0,199}")
"""Path of RFC 3986 without query. Two slashes at the start would be a host."""

METADATA_SERVICES = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)
"""Metadata services outside the link-local range: AWS by IPv6, Alibaba Cloud, Azure's wire server, Oracle Cloud."""

LEAST_RANK = 2
"""Rank of a pod that may be anybody's."""

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredReplica:
    """Pod with a target."""

    pod: Pod
    tier: str
    pool: str
    engine: str | None
    url: str

    @property
    def key(self) -> Key:
        return self.tier, self.pod.place


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Pod whose GPUs belong to the replica of its leader."""

    pod: Pod
    tier: str
    pool: str
    leader: str

    @property
    def key(self) -> Key:
        return self.tier, f"{self.pod.namespace}/{self.leader}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedPod:
    """Candidate without a target. `later`: it may become one. `url` is set if its page may help."""

    pod: Pod
    reason: str
    later: bool = False
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryResult:
    targets: tuple[DiscoveredReplica, ...] = ()
    workers: tuple[Worker, ...] = ()
    left_out: tuple[ExcludedPod, ...] = ()


def _is_candidate(pod: Pod, keys: Kubernetes) -> bool:
    """Return whether a pod is an engine's. A port counts only with a GPU: every exporter has a port called metrics."""
    if pod.own.get("scrape") == "true" or keys.selector is not None:
        return True
    return pod.wants_gpu and (_worker_index(pod) is not None or _listed(pod, keys) is not None)


def pod_rank(pod: Pod, keys: Kubernetes, known: TierCandidates) -> int:
    """Return how much a pod matters if there are too many: 0 for a GPU, 1 for a namespace that the operator names."""
    if pod.is_finished or not _is_candidate(pod, keys) or not is_trusted(pod, known):
        return LEAST_RANK
    return 0 if pod.wants_gpu else 1


def discover(
    pods: Iterable[Pod],
    keys: Kubernetes,
    known: TierCandidates,
    taken: Container[Key] = (),
    incumbents: Container[str] = (),
) -> DiscoveryResult:
    """Return the targets, workers and excluded pods. `taken` are the targets of the configuration file.

    Of too many pods the present targets stay (`incumbents` are their uids), then pods with a GPU, then older ones.
    """
    targets: dict[Key, DiscoveredReplica] = {}
    workers: list[Worker] = []
    left_out: list[ExcludedPod] = []
    for pod in sorted(
        pods,
        key=lambda one: (
            *(one.ending, one.uid not in incumbents, pod_rank(one, keys, known)),
            *(one.created_at, one.namespace, one.name),
        ),
    ):
        if pod.is_finished or not _is_candidate(pod, keys) or pod.own.get("scrape") == "false":
            continue
        url = ""
        try:
            if _worker_index(pod) not in (None, "0"):
                workers.append(_worker(pod, known))
                continue
            url = _url(pod, keys)
            found = _found(pod, url, known)
            _check_free(found, targets, taken)
            targets[found.key] = found
        except AmbiguousTierError as error:
            left_out.append(ExcludedPod(pod=pod, reason=error.reason, later=error.later, url=url))
    return DiscoveryResult(targets=tuple(targets.values()), workers=tuple(workers), left_out=tuple(left_out))


def _found(pod: Pod, url: str, known: TierCandidates) -> DiscoveredReplica:
    tier = tier_of(pod, known)
    return DiscoveredReplica(pod=pod, tier=tier, pool=_pool(pod, tier, known), engine=_engine(pod), url=url)


def _check_free(found: DiscoveredReplica, targets: dict[Key, DiscoveredReplica], taken: Container[Key]) -> None:
    if found.key in taken:
        raise AmbiguousTierError(
            f"is replica {found.key[1]} of tier {found.tier}, which is a target of the configuration too"
        )
    if found.key in targets:
        raise AmbiguousTierError("has the name of a pod that is watched still")
    if len(targets) >= MOST_TARGETS:
        raise AmbiguousTierError(f"is one too many: at most {MOST_TARGETS} pods of a node are watched")


def _worker_index(pod: Pod) -> str | None:
    return pod.labels.get(f"{LWS}worker-index") if f"{LWS}name" in pod.labels else None


def _worker(pod: Pod, known: TierCandidates) -> Worker:
    """Return a worker. The controller names the leader's pod by set and group."""
    leader = pod.leader or f"{pod.labels[f'{LWS}name']}-{pod.labels.get(f'{LWS}group-index', '')}"
    if leader.endswith("-"):
        raise AmbiguousTierError("is part of a LeaderWorkerSet and does not say of which group (label group-index)")
    tier = tier_of(pod, known, has_page=False)
    return Worker(pod=pod, tier=tier, pool=_pool(pod, tier, known), leader=leader)


def _url(pod: Pod, keys: Kubernetes) -> str:
    if not pod.address:
        why = f" ({pod.waiting})" if pod.waiting else ""
        raise AmbiguousTierError(f"has no address yet{why}", later=True)
    port = _port(pod, keys)
    path, scheme = pod.own.get("path", DEFAULT_PATH), pod.own.get("scheme", "http")
    if not _PATH.fullmatch(path):
        raise AmbiguousTierError(
            "its sizewatch.io/path is no path (it begins with one / and has at most 200 plain characters)"
        )
    if scheme not in SCHEMES:
        raise AmbiguousTierError("its sizewatch.io/scheme must be http or https")
    return f"{scheme}://{_host(pod)}:{port}{path}"


def _host(pod: Pod) -> str:
    try:
        address = ipaddress.ip_address(pod.address)
    except ValueError:
        raise AmbiguousTierError("its address is no IP address") from None
    mapped = (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address
    if mapped.is_link_local or mapped.is_multicast or mapped.is_unspecified or mapped in METADATA_SERVICES:
        # A forged pod status must not lead to a cloud's metadata service, most at 169.254.169.254.
        raise AmbiguousTierError("its address is none that a pod has")
    return f"[{address}]" if address.version == 6 else str(address)


def _port(pod: Pod, keys: Kubernetes) -> int:
    given = pod.own.get("port")
    if given is None:
        found = _listed(pod, keys)
        if found is None:
            known = ", ".join(f"{port.name or port.number}" for port in pod.ports) or "none"
            raise AmbiguousTierError(
                f"has no container port of discovery.kubernetes.ports (its ports: {known}); give sizewatch.io/port"
            )
        return found.number
    number = int(given) if re.fullmatch(r"[0-9]{1,5}", given) else None
    match = next((port for port in pod.ports if port.number == number or port.name == given), None)
    if match is not None:
        return match.number
    if number is None:
        raise AmbiguousTierError("its sizewatch.io/port names no port of its containers")
    if pod.host_network:
        # Its address is the node's: only its container ports are its own.
        raise AmbiguousTierError("its sizewatch.io/port is no port of its containers, and its network is the node's")
    if not 0 < number <= 65535:
        raise AmbiguousTierError("its sizewatch.io/port is no port (1 to 65535)")
    return number


def _listed(pod: Pod, keys: Kubernetes) -> Port | None:
    ours = (port for wanted in keys.ports for port in pod.ports if wanted in (port.name, port.number))
    return next(ours, None)


def _pool(pod: Pod, tier: str, known: TierCandidates) -> str:
    """Return the pool of a pod: one of the plan's for the tier, by default the only one or `mixed`."""
    planned = known.tiers[tier].pools if known.tiers and tier in known.tiers else POOLS
    pool = pod.own.get("pool", planned[0] if len(planned) == 1 else "mixed")
    if pool not in planned:
        raise AmbiguousTierError(f"its sizewatch.io/pool must be one of {', '.join(planned)}")
    return pool


def _engine(pod: Pod) -> str | None:
    engine = pod.own.get("engine")
    names = tuple(dict.fromkeys(one.name for one in ENGINES))
    if engine is not None and engine not in names:
        raise AmbiguousTierError(
            f"its sizewatch.io/engine: {unknown_key_text(engine, names, 'an engine whose pages can be read')}"
        )
    return engine


def describe_excluded_pods(discovered: DiscoveryResult) -> Iterator[str]:
    """Yield a line for each excluded pod."""
    return (f"{one.pod.place}: {one.reason}" for one in discovered.left_out)


def find_repeated_names(discovered: DiscoveryResult) -> Iterator[str]:
    """Yield a sentence for each name of a tier's pods in several namespaces."""
    places = defaultdict[Key, set[str]](set)
    for one in discovered.targets:
        places[one.tier, one.pod.name].add(one.pod.namespace)
    for (tier, name), namespaces in sorted(places.items()):
        if len(namespaces) > 1:
            yield f"tier {tier} has a pod {name} in the namespaces {', '.join(sorted(namespaces))}: each is a replica"
