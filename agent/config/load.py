"""The configuration of the program, from file to checked records, together with the plan it names.

Owns the door `load`: every problem of both files at once, none of them with a traceback. The keys are
`agent.config.keys`'s, the words `agent.config.problems`'s, reading is `agent.config.files`'s, and what weakens a
configuration without making it unusable is `agent.config.weaknesses`'s. Nothing here opens a socket or a secret.

The tiers of a configuration as judgements see them.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from agent.config import store_keys
from agent.config.files import load_plan, read_document
from agent.config.keys import Config, Role
from agent.config.problems import cross_problems, problems_of
from agent.config.weaknesses import mistakes, weaknesses
from agent.errors import ConfigError, PlanError
from rules.catalogue.registry import margin_of
from rules.engines.registry import itl_comparable
from rules.plan.checks import check_plan
from rules.plan.load_bins import TierContext, build_tier_context
from rules.plan.schema import Plan, plan_version

SCHEMA_ID = "https://sizewatch.dev/schemas/config-1.json"
SEARCHED = ("sizewatch.yaml", "/etc/sizewatch/sizewatch.yaml")
"""Where a configuration is looked for when none is named."""

DEFAULT_DATA_DIR = "sizewatch-data"


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadedConfig:
    """A configuration that can be used, with its plan. `mistakes` are grave, `warnings` weaken it; each begins with file and
    path.

    `given_role` is the role that the caller put in place of the file's, to be given again when the file is read again.
    """

    path: Path
    given_role: Role | None = None
    config: Config
    plan: Plan | None
    warnings: tuple[str, ...]
    mistakes: tuple[str, ...] = ()

    @property
    def grave(self) -> tuple[str, ...]:
        """The mistakes of the configuration and of its plan."""
        planned = check_plan(self.plan, margin_of()) if self.plan else ()
        told = (f"{self.config.plan}: {one.path}: {one.text}" for one in planned if one.severity == "mistake")
        return (*self.mistakes, *told)


def parse_config(
    data: object,
    *,
    folder: Path = Path(),
    environment: Mapping[str, str] | None = None,
    role: Role | None = None,
    plan: Plan | None = None,
) -> Config:
    """The configuration in `data`, as a YAML or JSON parser returns it. Relative files stand in `folder`.

    `role` replaces the one that is given; `plan` is what targets and thresholds are checked against. Raises BadConfig
    with every problem at once.
    """
    given = _with_defaults(data, role)
    context = {"folder": folder, "environment": os.environ if environment is None else environment}
    contradictions = (*cross_problems(given, plan), *store_keys.contradictions(given))
    try:
        config = Config.model_validate(given, context=context)
    except ValidationError as error:
        raise ConfigError((*problems_of(error, Config), *contradictions)) from None
    if contradictions:
        raise ConfigError(contradictions)
    return config


def _with_defaults(data: object, role: Role | None) -> object:
    if not isinstance(data, Mapping):
        return data
    given = {**data, "role": role} if role else dict(data)
    if given.get("role", "standalone") != "node" and given.get("data_dir") is None:
        given["data_dir"] = DEFAULT_DATA_DIR
    return given


def find(given: Path | str | None) -> Path:
    """The configuration file: the one given, else the first of SEARCHED that exists. Raises BadConfig, also for one that lies
    in the working folder and is somebody else's: it may have files of ours sent as a token to wherever it says."""
    if given:
        return Path(given)
    for name in SEARCHED:
        if Path(name).is_file():
            seen = os.stat(name)
            if seen.st_uid not in (os.geteuid(), 0) or seen.st_mode & stat.S_IWOTH:
                raise ConfigError(
                    (f"{name}: in this folder is another user's, or everybody may write it: name it with -c",)
                )
            return Path(name)
    raise ConfigError((f"no configuration: there is neither {' nor '.join(SEARCHED)}; name one with -c",))


def load(path: Path, *, role: Role | None = None, environment: Mapping[str, str] | None = None) -> LoadedConfig:
    """The configuration in a file, and the plan that it names.

    Raises BadConfig with every problem of both, each beginning with file, line (where known) and path.
    """
    document = read_document(path)
    if document.data is None and document.problems:
        raise ConfigError(document.problems)
    problems = list(document.problems)
    plan, plan_path = None, _plan_path(document.data, path.parent)
    try:
        plan = load_plan(plan_path) if plan_path else None
    except PlanError as bad:
        problems += bad.problems
    try:
        config = parse_config(document.data, folder=path.parent, environment=environment, role=role, plan=plan)
    except ConfigError as bad:
        problems = [*document.located(bad.problems), *problems]
    if problems:
        raise ConfigError(tuple(problems))
    return LoadedConfig(
        path=path,
        given_role=role,
        config=config,
        plan=plan,
        warnings=document.located(weaknesses(config, plan)),
        mistakes=document.located(mistakes(config, plan)),
    )


def _plan_path(data: object, folder: Path) -> Path | None:
    """Read from the file itself, so that the plan's problems are told beside the configuration's."""
    named = data.get("plan") if isinstance(data, Mapping) else None
    return folder / named if isinstance(named, str) and named and "\0" not in named and "${" not in named else None


def config_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a configuration; what keys say of each other only `load` checks."""
    head = {"$schema": "https://json-schema.org/draft/2020-12/schema", "$id": SCHEMA_ID}
    return {**head, **Config.model_json_schema(), "title": "sizewatch configuration"}


def build_tier_contexts(loaded: LoadedConfig) -> dict[str, TierContext]:
    """A view of every tier that the plan, a target or a source in a store names."""
    planned = dict(loaded.plan.tiers) if loaded.plan else {}
    engines = {tier: source.engine for tier, source in loaded.config.tiers.items()}
    engines |= {target.tier: target.engine for target in loaded.config.targets}
    views = {}
    for name in sorted(planned.keys() | engines.keys()):
        tier = planned.get(name)
        engine = engines.get(name) or (tier.engine if tier else None)
        pools = {target.name: target.pool for target in loaded.config.targets if target.tier == name}
        views[name] = build_tier_context(name, tier, itl_comparable(engine), loaded.config.thresholds.get(name), pools)
    return views


def plan_versions(loaded: LoadedConfig) -> dict[str, str]:
    """The plan version of every planned tier, by which the history keeps its sums apart."""
    return {name: plan_version(tier) for name, tier in loaded.plan.tiers.items()} if loaded.plan else {}
