# `make` lists the targets. Everything runs in .venv, which `make setup` makes once and renews when a pin changes.
PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
READY := .venv/.ready
PYTEST := OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n 2

.DEFAULT_GOAL := help
.PHONY: help setup train test slow bench browser reuse check smoke lint format wheel clean

help:  ## list the targets
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-8s %s\n", $$1, $$2}'

setup: $(READY)  ## make .venv with everything, at the pinned versions

$(READY): pyproject.toml callbacks/pyproject.toml constraints.txt
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install torch==2.13.0
	$(BIN)/python -m pip install -c constraints.txt -e ./callbacks -e '.[dev]'
	touch $@

train: setup  ## run the main job; ARGS="horizon=10000 replicas=50" changes it
	$(BIN)/python scripts/train.py recipe=neural_es $(ARGS)

test: lint  ## lint, types, the test suite and a smoke of the benchmark; this is what CI runs
	$(PYTEST) -m "not slow"
	OMP_NUM_THREADS=1 $(BIN)/python scripts/benchmark.py --smoke --check

bench: setup  ## what a round costs, against peers and the machine's limits; ten minutes; ARGS="only=runs --check"
	OMP_NUM_THREADS=1 $(BIN)/python scripts/benchmark.py $(ARGS)

browser:  ## a Chromium for the test of report.html, from Debian's packages; without one that test is skipped
	@command -v chromium >/dev/null || command -v google-chrome >/dev/null || \
		{ timeout 60 apt-get update && timeout 240 apt-get install -y --no-install-recommends chromium; } >/dev/null 2>&1 || \
		echo "No browser: install chromium, or tests/report/test_browser.py is skipped."

reuse: setup  ## the callbacks alone, in an environment without nbl; installs torch there
	$(PYTEST) -n 0 -m slow tests/callbacks/test_reuse.py

slow: setup  ## what takes minutes: measured claims at full size
	$(PYTEST) -m slow

check: lint  ## lint, types and the fast tests
	$(PYTEST) -m "not slow and not data"

smoke: setup  ## play every recipe for ten rounds
	@set -e; out=$$(mktemp -d); trap 'rm -rf "$$out"' EXIT; \
	for file in recipes/recipe/*.yaml; do \
		recipe=$$(basename $$file .yaml); echo "== $$recipe"; \
		OMP_NUM_THREADS=1 $(BIN)/python scripts/train.py recipe=$$recipe horizon=10 replicas=2 logger=csv out=$$out/$$recipe; \
	done

lint: setup  ## ruff and mypy, changing nothing
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: setup  ## let ruff mend what it can
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

wheel: setup  ## build both wheels into dist/
	$(BIN)/python -m build --wheel --outdir dist .
	$(BIN)/python -m build --wheel --outdir dist callbacks

clean:  ## remove caches and builds; .venv and runs/ stay
	rm -rf dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find nbl callbacks scripts tests -name __pycache__ -type d -prune -exec rm -rf {} +
