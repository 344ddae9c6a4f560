"""Loader of the configuration and its plan, with every problem of both files, and what is weak in a usable configuration.

It opens no socket and no secret file. `run` logs the grave mistakes and weaknesses, `doctor` shows them: each sentence
begins with its path, and a daemon runs despite them.
"""

from __future__ import annotations

import ipaddress
import os
import stat
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from agent.config.config import Config, Role
from agent.config.files import load_plan, name_file, read_document
from agent.config.peer import PeerKeys
from agent.config.sections import list_values, repeats
from agent.config.targets import normalize_url
from agent.config.values import DURATION
from agent.config.web import Web, find_web_file
from agent.durations import duration_text
from agent.errors import ConfigError
from rules.catalogue.registry import CATALOGUE
from rules.engines.registry import ITL_PER_TOKEN
from rules.plan.checks import check_plan
from rules.plan.load_bins import TierContext, build_tier_context
from rules.plan.schema import Plan, plan_version
from rules.plan.validation import path_text
from rules.problems import cap_problems, unknown_name_text

SEARCHED = ("sizewatch.yaml", "/etc/sizewatch/sizewatch.yaml")
"""Default paths of the configuration, in search order."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """Usable configuration with its plan. `mistakes` are grave, `warnings` are not; each begins with file and path.

    `given_role` is the caller's override of the file's role, needed again for a reload.
    """

    path: Path
    given_role: Role | None = None
    config: Config
    plan: Plan | None
    warnings: tuple[str, ...]
    mistakes: tuple[str, ...] = ()

    @property
    def grave(self) -> tuple[str, ...]:
        """Return the mistakes of the configuration and of its plan."""
        planned = check_plan(self.plan, CATALOGUE, self.config.thresholds) if self.plan else ()
        texts = (f"{self.config.plan}: {entry.path}: {entry.text}" for entry in planned if entry.severity == "mistake")
        return (*self.mistakes, *texts)


def parse_config(
    data: object,
    *,
    folder: Path = Path(),
    environment: Mapping[str, str] | None = None,
    role: Role | None = None,
    plan: Plan | None = None,
) -> Config:
    """Return the configuration in `data`, as parsed from YAML or JSON. Relative files are in `folder`.

    `role` overrides the file's role. `plan` is used to check targets and thresholds. Raise ConfigError with every
    problem at once.
    """
    if isinstance(data, Mapping):
        data = {**data, "role": role} if role else dict(data)
        if data.get("role") != "node" and data.get("data_dir") is None:
            data["data_dir"] = "sizewatch-data"
    config = Config.read(data, {"folder": folder, "environment": os.environ if environment is None else environment})
    problems = cap_problems(f"{path_text(place)}: {text}" for place, text in config.plan_contradictions(plan))
    if problems:
        raise ConfigError(problems)
    return config


def find(given: Path | str | None) -> Path:
    """Return the given configuration file, or the first of SEARCHED that exists. Raise ConfigError without one.

    Another user's file of the working folder is refused: it could send our files as a token to any address.
    """
    if given:
        return Path(given)
    for name in SEARCHED:
        if os.path.isfile(name):
            seen = os.stat(name)
            if seen.st_uid not in (os.geteuid(), 0) or seen.st_mode & stat.S_IWOTH:
                why = "in this folder is another user's, or everybody may write it: name it with -c"
                raise ConfigError((f"{name}: {why}",))
            return Path(name)
    ways = "`sizewatch init` writes one, -c names another; `sizewatch doctor HOST:PORT` needs none"
    raise ConfigError((f"no configuration: there is neither {' nor '.join(SEARCHED)}; {ways}",))


def load(path: Path, *, role: Role | None = None, environment: Mapping[str, str] | None = None) -> LoadedConfig:
    """Return the configuration in a file, and its plan.

    Raise ConfigError with every problem of both, each with file and path.
    """
    data = read_document(path)
    problems: tuple[str, ...] = ()
    plan, named = None, data.get("plan") if isinstance(data, Mapping) else None
    # Before the configuration is valid, so that problems of both are told.
    if isinstance(named, str) and named and "${" not in named:
        file = path.parent / named
        try:
            plan = load_plan(file)
        except ConfigError as bad:
            problems = bad.problems if os.path.isfile(file) else name_file(f"{path}: plan", bad.problems)
    try:
        config = parse_config(data, folder=path.parent, environment=environment, role=role, plan=plan)
    except ConfigError as bad:
        problems = (*name_file(path, bad.problems), *problems)
    if problems:
        raise ConfigError(problems)
    return LoadedConfig(
        path=path,
        given_role=role,
        config=config,
        plan=plan,
        warnings=name_file(path, weaknesses(config, plan)),
        mistakes=name_file(path, mistakes(config, plan)),
    )


def load_web(path: Path) -> Web:
    """Return section `web` of a configuration file. The rest of it and the plan may be invalid. Raise ConfigError."""
    data = read_document(path)
    section, place = (data.get("web", {}), "web.") if isinstance(data, Mapping) else (data, "")
    try:
        return Web.read(section, {"folder": path.parent, "environment": os.environ})
    except ConfigError as bad:
        raise ConfigError(name_file(path, (f"{place}{problem}" for problem in bad.problems))) from None


def config_schema() -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of a configuration. Contradictions between keys are checked by `load` only."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": "urn:sizewatch:config:1"}
    schema = Config.model_json_schema()
    for section in (schema, *schema["$defs"].values()):
        for key in section.get("properties", {}).values():
            if key.get("title") == DURATION and isinstance(key.get("default"), float):
                key["default"] = duration_text(key["default"])
    return {**head, **schema, "title": "sizewatch configuration"}


def build_tier_contexts(loaded: LoadedConfig) -> dict[str, TierContext]:
    """Return the context of every tier in the plan, the targets or the store sources."""
    planned = dict(loaded.plan.tiers) if loaded.plan else {}
    engines = {tier: source.engine for tier, source in loaded.config.tiers.items()}
    engines |= {target.tier: target.engine for target in loaded.config.targets}
    contexts = {}
    for name in sorted(planned.keys() | engines.keys()):
        tier = planned.get(name)
        comparable = (engines.get(name) or (tier.engine if tier else None)) not in ITL_PER_TOKEN
        pools = {target.name: target.pool for target in loaded.config.targets if target.tier == name}
        contexts[name] = build_tier_context(name, tier, comparable, loaded.config.thresholds.get(name), pools)
    return contexts


def plan_versions(loaded: LoadedConfig) -> dict[str, str]:
    """Return the plan version of every planned tier. The history keeps its sums separate by version."""
    return {name: plan_version(tier) for name, tier in loaded.plan.tiers.items()} if loaded.plan else {}


def select_tier(loaded: LoadedConfig, tier: str | None) -> str:
    """Return the given tier, or the only one. Raise ConfigError."""
    tiers = sorted(build_tier_contexts(loaded))
    if tier is None and len(tiers) == 1:
        return tiers[0]
    if tier is None or tier not in tiers:
        problem = f"there is no tier {tier}" if tier else "say with --tier which one"
        raise ConfigError((f"{problem}; there are {', '.join(tiers) or 'none'}",))
    return tier


def history_path(loaded: LoadedConfig) -> Path:
    """Return the history's file. Raise ConfigError if the agent keeps no history."""
    if loaded.config.history_path is None:
        raise ConfigError((f"{loaded.path}: data_dir: there is no history; role node keeps none unless it is given",))
    return loaded.config.history_path


def mistakes(config: Config, plan: Plan | None) -> tuple[str, ...]:
    """Return every grave mistake: a target is watched under a wrong description."""
    return cap_problems(chain(_unplanned(config, plan), _watched_twice(config)))


def weaknesses(config: Config, plan: Plan | None) -> tuple[str, ...]:
    unwatched, merged = _not_watched(config, plan), _merged_pods(config)
    return cap_problems(chain(unwatched, merged, _weak_connections(config), _open_to_others(config)))


def is_loopback(host: str) -> bool:
    """Return whether an address reaches this machine alone. Names other than localhost may reach further."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _unplanned(config: Config, plan: Plan | None) -> Iterator[str]:
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
    for place, before in repeats(normalize_url(target.url) for target in config.targets):
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
