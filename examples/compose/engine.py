"""Stand-in for an engine: the page of a recorded vLLM that runs into a KV cache cascade, played at life's pace."""

import argparse
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import agent.demo
from agent.demo.engines import Player, track
from agent.sources.recording import load

RECORDING = Path(agent.demo.__file__).parent / "recordings" / "kv_cascade"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, default=8000)
    options = parser.parse_args()
    recording, problems = load(RECORDING)
    assert not problems, problems
    player = Player((track(recording, "engine", 0.0),), time.monotonic)

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            body = player.page("engine") if self.path == "/metrics" else None
            self.send_response(200 if body is not None else 404)
            self.send_header("Content-Type", "text/plain; version=0.0.4")
            self.end_headers()
            self.wfile.write(body or b"")

        def log_message(self, format: str, *args: object) -> None:
            pass

    print(f"a recorded vLLM on http://{options.host}:{options.port}/metrics", flush=True)
    ThreadingHTTPServer((options.host, options.port), Handler).serve_forever()


if __name__ == "__main__":
    main()
