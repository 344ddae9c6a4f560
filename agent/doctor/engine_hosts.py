"""Hosts of engines: the processes that serve them, and which GPUs are whose."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple
from urllib.parse import urlsplit

from agent.config.targets import LOOPBACK, PORTS
from agent.gpu.collector import GpuRead, GpuReader
from agent.gpu.owners import PROC, hosts_of, lineage
from agent.scrape.engine_probe import EngineProbe
from rules.telemetry.snapshots import GpuReadout
from rules.telemetry.windows import group_by

ENGINE_PORTS = (*(port for port in PORTS if isinstance(port, int)), 8001, 8002)
"""Those of containers, of a second vLLM and of Triton's metrics: in a pod 8001 may be Triton's gRPC."""

USUAL_PORTS = {"vllm": 8000, "sglang": 30000, "trtllm-serve": 8000, "text-generation": 3000, "llama-server": 8080}
"""Port of an engine whose command line names none, by a word of the command line."""

COMMAND = re.compile("|".join((*USUAL_PORTS, "tritonserver", "dynamo")))
INTERPRETER = re.compile(r"python[\d.]*|env|nohup|numactl|sh|bash")
"""Programs that run the one that is named after them."""

PORT = re.compile(r"--(?:http-)?port[= ](\d{1,5})\b")
METRICS_PORT = re.compile(r"--metrics-port[= ](\d{1,5})\b")
PARALLEL = re.compile(r"--?(?:tensor|pipeline)[-_]parallel[-_]size[= ](\d+)|--?(?:tp|pp)(?:[-_]size)?[= ](\d+)")

PARALLEL_SIZES = ("tensor_parallel_size", "pipeline_parallel_size", "context_parallel_size")
"""Facts of a page whose product is the number of GPUs of an engine."""

OF_HOST = "all GPUs of its host: which of them the engine uses is not known"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """Port of this machine where an engine may serve its page, and the process whose command line names it.

    `parallel` is the number of GPUs of an instance by that command line. Without a port a user gave the address.
    """

    port: int = 0
    pid: int | None = None
    parallel: int | None = None

    @property
    def evidence(self) -> str:
        if not self.port:
            return "as given"
        if self.pid is None:
            return f"port {self.port}"
        return f"process {self.pid}"


class EngineGpus(NamedTuple):
    """GPUs that an engine may use, with the reason why they may not be its own, "" where they are."""

    gpus: tuple[str, ...]
    doubt: str = ""

    @property
    def measured(self) -> tuple[str, ...]:
        """Return the GPUs whose telemetry counts as the engine's."""
        if self.doubt in ("", OF_HOST):
            return self.gpus
        return ()


class HostGpus:
    """Reader of the GPUs of several hosts. `hosts` has the host of each GPU that was read."""

    def __init__(self, readers: Sequence[tuple[str, GpuReader]]) -> None:
        self._readers = readers
        self.hosts: dict[str, str] = {}

    def read(self, now: float) -> GpuRead:
        """Return the readouts of all hosts. `now` is unix seconds."""
        readouts: list[GpuReadout] = []
        for host, reader in self._readers:
            of_host, _ = reader.read(now)
            readouts += of_host
            self.hosts |= {readout.gpu: host for readout in of_host}
        return tuple(readouts), ()

    def close(self) -> None:
        for _, reader in self._readers:
            reader.close()


def find_host(url: str) -> str:
    """Return the host of an address, "" for this machine."""
    host = urlsplit(url).hostname or ""
    if host in LOOPBACK:
        return ""
    return host


def find_gpus(
    probe: EngineProbe, engines: Sequence[EngineProbe], hosts: Mapping[str, str], latest: Mapping[str, GpuReadout]
) -> EngineGpus:
    """Return the GPUs of an engine by its process or its parallel size, else those of its host.

    `hosts` has the host of each GPU and `latest` its readout. A single engine's exporter may have another name.
    """
    host = find_host(probe.url)
    known = tuple(gpu for gpu, place in hosts.items() if len(engines) == 1 or place == host)
    if not known:
        return EngineGpus(())
    sizes = [int(text) for name in PARALLEL_SIZES if (text := probe.page.facts.get(name, "")).isdecimal()]
    size = None
    if sizes and all(sizes):
        size = math.prod(sizes)
    if host == "":
        port = urlsplit(probe.url).port
        process = next((candidate for candidate in find_candidates() if candidate.port == port), None)
        if process is not None and process.pid is not None:
            size = size or process.parallel
            own = tuple(gpu for gpu in known if any(process.pid in lineage(pid) for pid in latest[gpu].pids))
            if own:
                return EngineGpus(own)
    if machines := hosts_of(map(latest.__getitem__, known)):
        return EngineGpus(known, f"they are of {machines}")
    if sum(find_host(engine.url) == host for engine in engines) > 1:
        return EngineGpus(known, "which engine owns which of them is not known")
    if size is None or probe.holds or probe.page.ranks:
        # Each engine of a page that holds several has as many.
        return EngineGpus(known, OF_HOST if len(known) > 1 else "")
    if size >= len(known):
        return EngineGpus(known)
    busy = tuple(gpu for gpu in known if latest[gpu].pids)
    if len(busy) == size:
        return EngineGpus(busy)
    return EngineGpus(known, f"the engine uses {size} of them, which is not known")


def describe_gpus(readouts: Iterable[GpuReadout]) -> str:
    """Return the number of GPUs of each product in words."""
    groups = group_by(readouts, lambda readout: readout.product)
    return ", ".join(f"{len(group)} x {product}" for product, group in groups.items())


def find_candidates(proc: Path = PROC) -> tuple[Candidate, ...]:
    """Return the ports to ask: those of processes that look like engines, then the engines' usual ports.

    Of several processes of a port the first counts. A machine without `/proc` shows none.
    """
    candidates: dict[int, Candidate] = {}
    for pid in sorted(int(path.name) for path in proc.glob("*") if path.name.isdigit()):
        try:
            arguments = (proc / str(pid) / "cmdline").read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            continue
        words = " ".join(arguments)
        command, named = COMMAND.search(find_program(arguments)), METRICS_PORT.search(words) or PORT.search(words)
        if command is None or pid == os.getpid():
            continue
        port = int(named[1]) if named else USUAL_PORTS.get(command[0])
        if port is not None and port < 65_536:
            sizes = [int(tensor or pipeline) for tensor, pipeline in PARALLEL.findall(words)]
            parallel = None
            if sizes:
                parallel = math.prod(sizes[:2])
            candidates.setdefault(port, Candidate(port=port, pid=pid, parallel=parallel))
    for port in ENGINE_PORTS:
        candidates.setdefault(port, Candidate(port=port))
    return tuple(candidates.values())


def find_program(arguments: Sequence[str]) -> str:
    """Return the program or module that a command line runs, "" without one: that of `python -m vllm.x` is `vllm.x`.

    A tool that only names an engine among its arguments, such as `pip install vllm`, is no engine.
    """
    names = (argument.split(" ")[0].rpartition("/")[2] for argument in arguments if not argument.startswith("-"))
    return next((name for name in names if name and not INTERPRETER.fullmatch(name)), "")
