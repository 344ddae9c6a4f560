"""Pods that others make: without a GPU, of a name that is taken, and thousands of them. The API is the tests' stand-in."""

from __future__ import annotations

import contextlib
import sys
import urllib.request
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler
from itertools import count
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))

from attacks import Attack, World, answer
from chaos_world import free_port
from kube_standin import Kube, pod, serving

TIER = "cpu-small"
MANY = 5_000
LATE = ("80.0", "160.", "640.", "2560", "+Inf")
LATER_SECONDS = 30.0

_clusters: dict[World, Kube] = {}


def put(
    world: World, namespace: str, name: str, *, gpus: int, made: float, page: Callable[..., None] | None = None
) -> None:
    """Add a pod that names the tier itself. Its page is the harness's at /namespace/name."""
    path = f"/{namespace}/{name}"
    if page is not None:
        world.pages[path] = page
    own = {"scrape": "true", "tier": TIER, "port": str(world.server.server_address[1]), "path": path}
    notes = {f"sizewatch.io/{key}": value for key, value in own.items()}
    _clusters[world].put(pod(name, namespace=namespace, annotations=notes, gpus=gpus, made=made))


def in_cluster(fill: Callable[[World], None]) -> Callable[[World, dict[str, Any]], None]:
    """Return a change of the configuration: the node's API has prod/vllm-0 with a GPU, and what `fill` adds."""

    def change(world: World, config: dict[str, Any]) -> None:
        kube = _clusters[world] = Kube(url=f"http://127.0.0.1:{free_port()}")
        kube.node("gpu-1")
        fill(world)
        put(world, "prod", "vllm-0", gpus=1, made=1.7e9)
        token = world.folder / "token"
        token.write_text("good")
        api = {"url": kube.url, "bearer_token_file": str(token)}
        config["discovery"] = {"kubernetes": {"node": "gpu-1", "api": api}}

    return change


def serve(later: Callable[[World], None] = lambda world: None) -> Callable[[World], None]:
    """Return an act: the API is served, and after a while `later` changes its pods."""

    def act(world: World) -> None:
        kube = _clusters[world]
        with serving(kube, int(kube.url.rpartition(":")[2])):
            if not world.over.wait(LATER_SECONDS):
                later(world)
            world.over.wait()

    return act


def cascade(world: World) -> Callable[[BaseHTTPRequestHandler], None]:
    """Return a page on which the KV cache fills, requests are evicted and wait, and first tokens take a minute."""
    first, number = world.body().decode().splitlines(), count()

    def page(handler: BaseHTTPRequestHandler) -> None:
        n = next(number)
        answer(handler, "".join(_worse(line, n) + "\n" for line in first).encode())

    return page


def _worse(line: str, n: int) -> str:
    gauges = {"kv_cache_usage_perc{": min(1.0, 0.4 + 0.2 * n), "num_requests_waiting{": 50.0 * n}
    gauges |= {"num_requests_running{": 40.0}
    counters = {"num_preemptions_total{": 500 * n, 'request_success_total{engine="0",finished_reason="stop"': 10 * n}
    counters |= {"time_to_first_token_seconds_count{": 10 * n, "time_to_first_token_seconds_sum{": 600 * n}
    series, _, value = line.rpartition(" ")
    name = series.removeprefix("vllm:")
    for prefix, level in gauges.items():
        if name.startswith(prefix):
            return f"{series} {level}"
    late = name.startswith("time_to_first_token_seconds_bucket{") and name.partition('le="')[2][:4] in LATE
    more = 10 * n if late else next((more for prefix, more in counters.items() if name.startswith(prefix)), 0)
    return f"{series} {float(value) + more}" if more else line


def stranger(world: World) -> None:
    put(world, "dev", "not-an-engine", gpus=0, made=1.6e9, page=cascade(world))


def same_name(world: World) -> None:
    put(world, "dev", "vllm-0", gpus=1, made=1.6e9)


def many(gpus: int) -> Callable[[World], None]:
    def fill(world: World) -> None:
        for n in range(MANY):
            put(world, "aaa", f"p{n:04}", gpus=gpus, made=1.71e9)

    return fill


def say_watched(world: World) -> str:
    """Return the number of targets, the reads of the pods that matter, and the critical verdicts by replica."""
    lines: list[str] = []
    with contextlib.suppress(OSError):
        lines = urllib.request.urlopen(world.own + "/metrics", timeout=10).read().decode().splitlines()
    targets = sum(line.startswith("sizewatch_target_up{") for line in lines)
    critical = [line for line in lines if line.startswith("sizewatch_verdict{") and line.endswith(" 2.0")]
    rules = sorted(f"{_label(line, 'replica') or 'tier'}:{_label(line, 'rule')}" for line in critical)
    reads = {path: len(times) for path, times in world.reads.items() if path in ("/prod/vllm-0", "/dev/vllm-0")}
    strangers = sum(path.startswith(("/aaa/p", "/dev/not")) for path in world.reads)
    return f"{targets} targets, reads {reads}, {strangers} strangers read, critical: {', '.join(rules) or 'nothing'}"


def _label(line: str, name: str) -> str:
    return line.partition(f'{name}="')[2].partition('"')[0]


ATTACKS = (
    Attack(
        name="kube-stranger",
        text="a pod without a GPU in another namespace that names the tier and whose page shows a cascade",
        config=in_cluster(stranger),
        act=serve(),
        lost=say_watched,
    ),
    Attack(
        name="kube-same-name",
        text="an older pod of the same name in an earlier namespace comes after 30 s",
        config=in_cluster(lambda world: None),
        act=serve(same_name),
        lost=say_watched,
    ),
    Attack(
        name="kube-5000",
        text="5,000 pods without a GPU that name the tier, in an earlier namespace",
        config=in_cluster(many(0)),
        act=serve(),
        lost=say_watched,
    ),
    Attack(
        name="kube-5000-gpus",
        text="5,000 younger pods that ask for a GPU and name the tier, in an earlier namespace",
        config=in_cluster(many(1)),
        act=serve(),
        lost=say_watched,
    ),
)
