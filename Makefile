# Every target installs what it needs into .venv; nothing else by hand. `test` also wants a C compiler, promtool,
# systemd-analyze and Chromium: as root on Debian it installs them, elsewhere it says which tests are skipped.
PYTHON ?= python3.11
ifeq ($(shell command -v $(PYTHON) 2>/dev/null),)
PYTHON := python3
endif
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test tools lint bench clean

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)
	@$(BIN)/sizewatch demo

test: $(STAMP) tools
	@$(BIN)/python -m pytest -n auto --dist worksteal
	@$(MAKE) --no-print-directory lint

tools:
	@tests/install_tools.sh

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/mypy

bench: $(STAMP)
	@$(BIN)/python benchmarks/scrape.py

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
