"""Grave mistakes and weaknesses of a usable configuration, which `run` logs and `doctor` shows.

Each sentence begins with its path. A daemon runs despite them.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterator
from itertools import chain
from urllib.parse import urlsplit

from agent.config.config import Config
from agent.config.peer import PeerKeys
from agent.config.sections import list_values, repeats, unknown_name_text
from agent.config.targets import default_replica
from agent.config.web import find_web_file
from rules.plan.schema import Plan
from rules.problems import cap_problems


def mistakes(config: Config, plan: Plan | None) -> tuple[str, ...]:
    """Return every grave mistake: a target is watched under a wrong description."""
    return cap_problems(chain(_unplanned(config, plan), _watched_twice(config)))


def weaknesses(config: Config, plan: Plan | None) -> tuple[str, ...]:
    """Return every weakness."""
    unwatched, merged = _not_watched(config, plan), _merged_pods(config)
    return cap_problems(chain(unwatched, merged, _weak_connections(config), _open_to_others(config)))


def is_loopback(host: str) -> bool:
    """Return whether an address reaches this machine alone. Names other than localhost may reach further."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _unplanned(config: Config, plan: Plan | None) -> Iterator[str]:
    """Yield tiers of targets, pods and the store that the plan lacks: their data has no comparison."""
    if plan is None:
        return
    pods = config.discovery.kubernetes
    named = [(f"targets[{place}].tier", target.tier) for place, target in enumerate(config.targets)]
    if pods is not None:
        named += [(f"discovery.kubernetes.tiers[{n}].tier", entry.tier) for n, entry in enumerate(pods.tiers)]
    named += [(f"tiers.{tier}", tier) for tier in config.tiers]
    for path, tier in named:
        if tier not in plan.tiers:
            why = unknown_name_text(tier, tuple(plan.tiers), "a tier of the plan")
            yield f"{path}: is watched and compared with nothing: {tier} {why}"


def _watched_twice(config: Config) -> Iterator[str]:
    pages = (urlsplit(target.url)._replace(netloc=default_replica(target.url)) for target in config.targets)
    for place, before in repeats(pages):
        first = f"targets[{before}] (tier {config.targets[before].tier})"
        text = f"is that of {first}; what one engine does is counted twice"
        yield f"targets[{place}].url: {text}: write the address of another replica, or remove the entry"


def _not_watched(config: Config, plan: Plan | None) -> Iterator[str]:
    """Yield that nothing is watched, and tiers of the plan without a target. A node sees its own machine only."""
    if config.discovery.kubernetes is not None or config.role == "fleet":
        return
    if not config.targets:
        yield "targets: is empty; nothing is watched"
    elif plan is not None and config.role == "standalone":
        watched = {target.tier for target in config.targets}
        for tier in filter(lambda tier: tier not in watched, plan.tiers):
            yield f"targets: none is of the plan's tier {tier}; nothing of it is watched here"


def _merged_pods(config: Config) -> Iterator[str]:
    for name, source in config.tiers.items():
        if source.replica_label == "pod" and 'namespace="' not in (source.selector or ""):
            yield f'tiers.{name}.selector: pods of one name in two namespaces are one replica; add namespace="..."'


def _weak_connections(config: Config) -> Iterator[str]:
    """Yield servers whose certificate is not checked, and credentials that anyone on the way can read."""
    for path, peer in list_values(config):
        if not isinstance(peer, PeerKeys):
            continue
        if peer.tls and peer.tls.insecure_skip_verify:
            yield f"{path}.tls.insecure_skip_verify: anyone on the way can answer for it; use ca_file"
        url = urlsplit(peer.url)
        secrets = peer.bearer_token_file, peer.basic_auth, getattr(peer, "header_files", None)
        if any(secrets) and url.scheme == "http" and not is_loopback(url.hostname or ""):
            yield f"{path}.url: credentials go to another machine without TLS; use https://"


def _open_to_others(config: Config) -> Iterator[str]:
    web, file = config.web, find_web_file(config.web.config_file)
    tls, lacking = file.tls_server_config, []
    if tls is None:
        lacking.append("TLS")
    is_certified = tls is not None and tls.client_auth_type == "RequireAndVerifyClientCert"
    if not (is_certified or web.bearer_token_file or file.basic_auth_users):
        lacking.append("authentication")
    if lacking and not is_loopback(web.address[0]):
        remedy = "tls_server_config in web.config_file, and web.bearer_token_file or basic_auth_users there"
        text = f"{web.listen} is open to other machines without {' and '.join(lacking)}"
        yield f"web.listen: {text}; set {remedy}, or listen on 127.0.0.1"
