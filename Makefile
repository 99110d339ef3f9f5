PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin

.PHONY: demo test test-slow lint

demo: $(VENV)/demo.installed
	$(BIN)/alltokens demo

test: $(VENV)/test.installed
	$(BIN)/pytest -n 2
	JAXTYPING_DISABLE=1 $(BIN)/pytest -n 2 tests/compile

test-slow: $(VENV)/test.installed
	$(BIN)/pytest -n 2 -m slow
	JAXTYPING_DISABLE=1 $(BIN)/pytest -n 2 -m slow tests/compile

lint: $(VENV)/lint.installed
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# A stamp an extra, so that nothing is installed again until pyproject.toml changes.
$(VENV)/%.installed: pyproject.toml | $(BIN)/python
	$(BIN)/python -m pip install --quiet --editable '.[$*]'
	touch $@

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)
