# SPDX-License-Identifier: Apache-2.0
# Two commands matter: make demo, make test. Each sets itself up in .venv first (scripts/setup).

SHELL := /bin/bash
PYTHON ?=
ARGS ?=
BIN := .venv/bin
READY := .venv/.ready
.DEFAULT_GOAL := help
.NOTPARALLEL:
GPU_PYTHON ?= $(if $(wildcard .venv/bin/python),.venv/bin/python,python3)
.PHONY: help demo drills soak model model-long test test-gpu bench bench-gpu stress fuzz fuzz-selftest atheris native lint fmt wheel clean distclean

help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-10s %s\n", $$1, $$2}' $(MAKEFILE_LIST)
	@echo "  ARGS='...' is passed on by demo and by all that checks or measures; PYTHON=... picks the interpreter for .venv"

demo: $(READY) native ## daemon, worker and engine stand-in replay a text, and the daemon is killed once; PLOT=run.png draws it
	@[ -z '$(PLOT)' ] || $(BIN)/python -c 'import matplotlib' 2>/dev/null || $(BIN)/python -m pip install -q -e '.[plot]'
	@$(BIN)/dsv41-rehearse demo $(if $(PLOT),--plot '$(PLOT)') $(ARGS)

drills: $(READY) native ## every fault of docs/FAULTS.md with small counts, in less than 10 minutes; ends with a table
	@$(BIN)/dsv41-rehearse drill all $(ARGS)

soak: $(READY) native ## the same with the contract's counts: about 80 minutes; ARGS='--json F' keeps what was found
	@$(BIN)/dsv41-rehearse drill all --full $(ARGS)

model: ## spin searches the protocol's models: sound designs whole, every broken rule found (model/README.md)
	@$(GPU_PYTHON) scripts/check_model.py $(ARGS)

model-long: ## the same with more rounds: five minutes, 1.5 GB
	@$(GPU_PYTHON) scripts/check_model.py --long $(ARGS)

test: lint atheris ## lint, every test, the models, the decoders fuzzed for a moment
ifneq ($(ARGS),)
	@$(BIN)/python -m pytest -q --durations=10 $(ARGS)
else
	@$(BIN)/python -m pytest -q --durations=5 -m compute -n 2 --dist loadfile
	@$(BIN)/python -m pytest -q --durations=10 -m 'not compute'
endif
	@$(MAKE) --no-print-directory model ARGS=
	@$(MAKE) --no-print-directory fuzz SECONDS=$(if $(CI),60,3) ARGS=$(if $(CI),--at-once=6)

bench: $(READY) native ## measure rounds on this machine
	@$(BIN)/dsv41-rehearse bench $(ARGS)

test-gpu: ## the tests that need a GPU, with the Python that has torch (GPU_PYTHON=...); scripts/gpu_run does that and more
	@$(GPU_PYTHON) native/build_ffi.py --inplace
	@$(GPU_PYTHON) -m pytest -q -rP --durations=10 tests/gpu $(ARGS)

bench-gpu: ## what the product costs and gains on this machine's GPU; ARGS='--json F --picture F.png'
	@$(GPU_PYTHON) native/build_ffi.py --inplace
	@$(GPU_PYTHON) -m bench.gpu $(ARGS)

stress: $(READY) ## millions of rounds, daemons dying, without and with each sanitizer; then every seeded fault (an hour)
	@$(BIN)/python tests/stress_run.py $(ARGS)

fuzz: $(READY) native atheris ## every decoder, SECONDS=60 each, two at a time; ARGS='door --keep FOLDER' (fuzz/README.md)
	@$(BIN)/python -m fuzz --seconds $(or $(SECONDS),60) $(ARGS)

fuzz-selftest: $(READY) native atheris ## seeds one bug at a time into a copy; each must be found within a minute (a quarter of an hour)
	@$(BIN)/python -m fuzz.selftest $(ARGS)

atheris: $(READY)
	@$(BIN)/python -c 'import atheris' 2>/dev/null || $(BIN)/python -m pip install -q --group fuzz || true # what needs it says that it is missing

native: ## build the C modules beside the Python sources, where they are out of date
	@[ -e $(READY) ] || $(MAKE) --no-print-directory $(READY)
	@$(BIN)/python native/build_ffi.py --inplace

lint: $(READY) native ## ruff, mypy, C warnings as errors with gcc and clang, x86-64 and aarch64
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/python scripts/check_c.py

fmt: $(READY) ## format the Python sources
	$(BIN)/ruff check --fix --select I .
	$(BIN)/ruff format .

wheel: $(READY) ## dist/: an sdist, and the wheel made from it
	$(BIN)/python scripts/make_wheel.py dist

clean: ## remove what was built; keep .venv
	rm -rf build dist *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis
	rm -f */*.abi3.so */_*.c
	find . -name .venv -prune -o -name __pycache__ -type d -print0 | xargs -0 rm -rf

distclean: clean ## remove .venv too
	rm -rf .venv

$(READY): pyproject.toml setup.py scripts/setup
	@PYTHON='$(PYTHON)' scripts/setup
	@touch $@
