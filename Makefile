# `make help` lists what can be done. Every target sets up what it needs by itself.

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PROTOS_VENV := .venv-protos
ZEUS_VENV := .venv-zeus
TRAINERS_VENV := .venv-trainers
EXAMPLE_SECONDS ?= 60
PROTOC := PATH="$(CURDIR)/$(PROTOS_VENV)/bin:$$PATH" $(PROTOS_VENV)/bin/python -m grpc_tools.protoc -I protos
STUBS := client/python
GENERATED := $(STUBS)/wattwise/v1 client/typescript/src/stubs
SERVICE_PROTOS := protos/wattwise/v1/batch_size_optimizer.proto protos/wattwise/v1/job_admin.proto

# One more than there are processors, since tests wait for each other's servers.
WORKERS ?= $(shell expr $$(getconf _NPROCESSORS_ONLN) + 1)

.DEFAULT_GOAL := help
.PHONY: help setup demo serve examples bench replay conformance test-clients test soak test-torch test-jax test-zeus test-trainers test-gpu check lint types imports protos protos-check wheel-check readme-check figures clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-14s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(VENV)/.dev ## a virtual environment in .venv with everything that the other targets need

demo: $(VENV)/.demo ## watch a real training job recur and get cheaper (about two minutes)
	$(BIN)/python -m examples.digits

serve: $(VENV)/.demo ## start a server on 127.0.0.1:50051 that keeps its state in wattwise.db
	$(BIN)/wattwise serve

test: $(VENV)/.test ## the test suite
	$(BIN)/python -m pytest --numprocesses=$(WORKERS) --dist=worksteal

soak: $(VENV)/.soak ## the tests that take minutes: kills, power cuts, streams without number, fuzzing (SOAK=short: about five)
	$(BIN)/python -m pytest -m soak -s

test-torch: $(VENV)/.torch ## the tests that train with PyTorch
	$(BIN)/python -m pytest -m torch

test-jax: $(VENV)/.jax ## the tests that compute with JAX
	$(BIN)/python -m pytest -m jax

test-zeus: $(ZEUS_VENV)/.done ## the tests with the real ZeusMonitor, in an environment of its own
	$(ZEUS_VENV)/bin/python -m pytest -m zeus

test-gpu: $(VENV)/.test ## the tests of monitors on this machine's NVIDIA GPU; with a PyTorch that has CUDA in .venv, under load
	$(BIN)/python -m pytest -m gpu -s

test-trainers: $(TRAINERS_VENV)/.done ## the tests of the callbacks for Hugging Face, Lightning and Keras
	$(TRAINERS_VENV)/bin/python -m pytest -m trainers

examples: $(TRAINERS_VENV)/.done ## run the example of every trainer against a server, each at most EXAMPLE_SECONDS=60 (about a minute)
	$(TRAINERS_VENV)/bin/python -m examples --seconds $(EXAMPLE_SECONDS)

bench: $(VENV)/.dev ## what the server costs against the floors of gRPC and of the disk (about ten minutes)
	$(BIN)/python -m benchmarks $(BENCH)

replay: $(VENV)/.dev ## the table and the picture of docs/results.md, from the paper's traces (TRACES=folder)
	@test -f '$(TRACES)/summary_train.csv' || { echo "name the folder of the traces: make replay TRACES=/path/to/traces; docs/results.md says where they come from" >&2; exit 1; }
	$(BIN)/wattwise replay --traces '$(TRACES)' --all --plot docs/results.svg

conformance: $(VENV)/.test ## the clients of all languages replay the behaviour tables; installs what they need
	$(BIN)/python -m tests.conformance

test-clients: $(VENV)/.dev ## the other languages' own tests, and the page docs/other-languages.md typed by the letter
	@for makefile in $(filter-out client/python/%,$(wildcard client/*/Makefile)); do \
	  $(MAKE) --no-print-directory -C $$(dirname $$makefile) test || exit 1; done
	$(BIN)/python -m tests.other_languages_check

check: lint types imports protos-check wheel-check ## everything that is not a test: lint, types, import rules, stub drift, wheel

lint: $(VENV)/.dev ## ruff, buf, and whether the protos still suit clients that are older
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/buf lint
	$(BIN)/buf breaking --against protos/breaking.binpb

types: $(VENV)/.dev ## mypy --strict on server, client, tests and stubs
	$(BIN)/mypy

imports: $(VENV)/.dev ## imports run downwards only
	$(BIN)/lint-imports

protos: $(PROTOS_VENV)/.done ## generate the committed stubs from protos/, those in TypeScript where there is npm
	rm -f $(STUBS)/wattwise/v1/*_pb2*
	$(PROTOC) --python_out=$(STUBS) --mypy_out=quiet:$(STUBS) protos/wattwise/v1/*.proto
	$(PROTOC) --grpc_python_out=$(STUBS) --mypy_grpc_out=quiet:$(STUBS) $(SERVICE_PROTOS)
	@if $(MAKE) --silent --no-print-directory -C client/typescript needed; then $(MAKE) --no-print-directory -C client/typescript protos; \
	  else echo "so the TypeScript stubs are as they were"; fi

.PHONY: protos-image
protos-image: $(VENV)/.dev ## renew what the protos may not break, as docs/versioning.md says
	$(BIN)/buf build --exclude-source-info --output protos/breaking.binpb

protos-check: protos ## fail when the committed stubs are not what the protos generate
	@git diff --exit-code --stat -- $(GENERATED) && test -z "$$(git status --porcelain -- $(GENERATED))" \
	  || { echo "the stubs differ from the protos: commit what 'make protos' wrote" >&2; exit 1; }

wheel-check: $(VENV)/.dev ## build the wheel and use it in an environment of its own
	$(BIN)/python tests/wheel_check.py

readme-check: $(VENV)/.dev ## run every command of the README
	$(BIN)/python tests/readme_check.py

figures: ## lines of code and documentation, functions, import floors and circles (TREE=folder of another checkout)
	$(PYTHON) tests/house.py $(TREE)

clean: ## remove the virtual environments and what tools left behind
	rm -rf $(VENV) $(PROTOS_VENV) $(TRAINERS_VENV) $(ZEUS_VENV) build dist .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis

$(VENV)/bin/python:
	@command -v $(PYTHON) >/dev/null || { echo "$(PYTHON) is missing: install Python 3.10 or later, or name one with 'make PYTHON=/path/to/python3 ...'" >&2; exit 1; }
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' || { echo "$$($(PYTHON) --version) is too old: Wattwise needs Python 3.10 or later; name one with 'make PYTHON=/path/to/python3 ...'" >&2; exit 1; }
	@$(PYTHON) -c 'import venv, ensurepip' 2>/dev/null || { echo "this Python cannot make virtual environments: install its venv module (Debian and Ubuntu: apt-get install python3-venv)" >&2; exit 1; }
	$(PYTHON) -m venv $(VENV)

# Each extra brings those before it, which need no installing then.
BROUGHT_BY_demo := .demo
BROUGHT_BY_test := $(BROUGHT_BY_demo) .test
BROUGHT_BY_dev := $(BROUGHT_BY_test) .dev

$(VENV)/.demo $(VENV)/.test $(VENV)/.dev: $(VENV)/.%: pyproject.toml | $(VENV)/bin/python
	@echo "installing into $(VENV) (once; needs a package index)"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[$*]' \
	  || { echo "pip could not install the packages above: is a package index within reach?" >&2; exit 1; }
	@touch $(addprefix $(VENV)/,$(BROUGHT_BY_$*))

$(VENV)/.torch: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0'
	@touch $@

$(VENV)/.jax: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'jax>=0.4.35'
	@touch $@

$(ZEUS_VENV)/.done: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m venv $(ZEUS_VENV)
	$(ZEUS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0'
	$(ZEUS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test]' 'zeus==0.16.0'
	@touch $@

$(VENV)/.soak: $(VENV)/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check 'atheris>=3' \
	  || echo "atheris cannot be installed here: the fuzz test that it guides is skipped"
	@touch $@

# PyTorch first, so that nothing that asks for it brings another.
$(TRAINERS_VENV)/.done: pyproject.toml | $(VENV)/bin/python
	@echo "installing PyTorch and the trainers into $(TRAINERS_VENV) (once; needs a package index)"
	$(VENV)/bin/python -m venv $(TRAINERS_VENV)
	$(TRAINERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'torch==2.13.0'
	$(TRAINERS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test,huggingface,lightning,keras]'
	@touch $@

$(PROTOS_VENV)/.done: pyproject.toml | $(VENV)/bin/python
	$(BIN)/python -m venv $(PROTOS_VENV)
	$(PROTOS_VENV)/bin/python -m pip install --quiet --disable-pip-version-check 'grpcio-tools==1.71.2' 'mypy-protobuf==3.7.0' 'setuptools<81'
	@touch $@
