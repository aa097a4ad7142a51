# Every target sets up .venv by itself when it is missing or out of date. Another interpreter: make test PYTHON=python3.12
PYTHON ?= python3
# More words for the command of the target: make test ARGS='-k lethe', make demo ARGS='--set seed=1'
ARGS ?=

VENV := .venv
CONSTRAINTS := constraints.txt
EXTRAS := dev
BIN := $(VENV)/bin
# Touched last, removed first: a set-up that was interrupted is done again.
READY := $(VENV)/.ready

.PHONY: help demo demo-llm test test-flower test-deployment lint types bench clean

help:
	@echo 'make demo    train, unlearn, train on, and show whether it stays gone (real data, some minutes)'
	@echo 'make demo-llm the same on a small language model: five requests, with and without COP (minutes)'
	@echo 'make test    run every test'
	@echo 'make test-flower the tests over Flower, in an environment of its own'
	@echo 'make test-deployment federations of real processes on this machine; half an hour'
	@echo 'make lint    ruff over the whole tree'
	@echo 'make types   mypy --strict over src'
	@echo 'make bench   what one round of federated averaging costs on this machine'
	@echo 'make clean   remove .venv and all caches; runs/ stays'

demo: $(READY)
	@$(BIN)/letheon run experiments/demo.toml --resume $(ARGS)

demo-llm: $(READY)
	@$(BIN)/letheon run experiments/llm_demo.toml --resume $(ARGS)

test: $(READY)
	@$(BIN)/python -m pytest $(ARGS)

# Flower wants older versions of some packages than the rest is tested with: hence a second environment.
ON_FLOWER := tests/parity/test_flower.py tests/crash/test_flower.py tests/unit/test_flower.py tests/unit/test_service.py
test-flower:
	@$(MAKE) --no-print-directory test VENV=.venv-flower CONSTRAINTS=constraints-flower.txt EXTRAS=dev,flower \
	    ARGS='$(ON_FLOWER) $(ARGS)'

# Real processes and Flower's fixed polls: half an hour on two idle cores. The gate runs the parity test of these.
test-deployment:
	@$(MAKE) --no-print-directory test VENV=.venv-flower CONSTRAINTS=constraints-flower.txt EXTRAS=dev,flower \
	    ARGS='tests/deployment $(ARGS)'

lint: $(READY)
	@$(BIN)/python -m ruff check . $(ARGS)

types: $(READY)
	@$(BIN)/python -m mypy $(ARGS)

bench: $(READY)
	@$(BIN)/python experiments/bench.py $(ARGS)

clean:
	@rm -rf $(VENV) .venv-flower build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	@find . -path ./runs -prune -o \( -name __pycache__ -o -name '*.egg-info' \) -prune -exec rm -rf {} +

$(READY): pyproject.toml $(CONSTRAINTS)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	    echo "Letheon needs Python 3.11 or newer; PYTHON=$(PYTHON) gives: $$($(PYTHON) -V 2>&1)" >&2; \
	    echo "Name another one: make $(MAKECMDGOALS) PYTHON=python3.11" >&2; exit 1; }
	@rm -f $@
	@echo 'Setting up $(VENV): downloads PyTorch and what else is needed; this takes some minutes, once ...'
	@$(BIN)/python -m pip --version >/dev/null 2>&1 || $(PYTHON) -m venv --clear $(VENV) || { \
	    echo "No virtual environment could be made. On Debian and Ubuntu: apt-get install python3-venv" >&2; exit 1; }
	@$(BIN)/python -m pip install --quiet --no-input --disable-pip-version-check -c $(CONSTRAINTS) -e '.[$(EXTRAS)]'
	@touch $@
