# `make help` lists the targets. Each sets up .venv once per change of pyproject.toml.
SHELL := bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV ?= .venv
MODELS ?= ../shared/models
DATA ?= ../shared/data
THREADS ?= 1,2
LANGUAGE_MODELS ?= $(or $(MSEDGE_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/msedge)/models
TESTS ?= tests
# Some tests wait for others: with one worker more than cores, none is idle meanwhile.
WORKERS ?= 3

# What results are compared with. pyproject.toml bounds their versions; `make test-latest` ignores these bounds.
ORACLES := gguf onnx onnx_ir onnxscript onnxruntime ai-edge-litert openvino openapi-spec-validator prometheus_client \
  schemathesis sentencepiece tokenizers tritonclient[http]

BIN := $(VENV)/bin
# The demo needs less than a developer: two stamps, and the developer's counts for both.
READY := $(VENV)/.ready
READY_DEV := $(VENV)/.ready-dev

# What reads files and messages or decides what may run, quick enough to be tested twice.
CORE := tests/test_optimized.py tests/lite_runtime/test_bundle.py tests/lite_runtime/test_signatures.py \
  tests/lite_runtime/graph \
  tests/lite_runtime/native/test_build.py tests/lite_runtime/native/test_link.py \
  tests/lite_runtime/native/test_trust.py tests/lite_runtime/native/test_tuning.py \
  tests/lite_runtime/running/test_kept.py tests/federated/messages tests/federated/client/test_state.py \
  tests/federated/test_wire.py tests/edge/gateway/protocol tests/fuzz/test_state_files.py \
  tests/fuzz/test_bundles.py::test_reading_never_fails_unmeant tests/fuzz/test_bundles.py::test_two_thousand_files \
  tests/fuzz/test_tokenizer_files.py

# Tests start hundreds of processes. Without bytecode each of them, and each worker, compiles all sources again.
demo test test-latest test-optimized: export PYTHONDONTWRITEBYTECODE :=

.PHONY: demo test test-latest test-optimized test-ray lint bench models accuracy release clean help

demo: $(READY) ## Train, convert, verify and run a small network on real digits; a small fleet learns and updates itself
	@$(BIN)/msedge demo
	@$(BIN)/msedge hub demo --quick --devices 6 --processes 1

test: $(READY_DEV) ## All tests; TESTS=tests/edge for some, WORKERS=0 for one process
	@$(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal $(TESTS)

# A second environment: pip notes that msedge asks for older versions, and installs the newest all the same.
test-latest: VENV := .venv-latest
test-latest: ## All tests with the newest versions of what results are compared with, in .venv-latest
	@$(MAKE) VENV=$(VENV) $(VENV)/.ready-dev
	@echo "==> installing the newest $(ORACLES)"
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade $(ORACLES)
	@$(VENV)/bin/python -m pip list --disable-pip-version-check | grep -iE "^($(subst $() ,|,$(subst _,[-_],$(subst [http],,$(ORACLES))))) "
	@$(VENV)/bin/python -m pytest -q -n $(WORKERS) --dist worksteal $(TESTS)

# Ray's packages ask for other versions than those of the developers' environment, so it has one of its own.
test-ray: | .venv-ray/bin/python ## Tests with a Ray cluster of this machine, in .venv-ray
	@echo "==> installing msedge with Ray into .venv-ray"
	@.venv-ray/bin/python -m pip install --quiet --disable-pip-version-check -e '.[ray,tune,jit,cli,serve]' hypothesis pytest
	@.venv-ray/bin/python -m pytest -q tests/cloud/train/test_ray.py

.venv-ray/bin/python:
	@$(PYTHON) -m venv .venv-ray

# By the variable and not by -O, so that processes which tests start run so too.
test-optimized: $(READY_DEV) ## Core tests once more where Python compiles no assert
	@PYTHONOPTIMIZE=1 $(BIN)/python -m pytest -q -n $(WORKERS) -W "ignore:assertions not in test modules" $(CORE)

lint: $(READY_DEV) ## Style, types and who may import whom
	@echo "==> ruff"
	@$(BIN)/ruff check .
	@echo "==> mypy"
	@$(BIN)/mypy
	@echo "==> layering"
	@$(BIN)/python -m pytest -q tests/test_layers.py

bench: $(READY_DEV) ## Every model in MODELS and networks built here against every peer; writes docs/performance.*; stopped, it goes on
	@$(BIN)/python -m benchmarks.models build/models --int8
	@$(BIN)/python -m benchmarks --models $(MODELS) --models build/models --threads $(THREADS) --docs docs --resume build/performance.jsonl

models: $(READY_DEV) ## Language models and tokenizers that tests use if they are there: 250 MB, into the user's cache
	@$(BIN)/python -m benchmarks.zoo fetch --list tests/language/models.json --models $(LANGUAGE_MODELS) --names build/models

accuracy: $(READY_DEV) ## What int8 costs on MODELS with real DATA, ours and others', as a Markdown table
	@$(BIN)/python -m benchmarks.accuracy --models $(MODELS) --data $(DATA)

release: $(READY_DEV) ## All wheels of the last commit and their checksums, into dist
	@$(BIN)/python wheels/release.py dist

clean: ## Remove .venv and everything tools left behind
	rm -rf .venv .venv-latest .venv-ray build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

help: ## This list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/  make \1\t\2/' | expand -t 20

# To choose among all packages' versions takes Python 3.11's own pip five times as long as the newest.
$(VENV)/bin/python:
	@echo "==> creating $(VENV) with $$($(PYTHON) --version)"
	@$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "msedge needs Python 3.11 or newer: make PYTHON=python3.12 …")'
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip

# Python compiles what is imported; compiling all of the packages' modules takes as long as installing them. The newest pip
# shows setuptools' warnings, and it warns of every installation that is editable.
PIP := PYTHONWARNINGS='ignore:Editable installation' $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile

# What compiling kernels needs is installed first: it goes on while the rest is installed.
define FIRST
import tomllib
project = tomllib.load(open("pyproject.toml", "rb"))["project"]
print(*project["dependencies"], *project["optional-dependencies"]["jit"], sep="\n")
endef
export FIRST

# Compiling goes on while the demo runs, which reports what fails.
# A developer's environment holds everything the demo needs, so it is not installed over.
$(READY): pyproject.toml | $(VENV)/bin/python
	@if [ -e $(READY_DEV) ] && [ ! $(READY_DEV) -ot pyproject.toml ]; then touch $@; else \
	  echo "==> installing msedge[all] into $(VENV), compiling kernels meanwhile (about a minute, once)"; \
	  $(BIN)/python -c "$$FIRST" | $(PIP) -r /dev/stdin; \
	  $(BIN)/python -m edge.demo.kernels 2>/dev/null & \
	  $(PIP) -e '.[all]'; touch $@; fi

$(READY_DEV): pyproject.toml | $(VENV)/bin/python
	@echo "==> installing msedge[dev] into $(VENV) (about a minute, once)"
	@$(PIP) -e '.[dev]'
	@touch $@
