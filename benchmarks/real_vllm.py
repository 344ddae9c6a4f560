"""The whole of it once against a real vLLM: daemon, page, history, check, and an engine that dies.

Not part of the tests: it needs a vLLM (a CPU build and a 77 M parameter model will do) and about seven minutes. The plan
is tests/plans/cpu-small.yaml; for another model name --plan and --model.

usage: python benchmarks/real_vllm.py --serve 'vllm serve MODEL ... --port 18000' --url http://127.0.0.1:18000 --model NAME
What it does: starts the server and times its start; 200 s of light load; concurrency 4 to 36 with long prompts until the
KV cache overflows; light load again; kills the server. Then it prints what the clients measured beside what sizewatch said.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import common
import requests
from waiting import wait_for

START_SECONDS, MOST_REQUESTS = 240.0, 200
FINDING_KEYS = ("rule", "replica", "status", "certainty", "started_at", "ended_at", "sentence")


class Clients:
    """Clients of one server. They keep when each answer was complete (unix seconds) and its TTFT in seconds."""

    def __init__(self, url: str, model: str) -> None:
        self._url, self._model = url, model
        self.done: list[tuple[float, float]] = []
        self.failed: list[str] = []

    def send(self, prompt: int, output: int) -> None:
        """Send a request of so many tokens and measure its answer."""
        tokens = [random.randrange(300, 2000) for _ in range(prompt)]
        body = {"model": self._model, "prompt": tokens, "max_tokens": output, "ignore_eos": True, "stream": True}
        start, first = time.time(), 0.0
        try:
            with requests.post(f"{self._url}/v1/completions", json=body, stream=True, timeout=240) as result:
                result.raise_for_status()
                for line in result.iter_lines():
                    if line.startswith(b"data: {"):
                        first = first or time.time()
        except requests.RequestException as error:
            self.failed.append(str(error))
        else:
            self.done.append((time.time(), first - start))

    def open_loop(self, seconds: float, rps: float) -> None:
        """Short requests at random times."""
        end = time.time() + seconds
        with ThreadPoolExecutor(MOST_REQUESTS) as pool:
            while time.time() < end:
                time.sleep(random.expovariate(rps))
                pool.submit(self.send, random.randint(40, 120), random.randint(24, 64))

    def ramp(self, seconds: float, low: int, high: int) -> None:
        """Long requests, ever more at once."""
        begin = time.time()

        def keep_sending(start: float) -> None:
            time.sleep(max(0.0, start))
            while time.time() < begin + seconds:
                self.send(random.randint(350, 600), random.randint(180, 300))

        with ThreadPoolExecutor(high) as pool:
            for number in range(high):
                pool.submit(keep_sending, (number - low) / (high - low) * seconds)


def is_healthy(url: str) -> bool:
    try:
        return requests.get(f"{url}/health", timeout=2).status_code == 200
    except requests.RequestException:
        return False


def main() -> None:
    options = {"url": "http://127.0.0.1:18000", "model": "small-llama", "plan": common.PLAN, "tier": common.TIER}
    parser = common.build_parser(__doc__, **options)
    parser.add_argument("--serve", required=True, help="command that starts vLLM")
    arguments = parser.parse_args()
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
    server = subprocess.Popen(arguments.serve, shell=True, start_new_session=True, **quiet)
    try:
        with tempfile.TemporaryDirectory() as name:
            watch(Path(name), server, arguments)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGKILL)


def watch(folder: Path, server: subprocess.Popen[bytes], arguments: argparse.Namespace) -> None:
    begin = time.monotonic()
    if not wait_for(lambda: is_healthy(arguments.url), START_SECONDS, every=0.2):
        raise SystemExit(f"{arguments.url} did not answer within {START_SECONDS:g} s")
    print(f"vLLM ready after {time.monotonic() - begin:.1f} s", flush=True)
    keys = {
        "plan": str(arguments.plan),
        "data_dir": "data",
        "scrape_interval": "5s",
        "targets": [{"url": f"{arguments.url}/metrics", "tier": arguments.tier, "replica": "vllm-0"}],
        "gpus": {"source": "none"},
        "logging": {"level": "warning"},
    }
    agent = common.Agent(folder, keys)
    agent.start()
    try:
        clients = Clients(arguments.url, arguments.model)
        phase("light load, 2 rps", lambda: clients.open_loop(200, 2.0))
        phase("long requests, 4 to 36 at once", lambda: clients.ramp(80, 4, 36))
        phase("light load again", lambda: clients.open_loop(75, 1.0))
        finished = common.total(agent.metrics(), "sizewatch_requests_finished_total")
        counted = f"sizewatch counted {finished:.0f} from its second scrape on"
        print(f"clients: {len(clients.done)} requests done, {len(clients.failed)} errors; {counted}")
        os.killpg(server.pid, signal.SIGKILL)
        phase("engine killed", lambda: time.sleep(40))
        for tier in requests.get(f"{agent.url}/api/status", timeout=10).json()["tiers"]:
            for finding in tier["episodes"]:
                print(json.dumps({key: finding.get(key) for key in FINDING_KEYS}))
        late = sorted(t for t, ttft in clients.done if ttft > 2)
        if late:
            print(f"clients' first TTFT above 2 s finished at {time.strftime('%H:%M:%S', time.gmtime(late[0]))} UTC")
        words = [sys.executable, "-m", "agent", "check", "-c", str(agent.config), "--since", "1h"]
        result = subprocess.run(words, cwd=common.ROOT, capture_output=True, text=True)
        print(f"\nsizewatch check: exit code {result.returncode}\n{result.stdout}{result.stderr}")
    finally:
        print(f"daemon ended with {agent.stop()}\n{agent.log.read_text()}")


def phase(name: str, work: Callable[[], object]) -> None:
    print(f"{time.strftime('%H:%M:%S', time.gmtime())} UTC  {name}", flush=True)
    work()


if __name__ == "__main__":
    main()
