# Needs nothing but Python 3.11 or newer and make. `make help` lists what there is.

VENV ?= .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.complete
DEMO_ARGS ?=
TRADES_ARGS ?=
PYTEST_ARGS ?=
RACES ?= 10000
# Tests wait more than they compute: two processes more than there are cores.
TEST_PROCESSES ?= $$($(BIN)/python -c 'import os; print(2 * os.cpu_count() + 4)')
DURATION ?= 60
MESSAGES ?= 1000000
RUNS ?= 3
BENCH_ARGS ?=
CHAOS_ARGS ?=

.DEFAULT_GOAL := help
.PHONY: help setup demo trades test test-all races fuzz model chaos mirror lint generate bench docs clean

help: ## Show this list
	@echo "make TARGET; each sets up what it needs:"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
		printf '  %-10s %s\n' "$$name" "$$text"; done

setup: $(STAMP) ## Create .venv with everything (PYTHON=... chooses the interpreter)

# The first interpreter that is new enough and can make environments; a shim that runs nothing is passed over.
$(STAMP): pyproject.toml
	@found=; for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python); do \
		if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
			found=$$python; break; fi; done; \
	if [ -z "$$found" ]; then \
		echo "no Python 3.11 or newer with venv found: install one (Debian: python3-venv), or name it: make PYTHON=..." >&2; \
		exit 1; fi; \
	echo "setting up $(VENV) with $$($$found --version)"; \
	$$found -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 -e '.[dev]'
	@touch $@

demo: $(STAMP) ## Users register while processes are killed; then the databases are compared (DEMO_ARGS='--users 500')
	$(BIN)/txmsg demo registration $(DEMO_ARGS)

trades: $(STAMP) ## A day of trades, live on a page; then all totals are compared (TRADES_ARGS='--rate 1000 --kill')
	$(BIN)/txmsg demo trades $(TRADES_ARGS)

test: $(STAMP) ## Run the tests (PYTEST_ARGS='-k fence'; PYTEST_ARGS='--postgres=URL' for a server of yours)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) -m 'not long' $(PYTEST_ARGS)

test-all: test ## Run the tests, then those that need Java or take minutes
	$(BIN)/python -m pytest -n 3 -m long $(PYTEST_ARGS)  # each may start a JVM, or measure

races: $(STAMP) ## Race RACES=10000 transactions against checks on each database and driver; prints how they ended
	$(BIN)/python -m pytest tests/integration/fence/test_races.py -n 0 --fence-races $(RACES) $(PYTEST_ARGS)

fuzz: $(STAMP) ## Feed wild input to everything that reads any, each target for DURATION=60 seconds; prints what came back
	$(BIN)/python -m pytest tests/fuzz -n 0 -s --timeout 0 --fuzz-s $(DURATION) $(PYTEST_ARGS)

model: $(STAMP) ## Random histories of two brokers against the model, for about DURATION=60 seconds (SEED=n, PLANT=all)
	$(BIN)/python -m tests.model --duration $(DURATION) $(if $(SEED),--seed $(SEED)) $(if $(PLANT),--plant "$(PLANT)")

chaos: $(STAMP) ## Three brokers under faults for DURATION=60 seconds, and a verdict (SEED=n, PLANT=lost|stale|copies|again|dup|reorder|phantom|gap|late)
	$(BIN)/python -m tests.chaos --duration $(DURATION) $(if $(SEED),--seed $(SEED)) $(if $(PLANT),--plant "$(PLANT)") $(CHAOS_ARGS)

mirror: $(STAMP) ## The demo and MESSAGES=1000000 mirrored by a tailer that is killed at random, RUNS=3 times; then compared (SEED=n SERVER=1)
	$(BIN)/python -m tests.mirror --messages $(MESSAGES) --runs $(RUNS) $(if $(SEED),--seed $(SEED)) $(if $(SERVER),--server)

lint: docs ## Check style, format, types, the layers, the documentation, and that generated files are as generated
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/generate.py --check

generate: $(STAMP) ## Generate txmsg/wire from the .proto files, x.py from each x_async.py, and the reference page
	$(BIN)/python tools/generate.py

bench: $(STAMP) ## Measure (BENCH_ARGS='--quick metaq_append': a short run, one benchmark)
	$(BIN)/python -m benchmarks.run_all $(BENCH_ARGS)

docs: $(STAMP) ## Build the documentation as a site in build/docs; a broken link is an error
	$(BIN)/sphinx-build --quiet --fresh-env --write-all --fail-on-warning --keep-going --nitpicky --conf-dir docs . build/docs
	@echo "open build/docs/index.html"

clean: ## Remove .venv and all that was made here; your databases stay
	rm -rf $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
