# Every command of the README. `make` alone lists them. All set-up happens in .venv; nothing outside it is changed.
#
#   PYTHON       the interpreter that makes .venv, 3.11 or newer
#   CONSTRAINTS  exact versions; `make CONSTRAINTS=` takes whatever pyproject.toml allows
#   TORCH        another torch than the pinned one, as a requirement: `make demo TORCH=torch==2.12.1`
#   PIP_ARGS     passed to every `pip install`, such as an index that has CPU or CUDA builds of torch
#   PUBLISHED    the folder of published measurements that `make accuracy` reads, ../shared/published by default
#   ARGS         of `make gpu`, `make gpu-many`: --only SECTION ..., --minutes N, --device cpu; of `make accuracy-gpu` the latter two
#                of `make test-exports`: targets; of `make bench`: --against trainer, --processes 2, --methods lora, --steps 1 --toy (start
#                and end alone), --kinds mixture hybrid, --objective dpo --against trl
#   WORKERS      how many tests run at a time: as many as there are cores, by default; 0 for one after the other
#   SELECT       the marks of the tests that `make test` runs
#   VENV         an environment that exists already, with everything installed: `make check VENV=... READY=1`
PYTHON ?= python3
CONSTRAINTS ?= constraints.txt
TORCH ?=
PIP_ARGS ?=
PUBLISHED ?=
VENV ?= .venv
WORKERS ?= auto
SELECT ?= not slow

# Tests start hundreds of processes; where no bytecode is kept, each compiles the whole package again.
export PYTHONDONTWRITEBYTECODE :=

BIN := $(VENV)/bin
PARALLEL = --numprocesses $(WORKERS) --maxprocesses 8 --dist worksteal --durations 12
USED := $(VENV)/.constraints.txt
# What is imported is compiled then; pip would compile all of torch and transformers, which takes half of the installation.
PIP_INSTALL = $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile $(PIP_ARGS) -c $(USED)
ifdef READY
TRAIN_READY :=
DEV_READY :=
DOCS_READY :=
else
TRAIN_READY := $(VENV)/.train-installed
DEV_READY := $(VENV)/.dev-installed
DOCS_READY := $(VENV)/.docs-installed
endif

.DEFAULT_GOAL := help
.PHONY: help demo test test-pairwise test-nodes test-all test-exports check bench gpu gpu-many accuracy accuracy-gpu families docs clean
.DELETE_ON_ERROR:

help: ## list the targets
	@grep -hE '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/:.*## /\t/' | while IFS="$$(printf '\t')" read -r name what; \
		do printf '  make %-10s %s\n' "$$name" "$$what"; done

demo: $(TRAIN_READY) ## train a small model from nothing, then a LoRA adapter on it, with reports (about 5 minutes, installation included)
	$(BIN)/python examples/demo/run.py

test: $(DEV_READY) ## the suite, without what is marked slow
	$(BIN)/python -m pytest -m "$(SELECT)" --ignore tests/nodes $(PARALLEL)

test-pairwise: $(DEV_READY) ## the suite and, of each table that is marked slow, one cell, as CI runs them
	$(MAKE) test SELECT="not slow or pairwise"

test-nodes: $(DEV_READY) ## runs on several machines, which are network namespaces, and on Slurm where it is installed (root; 25 minutes)
	$(BIN)/python -m pytest -s tests/nodes

test-all: $(DEV_READY) ## everything: every cell of the large tables, then what is timed, alone (about an hour)
	$(BIN)/python -m pytest -m "not (slow and timed)" $(PARALLEL)
	$(BIN)/python -m pytest -m "slow and timed" --durations 12

check: $(DEV_READY) ## format, lint, types, floors, and the pure wing without torch
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports
	$(BIN)/python tools/check_pure_wing.py
	$(BIN)/python tools/profiles.py

bench: $(DEV_READY) ## first step, tokens/s and end, full and LoRA, beside Trainer and a plain loop, each PASS or FAIL (25 minutes; ARGS="--processes 2")
	$(BIN)/python benchmarks/run.py $(ARGS)

gpu: $(TRAIN_READY) ## one GPU: speed, memory and promises, each PASS, FAIL or a figure, into docs/gpu.json (10 minutes; ARGS="--only ...")
	$(BIN)/python benchmarks/gpu/run.py $(ARGS); status=$$?; $(BIN)/python tools/gpu.py --write && exit $$status

gpu-many: $(TRAIN_READY) ## two and more GPUs: links, parity, failures and speed of layouts, into docs/gpu-many.json (10 minutes)
	$(BIN)/python benchmarks/gpu/run.py --many $(ARGS); status=$$?; $(BIN)/python tools/gpu.py --write && exit $$status

families: $(DEV_READY) ## every family of the installed transformers: counted, and trained each way, into docs/families.md (a quarter of an hour; ARGS="--only llama mamba")
	$(BIN)/python tools/families.py $(ARGS)

accuracy: $(TRAIN_READY) ## forecasts beside published measurements, into docs/accuracy.md (seconds; needs ../shared/published)
	$(BIN)/python -m accuracy $(if $(PUBLISHED),--published $(PUBLISHED))

accuracy-gpu: $(TRAIN_READY) ## ranks of layouts alone on one GPU, forecast and rehearsed beside measured, into accuracy/grid/alone.csv (10 minutes)
	$(BIN)/python -m accuracy.grid.alone $(ARGS)

test-exports: $(DEV_READY) ## what `export` writes, read by each tool's own parser, pinned, in a temporary environment (ARGS="skypilot slurm" for some)
	$(BIN)/python -m tests.exports.run $(ARGS)

docs: $(DOCS_READY) ## build the documentation site into site/, with every link checked
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build --strict --quiet
	@echo "site/index.html is the first page; python -m http.server -d site makes its search work"

clean: ## remove what demo, bench and the tools left; .venv stays
	rm -rf .demo .bench site runs/demo-full runs/demo-lora .pytest_cache .ruff_cache .hypothesis .import_linter_cache
	find src tests examples benchmarks tools accuracy -name __pycache__ -type d -prune -exec rm -rf {} +

$(VENV)/pyvenv.cfg:
	@$(PYTHON) -c 'import sys; sys.version_info >= (3, 11) or sys.exit("$(PYTHON) is Python %d.%d; Shardwise needs 3.11 or newer. Name one: make PYTHON=python3.12" % sys.version_info[:2])'
	$(PYTHON) -m venv $(VENV)

# The constraints in force (a new TORCH or CONSTRAINTS starts from a removed .venv): the file without torch where another torch is asked for, and nothing where there is no file.
$(USED): $(VENV)/pyvenv.cfg $(CONSTRAINTS)
	@cat $(CONSTRAINTS) /dev/null | grep -v $(if $(TORCH),'^torch==','^$$') > $@ || true

$(VENV)/.train-installed: pyproject.toml $(USED)
	@echo "Installing into $(VENV) (about a minute, once) ..."
	$(PIP_INSTALL) -e '.[train]' $(TORCH)
	@touch $@

$(VENV)/.dev-installed: pyproject.toml $(USED)
	@echo "Installing everything that tests need into $(VENV) (about a minute, once) ..."
	$(PIP_INSTALL) -e '.[train,hub,qlora,web,dev]' $(TORCH)
	@touch $(VENV)/.train-installed $@

# Both at once, as continuous integration has them.
$(VENV)/.all-installed: pyproject.toml $(USED)
	$(PIP_INSTALL) -e '.[train,hub,qlora,web,dev,docs]' $(TORCH)
	@touch $(VENV)/.train-installed $(VENV)/.dev-installed $(VENV)/.docs-installed $@

$(VENV)/.docs-installed: pyproject.toml $(USED)
	@echo "Installing what builds the documentation into $(VENV) ..."
	$(PIP_INSTALL) -e '.[docs]' $(TORCH)
	@touch $@
