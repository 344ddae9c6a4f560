"""CPU and memory of the node agent beside Prometheus, both scraping the very same targets in the same run.

8 vLLM pages (54 kB, recorded, moving) every 15 s; the agent also reads 8 GPUs through the real NVML binding (a stand-in
library whose own cost is left in). Figures are CPU seconds of the process over the measured span, so they
compare within one run; absolute numbers belong to the machine they were taken on.

usage: python benchmarks/scrape.py [--minutes 5] [--targets 8] [--gpus 8] [--interval 15] [--scraped]
needs: gcc, and Debian's `prometheus` for the comparison
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import yaml

HERE = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(HERE))

from agent.sources.recording import load, scrapes


def pages() -> list[bytes]:
    """The recorded pages of a steady engine; played in their own rhythm and repeated."""
    recording, _ = load(HERE / "tests" / "recordings" / "steady")
    return [s.body for s in scrapes(recording, []) if s.body is not None]


def serve(bodies: list[bytes]) -> ThreadingHTTPServer:
    """Every path is a target; its page moves on with time."""
    begin = time.monotonic()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            body = bodies[min(len(bodies) - 1, int((time.monotonic() - begin) / 5))]
            self.send_response(200)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: object) -> None:
            """Quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    threading.Thread(target=server.serve_forever, daemon=True).start()
    return server


def cpu_seconds(pid: int) -> float:
    """User and system time of a process, of all its threads, to the nanosecond."""
    # The clock of a process as `clock_getcpuclockid` names it (CPUCLOCK_SCHED of the kernel). /proc counts ticks of 10 ms.
    return time.clock_gettime(~pid << 3 | 2)


def resident_mib(pid: int) -> tuple[float, float]:
    """Resident memory now and at its highest."""
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines() if ":" in line)
    return tuple(int(lines[name].split()[0]) / 1024 for name in ("VmRSS", "VmHWM"))  # type: ignore[return-value]


def keep_gpus_busy(folder: Path, count: int) -> Path:
    """Compiles the stand-in library and moves the state of `count` GPUs on; returns the folder that holds it."""
    sys.path.insert(0, str(HERE / "tests" / "support"))
    from nvml_fixture import H100, compile_standin

    compile_standin(folder)
    state = folder / "state"

    def write() -> None:
        stamp = int(time.time() * 1e6)
        samples = ",".join(f"{stamp - 166_000 * k}:{50 + k % 40}" for k in reversed(range(90)))
        lines = ["driver=580.95.05", f"count={count}"]
        for n in range(count):
            gpu = {
                **H100,
                "uuid": f"GPU-{n}0000000-0000-4000-8000-000000000000",
                "samples": samples,
                "energy_mj": stamp // 1000 * 4 // 10,
            }
            lines += [f"{n}.{key}={value}" for key, value in gpu.items()]
        state.with_suffix(".new").write_text("\n".join(lines) + "\n")
        state.with_suffix(".new").replace(state)

    def on() -> None:
        while state.parent.exists():
            try:
                write()
            except FileNotFoundError:
                return
            time.sleep(5)

    write()
    threading.Thread(target=on, daemon=True).start()
    return folder


def start_agent(folder: Path, urls: list[str], arguments: argparse.Namespace) -> subprocess.Popen[bytes]:
    environment = dict(os.environ)
    if arguments.gpus:
        place = keep_gpus_busy(folder, arguments.gpus)
        environment |= {"LD_LIBRARY_PATH": str(place), "NVML_STANDIN_STATE": str(place / "state")}
    per = max(1, arguments.gpus // max(1, len(urls)))
    config = {
        "role": "node",
        "scrape_interval": f"{arguments.interval:g}s",
        "plan": str(HERE / "tests" / "plans" / "cpu-small-open.yaml"),
        "targets": [
            {"url": url, "tier": "cpu-small", "replica": f"r{i}", "gpus": list(range(i * per, i * per + per))}
            for i, url in enumerate(urls)
        ],
        "gpus": {"source": "nvml" if arguments.gpus else "none"},
        "web": {"listen": f"127.0.0.1:{arguments.port}"},
        "logging": {"level": "warning"},
    }
    (folder / "sizewatch.yaml").write_text(yaml.safe_dump(config))
    command = [sys.executable, "-m", "agent", "run", "-c", str(folder / "sizewatch.yaml"), "--role", "node"]
    return subprocess.Popen(command, cwd=HERE, env=environment)


def start_prometheus(folder: Path, urls: list[str], arguments: argparse.Namespace) -> subprocess.Popen[bytes] | None:
    binary = shutil.which("prometheus")
    if binary is None:
        return None
    jobs = [
        {
            "job_name": f"t{i}",
            "metrics_path": "/" + url.split("/", 3)[3],
            "static_configs": [{"targets": [url.split("/")[2]]}],
        }
        for i, url in enumerate(urls)
    ]
    if arguments.scraped:
        jobs.append({"job_name": "sizewatch", "static_configs": [{"targets": [f"127.0.0.1:{arguments.port}"]}]})
    config = {"global": {"scrape_interval": f"{arguments.interval:g}s"}, "scrape_configs": jobs}
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    command = [
        binary,
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{arguments.port + 1}",
        "--log.level=error",
    ]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def measure(processes: dict[str, subprocess.Popen[bytes]], seconds: float) -> dict[str, tuple[float, float, float]]:
    """CPU seconds over the span, resident MiB at its end and at its highest."""
    before = {name: cpu_seconds(p.pid) for name, p in processes.items()}
    time.sleep(seconds)
    return {name: (cpu_seconds(p.pid) - before[name], *resident_mib(p.pid)) for name, p in processes.items()}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--minutes", type=float, default=5.0)
    parser.add_argument("--targets", type=int, default=8)
    parser.add_argument("--gpus", type=int, default=8)
    parser.add_argument("--interval", type=float, default=15.0)
    parser.add_argument("--port", type=int, default=19395)
    parser.add_argument("--scraped", action="store_true", help="Prometheus scrapes the agent's /metrics too")
    arguments = parser.parse_args()
    bodies = pages()
    server = serve(bodies)
    urls = [f"http://127.0.0.1:{server.server_address[1]}/t{i}/metrics" for i in range(arguments.targets)]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        processes = {"sizewatch": start_agent(folder, urls, arguments)}
        prometheus = start_prometheus(folder, urls, arguments)
        if prometheus is not None:
            processes["prometheus"] = prometheus
        try:
            time.sleep(2 * arguments.interval + 5)
            found = measure(processes, arguments.minutes * 60)
        finally:
            for process in processes.values():
                process.send_signal(signal.SIGTERM)
            for process in processes.values():
                process.wait(20)
    report(found, arguments, len(bodies[0]))


def report(found: dict[str, tuple[float, float, float]], arguments: argparse.Namespace, size: int) -> None:
    print(
        f"{arguments.targets} targets of {size / 1000:.0f} kB and {arguments.gpus} GPUs every {arguments.interval:g} s, "
        f"{arguments.minutes:g} minutes after warm-up"
    )
    for name, (cpu, now, most) in found.items():
        turns = arguments.minutes * 60 / arguments.interval
        print(
            f"  {name:11} {cpu:7.2f} s CPU ({cpu / turns * 1000:6.1f} ms a turn)   {now:6.1f} MiB resident, {most:.1f} at most"
        )
    if "prometheus" in found:
        print(
            f"  ratio of CPU {found['sizewatch'][0] / max(found['prometheus'][0], 1e-9):.2f}, "
            f"of resident memory {found['sizewatch'][1] / found['prometheus'][1]:.2f}"
        )
    else:
        print("  Prometheus is not installed: nothing to compare with (apt-get install prometheus)")


if __name__ == "__main__":
    main()
