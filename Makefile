# Needs only Python 3.11 or newer and make. `make help` lists the targets.

# newest: what pip finds; lowest: the oldest version of each package that pyproject.toml allows, in an environment of its own.
DEPENDENCIES ?= newest
VENV ?= .venv$(if $(filter lowest,$(DEPENDENCIES)),-lowest)
BIN := $(VENV)/bin
# Three sets of packages, each with the one before. A stamp says that an installation was finished: an interrupted one
# is done again.
BROKER := $(VENV)/.broker
ALL := $(VENV)/.all
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
KILLS ?= 50
BENCH_ARGS ?=
CHAOS_ARGS ?=
DATABASES ?=
# Tests, demos and benchmarks start hundreds of processes: told to write no bytecode, each would compile all its imports.
export PYTHONDONTWRITEBYTECODE =

.DEFAULT_GOAL := help
.PHONY: help setup demo trades test test-all races fuzz model chaos mirror lint generate bench docs systems databases release clean

help: ## Show this list
	@echo "make TARGET; each sets up what it needs:"
	@sed -n 's/^\([a-z-]*\):[^#]*## \(.*\)/  \1|\2/p' $(MAKEFILE_LIST) | while IFS='|' read -r name text; do \
		printf '  %-10s %s\n' "$$name" "$$text"; done

setup: $(STAMP) ## Create .venv with everything (PYTHON=... chooses the interpreter)

$(BROKER): installed = txmsg[broker]
$(BROKER): size = 160 MB
$(BROKER): stamps = $(BROKER)
$(ALL): installed = txmsg[all]
$(ALL): size = 1.1 GB, with Spark and a Java
$(ALL): stamps = $(BROKER) $(ALL)
$(STAMP): installed = txmsg[dev]
$(STAMP): size = 2.0 GB, with Spark, a Java, and all that tests need
$(STAMP): stamps = $(BROKER) $(ALL) $(STAMP)

# The first interpreter that is new enough and can make environments; a shim that runs nothing is passed over.
$(BROKER) $(ALL) $(STAMP): pyproject.toml
	$(if $(filter newest lowest,$(DEPENDENCIES)),,$(error DEPENDENCIES is $(DEPENDENCIES): newest or lowest))
	@if ! $(BIN)/python -m pip --version >/dev/null 2>&1; then \
		found=; for python in $(or $(PYTHON),python3 python3.14 python3.13 python3.12 python3.11 python); do \
			if $$python -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
				found=$$python; break; fi; done; \
		if [ -z "$$found" ]; then \
			echo "no Python 3.11 or newer with venv found: install one (Debian: python3-venv), or name it: make PYTHON=..." >&2; \
			exit 1; fi; \
		echo "creating $(VENV) with $$($$found --version)"; \
		$$found -m venv $(VENV); fi
	@echo "installing $(installed) into $(VENV), once: $(size)"
	@if [ $(DEPENDENCIES) = lowest ]; then $(BIN)/python tools/floors.py; fi >$(VENV)/constraints.txt
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --use-pep517 -c $(VENV)/constraints.txt \
		-e '.$(installed:txmsg%=%)'
	@touch $(stamps)

demo: $(BROKER) ## Register users while processes are killed; then compare the databases (DEMO_ARGS='--users 500 --console')
	$(BIN)/txmsg demo registration $(DEMO_ARGS)

trades: $(ALL) ## Show a day of trades live on a page; then compare all totals (TRADES_ARGS='--rate 1000 --kill --console')
	$(BIN)/txmsg demo trades $(TRADES_ARGS)

# pytest rewrites each module that it imports for the first time. Processes that begin together would each rewrite all.
$(VENV)/.rewritten: $(STAMP)
	-@$(BIN)/python -m pytest --collect-only --quiet >/dev/null && touch $@

test: $(STAMP) $(VENV)/.rewritten ## Run the tests (PYTEST_ARGS='-k fence'; --postgres=URL for a server of yours; DEPENDENCIES=lowest)
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) -m 'not long' $(PYTEST_ARGS)

test-all: override PYTEST_ARGS += --require-tools
test-all: test ## Run all tests, including those that need Java or take minutes; a missing tool is an error
	$(BIN)/python -m pytest -n 3 -m long $(PYTEST_ARGS)  # each may start a JVM, or measure

races: $(STAMP) ## Race RACES=10000 transactions against checks on each database and driver; prints how they ended
	$(BIN)/python -m pytest tests/integration/fence/test_races.py -n 0 --seed random --fence-races $(RACES) $(PYTEST_ARGS)

fuzz: $(STAMP) ## Fuzz all parsers and servers, each target for DURATION=60 seconds; prints the outcomes
	$(BIN)/python -m pytest tests/fuzz -n 0 -s --timeout 0 --seed random --fuzz-s $(DURATION) $(PYTEST_ARGS)

model: $(STAMP) ## Compare random histories of two brokers with the model for about DURATION=60 seconds (SEED=n, PLANT=all)
	$(BIN)/python -m tests.model --duration $(DURATION) $(if $(SEED),--seed $(SEED)) $(if $(PLANT),--plant "$(PLANT)")

chaos: $(STAMP) ## Run three brokers under faults for DURATION=60 seconds; prints a verdict (SEED=n, PLANT=lost|threads|unflushed|stale|copies|again|dup|reorder|phantom|gap|late|relay|overtake|inbox|outside|early|unended|hasty|blocked|clock|heartbeats AWAY=seconds without brokers)
	$(BIN)/python -m tests.chaos --duration $(DURATION) $(if $(SEED),--seed $(SEED)) $(if $(PLANT),--plant "$(PLANT)") $(if $(AWAY),--away $(AWAY)) $(CHAOS_ARGS)

mirror: $(STAMP) ## Mirror the demo and MESSAGES=1000000 by a tailer that is killed at random, RUNS=3 times; then compare (SEED=n INTO=directory|server|kafka PLANT=unfenced|nameless|uncommitted|notes)
	$(BIN)/python -m tests.mirror --messages $(MESSAGES) --runs $(RUNS) $(if $(SEED),--seed $(SEED)) $(if $(INTO),--into $(INTO) --kills $(KILLS)) $(if $(PLANT),--plant $(PLANT))

lint: docs ## Check style, format, types, the layers, names, the documentation, and that generated files are as generated
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python tools/names.py --check
	$(BIN)/python tools/generate.py --check

generate: $(STAMP) ## Generate txmsg/wire from the .proto files, x.py from each x_async.py, the pages of names, metrics and settings, the layout, and deploy
	$(BIN)/python tools/generate.py

bench: $(STAMP) ## Measure (BENCH_ARGS='--quick metaq_append': a short run, one benchmark)
	$(BIN)/python -m benchmarks.run_all $(BENCH_ARGS)

docs: $(STAMP) ## Build the documentation as a site in build/docs; a broken link is an error
	$(BIN)/sphinx-build --quiet --fresh-env --write-all --fail-on-warning --keep-going --nitpicky --conf-dir docs . build/docs
	@echo "open build/docs/index.html"

systems: ## Run demo, tests and lint on Debian 12, 13 and unstable, each with its own Python (needs root and debootstrap)
	$(or $(PYTHON),python3) -m tools.fresh_system debian-12 debian-13 debian-unstable --page docs/tested-on.md

databases: $(STAMP) ## Run the tests that use a database on PostgreSQL 15 to 18, MariaDB and MySQL (DATABASES='mysql postgresql-15'; Maven and debootstrap bring them)
	$(BIN)/python -m tests.databases $(DATABASES) --page docs/tested-on.md

# Its tools are pinned by hash: update tools/release.txt with the command that its head names. The environment of the wheel
# has no pip of its own, and in the end all extras: so the SBOM lists what txmsg needs, and nothing else.
release: INTO_RELEASE = build/release-tools/bin/python -m pip --python build/release/bin/python install --quiet --disable-pip-version-check
release: $(STAMP) ## Build wheel, sdist and SBOM into dist, check them, and run the demo from the wheel in an empty environment
	rm -rf dist build/release build/release-tools
	$(BIN)/python -m venv build/release-tools
	build/release-tools/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r tools/release.txt
	build/release-tools/bin/python -m build --no-isolation --outdir dist .
	build/release-tools/bin/twine check --strict dist/*
	$(BIN)/python tools/wheel.py dist/*.whl
	$(BIN)/python -m venv --without-pip build/release
	$(INTO_RELEASE) "$$(ls $(CURDIR)/dist/*.whl)[broker]"
	cd build/release && bin/txmsg demo registration --users 40 --crash 4
	$(INTO_RELEASE) "$$(ls $(CURDIR)/dist/*.whl)[all]"
	build/release-tools/bin/cyclonedx-py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
		--output-file "dist/$$(basename dist/*.whl -py3-none-any.whl).cdx.json" build/release/bin/python
	@if [ "$$(id -u)" = 0 ] && command -v debootstrap >/dev/null; then $(MAKE) systems; \
	else echo "skipped, because it needs root and debootstrap: make systems"; fi

clean: ## Remove .venv and all build output; your databases are kept
	rm -rf .venv-lowest $(VENV) build dist .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
