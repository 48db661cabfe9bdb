# Every target makes what it needs: a Python of 3.11 or newer and a JDK 17 are enough on a fresh machine.
# A stamp file stands for each finished environment, so that a second run starts at once.

SHELL := /bin/sh
.DEFAULT_GOAL := help

VENV := .venv
PEERS := .venv-peers
CLIENTS := .venv-clients
DELTA := .venv-delta
NODE := tests/servers
PAIMON := tests/interop/java
FLINK := tests/interop/flink
DELTA_JARS := bench/peers/delta
S3A := tests/spark/s3a
TRINO := tests/interop/formats/trino
RUN := $(VENV)/bin/python
SEEDS ?= 300
SEED ?= 0
SAMPLE ?= 100
SCALE ?= 1
# Twice the cores of a small machine: for half of its time a test waits for servers and for processes of its own.
WORKERS ?= 4
# Extra words for pytest, such as ARGS="tests/unit -k tags".
ARGS ?=

export PIP_DISABLE_PIP_VERSION_CHECK := 1
export PYTHONDONTWRITEBYTECODE :=

.PHONY: help demo unit test tests test-long check lint types docs bench bench-table bench-spark bench-kv bench-repo bench-lakefs bench-fleet bench-catalog simulate mutations mutate clean

help: ## this list
	@echo "lakebed: make TARGET"
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/  \1\t\2/p' Makefile | expand -t 16

demo: java $(VENV)/.demo ## a year of real flights, through Spark: merge, tag, audit, roll back, expire, report, and the same in SQL
	@tools/jar.sh $(VENV)
	@$(RUN) -m demo

# Fast folders; no Java, no PostgreSQL, no object server.
UNIT := tests/unit tests/tidy tests/behaviour/fsck tests/behaviour/lsm tests/behaviour/versioned \
	tests/cli/test_main.py tests/cli/test_grammar.py tests/cli/test_layout.py tests/cli/test_tables.py
unit: $(VENV)/.ready ## the fast tests, in under two minutes on two cores
	@$(RUN) -m pytest -q -n $(WORKERS) --dist loadgroup -m "not long and not spark" \
		-k "not [s3] and not [azure]" $(UNIT) $(ARGS)

test: ## lint, types, and all tests but the long ones, in twenty minutes on two cores
	@$(MAKE) --no-print-directory --jobs=4 lint environments
	@$(MAKE) --no-print-directory --jobs=2 types tests

tests:
	@$(RUN) -m pytest -q -n $(WORKERS) --dist loadgroup -m "not long" $(ARGS)

test-long: environments hadoop-aws flink trino s3-tests lakefs ## the long tests, and the random ones with SEEDS seeds and examples
	@$(RUN) -m pytest -q -n $(WORKERS) --dist loadgroup -m long -s $(ARGS)
	@LAKEBED_SEEDS=$(SEEDS) $(RUN) -m pytest -q -n $(WORKERS) -m "not long" -s tests/property tests/simulation \
		tests/unit/lsm/test_ceilings.py tests/unit/repo/committed/test_diff_segments.py \
		tests/behaviour/repo/test_collection.py tests/behaviour/repo/test_commit_races.py \
		tests/behaviour/table/test_data_changes.py \
		tests/behaviour/table/test_lost_replies.py tests/behaviour/table/test_crash_points.py \
		tests/behaviour/table/test_dynamic_bucket_faults.py tests/behaviour/fleet/node/test_crashes.py

check: lint types ## lint, format and types

lint: $(VENV)/.ready
	@$(RUN) -m ruff check --quiet .
	@$(RUN) -m ruff format --quiet --check . || { echo "Some files are not formatted: run $(RUN) -m ruff format ."; exit 1; }

types: $(VENV)/.ready
	@$(RUN) -m mypy --no-error-summary

docs: $(VENV)/.ready ## the site of the documents, in build/site; broken links and missing names are errors
	@NO_MKDOCS_2_WARNING=1 $(RUN) -m mkdocs build --strict
	@echo "The site is in build/site: open build/site/index.html."

bench: bench-table bench-spark bench-kv bench-repo bench-lakefs bench-fleet bench-catalog ## all benchmarks; SCALE=0.1 for a quick look

bench-table: java jar $(PEERS)/.ready ## tables against pypaimon, deltalake and plain Spark
	@$(RUN) bench/table.py --scale $(SCALE)

bench-spark: java jar $(DELTA)/.ready $(DELTA_JARS)/.ready ## Spark SQL through the catalog, against Parquet and Delta Lake
	@$(RUN) bench/spark.py --scale $(SCALE)

bench-kv: $(VENV)/.ready $(PEERS)/.ready ## databases against rocksdict, slatedb and Arrow files
	@$(RUN) bench/kv.py --scale $(SCALE)

bench-repo: $(VENV)/.ready ## repositories against their own uncompacted state, and their server
	@$(RUN) bench/repo.py --scale $(SCALE)

bench-lakefs: $(VENV)/.ready build/lakefs/.ready ## the server against lakeFS's own, which Go builds; 15 minutes
	@$(RUN) bench/lakefs.py --scale $(SCALE)

bench-fleet: $(VENV)/.ready postgresql ## fleets: grants, logs, reads, failover, relocation, costs; 20 minutes
	@$(RUN) bench/fleet.py --scale $(SCALE)

bench-catalog: $(VENV)/.ready $(PEERS)/.ready ## catalogs: loading a table, reading through it, commits
	@$(RUN) bench/catalog.py --scale $(SCALE)

simulate: $(VENV)/.ready ## seeded simulations with faults; SEEDS=300, or one run: SEED=17 SCENE=kv/power
ifdef SCENE
	@PYTHONPATH=tests $(RUN) -m worlds.simulation "$(or $(SEED),0)" "$(SCENE)"
else
	@LAKEBED_SEEDS=$(SEEDS) $(RUN) -m pytest -q -n $(WORKERS) -s tests/simulation $(ARGS)
endif

mutations: $(VENV)/.ready ## the table of guarantees, the defect that breaks each, and the test that finds it
	@PYTHONPATH=src:tests $(RUN) -m mutations.guarantee

mutate: $(VENV)/.ready ## what the tests of ROOM notice of SAMPLE random changes of its code; rooms: tests/mutations/rooms.toml
	@$(RUN) tools/mutate.py "$(ROOM)" --sample $(SAMPLE) --seed $(SEED)

clean: ## remove every environment, cache and output
	rm -rf src/lakebed/spark/jars
	rm -rf $(VENV) $(PEERS) $(CLIENTS) $(DELTA) $(NODE)/node_modules $(NODE)/.ready $(NODE)/npm.log build dist out \
		$(PAIMON)/lib $(PAIMON)/classes $(PAIMON)/.ready $(PAIMON)/mvn.log \
		$(FLINK)/lib $(FLINK)/classes $(FLINK)/.ready $(FLINK)/mvn.log \
		$(DELTA_JARS)/lib $(DELTA_JARS)/.ready $(DELTA_JARS)/mvn.log $(S3A)/lib $(S3A)/.ready $(S3A)/mvn.log \
		$(TRINO)/lib $(TRINO)/.ready $(TRINO)/mvn.log $(TRINO)/plugin/lib $(TRINO)/plugin/.ready $(TRINO)/plugin/mvn.log \
		.pytest_cache .hypothesis .mypy_cache .ruff_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# The demo needs no test tools; `dev` includes all that it needs.
$(VENV)/.demo: pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" tools/setup.sh venv $(VENV) demo spark
	@touch $@

$(VENV)/.ready: pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" tools/setup.sh venv $(VENV) dev spark,testing,server,frames,fsspec,fleet,delta,iceberg
	@touch $@

$(PEERS)/.ready: pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" tools/setup.sh venv $(PEERS) peers
	@touch $@

$(CLIENTS)/.ready: pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" tools/setup.sh venv $(CLIENTS) clients
	@touch $@

$(DELTA)/.ready: pyproject.toml tools/setup.sh
	@PYTHON="$(PYTHON)" tools/setup.sh venv $(DELTA) peers-delta
	@touch $@

$(DELTA_JARS)/.ready: $(DELTA_JARS)/pom.xml tools/setup.sh
	@tools/setup.sh jars $(DELTA_JARS) "Delta Lake in the benchmark"

$(S3A)/.ready: $(S3A)/pom.xml tools/setup.sh
	@tools/setup.sh jars $(S3A) "the tests of Hadoop's file system for S3"

$(TRINO)/.ready $(TRINO)/plugin/.ready: %/.ready: %/pom.xml tools/setup.sh
	@tools/setup.sh jars $* "the tests of Trino"

$(NODE)/.ready: $(wildcard $(NODE)/package.json) tools/setup.sh
	@tools/setup.sh node $(NODE)
	@touch $@

# setup.sh makes the stamp, and only when Maven and a JDK are there.
$(PAIMON)/.ready: $(wildcard $(PAIMON)/pom.xml $(PAIMON)/*.java) tools/setup.sh
	@tools/setup.sh java-worker $(PAIMON) "the tests against the format's Java implementation"

$(FLINK)/.ready: $(wildcard $(FLINK)/pom.xml $(FLINK)/*.java) tools/setup.sh
	@tools/setup.sh java-worker $(FLINK) "the tests against Flink"

.PHONY: environments java jar jars postgresql hadoop-aws flink trino s3-tests lakefs
environments: java jar postgresql build/spark.jsa build/.collected $(VENV)/.ready $(PEERS)/.ready $(CLIENTS)/.ready $(NODE)/.ready $(PAIMON)/.ready

java:
	@tools/setup.sh java

jar: $(VENV)/.ready ## the catalog for Spark SQL, compiled for the installed PySpark
	@tools/jar.sh $(VENV)

jars: $(VENV)/.ready ## the same for every minor of Spark, with Maven; a wheel that is built then contains them
	@tools/jar.sh $(VENV) all

# The classes that Spark loads, for the JVMs of tests. Without it they start, and use twice the processor time for it.
build/spark.jsa: $(VENV)/.ready | java jar
	@mkdir -p build
	@PYTHONPATH=src:tests $(RUN) -W ignore -m worlds.spark_archive $@ >build/spark-archive.log 2>&1 || \
		echo "The archive of Spark's classes could not be made: build/spark-archive.log says why."

# In a fresh clone pytest rewrites the assertions of every file, for half a minute. Each worker would do so, at one time.
build/.collected: | $(VENV)/.ready
	@mkdir -p build
	@$(RUN) -m pytest -q -n 0 --collect-only tests >/dev/null 2>&1 || true
	@touch $@

hadoop-aws: $(S3A)/.ready ## Hadoop's file system for S3, 700 MB by Maven, for the tests of Spark on a bucket

flink: $(FLINK)/.ready ## Flink with the format's own connector, 400 MB by Maven, for its long tests

trino: $(TRINO)/.ready $(TRINO)/plugin/.ready ## Trino with its connector for Iceberg, 350 MB by Maven, for its long tests; they need Java 25

s3-tests: build/s3-tests/.ready ## Ceph's public suite for S3 servers, by git, for the long test of the gateway

build/s3-tests/.ready:
	@mkdir -p build
	@test -d build/s3-tests/suite || git clone --quiet --depth 1 https://github.com/ceph/s3-tests build/s3-tests/suite || \
		echo "https://github.com/ceph/s3-tests cannot be reached: its test will be skipped."
	@if test -d build/s3-tests/suite; then python3 -m venv build/s3-tests/environment && \
		build/s3-tests/environment/bin/pip install --quiet -r build/s3-tests/suite/requirements.txt && touch $@; fi

lakefs: build/lakefs/.ready ## lakeFS's server, client and system tests, built with Go, for long tests and bench-lakefs

# lakefs.sh makes the stamp, and only when all is built.
build/lakefs/.ready: tools/lakefs.sh
	@tools/lakefs.sh build/lakefs

postgresql:
	@tools/setup.sh postgresql
