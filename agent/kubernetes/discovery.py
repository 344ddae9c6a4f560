"""From the pods of a node to the targets to watch, and for every other candidate the reason in words.

Owns which pod is taken for an engine (WAYS), what its address is, and the pods of groups that span nodes. Pure: pods and
what else is known come in. A pod can lead a scrape to its own address and nowhere else: the host is its podIP, the path is
bounded, redirects are not followed and no credentials are sent. Another way to tell an engine is a row in WAYS.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Container, Iterable, Iterator
from dataclasses import dataclass

from agent.config.discovery_keys import Kubernetes
from agent.config.problems import unknown_key_text
from agent.kubernetes.pods import LWS, Pod, Port
from agent.kubernetes.tier_match import AmbiguousTierError, TierCandidates, tier_of
from rules.engines.registry import ENGINES

DEFAULT_PATH = "/metrics"

POOLS = ("mixed", "prefill", "decode")
SCHEMES = ("http", "https")

_PATH = re.compile(r"/(?!/)[A-Za-z0-9._~!$&'()*+,;=:/%-]{0,199}")
"""Of a path as RFC 3986 has it, without query; two slashes at its start would be a host."""

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredReplica:
    """A pod that is watched."""

    pod: Pod
    tier: str
    pool: str
    engine: str | None
    url: str

    @property
    def key(self) -> Key:
        """Tier and replica."""
        return self.tier, self.pod.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """A pod whose GPUs belong to a replica that answers elsewhere: its leader's."""

    pod: Pod
    tier: str
    pool: str
    leader: str

    @property
    def key(self) -> Key:
        return self.tier, self.leader


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedPod:
    """A candidate that is not watched, and why. `later`: it is on its way. `url` where its page may tell more."""

    pod: Pod
    reason: str
    later: bool = False
    url: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryResult:
    targets: tuple[DiscoveredReplica, ...] = ()
    workers: tuple[Worker, ...] = ()
    left_out: tuple[ExcludedPod, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class DetectionMethod:
    """How a pod is known to be an engine's; `words` is for people."""

    words: str
    applies: Callable[[Pod, Kubernetes], bool]


WAYS = (
    DetectionMethod(words="annotation sizewatch.io/scrape", applies=lambda pod, keys: pod.own.get("scrape") == "true"),
    DetectionMethod(words="discovery.kubernetes.selector", applies=lambda pod, keys: keys.selector is not None),
    DetectionMethod(
        words="part of a LeaderWorkerSet", applies=lambda pod, keys: pod.wants_gpu and _worker_index(pod) is not None
    ),
    DetectionMethod(words="container port", applies=lambda pod, keys: pod.wants_gpu and _listed(pod, keys) is not None),
)
"""The first that applies. By its port alone only a pod with a GPU is an engine: every exporter has a port called metrics."""


def discover(
    pods: Iterable[Pod], keys: Kubernetes, known: TierCandidates, taken: Container[Key] = ()
) -> DiscoveryResult:
    """Every candidate among the pods, by name. `taken` are targets of the configuration's own."""
    targets: dict[Key, DiscoveredReplica] = {}
    workers: list[Worker] = []
    left_out: list[ExcludedPod] = []
    for pod in sorted(pods, key=lambda one: (one.ending, one.namespace, one.name)):
        if pod.is_finished or not any(way.applies(pod, keys) for way in WAYS) or pod.own.get("scrape") == "false":
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
        except AmbiguousTierError as unclear:
            left_out.append(ExcludedPod(pod=pod, reason=unclear.reason, later=unclear.later, url=url))
    return DiscoveryResult(targets=tuple(targets.values()), workers=tuple(workers), left_out=tuple(left_out))


def _found(pod: Pod, url: str, known: TierCandidates) -> DiscoveredReplica:
    tier = tier_of(pod, known)
    return DiscoveredReplica(pod=pod, tier=tier, pool=_pool(pod, tier, known), engine=_engine(pod), url=url)


def _check_free(found: DiscoveredReplica, targets: dict[Key, DiscoveredReplica], taken: Container[Key]) -> None:
    if found.key in taken:
        raise AmbiguousTierError(
            f"is replica {found.key[1]} of tier {found.tier}, which is a target of the configuration too"
        )
    other = targets.get(found.key)
    if other is not None:
        raise AmbiguousTierError(
            f"is replica {found.key[1]} of tier {found.tier}, as {other.pod.place} is; give pods other names"
        )


def _worker_index(pod: Pod) -> str | None:
    return pod.labels.get(f"{LWS}worker-index") if f"{LWS}name" in pod.labels else None


def _worker(pod: Pod, known: TierCandidates) -> Worker:
    """Its leader's pod is called by the set and the group, as the controller makes it."""
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
    meant = (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address
    if meant.is_link_local or meant.is_multicast or meant.is_unspecified:
        # A cloud's metadata service is at 169.254.169.254; whoever may write a pod's status would have it asked.
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
        # Its address is the node's: only what it says it serves is its own.
        raise AmbiguousTierError("its sizewatch.io/port is no port of its containers, and its network is the node's")
    if not 0 < number <= 65535:
        raise AmbiguousTierError("its sizewatch.io/port is no port (1 to 65535)")
    return number


def _listed(pod: Pod, keys: Kubernetes) -> Port | None:
    ours = (port for wanted in keys.ports for port in pod.ports if wanted in (port.name, port.number))
    return next(ours, None)


def _pool(pod: Pod, tier: str, known: TierCandidates) -> str:
    """One of those that the plan has for the tier; where it has one alone, that one."""
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
    """A line for each pod that is left out."""
    return (f"{one.pod.place}: {one.reason}" for one in discovered.left_out)
