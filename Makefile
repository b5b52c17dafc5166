# The two commands: `make demo` and `make test`. Both set everything up first; only Python 3.11+ is assumed.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
ADOPTED := $(VENV)/.adopted
FRONTEND := $(shell find frontend -type f -not -path '*/node_modules/*' -not -path '*/__pycache__/*' 2>/dev/null)
PYTEST ?= -n 3 --dist worksteal
export PIP_DISABLE_PIP_VERSION_CHECK := 1
# Python compiles what is imported when it is imported; compiling all that is there takes longer than installing it.
PIP := $(BIN)/python -m pip install -q --no-compile -c constraints.txt

.PHONY: demo test check ruff mypy svelte-check pytest vitest bench soak screenshots browser servers clean

demo: $(READY)
	@$(BIN)/python -m penstock.demo $(DEMO)

# What does not need each other first, side by side; then the tests, which want the machine for themselves.
test: $(READY)
	@$(MAKE) --no-print-directory -j2 --output-sync=target mypy $(ADOPTED) svelte-check vitest ruff
	@$(MAKE) --no-print-directory pytest

check: ruff mypy svelte-check

ruff: $(READY)
	@echo "ruff"; $(BIN)/ruff check loader backend tests frontend
	@echo "ruff format"; $(BIN)/ruff format --check -q loader backend tests frontend

mypy: $(READY)
	@echo "mypy"; $(BIN)/mypy

svelte-check: $(READY)
	@echo "svelte-check"; $(BIN)/python frontend/scripts/npm.py run --silent check

vitest: $(READY)
	@$(BIN)/python frontend/scripts/npm.py run --silent test

pytest: $(READY) $(ADOPTED) browser servers
	@$(BIN)/python -m pytest $(PYTEST)

bench: $(READY)
	@$(BIN)/python -m tests.benchmarks $(BENCH)

soak: $(READY) servers
	@PENSTOCK_SOAK=600 $(BIN)/python -m pytest --timeout 3000 tests/loader/test_machine.py tests/loader/test_soak.py tests/loader/tuning/test_schedules.py
	@PENSTOCK_KILLS=120 $(BIN)/python -m pytest tests/backend/test_failover.py

screenshots: $(READY) browser
	@PENSTOCK_SCREENSHOTS=$${DIR:-frontend/screenshots} $(BIN)/python -m pytest tests/browser -k pictures

# A Chromium on PATH, or Playwright's own; Debian's package where we may install it.
browser: $(READY)
	@command -v chromium chromium-browser google-chrome >/dev/null 2>&1 \
		|| $(BIN)/python -c "import pathlib, sys, playwright.sync_api as p; c = p.sync_playwright().start(); sys.exit(not pathlib.Path(c.chromium.executable_path).exists())" 2>/dev/null \
		|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing chromium" && apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } \
		|| $(BIN)/python -m playwright install chromium

# PostgreSQL and Redis for the tests of replicas: Debian's packages where we may install them, started by the tests only.
servers:
	@{ ls /usr/lib/postgresql/*/bin/postgres && command -v redis-server; } >/dev/null 2>&1 \
		|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null && echo "installing postgresql and redis" && apt-get update -qq \
			&& RUNLEVEL=1 DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends postgresql redis-server >/dev/null; } \
		|| echo "PostgreSQL or Redis cannot be installed here: tests that need them are skipped"

$(READY): pyproject.toml constraints.txt $(FRONTEND)
	@echo "setting up $(VENV) (the first time takes a minute or two)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Penstock needs Python 3.11 or newer, not " + sys.version.split()[0])'
	@[ -x $(BIN)/python ] || $(PYTHON) -m venv $(VENV)
	@$(PIP) -e '.[test]' 2>$(VENV)/pip.log || { cat $(VENV)/pip.log >&2; exit 1; }
	@touch $@

# Lightning, Hugging Face's, PyG, MONAI, webdataset, Jupyter and Ray, for tests only: the demo need not wait for them.
$(ADOPTED): $(READY)
	@$(BIN)/python -c 'import tomllib; e = tomllib.load(open("pyproject.toml", "rb"))["project"]["optional-dependencies"]; print(*e["adopt"], *e["ray"], sep="\n")' > $(VENV)/adopt.txt
	@$(PIP) -r $(VENV)/adopt.txt 2>$(VENV)/pip.log || cat $(VENV)/pip.log >&2
	@$(BIN)/python -c 'import importlib.util as u, sys; sys.exit(None in map(u.find_spec, ["lightning", "transformers", "datasets", "torch_geometric", "monai", "torchdata", "nbclient", "ipykernel", "webdataset", "ray"]))' \
		&& touch $@ || echo "not all of them could be installed: tests that need them are skipped"

clean:
	@rm -rf $(VENV) build dist backend/penstock_dashboard/static frontend/node_modules .pytest_cache .mypy_cache .ruff_cache .hypothesis
