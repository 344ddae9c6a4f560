# Every target installs what it needs into .venv; nothing else by hand. `test` also wants a C compiler, promtool,
# systemd-analyze and Chromium: as root on Debian it installs them, elsewhere it says which tests are skipped.
PYTHON ?= python3.11
ifeq ($(shell command -v $(PYTHON) 2>/dev/null),)
PYTHON := python3
endif
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

# Else every process that tests start compiles the whole project anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: demo test quick goldens mutants tools lint sbom audit site lock bench soak clean chaos

$(STAMP): requirements.lock pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements.lock
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation -e .
	@touch $@

demo: $(STAMP)
	@$(BIN)/sizewatch demo

test: $(STAMP) tools
	@$(BIN)/python -m pytest -n auto --dist worksteal
	@$(MAKE) --no-print-directory lint $(if $(CI),sbom audit site)

# Rules, forecast and exporters alone, without what is marked as a server's or slow: after every step of a change.
quick: $(STAMP)
	@$(BIN)/python -m pytest -n auto --dist worksteal -m "not server and not slow" tests/rules tests/forecast tests/exporters

# What is read and judged today, in tests/goldens. WRITE=1 writes the files anew; PART="verdicts/steady" takes some.
goldens: $(STAMP)
	@PYTHONPATH=.:tests/support $(BIN)/python -m goldens $(if $(WRITE),--write) $(PART)

# More than 200 deliberate mistakes, one at a time: each must fail a test (tests/mutants). NAME="a b" runs two of them.
mutants: $(STAMP)
	@$(BIN)/python tests/mutants/run_mutants.py $(NAME)

tools:
	@tests/install_tools.sh

lint: $(STAMP)
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check --quiet .
	@$(BIN)/mypy

bench: $(STAMP)
	@$(BIN)/python benchmarks/scrape.py

# A week's cycles as fast as the machine makes them, at most so many minutes; docs/reliability.md has what it showed.
MINUTES ?= 10
soak: $(STAMP)
	@$(BIN)/python benchmarks/soak.py --minutes $(MINUTES)

# Faults on purpose (docs/reliability.md); SECONDS is how long at least, SEED does the same again.
SECONDS := 120
chaos: $(STAMP)
	@$(BIN)/python benchmarks/chaos.py --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# What is installed to run sizewatch, as CycloneDX; without network.
sbom: $(STAMP)
	@mkdir -p build
	@$(BIN)/python deploy/sbom.py > build/sizewatch.cdx.json
	@echo build/sizewatch.cdx.json

# Known vulnerabilities of what is pinned, asked of PyPI. By hand, what could not be asked is no success; in CI it is said.
audit:
	@$(PYTHON) -m venv build/audit
	@build/audit/bin/python -m pip install --quiet --disable-pip-version-check pip-audit $(if $(CI),|| true)
	@$(PYTHON) deploy/audit.py build/audit/bin/pip-audit $(if $(CI),--lenient)

# The documentation as a site; a link that leads nowhere or a page that index.md does not list is an error.
site:
	@$(PYTHON) -m venv build/site-env
	@if build/site-env/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r docs/requirements.txt; \
	then build/site-env/bin/sphinx-build --fail-on-warning --nitpicky --fresh-env --quiet -b dirhtml docs build/site && echo build/site/index.html; \
	else echo "SITE NOT BUILT: its tools could not be installed (is there a network?)"; $(if $(CI),true,false); fi

# Versions and hashes: of development, of the two images, of the site. What is pinned stays, unless its line is taken out.
HEAVY := pandas statsmodels numpy scipy patsy formulaic interface-meta narwhals wrapt packaging
COMPILE := build/lock-env/bin/pip-compile --quiet --generate-hashes --strip-extras --allow-unsafe --no-annotate \
	--no-header --no-emit-index-url --no-emit-find-links
lock:
	@$(PYTHON) -m venv build/lock-env
	@build/lock-env/bin/python -m pip install --quiet --disable-pip-version-check pip-tools
	@$(COMPILE) --extra kubernetes -o requirements.lock pyproject.toml requirements.in
	@sed -E 's/ \\$$//; /^ /d' requirements.lock > build/pins.txt
	@$(COMPILE) --extra kubernetes -c build/pins.txt -o deploy/image/full.lock pyproject.toml
	@$(COMPILE) --extra kubernetes -c build/pins.txt $(foreach name,$(HEAVY),--unsafe-package $(name)) --no-allow-unsafe \
		-o deploy/image/node.lock pyproject.toml
	@echo hatchling | $(COMPILE) -c build/pins.txt -o deploy/image/build.lock -
	@$(COMPILE) -o docs/requirements.txt docs/requirements.in

clean:
	rm -rf $(VENV) build *.egg-info .pytest_cache .mypy_cache .ruff_cache
