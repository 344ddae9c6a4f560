"""A real Prometheus on loopback, filled with recordings and with GPU samples at the times they were scraped."""

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import tools
from loopback import Program, running
from prometheus_client.parser import text_string_to_metric_families
from tools import run_words
from waiting import free_port

from agent.sources.recording import load, scrapes

Line = tuple[str, tuple[tuple[str, str], ...], float, float]
"""Name, labels, value and unix seconds of one sample."""


def recorded_lines(
    folder: Path, labels: dict[str, dict[str, str]], rename: dict[str, str] | None = None
) -> Iterator[Line]:
    """The samples of a recording, with the labels that a server adds to each replica's; `rename` exchanges parts of names."""
    recording, problems = load(folder)
    assert problems == ()
    for scrape in scrapes(recording, []):
        added = labels.get(recording.targets[scrape.target].replica)
        if scrape.body is None or added is None:
            continue
        body = "\n".join(line for line in scrape.body.decode().splitlines() if _is_asked(line))
        for family in text_string_to_metric_families(f"{body}\n"):
            for sample in family.samples:
                name = sample.name
                for part, other in (rename or {}).items():
                    name = name.replace(part, other)
                yield name, tuple(sorted({**sample.labels, **added}.items())), float(sample.value), scrape.t


def _is_asked(line: str) -> bool:
    """Whether a server is asked for it: of buckets, which are most of a page, those of the TTFT alone are."""
    return "_bucket{" not in line or "time_to_first_token" in line


def _text(lines: Iterable[Line]) -> str:
    rows = sorted(lines, key=lambda line: (line[0], line[1], line[3]))
    quoted = (f"{n}{{{','.join(f'{k}={_quoted(v)}' for k, v in ls)}}} {v:.17g} {t:.3f}" for n, ls, v, t in rows)
    return "\n".join((*quoted, "# EOF", ""))


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'"{escaped}"'


def prometheus_program(folder: Path, configuration: Mapping[str, Any] | None, *flags: str) -> Program:
    """A Prometheus with this configuration, or with the file that is in the folder; its data are there too."""
    if configuration is not None:
        (folder / "prometheus.yml").write_text(json.dumps(configuration), encoding="utf-8")
    port = free_port()
    words = (
        tools.tool("prometheus"),
        f"--config.file={folder / 'prometheus.yml'}",
        f"--storage.tsdb.path={folder / 'tsdb'}",
        f"--web.listen-address=127.0.0.1:{port}",
        "--log.level=warn",
        *flags,
    )
    return Program(words, f"http://127.0.0.1:{port}", "/-/ready", folder / "prometheus.log")


@contextmanager
def prometheus(folder: Path, lines: Iterable[Line], rule_files: Iterable[Path] = ()) -> Iterator[str]:
    """The address of a server that holds these samples and evaluates these rules; it stops at the end of the block."""
    configuration = {"rule_files": [str(path.absolute()) for path in rule_files]}
    server = prometheus_program(folder, configuration, "--storage.tsdb.retention.time=100y")
    (folder / "samples.om").write_text(_text(lines))
    blocks = ("tsdb", "create-blocks-from", "--max-block-duration=24h", "openmetrics")
    run_words([tools.tool("promtool"), *blocks, folder / "samples.om", folder / "tsdb"], check=True)
    with running(server):
        yield server.url
