# The workbook's commands. `make help` lists them; `make` alone regenerates every result.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
JOBS   ?= $(shell nproc 2>/dev/null || sysctl -n hw.ncpu 2>/dev/null || echo 2)
# Tests wait for kernels, browsers and ranks, and leave cores idle: one more than there are.
WORKERS ?= $(shell expr $(JOBS) + 1)
PYTEST  := $(BIN)/pytest --nbval -n $(WORKERS) --dist loadscope --no-loadscope-reorder
# As `labkit run` sets it: small matrices on several threads mostly wait for each other.
test wanting quick: export OMP_NUM_THREADS ?= 1
# Hundreds of processes import the same modules: they may keep them compiled.
test wanting quick: export PYTHONDONTWRITEBYTECODE :=

.DEFAULT_GOAL := all
# Tools to be timed beside; what they ask for would undo our own versions, so alone.
PEERS  := adaptdl==0.2.11 autograd==1.9.1 deepspeed==0.19.8 llm-analysis==0.2.2 \
          einops fire hjson ninja termcolor

# Programs of their own that write or read the pins; each runs in an environment that goes again.
LOCKER  := uv==0.13.9
AUDITOR := pip-audit==2.10.1
ALONE   := folder=$$(mktemp -d) && trap 'rm -rf "$$folder"' EXIT && $(PYTHON) -m venv "$$folder" && \
           "$$folder/bin/pip" install --quiet --disable-pip-version-check

.PHONY: all test wanting quick tried lab refresh check bench picture sizes peers constraints lock locked
.PHONY: audit clean gpu help

all: $(VENV)/.ready  ## Set up, build the site (results/site/index.html), regenerate every result in it
	@$(BIN)/labkit run --site --jobs $(JOBS)

test: $(VENV)/.ready  ## Set up and run every test: style, types, units, doctests, anatomy, notebooks
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -n $(JOBS) labkit
	$(BIN)/labkit check
	$(PYTEST)

wanting: $(VENV)/.ready  ## Run what `make test` left out for want of published data, now that they are here
	$(PYTEST) --wanting

quick: $(VENV)/.ready  ## Style, types and the tests of what changed, in under a minute
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy -n $(JOBS) labkit
	$(BIN)/python -m tests.quick

tried: $(VENV)/.ready  ## Run every notebook at the other values of its parameters (KEYS='zero zeus': those)
	$(BIN)/python -m tests.tried --jobs $(JOBS) $(KEYS)

lab: $(VENV)/.ready  ## Open JupyterLab on the reading group's start page
	$(BIN)/labkit lab

refresh: $(VENV)/.ready  ## Re-execute the notebooks and write their outputs back to notebooks/
	$(BIN)/labkit refresh

check: $(VENV)/.ready  ## Check every notebook's anatomy
	$(BIN)/labkit check

bench: $(VENV)/.ready  ## Time the engines beside their peers (the site shows the ratios)
	mkdir -p results
	$(BIN)/pytest tests/benchmarks --benchmark-enable --benchmark-only --benchmark-json=results/benchmarks.json

picture: $(VENV)/.ready  ## Renew the README's picture of the scoreboard (needs Chromium)
	$(BIN)/labkit site
	$(BIN)/python data/pictures/scoreboard.py

gpu: $(VENV)/.ready  ## Measure on this machine's GPU into data/measured/ (PARTS='overlap memory': those)
	$(BIN)/python data/measured/on_gpu.py $(if $(PARTS),--parts $(PARTS))

sizes:  ## Lines of Python by room, for people to judge
	@for room in labkit labkit/*/ tests; do \
	  printf '%8d  %s\n' "$$(find $$room -name '*.py' -exec cat {} + | wc -l)" "$$room"; \
	done

peers: $(VENV)/.ready  ## Install the peers that bench skips without (adaptdl, deepspeed, llm-analysis)
	DS_BUILD_OPS=0 $(BIN)/pip install --no-deps --no-build-isolation -c constraints.txt $(PEERS)

constraints: $(VENV)/.ready  ## Renew constraints.txt from what is installed now
	( head -1 constraints.txt; $(BIN)/pip freeze --all --exclude pip --exclude-editable $(patsubst %,--exclude %,$(foreach peer,$(PEERS),$(firstword $(subst ==, ,$(peer))))) | sed 's/+cpu//' ) > constraints.new
	mv constraints.new constraints.txt

lock:  ## Renew requirements.lock: the hash of every file that constraints.txt allows
	@$(ALONE) $(LOCKER) && { sed -n '/^[^#]/q;p' requirements.lock; \
	  grep -v '^torch==' constraints.txt | "$$folder/bin/uv" pip compile --quiet --generate-hashes \
	  --no-deps --no-header --no-annotate -; } > lock.new
	mv lock.new requirements.lock

locked:  ## Set up as `make` does, from files whose hashes requirements.lock has
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --require-hashes --no-deps -r requirements.lock
	$(BIN)/python -m pip install --quiet -c constraints.txt torch
	$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation -e .
	$(BIN)/python -m pip check
	@touch $(VENV)/.ready

audit:  ## Hold the pinned versions against published advisories (needs a network)
	@$(ALONE) $(AUDITOR) && "$$folder/bin/pip-audit" --strict --disable-pip --no-deps -r constraints.txt

clean:  ## Remove results and caches, keep the environment
	rm -rf results .pytest_cache .mypy_cache .ruff_cache .hypothesis

help:  ## This list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed 's/:.*##/\t/' | expand -t 14

# A stamp, so that an environment half installed is finished by the next call.
$(VENV)/.ready: pyproject.toml setup.py constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "the workbook needs Python 3.11 or newer, this is " + sys.version.split()[0])'
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e '.[workbook,torch,lab,dev]'
	@touch $@
