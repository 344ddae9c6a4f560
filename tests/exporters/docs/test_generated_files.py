import shutil
from pathlib import Path

import pytest
from paths import ROOT

from agent.cli import main
from agent.cli.render import list_stale_files
from exporters.docs.reference_pages import ARTEFACTS


def checkout(tmp_path: Path) -> Path:
    for path in sorted({str(Path(path).parent) for path in ARTEFACTS}):
        shutil.copytree(ROOT / path, tmp_path / path, dirs_exist_ok=True)
    return tmp_path


def test_generated_files_are_as_rendered() -> None:
    assert sorted(list_stale_files(ROOT)) == [], "`sizewatch render` writes these files anew"


def test_different_file_is_named_and_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = checkout(tmp_path)
    page = root / "docs" / "signals.md"
    page.write_text("old", encoding="utf-8")
    assert main.main(["render", "--check", "--root", str(root)]) == 1
    expected = "docs/signals.md differs from what the program renders; write it anew: sizewatch render\n"
    assert capsys.readouterr().out == expected
    assert page.read_text(encoding="utf-8") == "old"


def test_rendering_writes_only_what_differs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = checkout(tmp_path)
    (root / "docs" / "commands.md").write_text("old", encoding="utf-8")
    (root / "docs" / "plan.schema.json").unlink()
    shutil.rmtree(root / "rules")
    assert main.main(["render", "--root", str(root)]) == 0
    written = {line.removesuffix(": written") for line in capsys.readouterr().out.splitlines()}
    assert written == {"docs/commands.md", "docs/plan.schema.json", *(p for p in ARTEFACTS if p.startswith("rules/"))}
    for path in ARTEFACTS:
        assert (root / path).read_text(encoding="utf-8") == (ROOT / path).read_text(encoding="utf-8")
    assert main.main(["render", "--check", "--root", str(root)]) == 0
    assert capsys.readouterr().out == f"{len(ARTEFACTS)} files are as rendered\n"


@pytest.mark.parametrize(
    ("spoil", "words"),
    [
        (lambda root: shutil.rmtree(root / "docs"), "holds no docs/; run it in a checkout, or name one with --root"),
        (
            lambda root: (root / "docs/runbooks.md").write_text("# Runbooks\n"),
            "AdapterCachePressure has 0 texts by hand",
        ),
        (lambda root: (root / "docs/signals.md").write_bytes(b"\xff"), "signals.md: 'utf-8' codec"),
    ],
)
def test_unrenderable_folder_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spoil: object, words: str
) -> None:
    root = checkout(tmp_path)
    assert callable(spoil)
    spoil(root)
    assert main.main(["render", "--root", str(root)]) == 2
    assert words in capsys.readouterr().err
