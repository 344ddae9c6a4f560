"""Discovery of targets among the pods of a node, with their tiers, and the reasons of excluded pods.

A pod can lead a scrape only to its own address: the host is its podIP, the path is bounded, redirects are not followed
and no credentials are sent.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Container, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from agent.config.discovery import Kubernetes, PodTier
from agent.config.values import unknown_key_text
from agent.kubernetes.pods import LWS, Pod, Port
from exporters.render.text import quote_external_text
from rules.engines.registry import ENGINES
from rules.plan.schema import TierPlan

DEFAULT_PATH = "/metrics"

POOLS = ("mixed", "prefill", "decode")
SCHEMES = ("http", "https")

_PATH = re.compile(r"/(?!/)[A-Za-z0-9._~!$&'()*+,;=:/%-]{0,199}")
"""Path of RFC 3986 without query. Two slashes at the start would be a host."""

PRODUCT_LABELS = ("nvidia.com/gpu.product", "amd.com/gpu.product-name", "beta.amd.com/gpu.product-name")
"""Node labels with the GPU product: NVIDIA's GPU feature discovery, AMD's node labeller in both spellings."""

_TIER_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
_NOISE = frozenset({"nvidia", "amd", "shared"})
"""Parts of a product name that do not identify hardware: the maker, and sharing by the device plugin."""

METADATA_SERVICES = frozenset(
    map(ipaddress.ip_address, ("fd00:ec2::254", "100.100.100.200", "168.63.129.16", "192.0.0.192"))
)
"""Metadata services outside the link-local range: AWS by IPv6, Alibaba Cloud, Azure's wire server, Oracle Cloud."""

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
        return self.tier, self.pod.name


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """Pod whose GPUs belong to the replica of its leader."""

    pod: Pod
    tier: str
    pool: str
    leader: str

    @property
    def key(self) -> Key:
        return self.tier, self.leader


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


class AmbiguousTierError(Exception):
    """Pod that cannot be a target. `later`: the reason may disappear with time."""

    def __init__(self, reason: str, later: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.later = later


@dataclass(frozen=True, slots=True, kw_only=True)
class TierCandidates:
    """Facts to find the tier of a pod. `tiers` are those of the plan (None without a plan), `entries` those of the
    configuration, `products` the GPUs of the node, `models` the models on pages of pods, by uid.
    """

    tiers: Mapping[str, TierPlan] | None = None
    entries: tuple[PodTier, ...] = ()
    products: tuple[str, ...] = ()
    models: Mapping[str, tuple[str, ...]] = field(default_factory=dict)


def _is_candidate(pod: Pod, keys: Kubernetes) -> bool:
    """Return whether a pod is an engine's. A port counts only with a GPU: every exporter has a port called metrics."""
    if pod.own.get("scrape") == "true" or keys.selector is not None:
        return True
    return pod.wants_gpu and (_worker_index(pod) is not None or _listed(pod, keys) is not None)


def discover(
    pods: Iterable[Pod],
    keys: Kubernetes,
    known: TierCandidates,
    taken: Container[Key] = (),
    incumbents: Container[str] = (),
) -> DiscoveryResult:
    """Return the targets, workers and excluded pods. `taken` are the targets of the configuration file.

    Of two pods of one name, a present target stays (`incumbents` are their uids), else the older one counts.
    """
    targets: dict[Key, DiscoveredReplica] = {}
    workers: list[Worker] = []
    left_out: list[ExcludedPod] = []
    for pod in sorted(
        pods, key=lambda one: (one.ending, one.uid not in incumbents, one.created_at, one.namespace, one.name)
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
    other = targets.get(found.key)
    if other is not None:
        raise AmbiguousTierError(
            f"is replica {found.key[1]} of tier {found.tier}, as {other.pod.place} is; give pods other names"
        )


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


def tier_of(pod: Pod, known: TierCandidates, *, has_page: bool = True) -> str:
    """Return the tier of a pod. Raise AmbiguousTierError. Without a page (a worker) its GPU must determine the tier."""
    return _tier_by_label(pod, known) or _tier_by_entries(pod, known) or _tier_by_hardware(pod, known, has_page)


def _tier_by_label(pod: Pod, known: TierCandidates) -> str | None:
    named = pod.own.get("tier")
    if named is None:
        return None
    if not _TIER_NAME.fullmatch(named):
        raise AmbiguousTierError(
            "its sizewatch.io/tier is no name of a tier (at most 63 letters, digits, dots, _ and -)"
        )
    allowed = [entry.namespaces for entry in known.entries if entry.tier == named]
    if allowed and all(allowed) and not any(pod.namespace in some for some in allowed):
        raise AmbiguousTierError(
            f"its namespace is none of those that discovery.kubernetes.tiers allows for {quote_external_text(named, 80)}"
        )
    mapped = {entry.tier for entry in known.entries}
    if known.tiers is not None and named not in known.tiers and named not in mapped:
        raise AmbiguousTierError(
            f"its sizewatch.io/tier: {unknown_key_text(named, tuple(known.tiers), 'a tier of the plan')}"
        )
    return named


def _tier_by_entries(pod: Pod, known: TierCandidates) -> str | None:
    found = sorted({entry.tier for entry in known.entries if _matches(entry, pod)})
    if len(found) > 1:
        raise AmbiguousTierError(f"matches the tiers {', '.join(found)} of discovery.kubernetes.tiers: one is needed")
    return found[0] if found else None


def _matches(entry: PodTier, pod: Pod) -> bool:
    return all(pod.labels.get(name) == value for name, value in entry.labels.items()) and (
        not entry.namespaces or pod.namespace in entry.namespaces
    )


def _tier_by_hardware(pod: Pod, known: TierCandidates, has_page: bool) -> str:
    advice = "; give it the label sizewatch.io/tier"
    if not known.tiers:
        raise AmbiguousTierError(f"says no tier, and there is no plan to find it by{advice}")
    if not known.products:
        raise AmbiguousTierError(
            f"says no tier, and the node's GPU is not known (no label {PRODUCT_LABELS[0]}){advice}", later=True
        )
    fits = sorted(n for n, t in known.tiers.items() if any(same_product(t.gpu.product, one) for one in known.products))
    shown = ", ".join(known.products)
    if not fits:
        raise AmbiguousTierError(f"says no tier, and no tier of the plan is for {shown}{advice}")
    if not has_page:
        if len(fits) > 1:
            raise AmbiguousTierError(f"says no tier; for {shown} the plan has {', '.join(fits)}{advice}")
        return fits[0]
    models = known.models.get(pod.uid)
    if models is None:
        raise AmbiguousTierError(
            "says no tier; it follows from the model on its page, which has not been read yet", later=True
        )
    same = [name for name in fits if any(same_model(known.tiers[name].model, model) for model in models)]
    if len(same) == 1:
        return same[0]
    serves = f"serves {', '.join(models) or 'no model that it names'} on {shown}"
    if not same:
        raise AmbiguousTierError(f"{serves}, for which the plan has no tier{advice}")
    raise AmbiguousTierError(f"{serves}, for which the plan has {', '.join(same)}{advice}")


def same_product(one: str, other: str) -> bool:
    """Return whether both name the same GPU: NVML writes blanks, node labels dashes or underscores."""
    return bool(_product_parts(one)) and _product_parts(one) == _product_parts(other)


def _product_parts(product: str) -> tuple[str, ...]:
    return tuple(part for part in re.split(r"[^a-z0-9.]+", product.casefold()) if part and part not in _NOISE)


def same_model(one: str, other: str) -> bool:
    """Return whether both names are equal without organisation or folder."""
    plain = [name.casefold().rstrip("/").rpartition("/")[2] for name in (one, other)]
    return plain[0] == plain[1] != ""
