"""What each module costs at import: the table behind the lazy loading by role.

    .venv/bin/python benchmarks/import_cost.py [--role node|fleet|standalone] [--rows 30]

A process loads a configuration and assembles a daemon of the role; its anonymous pages are in the first line
(/proc/self/smaps_rollup). A second one is traced (tracemalloc), because pages come in arenas of 1 MiB and are charged to the
module that happens to need the next one. The cost of a module is the memory that it keeps, without that of the modules
that it imports. Sums are by package.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent

CHILD = r"""
import importlib.machinery, json, sys, tempfile, time, tracemalloc
from pathlib import Path

def anonymous():
    if tracemalloc.is_tracing():
        return tracemalloc.get_traced_memory()[0] / 1024
    for line in open("/proc/self/smaps_rollup"):
        if line.startswith("Anonymous:"):
            return int(line.split()[1])

costs, stack = {}, []
plain = importlib.machinery.SourceFileLoader.exec_module

def measured(self, module):
    before, cpu = anonymous(), time.process_time()
    stack.append([0, 0.0])
    try:
        plain(self, module)
    finally:
        size, seconds = anonymous() - before, time.process_time() - cpu
        inner = stack.pop()
        costs[module.__name__] = (size - inner[0], seconds - inner[1])
        if stack:
            stack[-1][0] += size
            stack[-1][1] += seconds

if sys.argv[3] == "trace":
    tracemalloc.start()
start = anonymous()
importlib.machinery.SourceFileLoader.exec_module = measured
from agent.cli import main
main.command_line().get_command(None, "run")
from agent.config.load import load
from agent.daemon.daemon import Daemon, DaemonOptions
from agent.config.web import Web
imported = anonymous()
folder = Path(tempfile.mkdtemp())
target = "targets: [{url: 'http://127.0.0.1:9/metrics', tier: t}]\n"
store = "store: {url: 'http://127.0.0.1:9'}\n" if sys.argv[1] == "fleet" else target
(folder / "sizewatch.yaml").write_text(f"role: {sys.argv[1]}\nplan: {sys.argv[2]}\n" + store)
daemon = Daemon(load(folder / "sizewatch.yaml"), DaemonOptions(web=lambda _: Web.model_construct(listen="127.0.0.1:0")))
print(json.dumps({"start": start, "imported": imported, "assembled": anonymous(), "costs": costs}))
"""


def assemble(role: str, plan: Path, how: str) -> dict[str, Any]:
    """Memory at the start, after the imports and assembled, and the cost of each module: KiB by `how`, CPU seconds."""
    words = [sys.executable, "-c", CHILD, role, str(plan), how]
    ended = subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False)
    if ended.returncode:
        sys.exit(ended.stderr)
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=str(__doc__).partition("\n")[0])
    parser.add_argument("--role", choices=("node", "fleet", "standalone"), default="node")
    parser.add_argument("--rows", type=int, default=30)
    options = parser.parse_args()
    plan = ROOT / "tests" / "plans" / "cpu-small.yaml"
    found, traced = (assemble(options.role, plan, how) for how in ("pages", "trace"))
    packages: dict[str, list[float]] = {}
    costs = {name: (size, found["costs"][name][1]) for name, (size, _) in traced["costs"].items()}
    for name, (size, seconds) in costs.items():
        total = packages.setdefault(name.partition(".")[0], [0.0, 0.0, 0.0])
        for place, value in enumerate((size, seconds, 1)):
            total[place] += value
    print(
        f"role {options.role}, anonymous memory: {found['start'] / 1024:.1f} MiB of a bare Python, "
        f"{found['imported'] / 1024:.1f} imported, {found['assembled'] / 1024:.1f} assembled"
    )
    print(f"kept by Python's allocator: {traced['assembled'] / 1024:.1f} MiB\n")
    for title, rows in (("package", packages), ("module", costs)):
        print(f"{title:<45} {'KiB':>7} {'ms':>7}")
        for name, (size, seconds, *_) in sorted(rows.items(), key=lambda row: -row[1][0])[: options.rows]:
            print(f"{name:<45} {size:>7.0f} {seconds * 1e3:>7.1f}")
        print()
    return 0


if __name__ == "__main__":
    sys.exit(main())
