"""Settings of the documentation site: Sphinx with MyST, built by `make docs` from the pages of this folder.

The pages stay plain Markdown that a code host shows too. The lists of index.md are the contents of the site.
"""

from __future__ import annotations

import re
from typing import Any

from pygments.lexers.special import TextLexer

project = "sizewatch"
extensions = ["myst_parser"]
html_theme = "furo"
html_title = project
html_extra_path = ["config.schema.json", "plan.schema.json", "report.schema.json", "public-surface.json"]
# Alerts link to runbooks#rule.
myst_heading_anchors = 4


def add_contents(app: Any, name: str, source: list[str]) -> None:
    """Append the table of contents to index.md: its own links in their order, a part per heading."""
    if name != "index":
        return
    for heading, part in re.findall(r"^## (.+)\n((?:(?!^## ).*\n)*)", source[0], flags=re.MULTILINE):
        pages = "\n".join(dict.fromkeys(re.findall(r"\]\(([\w/-]+)\.md\)", part)))
        source[0] += f"\n```{{toctree}}\n:hidden:\n:caption: {heading}\n\n{pages}\n```\n"


def setup(app: Any) -> None:
    """Register with Sphinx. Drawings in Mermaid stay text: the site loads no script of another host."""
    app.connect("source-read", add_contents)
    app.add_lexer("mermaid", TextLexer)
