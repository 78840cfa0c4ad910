# make demo      set up, measure the demo suite on this machine's CPU, and write report.html
# make test      set up with everything the tests use, and run all but the slow ones
# make test-all  run the slow ones too (compilers, a real PostgreSQL, every command of the docs)
# make test-release  packages in clean environments, the site, the notebooks, the recipes
# make lint      ruff, mypy --strict, import-linter, generated pages
# make bench     the CPU benchmarks of kernelmark itself, in short form
# make amd-acceptance   try everything on an AMD GPU with this machine's own Python, and pack one
#                       file to send back

PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin
# torch is only for the tests. An exact version, so that a CPU build that is already at hand is taken.
TORCH ?= torch==2.13.0
# A file's tests stay in one process: they share what is slow to set up. conftest.py puts files with
# slow tests first, so that no process is idle while another works off a long one. One process more
# than cores, as tests wait for others: 413 s instead of 588 s on two cores.
PROCESSES := $(shell cores=$$(nproc); echo $$((cores < 8 ? cores + 1 : 8)))
PYTEST_ARGS ?= -n $(PROCESSES) --dist loadfile --no-loadscope-reorder
# Hundreds of Python processes are started: without .pyc files each compiles all of kernelmark again.
export PYTHONDONTWRITEBYTECODE :=
# A test that is skipped because something is not installed is a hole here: tests/test_installed.py.
test test-all test-release: export KERNELMARK_COMPLETE := 1

.PHONY: demo test test-all test-release lint lint-types lint-rest bench docs clean amd-acceptance

demo: $(VENV)/.ready-demo
	$(BIN)/kmark run --suite demo --timing quick --label demo || [ $$? -eq 3 ]  # failures are rows
	$(BIN)/kmark report demo --file report.html --title "kernelmark demo" --quiet
	@echo
	@echo "Open the report in a browser: $(CURDIR)/report.html"
	@echo "See all runs in the dashboard: $(BIN)/kmark serve, then http://127.0.0.1:8765"

# A commit to a store waits for the disk, and thousands are made: in memory, where there is enough
# of it from which programs may run (a container has 64 MB).
test test-all: export TMPDIR := $(shell findmnt -bno OPTIONS,AVAIL /dev/shm 2>/dev/null | \
  awk '{fits = !/noexec/ && $$2 > 4e9} END {print fits ? "/dev/shm" : "$(or $(TMPDIR),/tmp)"}')

test test-all: export ROCM_HEADERS := $(CURDIR)/$(VENV)/rocm/usr/include

test: $(VENV)/.ready-test $(VENV)/.ready-headers
	$(BIN)/python -m pytest -o tmp_path_retention_count=1 -m "not slow" $(PYTEST_ARGS)

test-all: $(VENV)/.ready-test $(VENV)/.ready-headers
	$(BIN)/python -m pytest -o tmp_path_retention_count=1 $(PYTEST_ARGS)

# What is published: the packages in clean environments, the site by both builders, the notebooks,
# and the recipes of CONTRIBUTING.
test-release: $(VENV)/.ready-test
	$(BIN)/python -m pytest tests/test_release.py tests/docs/test_site.py tests/docs/test_notebooks.py \
	  tests/docs/test_recipes.py

# mypy takes as long as all others.
lint: $(VENV)/.ready-test
	$(MAKE) --no-print-directory -j2 --output-sync lint-types lint-rest

lint-types:
	$(BIN)/mypy

lint-rest:
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/lint-imports
	$(BIN)/python scripts/write-docs --check

bench: $(VENV)/.ready-test
	for script in startup store web drills overhead detectors; do $(BIN)/python benchmarks/$$script.py --quick || exit 1; done

# The machine's own Python has the torch and triton of its ROCm.
ACCEPTANCE_ARGS ?=
amd-acceptance:
	$(PYTHON) -c "import typer, rich, sqlalchemy, yaml, scipy, pytest" || $(PYTHON) -m pip install -e . pytest
	$(PYTHON) scripts/amd_acceptance.py $(ACCEPTANCE_ARGS)

docs: $(VENV)/.ready-test
	$(BIN)/python scripts/write-docs

$(VENV)/bin/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.ready-demo: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[iree,plots,web]"
	touch $@

$(VENV)/.ready-test: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m pip install --quiet --disable-pip-version-check "$(TORCH)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[iree,triton,nvrtc,plots,web,dev]"
	touch $@ $(VENV)/.ready-demo

# Tests compare our tables with the vendors' headers. Without a network they are skipped, and the
# next run tries again.
$(VENV)/.ready-headers: scripts/cuda-headers scripts/rocm-headers | $(VENV)/.ready-test
	@if $(BIN)/python scripts/cuda-headers $$($(BIN)/python -c "import sysconfig; print(sysconfig.get_path('purelib'))") \
	  && $(BIN)/python scripts/rocm-headers $(VENV)/rocm; then touch $@; \
	  else echo "no headers of CUDA and ROCm: tests that need them are skipped"; fi

clean:
	rm -rf $(VENV) build dist
