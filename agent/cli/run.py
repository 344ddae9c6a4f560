"""Command `sizewatch run`: the daemon."""

from __future__ import annotations

import ctypes
import logging
import resource
import threading
from types import SimpleNamespace

from agent.cli.arguments import CONFIG, Parameters, choice
from agent.config.load import find, load
from agent.daemon.daemon import Daemon, DaemonOptions
from agent.daemon.logs import set_up

_log = logging.getLogger(__name__)

M_ARENA_MAX = -8
"""Parameter of glibc's mallopt (malloc.h)."""

STACK_BYTES = 1 << 20
"""Address space of a thread's stack. The system's 8 MiB make 32 scrapes a quarter of a GiB under RLIMIT_AS."""


def parameters() -> Parameters:
    role = choice("--role", ("standalone", "node", "fleet"), None, "instead of the configuration's role")
    return CONFIG, role


def run(options: SimpleNamespace, surroundings: DaemonOptions | None = None) -> int:
    """Run the daemon until it is stopped, with the replaced parts of `surroundings`."""
    # The memory holds secrets, so a core file on disk would hold them too.
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    # All threads share one arena: freed pages stay in each, 1.4 MiB in role node. musl has no mallopt.
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(M_ARENA_MAX, 1)
    threading.stack_size(STACK_BYTES)
    loaded = load(find(options.config), role=options.role)
    set_up(loaded.config.logging)
    for mistake in loaded.grave:
        _log.error("configuration mistake: %s", mistake)
    for warning in loaded.warnings:
        _log.warning("configuration warning: %s", warning)
    Daemon(loaded, surroundings).run()
    return 0
