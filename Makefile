# Every target installs what it needs into .venv; nothing else by hand. A fresh machine needs Python 3.11, make and a C compiler for the tests.
PYTHON ?= python3.11
ifeq ($(shell command -v $(PYTHON) 2>/dev/null),)
PYTHON := python3
endif
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

.PHONY: demo test lint bench clean

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)
	@$(BIN)/sizewatch demo

test: $(STAMP)
	@$(BIN)/python -m pytest -n auto
	@$(MAKE) --no-print-directory lint

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/mypy

bench: $(STAMP)
	@$(BIN)/python benchmarks/scrape.py

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
