# Everything that a developer or CI does. Variables work in the environment and on the command
# line: make up PORT=9000 WORKERS_MEDIUM=4 BROKER=filesystem FAIRLINE_HOME=.run-b

.DEFAULT_GOAL := help
.PHONY: help up down status demo test test-unit test-long lint bench bench-dispatch bench-snapshot retention lab bench-console pictures chaos attack simulation cells \
	upgrade-test restarts bare-test compose-test quorum-test cluster chaos-cluster cluster-status cluster-down cluster-test \
	cluster-packages sbom hashes audit clean venv venv-dev broker browser faketime prometheus mmdebstrap

# Variables on the command line: one that is misspelled would be ignored without a word.
VARIABLES = QUICK JOBS MINUTES COUNT SEED EACH FULL CLUSTER KEEP CI PYTHON SHELL RABBITMQ CLUSTER_HOME HASHES \
	$(shell sed -n 's/^\#\([A-Z_]*\)=.*/\1/p' .env.example 2>/dev/null)
PREFIXES := WORKERS_% PIP_% OTEL_% AWS_% ANTHROPIC_%
GIVEN := $(strip $(foreach name,$(.VARIABLES),$(if $(filter command,$(origin $(name))),$(name))))
UNKNOWN := $(if $(GIVEN),$(filter-out $(VARIABLES) $(PREFIXES),$(GIVEN)))
ifneq ($(UNKNOWN),)
SIMILAR := $(filter $(addsuffix %,$(UNKNOWN)),$(VARIABLES))
$(error fairline: unknown variable $(UNKNOWN)$(if $(SIMILAR),; did you mean $(SIMILAR)?,: \
	'make help' and .env.example list them))
endif

# Hundreds of processes start. Where the shell forbids to keep bytecode, each would compile every
# module again.
export PYTHONDONTWRITEBYTECODE :=

FAIRLINE_HOME ?= .run
CLUSTER_HOME ?= .cluster
PY := .venv/bin/python
BOOTSTRAP := sh app/stack/bootstrap.sh

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z%-]+:.*## / { sub("%", "NAME", $$1); printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo
	@echo "  up takes PORT, FLOWER_PORT, FAIRLINE_HOME, API_WORKERS, SCHEDULERS,"
	@echo "  WORKERS_SHORT, WORKERS_MEDIUM, WORKERS_LONG, BROKER=auto|rabbitmq|filesystem,"
	@echo "  AUTOSCALE=1, SLICES=\"medium.reserved.acme=2 medium.free=1\","
	@echo "  QUEUE_TYPE=classic|quorum; RABBITMQ=… is the folder of another rabbitmq-server."
	@echo "  HASHES=0 installs packages of an index that has built them anew."
	@echo "  chaos and the tests take QUEUE_TYPE and RABBITMQ too."

up: venv $(if $(filter rabbitmq,$(BROKER)),broker) ## run the whole stack in the foreground; Ctrl-C stops it
	@exec $(PY) -m app.stack up

down: ## stop the stack, from any shell
	@if $(BOOTSTRAP) --check 2>/dev/null; then exec $(PY) -m app.stack down; \
	elif [ -e "$(FAIRLINE_HOME)/supervisor.json" ]; then \
		echo "fairline: a stack may still run in $(FAIRLINE_HOME), but .venv is missing or incomplete:" \
			"run 'make venv', then 'make down'" >&2; exit 1; \
	else echo "Nothing is running: .venv is missing or incomplete, and 'make up' never ran from it."; fi

status: ## show the processes of the running stack
	@$(BOOTSTRAP) --check && exec $(PY) -m app.stack status

demo: ## send 40 applications to the running stack (or to PORT=…) and watch them being scored
	@$(BOOTSTRAP) --check || exit 1; \
	if [ -n "$${PORT:-$$FAIRLINE_PORT}" ]; then export FAIRLINE_PORT="$${PORT:-$$FAIRLINE_PORT}"; \
	else settings=$$($(PY) -m app.stack env) || { echo "$$settings"; exit 1; }; eval "$$settings"; fi; \
	exec $(PY) -m flask --app app demo

# $(call tests,ARGUMENTS,HOW): in CI, tests that failed are run once more, one after the other, and
# have to pass then. (Where a host takes the processors for seconds, whatever waits for a process
# runs out of time.)
tests = $(PY) -m pytest $(1) $(2)
ifdef CI
tests = { $(PY) -m pytest $(1) $(2) || { [ $$? = 1 ] && echo "Tests failed. Alone they have to pass:" && \
	$(PY) -m pytest $(1) --last-failed --last-failed-no-failures none; }; }
endif

test: venv-dev broker browser prometheus ## run most of the tests: unit, integration, acceptance
	$(call tests,tests/unit tests/integration tests/acceptance -m "not long",-n 3 --dist loadfile --no-loadscope-reorder)

test-long: venv-dev broker browser faketime ## run the others: browser, rare faults, a minute of chaos, load lab and benchmarks
	$(call tests,tests/integration tests/acceptance -m long,-n 2 --dist loadfile --no-loadscope-reorder)
	$(call tests,tests/lab,-n 2 --dist worksteal)

test-unit: venv-dev ## run the tests that need no service
	$(PY) -m pytest tests/unit -n 3 --dist loadfile

lint: venv-dev ## check style, types, and the rules for files and imports
	.venv/bin/ruff check .
	.venv/bin/ruff format --check .
	.venv/bin/mypy
	$(PY) -m pytest -q tests/unit/test_layers.py

sbom: venv ## write the bill of materials, sbom.cdx.json, and the licences of the dependencies, docs/licences.md
	@$(PY) -m app.stack.sbom

# A new pin has no hash yet, or that of the version before.
hashes: export HASHES := 0
hashes: venv-dev ## after a change of pins: write the hashes of their files, as the package index has them, into requirements*.txt
	@$(PY) -m app.stack.hashes

# Every package is pinned, so there is nothing to resolve.
audit: venv-dev ## look for known vulnerabilities in the pinned packages, with pip-audit from the network
	.venv/bin/uv tool run pip-audit@2.9.0 --disable-pip --no-deps -r requirements.txt

bench: venv-dev broker ## compare throughput with a plain Celery baseline
	$(PY) -m loadtest.bench

bench-dispatch: venv-dev ## what a dispatch costs with up to a million waiting jobs; QUICK=1 looks at less
	$(PY) -m loadtest.dispatching $(if $(QUICK),--quick)

bench-snapshot: venv-dev ## what a job costs while a backup holds its snapshot open, for MINUTES=1 at 500 jobs per second
	$(PY) -m loadtest.snapshot --minutes $(or $(MINUTES),1)

retention: venv-dev ## what JOBS=20000000 finished jobs on disk cost, 46 GB at a time, and how they are best retired; QUICK=1 looks at less
	$(PY) -m loadtest.retention $(if $(QUICK),--quick) $(if $(JOBS),--jobs $(JOBS))

bench-console: venv-dev broker browser ## what the console costs with a million jobs in the tables and ten viewers
	$(PY) -m loadtest.console

lab: venv-dev broker ## run every experiment of the load lab; QUICK=1 in a quarter of an hour
	$(PY) -m loadtest.lab $(if $(QUICK),--quick)

lab-%: venv-dev broker ## run one of them: knee, scaling, pool, swarm, peers, cost, soak; QUICK=1 is shorter, MINUTES=120 a longer soak
	$(PY) -m loadtest.lab $(if $(QUICK),--quick) $(if $(MINUTES),--minutes $(MINUTES)) $*

simulation: venv-dev ## simulate two billion jobs in a day with Fairline's own policies, in some minutes; QUICK=1 the peak alone, SEED=… another day
	$(PY) -m loadtest.simulation $(if $(QUICK),--quick) $(if $(SEED),--seed $(SEED))

chaos: venv-dev broker faketime ## break a stack of its own for MINUTES=2 under load; SEED=… repeats a run
	$(PY) -m loadtest.chaos --minutes $(or $(MINUTES),2) $(if $(SEED),--seed $(SEED))

# The older commit builds a C extension, so this needs gcc and the Python headers.
upgrade-test: venv-dev broker ## upgrade a stack of an older commit process by process under load, and back
	@$(call install,command -v gcc && ls -d /usr/include/python3.*,gcc libc6-dev python3-dev)
	$(PY) -m loadtest.upgrade

attack: venv-dev broker ## attack a stack of its own on this machine with a hostile client, for three minutes; QUICK=1 is shorter
	$(PY) -m loadtest.attack $(if $(QUICK),--quick)

restarts: venv-dev broker ## restart workers COUNT=100 times under load, one after the other; nothing may be lost or run twice
	$(PY) -m loadtest.restarts --count $(or $(COUNT),100)

cells: venv-dev broker ## several cells on this machine: their cost, one killed, tenants moved and spread, a region lost; QUICK=1 is shorter
	$(PY) -m loadtest.cells $(if $(QUICK),--quick)

cells-%: venv-dev broker ## run one of these experiments: cost, killed, moves, spread, region; QUICK=1 is shorter
	$(PY) -m loadtest.cells $(if $(QUICK),--quick) $*

pictures: venv-dev broker browser ## take the README's pictures from a stack of their own
	$(PY) -m loadtest.pictures

bare-test: venv-dev mmdebstrap ## as root: try the README on a bare Debian tree; FULL=1 runs make test in it, CLUSTER=1 make cluster, KEEP=1 keeps it
	$(PY) -m tests.bare $(if $(FULL),--full) $(if $(CLUSTER),--cluster) $(if $(KEEP),--keep)

compose-test: venv-dev mmdebstrap ## as root: docker-compose.yml under a Docker engine of Debian packages, kept in ~/.cache
	$(PY) -m tests.containers

# Part of the tests, on what production runs. The same of the other commands:
# make chaos QUEUE_TYPE=quorum RABBITMQ=~/.cache/fairline-rabbitmq/bin
quorum-test: venv-dev mmdebstrap ## as root: tests on quorum queues of a RabbitMQ 4 of Debian packages, kept in ~/.cache
	@RABBITMQ=$$($(PY) -m tests.containers.rabbitmq) && export RABBITMQ QUEUE_TYPE=quorum && \
		$(PY) -m pytest tests/integration/broker tests/acceptance/test_stack.py tests/acceptance/test_outages.py

# RabbitMQ 4 is that of quorum-test, unless RABBITMQ names another.
WITH_RABBITMQ = $(PY) -m loadtest.cluster check && \
	RABBITMQ=$${RABBITMQ:-$$($(PY) -m tests.containers.rabbitmq)} && export RABBITMQ

cluster: venv-dev mmdebstrap cluster-packages ## as root: three machines in namespaces of this one, on clusters of PostgreSQL and RabbitMQ
	@$(WITH_RABBITMQ) && exec $(PY) -m loadtest.cluster up

cluster-status: ## as root: what runs on the machines of the cluster, and who leads
	@$(BOOTSTRAP) --check && exec $(PY) -m loadtest.cluster status

cluster-down: ## as root: stop the cluster; its data stays in .cluster
	@if [ ! -e "$(CLUSTER_HOME)/running" ]; then echo "No cluster is running."; \
	elif $(BOOTSTRAP) --check 2>/dev/null; then exec $(PY) -m loadtest.cluster down; \
	else echo "fairline: a cluster may still run in $(CLUSTER_HOME), but .venv is missing or incomplete:" \
		"run 'make venv-dev', then 'make cluster-down'" >&2; exit 1; fi

chaos-cluster: venv-dev mmdebstrap cluster-packages ## as root: break a cluster of its own for MINUTES=5 under load; SEED=… repeats a run, EACH=1 does each fault once
	@$(WITH_RABBITMQ) && exec $(PY) -m loadtest.cluster_chaos --minutes $(or $(MINUTES),5) $(if $(SEED),--seed $(SEED)) $(if $(EACH),--each $(EACH))

cluster-test: venv-dev mmdebstrap cluster-packages ## as root: start a cluster, cut the leader's machine off, go through the runbook; three minutes of faults
	@$(WITH_RABBITMQ) && $(call tests,tests/cluster)

clean: down cluster-down ## stop the stack and the cluster and remove their data, .venv and caches
	@if [ -e "$(FAIRLINE_HOME)/stack-id" ]; then rm -rf "$(FAIRLINE_HOME)"; fi
	@if [ -e "$(CLUSTER_HOME)/layout.json" ] && ! rm -rf "$(CLUSTER_HOME)" 2>/dev/null; then \
		echo "fairline: $(CLUSTER_HOME) can be removed by root only" >&2; fi
	rm -rf .venv .venv.lock .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

venv: ## install what is needed to run into .venv
	@$(BOOTSTRAP) requirements.txt

venv-dev: ## install what tests and measurements need, too
	@$(BOOTSTRAP) requirements.txt requirements-dev.txt

# Debian packages, installed as root only. Without root `make up BROKER=rabbitmq` says what is
# missing, and so do the tests: by a skip, or a failure under CI=true.
broker:
	@$(call install,command -v rabbitmq-server,rabbitmq-server)

# Playwright's driver needs libatomic, which nothing else on a bare machine does.
browser:
	@$(call install,command -v chromium && ls /usr/lib/*/libatomic.so.1,chromium libatomic1)

# Wrong clocks for the chaos run.
faketime:
	@$(call install,ls /usr/lib/*/faketime/libfaketime.so.1,libfaketime)

# promtool tests the alerts, Prometheus scrapes.
prometheus:
	@$(call install,command -v prometheus && command -v promtool,prometheus)

cluster-packages:
	@$(call install,command -v etcd && command -v etcdctl && command -v haproxy && command -v nft && command -v ip,etcd-server etcd-client haproxy nftables iproute2)

mmdebstrap:
	@$(call install,command -v mmdebstrap,mmdebstrap)

# $(1): succeeds if they are there; $(2): Debian packages
define install
if ! (PATH="$$PATH:/usr/sbin:/usr/local/sbin:/usr/lib/rabbitmq/bin"; $(1)) >/dev/null 2>&1 && \
	[ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null; then \
	echo "  installing $(2)"; \
	apt-get update -qq && DEBIAN_FRONTEND=noninteractive RUNLEVEL=1 \
		apt-get install -y -qq --no-install-recommends $(2) >/dev/null; \
fi
endef
