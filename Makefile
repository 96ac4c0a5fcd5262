# `make demo` and `make test` need only Python >= 3.11 and make; they set up .venv themselves.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
DEMO := demo
SOURCES := kvtrace kvreplay kvdistill tests docs bench

.PHONY: demo test check lint fix bench docs clean

$(VENV)/.ready: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "kvtrace needs Python 3.11 or later: make PYTHON=python3.x")'
	@echo "setting up $(VENV): this downloads about 300 MB once"
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

# The main job end to end: trace -> replay on a scratch file -> fio jobs and a report, all under demo/.
demo: $(VENV)/.ready
	@BIN=$(BIN) DEMO=$(DEMO) sh docs/demo.sh

test: $(VENV)/.ready
	$(BIN)/python -m pytest

lint: $(VENV)/.ready
	$(BIN)/ruff format --check $(SOURCES)
	$(BIN)/ruff check $(SOURCES)
	$(BIN)/mypy

fix: $(VENV)/.ready
	$(BIN)/ruff check --fix --quiet $(SOURCES) || true
	$(BIN)/ruff format $(SOURCES)

# What CI runs.
check: lint test

bench: $(VENV)/.ready
	@for b in bench/bench_*.py; do $(BIN)/python $$b || exit 1; done

docs: $(VENV)/.ready
	$(BIN)/python docs/generate.py

clean:
	rm -rf $(VENV) $(DEMO) .pytest_cache .mypy_cache .ruff_cache .hypothesis
