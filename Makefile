# Everything runs in the checkout's own environment, .venv; Python 3.11 or newer and make are all that is needed.
#
#   make run     the main study (SCENARIO=name for another one)
#   make test    checks, unit tests and doctests
#   make check   linters, types, import layers
#   make bench   benchmarks
#   make app     the what-if dashboard
#   make docs    renew what is generated in docs/, and the outputs that its pages show
#   make reproductions  renew docs/reproductions.md and what quotes it, in minutes
#   make coverage  tests without the browser, and the lines that none of them runs
#   make lock    renew requirements*.lock from pyproject.toml
#   make clean   remove the environment and everything built

SCENARIO ?= k3-b300-study
PYTHON   ?= python3
WORKERS  ?= 2
PYTEST_ARGS ?=
BENCH_ARGS ?= --check

VENV := .venv
BIN  := $(VENV)/bin
PIP  := $(BIN)/python -m pip --disable-pip-version-check --no-input --quiet

.SHELLFLAGS := -eu -c
.DELETE_ON_ERROR:
.DEFAULT_GOAL := help
.PHONY: help run test check bench app docs reproductions coverage lock clean

# pyright's launcher would otherwise look for a newer release of itself.
export PYRIGHT_PYTHON_IGNORE_WARNINGS := 1

help:
	@sed -n 's/^#   make /make /p' Makefile

# The first of these that runs and is new enough; $(PYTHON) itself is asked first.
define find_python
for candidate in $(PYTHON) python3.13 python3.12 python3.11 python3.14; do \
    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then found="$$candidate"; break; fi; \
done; \
if [ -z "$${found:-}" ]; then \
    echo "kvsim needs Python 3.11 or newer; '$(PYTHON)' is $$($(PYTHON) --version 2>&1 || true)." >&2; \
    echo "Install one, or name it: make PYTHON=/path/to/python3.12 ..." >&2; exit 1; \
fi
endef

$(BIN)/python:
	@$(find_python); echo "Creating $(VENV) with $$("$$found" --version)"; \
	"$$found" -m venv $(VENV) || { echo "python -m venv failed; on Debian: apt-get install python3-venv" >&2; exit 1; }

# An editable install keeps the checkout's data folders in use; --no-deps leaves the lock's versions alone.
$(VENV)/core.stamp: requirements-core.lock pyproject.toml | $(BIN)/python
	@echo "Installing requirements-core.lock"
	@$(PIP) install -r requirements-core.lock
	@$(PIP) install --no-deps --editable .
	@touch $@

$(VENV)/full.stamp: requirements.lock $(VENV)/core.stamp
	@echo "Installing requirements.lock"
	@$(PIP) install -r requirements.lock
	@touch $@

run: $(VENV)/core.stamp
	@$(BIN)/kvsim run $(SCENARIO)

check: $(VENV)/full.stamp
	@failed=; for tool in "ruff check --quiet ." "pyright" "lint-imports --no-cache"; do \
	    echo "== $$tool"; $(BIN)/$$tool || failed="$$failed [$$tool]"; \
	done; \
	if [ -n "$$failed" ]; then echo "check failed:$$failed" >&2; exit 1; fi

test: check
	$(BIN)/python -m pytest -q -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)

bench: $(VENV)/full.stamp
	@$(BIN)/python -m benchmarks $(BENCH_ARGS)

app: $(VENV)/full.stamp
	@$(BIN)/kvsim app

docs: $(VENV)/full.stamp
	@$(BIN)/python docs/make_reference.py
	@$(BIN)/python docs/make_picture.py
	@KVSIM_RENEW_DOCS=1 $(BIN)/python -m pytest -q -p no:cacheprovider tests/docs

# Status 1: published values are missed, as the page says.
reproductions: $(VENV)/full.stamp
	@$(BIN)/kvsim validate published -o docs/reproductions.md || [ $$? -eq 1 ]
	@KVSIM_RENEW_DOCS=1 $(BIN)/python -m pytest -q -p no:cacheprovider tests/docs/test_pages.py

coverage: $(VENV)/full.stamp
	@rm -f .coverage .coverage.*
	$(BIN)/python -m coverage run -m pytest -q -m "not browser and not timed" -n $(WORKERS) --dist loadgroup $(PYTEST_ARGS)
	@$(BIN)/python -m coverage combine --quiet
	@$(BIN)/python -m coverage report

# Resolved in empty environments, so that nothing of this one leaks into the pins; the core lock is a part of the full one.
define REQUIREMENTS
import sys, tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
extras = project["optional-dependencies"]
wanted = project["dependencies"] + (extras["dashboard"] + extras["parquet"] + extras["traces"] + extras["ray"] + extras["dev"] if sys.argv[1] == "full" else [])
print("\n".join(wanted))
endef
export REQUIREMENTS

lock:
	@$(find_python); scratch=$$(mktemp -d); trap 'rm -rf "$$scratch"' EXIT; touch "$$scratch/constraints"; \
	for flavour in full core; do \
	    "$$found" -m venv "$$scratch/$$flavour"; \
	    "$$found" -c "$$REQUIREMENTS" "$$flavour" > "$$scratch/$$flavour.in"; \
	    "$$scratch/$$flavour/bin/python" -m pip --disable-pip-version-check --no-input -q install \
	        -r "$$scratch/$$flavour.in" -c "$$scratch/constraints"; \
	    "$$scratch/$$flavour/bin/python" -m pip freeze > "$$scratch/constraints"; \
	    cp "$$scratch/constraints" "$$scratch/$$flavour.out"; \
	done; \
	{ echo "# Exact versions of the run-time dependencies. Made by 'make lock'; do not edit."; \
	  cat "$$scratch/core.out"; } > requirements-core.lock; \
	{ echo "# Exact versions of the run-time, dashboard and development dependencies. Made by 'make lock'; do not edit."; \
	  cat "$$scratch/full.out"; } > requirements.lock

clean:
	rm -rf $(VENV) build dist .pytest_cache .ruff_cache .hypothesis .import_linter_cache .coverage* *.egg-info
	find kvsim tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +
