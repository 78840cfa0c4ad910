# make demo      set up and measure the demo suite on this machine's CPU
# make test      set up with everything the tests use, and run all but the slow ones
# make test-all  run the slow ones too, as continuous integration does
# make lint      ruff, mypy --strict, import-linter, generated pages
# make bench     the CPU benchmarks of kernelmark itself, in short form

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# torch is only for the tests. An exact version, so that a CPU build that is already at hand is taken.
TORCH ?= torch==2.13.0
# worksteal gives each process half of the list in order, so that a file's tests share their set-up,
# and no process is idle while the other has tests left.
PYTEST_ARGS ?= -n 2 --dist worksteal
# Hundreds of Python processes are started: without .pyc files each compiles all of kernelmark again.
export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-all lint bench docs clean

demo: $(VENV)/.ready-demo
	$(BIN)/kmark run --suite demo --timing quick --label demo

test: $(VENV)/.ready-test
	$(BIN)/python -m pytest -m "not slow" $(PYTEST_ARGS)

test-all: $(VENV)/.ready-test
	$(BIN)/python -m pytest $(PYTEST_ARGS)

lint: $(VENV)/.ready-test
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python scripts/write-docs --check

bench: $(VENV)/.ready-test
	for script in startup store drills overhead detectors; do $(BIN)/python benchmarks/$$script.py --quick || exit 1; done

docs: $(VENV)/.ready-test
	$(BIN)/python scripts/write-docs

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-demo: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[iree]"
	touch $@

$(VENV)/.ready-test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[iree,triton,nvrtc,plots,dev]"
	touch $@ $(VENV)/.ready-demo

clean:
	rm -rf $(VENV) build dist
