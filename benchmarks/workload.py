"""Production to benchmark and back against a real vLLM: does production confirm the curve of its own workload?

Not part of the tests: it needs a vLLM (a CPU build and a small model will do) with its command `vllm` on the path, and
about an hour. docs/plan-workload.md has what it showed.

usage: python benchmarks/workload.py --serve 'vllm serve MODEL ... --port 18000' --tokenizer MODEL --out FOLDER
What it does: starts the server; production under a plan without a curve while `sizewatch run` watches; `sizewatch plan
workload`, its run.sh, `sizewatch plan import`; the same production again with other requests; `sizewatch check`, and
`sizewatch replay` of the pages saved meanwhile. Exit code 1 where production does not confirm the curve. `check` itself
confirms nothing before three hours: give --minutes 180 for that.
"""

from __future__ import annotations

import argparse
import gzip
import json
import math
import os
import random
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
import yaml
from real_vllm import HERE, Clients, wait_for

from rules.evaluator.benchmark_check import ASKED

TIER = "cpu-mini"
PLAN = {
    "model": "mini-llama",
    "engine": "vllm",
    "gpu": {"product": "CPU", "per_replica": 1},
    "slo": {"ttft_p99_seconds": 2.0, "tpot_p99_seconds": 0.15},
    "fleet": {"instances": 1},
}
SCRAPE_SECONDS = 5.0
SHARED = 64
"""Tokens of the system prompt that all requests of production begin with. Nobody tells sizewatch."""


class Production(Clients):
    """Users: arrivals at random times at a rate that moves by 40 % in eight minutes, prompts with a long tail."""

    def body(self, chance: random.Random) -> dict[str, object]:
        own = min(500, max(8, round(chance.lognormvariate(math.log(70), 0.6))))
        prompt = [300 + place for place in range(SHARED)] + [chance.randrange(300, 2000) for _ in range(own)]
        output = min(160, max(4, round(chance.lognormvariate(math.log(28), 0.5))))
        return {"model": self.model, "prompt": prompt, "max_tokens": output, "ignore_eos": True, "stream": True}

    def live(self, minutes: float, rps: float, seed: int) -> None:
        chance, begin, workers = random.Random(seed), time.time(), []
        while (passed := time.time() - begin) < 60 * minutes:
            time.sleep(chance.expovariate(rps * (1 + 0.4 * math.sin(2 * math.pi * passed / 480))))
            workers = [worker for worker in workers if worker.is_alive()]
            workers.append(threading.Thread(target=self.send, args=(self.body(chance),)))
            workers[-1].start()
        for worker in workers:
            worker.join()


@contextmanager
def recording(folder: Path, url: str) -> Iterator[None]:
    """Save the engine's page every few seconds, as `sizewatch replay` reads it."""
    folder.mkdir(parents=True, exist_ok=True)
    target = {"file": "metrics.jsonl.gz", "tier": TIER, "replica": "vllm-0", "engine": "vllm"}
    (folder / "recording.yaml").write_text(yaml.safe_dump({"schema": 1, "name": folder.name, "targets": [target]}))
    over = threading.Event()

    def scrape() -> None:
        with gzip.open(folder / "metrics.jsonl.gz", "wt") as file:
            while not over.is_set():
                began = time.time()
                try:
                    line = {"t": began, "text": requests.get(f"{url}/metrics", timeout=4).text}
                except requests.RequestException as error:
                    line = {"t": began, "error": str(error)}
                file.write(json.dumps(line) + "\n")
                over.wait(SCRAPE_SECONDS)

    scraper = threading.Thread(target=scrape)
    scraper.start()
    try:
        yield
    finally:
        over.set()
        scraper.join()


def sizewatch(*words: str) -> tuple[int, str]:
    """Run a command of sizewatch, show what it prints, and return its exit code and stdout."""
    print(f"\n$ sizewatch {' '.join(words)}", flush=True)
    done = subprocess.run([sys.executable, "-m", "agent", *words], cwd=HERE, capture_output=True, text=True)
    if "json" not in words:
        print(f"{done.stdout}{done.stderr}[exit code {done.returncode}]", flush=True)
    return done.returncode, done.stdout


def serve_production(arguments: argparse.Namespace, config: Path, name: str, minutes: float, seed: int) -> None:
    """One stretch of production, watched by `sizewatch run` and recorded."""
    clients = Production(arguments.url, PLAN["model"])
    print(
        f"\n{time.strftime('%H:%M:%S', time.gmtime())} UTC  {name}: {minutes:g} min; load of the machine {os.getloadavg()}"
    )
    daemon = subprocess.Popen([sys.executable, "-m", "agent", "run", "-c", str(config)], cwd=HERE)
    try:
        wait_for(f"http://127.0.0.1:{arguments.port}/readyz", 60)
        with recording(arguments.out / name, arguments.url):
            clients.live(minutes, arguments.rps, seed)
            # The last requests must reach a page, and their minute must close.
            time.sleep(75)
    finally:
        daemon.send_signal(signal.SIGTERM)
        daemon.wait(60)
    ttft, tpot = (sorted(one[place] for one in clients.done) for place in (1, 2))
    at = {q: math.ceil(q * len(ttft)) - 1 for q in (0.5, 0.99)}
    print(
        f"clients: {len(ttft)} done, {clients.errors} errors; TTFT P50 {ttft[at[0.5]]:.3f} s, P99 {ttft[at[0.99]]:.3f} s; "
        f"TPOT P50 {tpot[at[0.5]]:.4f} s, P99 {tpot[at[0.99]]:.4f} s; load of the machine {os.getloadavg()}",
        flush=True,
    )


def confirmed(text: str) -> bool:
    """Print what replay judged of step 13. Return whether nothing fired and both latencies were compared."""
    answers = {one["rule"]: one for one in json.loads(text)["verdicts"] if one["rule"] in ASKED}
    for name, one in sorted(answers.items()):
        print(f"  {one['status']:9} {name}, {one['certainty']}: {one['sentence']}")
    fine = {name for name, one in answers.items() if one["status"] == "ok"}
    return fine == set(answers) and {"TtftDivergence", "TpotDivergence"} <= fine


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--serve", required=True, help="command that starts vLLM, as model mini-llama")
    parser.add_argument("--tokenizer", required=True, help="folder of the model's tokenizer")
    parser.add_argument("--url", default="http://127.0.0.1:18000")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--minutes", type=float, default=20, help="of production after the benchmark (before it: 16)")
    parser.add_argument("--rps", type=float, default=2.0)
    parser.add_argument("--port", type=int, default=19596)
    arguments = parser.parse_args()
    arguments.out = arguments.out.absolute()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with (arguments.out / "serve.log").open("w") as log:
        server = subprocess.Popen(arguments.serve, shell=True, start_new_session=True, stdout=log, stderr=log)
    try:
        print(f"vLLM ready after {wait_for(f'{arguments.url}/health', 300):.1f} s", flush=True)
        return go(arguments)
    finally:
        if server.poll() is None:
            os.killpg(server.pid, signal.SIGTERM)


def go(arguments: argparse.Namespace) -> int:
    folder: Path = arguments.out
    plan, config, bench = folder / "plan.yaml", folder / "sizewatch.yaml", folder / "bench"
    plan.write_text(yaml.safe_dump({"schema": 1, "tiers": {TIER: PLAN}}, sort_keys=False))
    told = {
        "plan": str(plan),
        "data_dir": str(folder / "data"),
        "scrape_interval": f"{SCRAPE_SECONDS:g}s",
        "targets": [{"url": f"{arguments.url}/metrics", "tier": TIER, "replica": "vllm-0"}],
        "gpus": {"source": "none"},
        "web": {"listen": f"127.0.0.1:{arguments.port}"},
        "logging": {"level": "warning"},
    }
    config.write_text(yaml.safe_dump(told))
    serve_production(arguments, config, "production-before", 16, seed=1)
    if sizewatch("plan", "workload", "-c", str(config), "--since", "1h", "--out", str(bench))[0]:
        return 1
    places = {"URL": arguments.url, "TOKENIZER": arguments.tokenizer}
    print(f"\n$ sh {bench}/run.sh   load of the machine {os.getloadavg()}", flush=True)
    with (bench / "run.log").open("w") as log:
        subprocess.run(["sh", str(bench / "run.sh")], env=os.environ | places, stdout=log, stderr=log, check=True)
    results = [str(path) for path in sorted(bench.glob("bench_r*.json"))]
    if sizewatch("plan", "import", *results, "--into", str(plan))[0] > 1:
        return 1
    serve_production(arguments, config, "production-after", arguments.minutes, seed=2)
    sizewatch("check", "-c", str(config), "--since", f"{arguments.minutes + 2:.0f}m")
    code, text = sizewatch("replay", str(folder / "production-after"), "--plan", str(plan), "--format", "json")
    fine = confirmed(text)
    print(
        f"\nreplay: exit code {code}; production {'confirms' if fine else 'does not confirm'} the curve of its workload"
    )
    return 0 if fine else 1


if __name__ == "__main__":
    sys.exit(main())
