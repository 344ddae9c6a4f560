"""Pages as a browser reads them: their text and tags, and what Chromium measures and prints."""

import re
import subprocess
from html import escape
from html.parser import HTMLParser
from pathlib import Path

from tools import tool
from waiting import CEILING_SECONDS

VOID = {"meta", "link", "br", "hr", "img", "input"}

# Root needs --no-sandbox; the only page that is loaded is our own.
FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--virtual-time-budget=2000")
MEASURE = (
    "<script>const page = document.documentElement; parent.document.title = "
    "[page.scrollWidth, window.innerWidth, page.scrollHeight].join(' ')</script>"
)


class PageReader(HTMLParser):
    """What a browser sees: the text, every tag with its attributes, and whether tags close as they open."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str]]] = []
        self.words: list[str] = []
        self.open: list[str] = []
        self.feed(page)
        self.close()
        assert self.open == []

    @property
    def text(self) -> str:
        return re.sub(r"\s+", " ", " ".join(self.words))

    @property
    def lines(self) -> list[str]:
        """Lines of the text, one for each paragraph, row, heading or entry of a list."""
        lines = (" ".join(line.split()) for line in " ".join(self.words).splitlines())
        return [line for line in lines if line]

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_startendtag(tag, attrs)
        if tag not in VOID:
            self.open.append(tag)
        if tag in {"p", "li", "tr", "dt", "dd", "h1", "h2", "h3", "summary", "title"}:
            self.words.append("\n")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, {key: value or "" for key, value in attrs}))

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if not self.open or self.open[-1] != "style":
            self.words.append(re.sub(r"\s+", " ", data))


def browse(folder: Path, *arguments: str) -> str:
    """What Chromium prints."""
    command = [tool("chromium"), *FLAGS, f"--user-data-dir={folder}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=CEILING_SECONDS, check=True).stdout


def measure_page(page: str, folder: Path, width: int, height: int = 1600) -> tuple[int, ...]:
    """Widths of the page and of its window, and the height of the page, in pixels.

    A window of headless Chromium is never narrower than 500 pixels; a frame is. The page's own policy forbids scripts.
    """
    inside = escape(page.replace("</body>", f"{MEASURE}</body>"), quote=True)
    frame = folder / "frame.html"
    frame.write_text(f'<iframe style="width: {width}px; height: {height}px; border: 0" srcdoc="{inside}"></iframe>')
    shown = browse(folder, "--window-size=1400,1700", "--dump-dom", frame.as_uri())
    return tuple(int(number) for number in shown.partition("<title>")[2].partition("</title>")[0].split())
