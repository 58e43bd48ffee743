# Every target sets up what it needs; `make help` lists them.
#
# A CPU build of torch is taken where pip finds one. On a machine without a GPU, this keeps gigabytes of
# CUDA packages away:  make setup PIP_ARGS="--extra-index-url https://download.pytorch.org/whl/cpu"

.DEFAULT_GOAL := help
SHELL := /bin/bash
VENV := .venv
BIN := $(VENV)/bin
STAMP := $(VENV)/.polyrec-setup
PYTHON ?=
PIP_ARGS ?=
# processes of `make test`; tests of one file stay in one. Three keep two cores busy; each more collects and trains anew
JOBS ?= 3
# those of `make test-long`, whose tests compute more and wait less
LONG_JOBS ?= 2
# seconds after which `make test-long` skips the rest
TIME_LIMIT_S ?=
# with it, each of the hundreds of processes that tests start compiles Polyrec again
unexport PYTHONDONTWRITEBYTECODE

# what an interpreter must have; 3.14 waits for the kserve client that the tests use
SUITABLE := import sys, venv, ensurepip; sys.exit(not (3, 11) <= sys.version_info[:2] < (3, 14))

.PHONY: help setup demo test test-long check lint format-check types imports spelling dockerfile documentation site format bench \
	observe constraints clean

help:  ## this list
	@sed -n 's/^\([a-z-]*\):.*  ## /\1\t/p' $(MAKEFILE_LIST) | while IFS=$$'\t' read -r name what; do \
		printf '  make %-12s %s\n' "$$name" "$$what"; done

setup: $(STAMP)  ## .venv with everything that the demo, the tests and the checks need

$(STAMP): pyproject.toml constraints.txt
	@if ! $(BIN)/python -c 'import sys' 2>/dev/null; then \
		for python in $(or $(PYTHON),python3 python3.13 python3.12 python3.11); do \
			if "$$python" -c '$(SUITABLE)' 2>/dev/null; then found="$$python"; break; fi; \
		done; \
		if [ -z "$${found:-}" ]; then \
			echo "make setup: no Python 3.11 to 3.13 with venv and ensurepip among" \
				"'$(or $(PYTHON),python3 python3.13 python3.12 python3.11)';" \
				"install one (Debian: apt-get install python3-venv) or name one: make setup PYTHON=/path/to/python3" >&2; \
			exit 1; \
		fi; \
		echo "make setup: $(VENV) with $$("$$found" -V)"; \
		"$$found" -m venv --clear $(VENV); \
	fi
	@echo "make setup: installing the tried set (about 2 GB, a minute or two)"
	@if [ -t 1 ]; then quiet=; else quiet=--quiet; fi; \
	$(BIN)/python -m pip install $$quiet --disable-pip-version-check $(PIP_ARGS) \
		--constraint constraints.txt --editable '.[test,dev]'
	@touch $@

demo: setup  ## train on generated clicks, serve, answer a ranking request, keep serving
	@$(BIN)/polyrec demo

test: setup  ## every test that needs no GPU and is not long
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(JOBS) --dist loadfile --no-loadscope-reorder \
		-m "not gpu and not long"

test-long: setup  ## a soak of a minute, the whole demo, training and serving real data, waits for time limits, properties
	@OMP_NUM_THREADS=1 $(BIN)/python -m pytest -q -n $(LONG_JOBS) --dist loadfile --hypothesis-profile thorough \
		$(if $(TIME_LIMIT_S),--time-limit $(TIME_LIMIT_S)) -m "(long or hypothesis) and not gpu"

check: lint format-check types imports spelling dockerfile documentation  ## all of: lint, format, types, one-way imports, spelling, Dockerfile, documentation

lint: setup
	@$(BIN)/ruff check .

format-check: setup
	@$(BIN)/ruff format --check .

types: setup
	@$(BIN)/mypy

imports: setup
	@$(BIN)/lint-imports

spelling: setup
	@$(BIN)/codespell

dockerfile: setup
	@if [ -x $(BIN)/hadolint ]; then $(BIN)/hadolint Dockerfile; else echo 'no hadolint here: Dockerfile not checked'; fi

site: setup  ## the documentation as a site that needs no network: build/site/index.html
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet --strict

documentation: setup
	@$(BIN)/python -m pytest -q tests/test_docs.py tests/test_repository_layout.py

format: setup  ## apply the formatter and the safe fixes of the linter
	@$(BIN)/ruff check --fix .
	@$(BIN)/ruff format .

bench: setup  ## requests/s of a real-size model and where the time goes, one core serving, the other asking
	@$(BIN)/python -m benchmarks.peers.phases

observe: setup  ## server, Prometheus, a day's load in a minute; then look at it until Ctrl-C (ARGS="--plan FILE")
	@OMP_NUM_THREADS=1 $(BIN)/python -m benchmarks.operations.observe $(ARGS)

constraints:  ## resolve pyproject.toml anew into constraints.txt, without installing
	@bash .ci/constraints

clean:  ## remove what was made, .venv included
	rm -rf $(VENV) build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
