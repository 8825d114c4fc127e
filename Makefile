# Each target makes the environment it needs, so each works in a fresh clone.
# An environment is made again, in place, when pyproject.toml is newer than its stamp.

PYTHON ?= python3
WORKERS ?= 2

export PIP_DISABLE_PIP_VERSION_CHECK = 1

PIP_INSTALL = -m pip install --quiet
BIN = .venv/bin

.PHONY: help setup test test-fast lint format types imports compare demo bench-floors bench-speed clean
.DEFAULT_GOAL := help

help: ## this list
	@grep -E '^[a-z-]+:.*## ' Makefile | sed -E 's/^([a-z-]+):.*## /\1\t/' | expand -t 14

# --- environments --------------------------------------------------------------------------------

.venv/.stamp: pyproject.toml
	$(PYTHON) -m venv .venv
	$(BIN)/python $(PIP_INSTALL) -e ".[test,cli,vision]"
	@touch $@

.venv/.stamp-lint: .venv/.stamp
	$(BIN)/python $(PIP_INSTALL) -e ".[lint]"
	@touch $@

.venv-compare/.stamp: pyproject.toml
	$(PYTHON) -m venv .venv-compare
	.venv-compare/bin/python $(PIP_INSTALL) -e ".[compare,test,vision]"
	@touch $@

.venv-demo/.stamp: pyproject.toml
	$(PYTHON) -m venv .venv-demo
	.venv-demo/bin/python $(PIP_INSTALL) -e ".[cli]"
	@touch $@

setup: .venv/.stamp ## the development environment, in .venv

# --- checks --------------------------------------------------------------------------------------

# An empty kernel cache: what the tests run is what the sources say now.
test: .venv/.stamp ## the test suite, every kernel compiled anew
	@cache=$$(mktemp -d) && trap 'rm -rf "$$cache"' EXIT && trap 'exit 130' INT TERM && \
	NUMGRAD_CACHE="$$cache" $(BIN)/python -m pytest -q -n $(WORKERS) $(ARGS)

test-fast: .venv/.stamp ## the test suite, with the kernels of earlier runs
	$(BIN)/python -m pytest -q -n $(WORKERS) $(ARGS)

lint: .venv/.stamp-lint ## style, and whether the files are formatted
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .

format: .venv/.stamp-lint ## format the files, and mend what ruff can mend
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

types: .venv/.stamp-lint ## mypy over numgrad/
	$(BIN)/mypy

imports: .venv/.stamp-lint ## whether imports point one way
	$(BIN)/lint-imports

compare: .venv-compare/.stamp ## cross-checks against PyTorch (a large download)
	.venv-compare/bin/python -m pytest -q -s tests_compare $(ARGS)

# --- things to look at ---------------------------------------------------------------------------

demo: .venv-demo/.stamp ## train a small network on the digits
	.venv-demo/bin/numgrad demo digits

bench-floors: .venv-compare/.stamp ## speed floors, side by side with PyTorch
	.venv-compare/bin/python benchmarks/floors.py

# On an idle machine: ten minutes or so. ARGS="--only 'matmul*'" takes a part of it.
bench-speed: .venv-compare/.stamp ## numgrad beside PyTorch and ONNX Runtime, with what is asked
	.venv-compare/bin/numgrad bench speed --compare torch,onnxruntime $(ARGS)

clean: ## remove environments, caches and build outputs
	rm -rf .venv .venv-compare .venv-demo build dist *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis .benchmarks
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
