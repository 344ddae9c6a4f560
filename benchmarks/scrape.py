"""CPU and memory of the node agent beside Prometheus, both scraping the very same targets in the same run.

8 vLLM pages (54 kB, recorded, moving) every 15 s. The agent also reads 8 GPUs through the real NVML binding (a stand-in
library whose own cost is included). Figures are CPU seconds of the process over the measured time: compare them within
one run. With --scraped Prometheus scrapes the agent's /metrics too.

usage: python benchmarks/scrape.py [--minutes 5] [--targets 8] [--gpus 8] [--interval 15] [--scraped]
needs: gcc, and Debian's `prometheus` for the comparison
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import shutil
import tempfile
import threading
import time
from contextlib import ExitStack
from pathlib import Path

import common
from engine_server import pages
from loopback import Program, running
from nvml_fixture import StandIn, compile_standin
from prometheus_server import prometheus_program

BEGIN = time.monotonic()


def respond(path: str, body: bytes) -> tuple[int, bytes]:
    """Return the recorded page of now. Every path is a target."""
    place = int((time.monotonic() - BEGIN) / 5)
    return 200, pages()[min(len(pages()) - 1, place)]


def keep_gpus_busy(folder: Path, count: int) -> None:
    """Compile the stand-in library into the folder, and move its GPUs on every five seconds."""
    gpus = StandIn(folder, ctypes.CDLL(str(compile_standin(folder))))

    for _ in range(count):
        gpus.add_gpu()

    def go_on() -> None:
        with contextlib.suppress(FileNotFoundError):
            while folder.exists():
                stamp = int(time.time() * 1e6)
                samples = ",".join(f"{stamp - 166_000 * k}:{50 + k % 40}" for k in reversed(range(90)))
                for n in range(count):
                    gpus.set({f"{n}.samples": samples, f"{n}.energy_mj": stamp // 1000 * 4 // 10})
                time.sleep(5)

    threading.Thread(target=go_on, daemon=True).start()


def build_agent(folder: Path, urls: list[str], options: argparse.Namespace) -> common.Agent:
    """Return the node agent with these targets."""
    environment: tuple[str, ...] = ()
    if options.gpus:
        keep_gpus_busy(folder, options.gpus)
        environment = ("env", f"LD_LIBRARY_PATH={folder}", f"NVML_STANDIN_STATE={folder / 'state'}")
    each = max(1, options.gpus // len(urls))
    targets = []
    for n, url in enumerate(urls):
        gpus = list(range(n * each, n * each + each))
        targets.append({"url": url, "tier": common.TIER, "replica": f"r{n}", "gpus": gpus})
    keys = {
        "role": "node",
        "scrape_interval": f"{options.interval:g}s",
        "plan": str(common.ROOT / "tests" / "plans" / "cpu-small-open.yaml"),
        "targets": targets,
        "gpus": {"source": "nvml" if options.gpus else "none"},
        "logging": {"level": "warning"},
    }
    return common.Agent(folder, keys, before=environment)


def build_prometheus(folder: Path, urls: list[str], interval: float) -> Program | None:
    """Return a Prometheus with these targets."""
    if shutil.which("prometheus") is None:
        print("Prometheus is not installed: nothing to compare with (apt-get install prometheus)")
        return None
    jobs = []
    for n, url in enumerate(urls):
        _, _, address, path = url.split("/", 3)
        jobs.append({"job_name": f"t{n}", "metrics_path": f"/{path}", "static_configs": [{"targets": [address]}]})
    return prometheus_program(folder, {"global": {"scrape_interval": f"{interval:g}s"}, "scrape_configs": jobs})


def main() -> None:
    options = common.build_parser(__doc__, minutes=5.0, targets=8, gpus=8, interval=15.0, scraped=False).parse_args()
    server = common.Server(respond)
    urls = [f"{server.url}/t{n}/metrics" for n in range(options.targets)]
    with tempfile.TemporaryDirectory() as name, ExitStack() as stack:
        agent = build_agent(Path(name), urls, options)
        scraped = [f"{agent.url}/metrics"] if options.scraped else []
        prometheus = build_prometheus(Path(name), [*urls, *scraped], options.interval)
        processes: dict[str, Program] = {"sizewatch": agent}
        if prometheus is not None:
            processes["prometheus"] = prometheus
        for process in processes.values():
            stack.enter_context(running(process))
        time.sleep(2 * options.interval + 5)
        before = {name: common.cpu_seconds(process.pid) for name, process in processes.items()}
        time.sleep(options.minutes * 60)
        after = {name: common.cpu_seconds(process.pid) for name, process in processes.items()}
        memory = {name: common.read_status(process.pid) for name, process in processes.items()}
    size = f"{options.targets} targets of {len(pages()[0]) / 1000:.0f} kB and {options.gpus} GPUs"
    print(f"{size} every {options.interval:g} s, {options.minutes:g} minutes after warm-up")
    spent = {name: after[name] - before[name] for name in processes}
    for name, cpu in spent.items():
        each = cpu / (options.minutes * 60 / options.interval) * 1000
        now, most = memory[name]["VmRSS"] / 1024, memory[name]["VmHWM"] / 1024
        print(f"  {name:11} {cpu:7.2f} s CPU ({each:6.1f} ms a cycle)   {now:6.1f} MiB resident, {most:.1f} at most")
    if prometheus is not None:
        cpu_ratio = spent["sizewatch"] / max(spent["prometheus"], 1e-9)
        memory_ratio = memory["sizewatch"]["VmRSS"] / memory["prometheus"]["VmRSS"]
        print(f"  ratio of CPU {cpu_ratio:.2f}, of resident memory {memory_ratio:.2f}")


if __name__ == "__main__":
    main()
