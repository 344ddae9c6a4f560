"""Grave mistakes and weaknesses of a usable configuration, which `run` logs and `doctor` shows.

Each sentence begins with its path. A new one is a function that yields sentences, and a row in MISTAKES or CHECKS. A
daemon runs despite mistakes: its other targets are watched.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable, Iterator
from urllib.parse import urlsplit

from agent.config.config import Config
from agent.config.targets import default_replica
from agent.config.values import unknown_key_text
from agent.config.web import find_web_file
from agent.http_client.options import SECRET_NAME
from rules.plan.schema import Plan
from rules.problems import cap_problems

SET_TLS = "set tls_server_config in web.config_file"
SHORTEST_SECRET = 4
"""Letters of a query value that can be a secret: `auth=1` is none."""


def mistakes(config: Config, plan: Plan | None) -> tuple[str, ...]:
    """Return every grave mistake, in the order of MISTAKES: a target is watched under a wrong description."""
    return cap_problems(text for check in MISTAKES for text in check(config, plan))


def weaknesses(config: Config, plan: Plan | None) -> tuple[str, ...]:
    """Return every weakness, in the order of CHECKS."""
    return cap_problems(text for check in CHECKS for text in check(config, plan))


def is_loopback(host: str) -> bool:
    """Return whether an address reaches this machine alone. Names other than localhost may reach further."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _nothing_to_watch(config: Config, _: Plan | None) -> Iterator[str]:
    if not config.targets and config.discovery.kubernetes is None and config.role != "fleet":
        yield "targets: is empty; nothing is watched"


def _unplanned(config: Config, plan: Plan | None) -> Iterator[str]:
    """Yield tiers of targets, pods and the store that the plan lacks: their data has no comparison."""
    if plan is None:
        return
    entries = config.discovery.kubernetes.tiers if config.discovery.kubernetes is not None else ()
    named = [(f"targets[{place}].tier", target.tier) for place, target in enumerate(config.targets)]
    named += [(f"discovery.kubernetes.tiers[{place}].tier", entry.tier) for place, entry in enumerate(entries)]
    named += [(f"tiers.{tier}", tier) for tier in config.tiers]
    for path, tier in named:
        if tier not in plan.tiers:
            why = unknown_key_text(tier, tuple(plan.tiers), "a tier of the plan")
            yield f"{path}: is watched and compared with nothing: {tier} {why}"


def _unwatched(config: Config, plan: Plan | None) -> Iterator[str]:
    """Yield tiers of the plan without a target. A node sees its own machine only, and pods name their tiers later."""
    if plan is None or config.role != "standalone" or not config.targets or config.discovery.kubernetes is not None:
        return
    watched = {target.tier for target in config.targets}
    for tier in plan.tiers:
        if tier not in watched:
            yield f"targets: none is of the plan's tier {tier}; nothing of it is watched here"


def _watched_twice(config: Config, _: Plan | None) -> Iterator[str]:
    first: dict[tuple[str, str], int] = {}
    for place, target in enumerate(config.targets):
        before = first.setdefault(_address(target.url), place)
        if before != place:
            there = config.targets[before]
            whose = f", of tier {there.tier}" if there.tier != target.tier else ""
            text = f"is that of targets[{before}]{whose}; what one engine does is counted twice"
            yield f"targets[{place}].url: {text}: write the address of another replica, or remove the entry"


def _address(url: str) -> tuple[str, str]:
    """Return the normalised location of a page."""
    parts = urlsplit(url)
    host, _, port = default_replica(url).rpartition(":")
    return (
        f"{'localhost' if host in ('127.0.0.1', '[::1]') else host}:{port}",
        f"{parts.path.rstrip('/')}?{parts.query}",
    )


def _other_engine(config: Config, plan: Plan | None) -> Iterator[str]:
    for place, target in enumerate(config.targets):
        tier = plan.tiers.get(target.tier) if plan else None
        if tier and target.engine and target.engine != tier.engine:
            text = f"is {target.engine}, the plan's tier {target.tier} was measured with {tier.engine}"
            yield f"targets[{place}].engine: {text}: move the target to a tier of its own, or correct one of the two"


def _unchecked_certificate(config: Config, _: Plan | None) -> Iterator[str]:
    for place, target in enumerate(config.targets):
        if target.tls and target.tls.insecure_skip_verify:
            yield f"targets[{place}].tls.insecure_skip_verify: anyone on the way can answer for this target; use ca_file"
    if config.gpus.exporter is not None and (tls := config.gpus.exporter[1].tls) and tls.insecure_skip_verify:
        yield f"gpus.{config.gpus.source}.tls.insecure_skip_verify: anyone on the way can answer for it; use ca_file"


def _unchecked_alertmanager(config: Config, _: Plan | None) -> Iterator[str]:
    for place, one in enumerate(config.alerting.alertmanagers):
        if one.tls and one.tls.insecure_skip_verify:
            path = f"alerting.alertmanagers[{place}].tls.insecure_skip_verify"
            yield f"{path}: anyone on the way can take the alerts, and the credentials with them; use ca_file"


def _asked_with_secrets(config: Config) -> Iterator[tuple[str, str, bool]]:
    """Yield each peer except the store: the path of its url, the url, and whether it gets credentials."""
    for place, target in enumerate(config.targets):
        yield f"targets[{place}].url", target.url, bool(target.bearer_token_file or target.basic_auth)
    if config.gpus.exporter is not None:
        _, exporter = config.gpus.exporter
        yield f"gpus.{config.gpus.source}.url", exporter.url, bool(exporter.bearer_token_file or exporter.basic_auth)
    for place, one in enumerate(config.alerting.alertmanagers):
        yield f"alerting.alertmanagers[{place}].url", one.url, bool(one.bearer_token_file or one.basic_auth)
    kubernetes = config.discovery.kubernetes
    if kubernetes is not None and kubernetes.api is not None:
        yield "discovery.kubernetes.api.url", kubernetes.api.url, bool(kubernetes.api.bearer_token_file)


def _credentials_in_the_clear(config: Config, _: Plan | None) -> Iterator[str]:
    for path, url, secret in _asked_with_secrets(config):
        parts = urlsplit(url)
        if secret and parts.scheme == "http" and not is_loopback(parts.hostname or ""):
            yield f"{path}: credentials go to another machine without TLS; use https://"


def _secret_in_a_query(config: Config, _: Plan | None) -> Iterator[str]:
    for path, url, _secret in _asked_with_secrets(config):
        if names := secret_parameters(url):
            yield f"{path}: its query holds a secret ({', '.join(names)}), which proxies log and pages repeat; use a token file"


def secret_parameters(url: str) -> tuple[str, ...]:
    """Return the names of query parameters that are secrets by their name."""
    pairs = (pair.partition("=") for pair in re.split("[&;]", urlsplit(url).query))
    return tuple(dict.fromkeys(n for n, _, text in pairs if SECRET_NAME.search(n) and len(text) >= SHORTEST_SECRET))


def _weak_store(config: Config, _: Plan | None) -> Iterator[str]:
    store = config.store
    if store is None:
        return
    if store.tls and store.tls.insecure_skip_verify:
        yield "store.tls.insecure_skip_verify: anyone on the way can answer for the store; use ca_file"
    if store.partial_answers == "take":
        yield "store.partial_answers: take judges by what is there: a store that lost a half of itself halves the traffic"
    secret = store.bearer_token_file or store.basic_auth or store.header_files
    if secret and urlsplit(store.url).scheme == "http" and not is_loopback(urlsplit(store.url).hostname or ""):
        yield "store.url: credentials go to another machine without TLS; use https://"


def _pods_of_any_namespace(config: Config, _: Plan | None) -> Iterator[str]:
    for name, tier in config.tiers.items():
        if tier.replica_label == "pod" and not re.search(r'(^|,)\s*namespace\s*=\s*"', tier.selector or ""):
            yield f'tiers.{name}.selector: pods of one name in two namespaces are one replica; add namespace="..."'


def _open_webhook(config: Config, _: Plan | None) -> Iterator[str]:
    web = config.web
    tls = find_web_file(web.config_file).tls_server_config
    if config.alerting.receiver is not None and tls is None and not is_loopback(web.address[0]):
        yield f"alerting.receiver: its token comes over {web.listen} without TLS; {SET_TLS}"


def _open_to_others(config: Config, _: Plan | None) -> Iterator[str]:
    web = config.web
    host, _port = web.address
    if is_loopback(host):
        return
    file = find_web_file(web.config_file)
    tls = file.tls_server_config
    if tls is not None and tls.client_auth_type == "RequireAndVerifyClientCert":
        return
    if not (web.bearer_token_file or file.basic_auth_users):
        lacking = "authentication" if tls else "TLS and authentication"
        yield (
            f"web.listen: {web.listen} is open to other machines without {lacking}; "
            f"{SET_TLS}, and web.bearer_token_file or basic_auth_users there, or listen on 127.0.0.1"
        )
    elif tls is None:
        yield f"web.listen: {web.listen} takes passwords from other machines without TLS; {SET_TLS}"


def _nothing_to_forecast_from(config: Config, _: Plan | None) -> Iterator[str]:
    if config.forecast.enabled and "forecast" in config.model_fields_set and not config.data_dir:
        yield "forecast: has no use without a history; set data_dir"


def _cost_without_price(config: Config, plan: Plan | None) -> Iterator[str]:
    for tier in config.forecast.late_request_cost:
        planned = plan.tiers.get(tier) if plan else None
        if planned is None or planned.cost is None:
            path = f"forecast.late_request_cost.{tier}"
            yield f"{path}: weighs nothing without the plan's cost.gpu_hour_price of this tier; quantile is used"


MISTAKES: tuple[Callable[[Config, Plan | None], Iterator[str]], ...] = (_unplanned, _watched_twice, _other_engine)

CHECKS: tuple[Callable[[Config, Plan | None], Iterator[str]], ...] = (
    _nothing_to_watch,
    _unwatched,
    _credentials_in_the_clear,
    _secret_in_a_query,
    _unchecked_certificate,
    _unchecked_alertmanager,
    _weak_store,
    _pods_of_any_namespace,
    _open_to_others,
    _open_webhook,
    _nothing_to_forecast_from,
    _cost_without_price,
)
