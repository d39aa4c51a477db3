# Everything runs in a virtual environment of its own, made on first use from pinned versions.

# otherwise each worker, and each process that a test starts, compiles all modules again
unexport PYTHONDONTWRITEBYTECODE

PYTHON ?= python3
VENV := .venv
READY := $(VENV)/.ready

DOCS := .venv-docs

NEWEST := .venv-newest
# the newest Python at hand, unless the command line or the environment names one
NEWEST_PYTHON = $(if $(filter file,$(origin PYTHON)),$(or $(shell for python in python3.14 python3.13 python3.12 python3.11; do \
	$$python -c 'import ensurepip, ssl' 2>/dev/null && echo $$python && break; done),$(PYTHON)),$(PYTHON))

LOWEST := .venv-lowest
# those that touch what pyproject.toml gives a floor
LOWEST_TESTS := $(patsubst %,tests/%.py,test_cli test_data_command report/test_report report/test_disk files/test_readers \
	loop/test_checkpoint models/test_models algorithms/test_fedopt test_solver_settings \
	deployment/test_flower_contract deployment/test_flower deployment/test_processes_together)

.PHONY: demo deploy experiment long-runs test test-slow test-experiments test-network test-all test-lowest test-newest lint docs fuzz mutants bench gpu clean

demo: $(READY)  ## run the main job: FedAvg against FedProx on Synthetic(1,1), 90 % stragglers
	$(VENV)/bin/fedprox run examples/demo.toml

deploy: $(READY)  ## try a real federation on this machine: a SuperLink and three nodes of Flower, over TLS
	$(VENV)/bin/fedprox deploy examples/demo.toml --local 3 --set rounds=10 --out runs/deploy

ITEM ?=
SCALE ?= short

experiment: $(READY)  ## run a figure or table of a paper, ITEM=fedprox/figure-1; without ITEM list them; SCALE=paper
	$(VENV)/bin/python -m experiments $(ITEM) --scale $(SCALE)

LONG ?= runs/experiments-paper

long-runs: $(READY)  ## run the items that take hours, one after the other; LONG= a folder; what was cut off goes on
	$(VENV)/bin/python -m experiments long --scale paper --out $(LONG)

EXPERIMENTS := experiments tests/experiments
NOT_EXPERIMENTS := $(addprefix --ignore=,$(EXPERIMENTS))

# glibc gives each of XLA's threads memory of its own: without this a worker has 0.2 GB more
test test-slow test-experiments test-newest: export MALLOC_ARENA_MAX := 2

MOST := --most-seconds 2 --most-rounds 175

test: $(READY)  ## run the tests, doctests included, except the slow ones; MOST= without bounds of their cost
	$(VENV)/bin/python -m pytest -n 2 --dist worksteal -m "not slow and not network" $(MOST) $(NOT_EXPERIMENTS)

SHARD ?= 1/1

test-slow: $(READY)  ## run the slow tests: kills, full disks, browsers, installed wheels, pages, variants; SHARD=1/3
	$(VENV)/bin/python -m pytest -n 4 --dist worksteal -m slow --shard $(SHARD) $(NOT_EXPERIMENTS)

test-experiments: $(READY)  ## run the tests of the papers' items and of what runs them
	$(VENV)/bin/python -m pytest -n 3 --dist worksteal $(EXPERIMENTS)

test-network: $(READY)  ## deploy over Flower while processes are killed at random; about fifteen minutes
	$(VENV)/bin/python -m pytest -n 0 -s -m network -o faulthandler_timeout=3600 tests/deployment

test-all: test test-slow test-experiments  ## run all tests

test-lowest: $(LOWEST)/.ready  ## run the tests that touch dependencies, with the lowest versions allowed
	$(LOWEST)/bin/python -m pytest -n 2 -W ignore::DeprecationWarning $(LOWEST_TESTS)

# the releases of the day, so it is made anew each time; without Flower, which holds typer and rich back
test-newest:  ## run the tests that are not slow with the newest versions allowed, on the newest Python at hand or PYTHON=
	$(NEWEST_PYTHON) -m venv --clear $(NEWEST)
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	$(NEWEST)/bin/uv pip install --quiet --python $(NEWEST)/bin/python -r pyproject.toml \
		--extra dev --extra export --extra jax-privacy --extra mlflow --extra optuna --extra table --extra tensorboard --extra tokenizers --extra wandb
	$(NEWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	$(NEWEST)/bin/python -m pytest -n 2 --dist worksteal -m "not slow and not network" $(NOT_EXPERIMENTS)

lint: $(READY)  ## formatting, lint, types and prose
	$(VENV)/bin/ruff format --check .
	$(VENV)/bin/ruff check .
	$(VENV)/bin/python -m tests.prose
	$(VENV)/bin/mypy --num-workers 2

docs: $(DOCS)/.ready  ## build the documentation site in docs/_build/html, with warnings as errors
	$(DOCS)/bin/python -m sphinx -b html -d docs/_build/doctrees -j auto -W --keep-going -q docs docs/_build/html
	@echo docs/_build/html/index.html
	@echo or, with excerpts in the search: python3 -m http.server -d docs/_build/html

fuzz: $(READY) $(VENV)/.atheris  ## drive every reader of files with 100,000 inputs
	$(VENV)/bin/python -m tests.fuzz

SAMPLE ?= 1

mutants: $(READY)  ## change the library in one place at a time, to see what no test notices; SAMPLE= the share of changes; hours
	nice -n 19 $(VENV)/bin/python -m tests.mutants runs/mutants --sample $(SAMPLE)

BENCH ?=

bench: $(READY) $(VENV)/.torch  ## measure speed and write benchmarks/README.md; hours; BENCH= one script or some, such as rounds
	$(VENV)/bin/python -m benchmarks $(BENCH)

SEES_GPU := -c 'import jax, sys; sys.exit(jax.default_backend() == "cpu")'
MINUTES ?= 8
RUN_GPU := -m benchmarks.gpu --minutes $(MINUTES) $(GPU)

# make -n runs lines that name MAKE itself
INSTALL = $(MAKE) --no-print-directory $(READY)

# PYTHON or the virtual environment, the first whose JAX sees a GPU; CUDA is not installed
gpu:  ## check and measure on a GPU; PYTHON= an interpreter whose JAX has CUDA, MINUTES= the time
	@for run in $(PYTHON) $(VENV)/bin/python; do \
		if $$run $(SEES_GPU) 2>/dev/null; then exec $$run $(RUN_GPU); fi; \
	done; \
	$(INSTALL) && $(VENV)/bin/python $(RUN_GPU)

$(READY): requirements.lock pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "fedprox needs Python 3.11 or newer; set PYTHON=")'
	$(PYTHON) -m venv $(VENV)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes -r requirements.lock
	@$(VENV)/bin/python -m compileall -qq -j 0 -x /tests/ $(VENV)/lib || true  # on all cores, of which pip uses one
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

$(DOCS)/.ready: requirements-docs.lock pyproject.toml
	$(PYTHON) -m venv $(DOCS)
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --require-hashes -r requirements-docs.lock
	$(DOCS)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

$(LOWEST)/.ready: requirements.lock pyproject.toml
	$(PYTHON) -m venv --clear $(LOWEST)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check uv==0.13.9
	$(LOWEST)/bin/uv pip install --quiet --python $(LOWEST)/bin/python --resolution lowest-direct -r pyproject.toml --extra flower \
		$$(grep -oE '^(hypothesis|pytest|pytest-xdist)==[^ ]+' requirements.lock)
	$(LOWEST)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --editable .
	@touch $@

$(VENV)/.torch: $(READY)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check torch==2.13.0
	@touch $@

$(VENV)/.atheris: $(READY)
	$(VENV)/bin/python -m pip install --quiet --disable-pip-version-check atheris==3.0.0
	@touch $@

clean:
	rm -rf $(VENV) $(LOWEST) $(NEWEST) $(DOCS) docs/_build .mypy_cache .ruff_cache .pytest_cache .hypothesis
