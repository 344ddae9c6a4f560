"""What a sample of a node agent takes on the disk of a store.

    python benchmarks/fleet_storage.py [--store victoria-metrics|prometheus] [--hours 6] [--replicas 8]

Writes what so many node agents would export, every 15 s of a virtual clock, with loads that vary by chance from scrape to
scrape, lets the store put it into its final form, and divides: bytes on disk by samples, a GPU's month from that.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
import urllib.request
from dataclasses import replace
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT)]
sys.path.append(str(ROOT / "benchmarks"))

from fleet import BEGIN, series_of_a_replica
from fleet_stores import StoreProcess, Writer, folder_bytes, pod_name, store

STEP_SECONDS = 15.0
MONTH_SECONDS = 30 * 86_400.0
NOISE = 0.8
WAIT_SECONDS = 180.0
"""Prometheus looks once a minute whether a block is to be written."""


def main() -> int:
    """Prints the figures; 1 where the store did not get so far."""
    options = _options()
    with (
        tempfile.TemporaryDirectory(prefix="sizewatch-storage-") as folder,
        store(options.store, Path(folder)) as server,
    ):
        names = [[pod_name(0, number) for number in range(options.replicas)]]
        one = series_of_a_replica(options.gpus)
        # A writer's minute stands for a scrape: a quarter of what a minute adds.
        series = [replace(each, a_minute=each.a_minute * STEP_SECONDS / 60.0) for each in one]
        writer = Writer(server.url, names, series, 60.0, NOISE)
        for number in range(round(options.hours * 3600 / STEP_SECONDS)):
            writer.minute(number, BEGIN + 60.0 * (number + 1))
        size, samples = _prometheus(server) if options.store == "prometheus" else _victoria(server, writer.samples)
    if not samples:
        print(f"no block within {WAIT_SECONDS:.0f} s: give it more hours", file=sys.stderr)
        return 1
    each = size / samples
    month = MONTH_SECONDS / STEP_SECONDS
    print(f"{options.store}: {samples / 1e6:.1f} million samples, {size / 1e6:.1f} MB, {each:.2f} bytes a sample")
    a_gpu = len(one) / options.gpus
    print(f"{a_gpu:.0f} series a GPU ({options.gpus} a replica): {a_gpu * month * each / 1e6:.0f} MB a GPU and month")
    return 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--store", choices=("victoria-metrics", "prometheus"), default="victoria-metrics")
    parser.add_argument("--hours", type=float, default=6.0)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--gpus", type=int, default=4)
    return parser.parse_args()


def _victoria(server: StoreProcess, samples: int) -> tuple[int, int]:
    """The parts of the data, merged; the index of names is counted with them."""
    for path in ("force_flush", "force_merge"):
        with urllib.request.urlopen(f"{server.url}/internal/{path}", timeout=300):
            pass
    time.sleep(5.0)
    server.stop()
    return folder_bytes(server.folder / "data"), samples


def _prometheus(server: StoreProcess) -> tuple[int, int]:
    """The blocks; the newest hours stay in its memory and in its log."""
    until = time.monotonic() + WAIT_SECONDS
    found: list[Path] = []
    while time.monotonic() < until:
        blocks = sorted(path.parent for path in (server.folder / "data").glob("*/meta.json"))
        if blocks and blocks == found:
            break
        found = blocks
        time.sleep(20.0)
    samples = sum(json.loads((one / "meta.json").read_text())["stats"]["numSamples"] for one in found)
    return sum(map(folder_bytes, found)), samples


if __name__ == "__main__":
    sys.exit(main())
