"""Build step: docs/runbooks.md, which every agent serves, is copied into the wheel. Everything else is in pyproject.toml."""

from pathlib import Path

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithRunbooks(build_py):
    def run(self) -> None:
        super().run()
        # An editable installation reads the file of the checkout.
        if not self.editable_mode:
            copy = Path(self.build_lib, "exporters", "docs", "runbooks.md")
            copy.parent.mkdir(parents=True, exist_ok=True)
            copy.write_bytes(Path("docs", "runbooks.md").read_bytes())


setup(cmdclass={"build_py": BuildWithRunbooks})
