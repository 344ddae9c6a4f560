"""Command `sizewatch render`: generated files of a checkout. Contents come from `exporters.docs.reference_pages`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

from agent.cli import main
from agent.cli.arguments import PATH, Exit, Parameters, flag, option
from agent.cli.loading import writing
from agent.config.load import config_schema, parse_config
from agent.errors import SizewatchError
from exporters.docs.reference_pages import ARTEFACTS, RenderInputs
from exporters.docs.runbooks import RunbookError


def parameters() -> Parameters:
    root = option("--root", "DIR", "the checkout (default: the current folder)", PATH, default=".")
    url = option("--external-url", "URL", "the status page's address for people, in the links of alerts", default="")
    return flag("--check", "change nothing; name the files that would change"), root, url


def run(options: SimpleNamespace) -> int:
    """Write or check the generated files. Raise SizewatchError for an unusable file or address."""
    parse_config({"alerting": {"external_url": options.external_url or None}}, folder=options.root, environment={})
    if not (options.root / "docs").is_dir():
        raise SizewatchError(f"{options.root.absolute()} holds no docs/; run it in a checkout, or name one with --root")
    changes = list_stale_files(options.root, options.external_url)
    for path, text in changes.items():
        if options.check:
            print(f"{path} differs from what the program renders; write it anew: sizewatch render")
            continue
        with writing(options.root / path, "--root"):
            (options.root / path).parent.mkdir(parents=True, exist_ok=True)
            (options.root / path).write_text(text, encoding="utf-8")
        print(f"{path}: written")
    if not changes:
        print(f"{len(ARTEFACTS)} files are as rendered")
    if options.check and changes:
        return Exit.FINDING
    return Exit.FINE


def list_stale_files(root: Path, external_url: str = "") -> dict[str, str]:
    """Return the new text of every outdated generated file, by path from `root`. Raise SizewatchError."""
    sources = RenderInputs(config_schema=config_schema(), command_line=main.command_line(), external_url=external_url)
    stale = {}
    for path, render in ARTEFACTS.items():
        try:
            present = ""
            if (root / path).exists():
                present = (root / path).read_text(encoding="utf-8")
            text = render(sources, present)
        except (OSError, UnicodeDecodeError, RunbookError) as error:
            raise SizewatchError(f"{root / path}: {error}") from error
        if text != present:
            stale[path] = text
    return stale
