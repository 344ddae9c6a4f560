"""Draws every dashboard as a picture: its queries asked of a Prometheus, its panels drawn by Grafana's UI library.

    grafana/look/build.sh BUILD
    python grafana/look/draw.py --build BUILD --prometheus http://127.0.0.1:9090 --end 1795240000 --hours 1 --out docs/images

Needs node, npm and Chromium; no part of the program and of no test. The pictures in docs/images are of
`sizewatch demo`, with and without `--history`.
"""

from __future__ import annotations

import argparse
import functools
import http.server
import json
import re
import subprocess
import threading
import urllib.parse
import urllib.request
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent.parent
STEPS = 240
ROW_PIXELS, AROUND_PIXELS, WIDTH_PIXELS = 36, 84, 1600
CHROMIUM = (
    "chromium",
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--hide-scrollbars",
    "--virtual-time-budget=4000",
)


def main() -> None:
    parser = argparse.ArgumentParser(description="Draw the dashboards.")
    parser.add_argument("--build", type=Path, required=True, help="where build.sh built the page")
    parser.add_argument("--prometheus", required=True, help="address of the server that is asked")
    parser.add_argument("--end", type=float, required=True, help="unix seconds")
    parser.add_argument("--hours", type=float, default=1.0)
    parser.add_argument("--tier", default="cascade", help="for dashboards about one tier")
    parser.add_argument("--only", default="", help="one dashboard, by its uid")
    parser.add_argument("--theme", default="dark", choices=("light", "dark"))
    parser.add_argument("--out", type=Path, required=True)
    options = parser.parse_args()
    served = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(options.build / "www"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), served) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        for path in sorted((ROOT / "grafana" / "dashboards").glob("*.json")):
            if options.only in ("", path.stem):
                draw(path, options, f"http://127.0.0.1:{server.server_address[1]}")
        server.shutdown()


def draw(path: Path, options: argparse.Namespace, address: str) -> None:
    dashboard = json.loads(path.read_text(encoding="utf-8"))
    data = answered(dashboard, options)
    (options.build / "www" / "data.json").write_text(json.dumps(data), encoding="utf-8")
    rows = max(panel["gridPos"]["y"] + panel["gridPos"]["h"] for panel in dashboard["panels"])
    picture = options.out / f"dashboard-{path.stem.removeprefix('sizewatch-')}.png"
    size = f"--window-size={WIDTH_PIXELS},{rows * ROW_PIXELS + AROUND_PIXELS}"
    page = f"{address}/index.html?data=data.json&theme={options.theme}"
    subprocess.run([*CHROMIUM, size, f"--screenshot={picture.absolute()}", page], check=True, capture_output=True)
    empty = [
        p["title"]
        for p, found in zip(dashboard["panels"], data["results"], strict=True)
        if p["type"] != "row" and not any(found)
    ]
    print(f"{picture}: {picture.stat().st_size // 1000} kB; without data: {', '.join(empty) or 'none'}")


def answered(dashboard: dict[str, Any], options: argparse.Namespace) -> dict[str, Any]:
    """The dashboard with the answers of its queries, variables chosen."""
    begin, step = options.end - options.hours * 3600, max(15, round(options.hours * 3600 / STEPS))
    chosen = {v["name"]: "All" if v["includeAll"] else options.tier for v in dashboard["templating"]["list"][1:]}
    values = {name: ".*" if value == "All" else value for name, value in chosen.items()}
    values["__rate_interval"] = f"{max(60, step + 15)}s"
    results = []
    for panel in dashboard["panels"]:
        found = []
        for target in panel.get("targets", ()):
            query = re.sub(r"\$(\w+)", lambda name: values[name[1]], target["expr"])
            if target["instant"]:
                rows = ask(options.prometheus, "query", query=query, time=options.end)
                found.append([{"metric": row["metric"], "values": [row["value"]]} for row in rows])
            else:
                found.append(
                    ask(options.prometheus, "query_range", query=query, start=begin, end=options.end, step=step)
                )
        results.append(found)
    return {"dashboard": dashboard, "results": results, "choice": chosen, "from": begin, "to": options.end}


def ask(prometheus: str, what: str, **parameters: Any) -> Any:
    address = f"{prometheus}/api/v1/{what}?{urllib.parse.urlencode(parameters)}"
    with urllib.request.urlopen(address, timeout=60) as answer:
        return json.load(answer)["data"]["result"]


if __name__ == "__main__":
    main()
