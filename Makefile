# `make test` and `make quickstart` set everything up themselves; a second call reuses what is there.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart test check bench docs clean

quickstart: .venv/.core
	@$(BIN)/mecheval quickstart

test: .venv/.dev
	$(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

docs: .venv/.dev
	$(BIN)/mkdocs serve --open

bench: .venv/.dev
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis site
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/pip:
	$(PYTHON) -m venv .venv

.venv/.core: .venv/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	@touch $@

.venv/.dev: .venv/.core
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@
