"""Command `sizewatch run`: the daemon."""

from __future__ import annotations

import argparse
import logging
import resource

from agent.cli.arguments import add_config
from agent.config.load import find, load
from agent.daemon.daemon import Daemon
from agent.daemon.logs import set_up

_log = logging.getLogger(__name__)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_config(parser)
    parser.add_argument("--role", choices=("standalone", "node", "fleet"), help="instead of the configuration's role")


def run(options: argparse.Namespace) -> int:
    # The memory holds secrets, so a core file on disk would hold them too.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    loaded = load(find(options.config), role=options.role)
    set_up(loaded.config.logging)
    for mistake in loaded.grave:
        _log.error("configuration mistake: %s", mistake)
    for warning in loaded.warnings:
        _log.warning("configuration warning: %s", warning)
    Daemon(loaded).run()
    return 0
