"""Discovery of targets among the pods of a node: their tiers, and the reasons of excluded pods.

A replica is called as its pod, `namespace/name`: two pods of one name are two replicas.
A pod can lead a scrape only to its own podIP. The path is bounded, redirects are not followed, no credentials are sent.
Anybody may annotate a pod. So one without a GPU counts only in a namespace that the operator names.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass

from agent.config.targets import ENGINE_NAMES, TIER_NAME, Kubernetes, PodTier
from agent.kubernetes.pods import LWS, Pod, Port
from exporters.render.safe_text import quote_external_text
from rules.plan.schema import TierPlan
from rules.problems import unknown_name_text


class ExcludedPodError(Exception):
    """Pod that cannot be a target. `later`: the reason may disappear with time."""

    def __init__(self, reason: str, later: bool = False) -> None:
        super().__init__(reason)
        self.later = later


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCandidates:
    """Facts to find the tier of a pod. `tiers` are those of the plan (None without a plan), `entries` and `namespaces`
    those of the configuration. `holders` are the pods (namespace/name) that the kubelet gave a GPU.
    """

    tiers: Mapping[str, TierPlan] | None = None
    entries: tuple[PodTier, ...] = ()
    namespaces: tuple[str, ...] = ()
    holders: frozenset[str] = frozenset()

    def is_open(self, tier: str) -> bool:
        """Return whether a pod with a GPU may be of a tier in any namespace."""
        entries = [entry for entry in self.entries if entry.tier == tier]
        return not (entries and all(entry.namespaces for entry in entries))


def find_open_tiers(names: Iterable[str], known: TierCandidates) -> tuple[str, ...]:
    if known.namespaces:
        return ()
    return tuple(filter(known.is_open, sorted(set(names))))


def tier_of(pod: Pod, known: TierCandidates) -> str:
    """Return the tier of a pod. Raise ExcludedPodError for a pod without a tier, or that may not belong to it."""
    # A device plugin gave it, or the kubelet says so. A claim may be of any device.
    holds_gpu = (pod.wants_gpu and not pod.by_claim) or pod.place in known.holders
    named = {*known.namespaces, *(name for entry in known.entries for name in entry.namespaces)}
    if not holds_gpu and pod.namespace not in named:
        kind = "no GPU"
        if pod.by_claim:
            kind = "devices by a claim, which may be no GPU"
        raise ExcludedPodError(f"requests {kind}, and discovery.kubernetes.tiers does not name its namespace")
    tier = _tier_by_label(pod, known) or _tier_by_entries(pod, known)
    namespaces = {name for entry in known.entries if entry.tier == tier for name in entry.namespaces}
    is_trusted = holds_gpu or pod.namespace in known.namespaces
    if pod.namespace not in namespaces and not (is_trusted and known.is_open(tier)):
        name = quote_external_text(tier, 80)
        raise ExcludedPodError(f"its namespace is none of those that discovery.kubernetes.tiers allows for {name}")
    return tier


def _tier_by_label(pod: Pod, known: TierCandidates) -> str | None:
    tier = pod.own.get("tier")
    if tier is None:
        return None
    if not TIER_NAME.fullmatch(tier):
        raise ExcludedPodError("its sizewatch.io/tier is no name of a tier (at most 63 letters, digits, dots, _ and -)")
    if known.tiers is not None and tier not in {*known.tiers, *(entry.tier for entry in known.entries)}:
        text = unknown_name_text(tier, tuple(known.tiers), "a tier of the plan")
        raise ExcludedPodError(f"its sizewatch.io/tier: {text}")
    return tier


def _tier_by_entries(pod: Pod, known: TierCandidates) -> str:
    """Return the tier of the entries that match by labels and namespace. Raise ExcludedPodError for none or several."""
    tiers = set()
    for entry in known.entries:
        if entry.labels.items() <= pod.labels.items() and pod.namespace in (entry.namespaces or (pod.namespace,)):
            tiers.add(entry.tier)
    if not tiers:
        raise ExcludedPodError(
            "has no tier: give it the label sizewatch.io/tier, or name its namespace in discovery.kubernetes.tiers"
        )
    if len(tiers) > 1:
        raise ExcludedPodError(
            f"matches the tiers {', '.join(sorted(tiers))} of discovery.kubernetes.tiers: give it the label sizewatch.io/tier"
        )
    return tiers.pop()


MOST_TARGETS = 64
"""Maximum pods that are watched: an engine on each of seven instances of 8 GPUs, and some more. 112 took more than 128 MiB."""

POOLS = ("mixed", "prefill", "decode")

_PATH = re.compile(r"/(?!/)[A-Za-z0-9._~!$&'()*+,;=:/%-]{0,199}")
"""Path of RFC 3986 without query. Two slashes at the start would be a host."""

METADATA_SERVICES = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)
"""Metadata services beyond link-local: AWS by IPv6, Alibaba Cloud, Azure's wire server, Oracle Cloud."""

Key = tuple[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveredPod:
    """Pod of a replica. A worker has GPUs and no page: `replica` is its leader, and `url` is empty."""

    pod: Pod
    tier: str
    pool: str
    replica: str
    url: str = ""
    engine: str | None = None

    @property
    def key(self) -> Key:
        return self.tier, self.replica


@dataclass(frozen=True, slots=True, kw_only=True)
class ExcludedPod:
    """Candidate without a target. `later`: it may become one."""

    pod: Pod
    reason: str
    later: bool = False

    @property
    def text(self) -> str:
        return f"{self.pod.place}: {self.reason}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryResult:
    targets: tuple[DiscoveredPod, ...] = ()
    workers: tuple[DiscoveredPod, ...] = ()
    left_out: tuple[ExcludedPod, ...] = ()

    @property
    def pods(self) -> dict[Key, Pod]:
        return {target.key: target.pod for target in self.targets}


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

    def order(pod: Pod) -> tuple[bool, bool, bool, float, str, str]:
        return pod.ending, pod.uid not in incumbents, not pod.wants_gpu, pod.created_at, pod.namespace, pod.name

    targets: dict[Key, DiscoveredPod] = {}
    workers: list[DiscoveredPod] = []
    left_out: list[ExcludedPod] = []
    for pod in sorted((pod for pod in pods if _is_candidate(pod, keys)), key=order):
        try:
            if _worker_index(pod) not in (None, "0"):
                workers.append(_worker(pod, known))
                continue
            url = _url(pod, keys)
            tier = tier_of(pod, known)
            target = DiscoveredPod(
                pod=pod, tier=tier, pool=_pool(pod, tier, known), replica=pod.place, url=url, engine=_engine(pod)
            )
            if target.key in taken:
                raise ExcludedPodError(
                    f"is replica {pod.place} of tier {tier}, which is a target of the configuration too"
                )
            if target.key in targets:
                raise ExcludedPodError("has the name of a pod that is watched still")
            if len(targets) >= MOST_TARGETS:
                raise ExcludedPodError(f"is one too many: at most {MOST_TARGETS} pods of a node are watched")
            targets[target.key] = target
        except ExcludedPodError as error:
            left_out.append(ExcludedPod(pod=pod, reason=str(error), later=error.later))
    return DiscoveryResult(targets=tuple(targets.values()), workers=tuple(workers), left_out=tuple(left_out))


def _is_candidate(pod: Pod, keys: Kubernetes) -> bool:
    """Return whether a pod is an engine's. A port counts only with a GPU: every exporter has a port called metrics."""
    if pod.is_finished or pod.own.get("scrape") == "false":
        return False
    if pod.own.get("scrape") == "true" or keys.selector is not None:
        return True
    return pod.wants_gpu and (_worker_index(pod) is not None or _listed_port(pod, keys) is not None)


def _worker_index(pod: Pod) -> str | None:
    if f"{LWS}name" in pod.labels:
        return pod.labels.get(f"{LWS}worker-index")
    return None


def _worker(pod: Pod, known: TierCandidates) -> DiscoveredPod:
    if not pod.leader:
        raise ExcludedPodError("is a worker of a LeaderWorkerSet without the annotation leader-name")
    tier = tier_of(pod, known)
    return DiscoveredPod(pod=pod, tier=tier, pool=_pool(pod, tier, known), replica=f"{pod.namespace}/{pod.leader}")


def _url(pod: Pod, keys: Kubernetes) -> str:
    if not pod.address:
        raise ExcludedPodError("has no address yet", later=True)
    port = _port(pod, keys)
    path, scheme = pod.own.get("path", "/metrics"), pod.own.get("scheme", "http")
    if not _PATH.fullmatch(path):
        raise ExcludedPodError(
            "its sizewatch.io/path is no path (it begins with one / and has at most 200 plain characters)"
        )
    if scheme not in ("http", "https"):
        raise ExcludedPodError("its sizewatch.io/scheme must be http or https")
    try:
        address = ipaddress.ip_address(pod.address)
    except ValueError:
        raise ExcludedPodError("its address is no IP address") from None
    mapped = (address.ipv4_mapped or address) if isinstance(address, ipaddress.IPv6Address) else address
    if mapped.is_link_local or mapped.is_multicast or mapped.is_unspecified or mapped in METADATA_SERVICES:
        # A forged pod status must not lead to a cloud's metadata service, most at 169.254.169.254.
        raise ExcludedPodError("its address is none that a pod has")
    host = f"[{address}]" if address.version == 6 else str(address)
    return f"{scheme}://{host}:{port}{path}"


def _port(pod: Pod, keys: Kubernetes) -> int:
    given = pod.own.get("port")
    if given is None:
        listed = _listed_port(pod, keys)
        if listed is None:
            names = ", ".join(port.name or str(port.number) for port in pod.ports) or "none"
            raise ExcludedPodError(
                f"has no container port of discovery.kubernetes.ports (its ports: {names}); give sizewatch.io/port"
            )
        return listed.number
    number = 0
    if re.fullmatch(r"[0-9]{1,5}", given):
        number = int(given)
    for port in pod.ports:
        if given == port.name or number == port.number:
            return port.number
    # On the node's network only its container ports are its own.
    if pod.host_network or not 0 < number <= 65535:
        raise ExcludedPodError("its sizewatch.io/port is no port of its containers")
    return number


def _listed_port(pod: Pod, keys: Kubernetes) -> Port | None:
    listed = (port for wanted in keys.ports for port in pod.ports if wanted in (port.name, port.number))
    return next(listed, None)


def _pool(pod: Pod, tier: str, known: TierCandidates) -> str:
    planned = known.tiers[tier].pools if known.tiers and tier in known.tiers else POOLS
    pool = pod.own.get("pool", planned[0] if len(planned) == 1 else "mixed")
    if pool not in planned:
        raise ExcludedPodError(f"its sizewatch.io/pool must be one of {', '.join(planned)}")
    return pool


def _engine(pod: Pod) -> str | None:
    engine = pod.own.get("engine")
    if engine is not None and engine not in ENGINE_NAMES:
        text = unknown_name_text(engine, ENGINE_NAMES, "an engine whose pages can be read")
        raise ExcludedPodError(f"its sizewatch.io/engine: {text}")
    return engine
