# `make demo` and `make test` do all set-up themselves; they need Python >= 3.11 and a JDK 17+.
PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.installed

WORKERS ?= 4
SEEDS ?= 2000
MINUTES ?= 5
FUZZ_SECONDS ?= 120
OUT ?= experiments
SCENARIOS ?= scale-out crash
REPEAT ?= 12
BROKER ?= kafka-4
DOCS_STAMP := $(VENV)/.docs-installed

.PHONY: setup demo test test-long lint docs docs-generated bench bench-agent bench-assign bench-poll bench-offsets bench-gateway bench-pipeline bench-scale bench-spark-source simulate mutations mutation-score interruptions model campaign exactly-once conformance fuzz experiments packages clean

setup: $(STAMP)

$(STAMP): setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or later is needed; set PYTHON=..." >&2; exit 2; }
	@$(PYTHON) -c 'import venv, ensurepip' || { echo "Python's venv module is needed (Debian: apt-get install python3-venv)" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[dev]'
	@touch $(STAMP)

demo: setup
	$(BIN)/zkrebalancer demo

# A run begins hundreds of Python processes: without byte code each of them would compile the packages anew.
test test-long: export PYTHONDONTWRITEBYTECODE :=

test: MEASURED := $(BIN)/python -m tests.support.processor_time
test: setup
	$(MEASURED) $(BIN)/python -m pytest -n $(WORKERS) --dist loadscope --no-loadscope-reorder -m 'not long' tests --ignore tests/benchmarks

test-long: setup
	$(BIN)/python -m pytest -m "long or drawn or hypothesis" --hypothesis-profile long tests --ignore tests/benchmarks

lint: setup
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

$(DOCS_STAMP): $(STAMP)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[docs]'
	@touch $(DOCS_STAMP)

# The pages that are generated from the code, and the site, in site/: every link, every example and every generated page is checked.
docs-generated: setup
	$(BIN)/python -m tests.docs

docs: $(DOCS_STAMP)
	$(BIN)/python -m pytest -q tests/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

bench: setup
	$(BIN)/python -m tests.benchmarks.rebalance
	$(BIN)/python -m tests.benchmarks.floor

bench-agent: setup
	$(BIN)/python -m tests.benchmarks.agent
	$(BIN)/python -m tests.benchmarks.agent.idle
	$(BIN)/python -m tests.benchmarks.region

bench-assign: setup
	$(BIN)/python -m tests.benchmarks.assign
	$(BIN)/python -m tests.benchmarks.balanced
	$(BIN)/python -m tests.benchmarks.hub
	$(BIN)/python -m tests.benchmarks.hub --groups 10000

bench-poll: setup
	$(BIN)/python -m tests.benchmarks.fairness docs/benchmarks-poll.svg

bench-offsets: setup
	$(BIN)/python -m tests.benchmarks.commits
	$(BIN)/python -m tests.benchmarks.restarts
	$(BIN)/python -m tests.benchmarks.suspended

bench-gateway: setup
	$(BIN)/python -m tests.benchmarks.gateway
	$(BIN)/python -m tests.benchmarks.gateway_joins
	$(BIN)/python -m tests.benchmarks.gateway_classic

bench-pipeline: setup
	$(BIN)/python -m tests.benchmarks.pipeline 1 5 20
	$(BIN)/python -m tests.benchmarks.fleet

bench-scale: setup
	$(BIN)/python -m tests.benchmarks.swarm

bench-spark-source: setup
	$(BIN)/python -m tests.benchmarks.spark_source

# Evidence for the guarantees; docs/reliability.md explains what each of them shows.
simulate: setup
	$(BIN)/python -m tests.simulation --seeds $(SEEDS)

mutations: setup
	$(BIN)/python -m tests.mutations

mutation-score: setup
	$(BIN)/python -m tests.mutation_score

interruptions: setup
	$(BIN)/python -m tests.interruptions
	$(BIN)/python -m pytest -q -m long $(wildcard tests/unit/consumer_agent/*/test_*interrupts.py)

model: setup
	$(BIN)/python -m tests.model

campaign: setup
	$(BIN)/python -m tests.campaign --minutes $(MINUTES)

# Kills at named steps, for MINUTES; a later run continues the totals.
exactly-once: setup
	$(BIN)/python -m tests.exactly_once --minutes $(MINUTES) --totals .exactly-once/totals.json

# Group tests of franz-go and librdkafka against the gateway; the first run builds them (Go, Cargo, a C++ compiler, make).
conformance: setup
	$(BIN)/python -m tests.conformance

fuzz: setup
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt atheris
	$(BIN)/python -m tests.fuzz --seconds $(FUZZ_SECONDS)

# The same scenarios with every protocol, on the same broker: two to three hours; LARGE=1 takes some nights. Can be resumed.
ifdef LARGE
GRID := --scenario all --settings default --settings tuned --members 20 --partitions 240 --repeat $(REPEAT)
else
GRID := $(SCENARIOS:%=--scenario %) --settings tuned --members 10 --partitions 120 --repeat $(REPEAT)
endif

experiments: setup
	$(BIN)/zkrebalancer experiment run --protocol all --broker $(BROKER) $(GRID) --out $(OUT)
	$(BIN)/zkrebalancer experiment compare $(OUT) --out $(OUT)/report

# Wheel, Debian package and, if a Docker engine answers, the image (BASE=...: its base), in dist/.
packages: setup
	$(BIN)/python deploy/packages.py $(if $(BASE),--base $(BASE))

clean:
	rm -rf $(VENV) build dist *.egg-info .exactly-once .mutation-score .pytest_cache .mypy_cache .ruff_cache .hypothesis site
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
