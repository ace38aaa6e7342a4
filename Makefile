# `make test` and `make quickstart` set everything up themselves; a second call reuses what is there.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: quickstart test check bench clean

quickstart: .venv/.core
	@$(BIN)/mecheval list tasks
	@$(BIN)/mecheval sample ar --preset laptop -n 2 --seed 0
	@$(BIN)/mecheval sample atr --preset laptop -n 1 --seed 0 --tree

test: .venv/.dev
	$(BIN)/pytest -n auto --dist loadgroup

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

bench: .venv/.dev
	$(BIN)/python -m benchmarks

clean:
	rm -rf .venv build dist src/*.egg-info .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests benchmarks -name __pycache__ -type d -prune -exec rm -rf {} +

.venv/bin/pip:
	$(PYTHON) -m venv .venv

.venv/.core: .venv/bin/pip pyproject.toml constraints.txt
	$(BIN)/pip install --quiet --constraint constraints.txt --editable .
	@touch $@

.venv/.dev: .venv/.core
	$(BIN)/pip install --quiet --constraint constraints.txt --editable '.[dev]'
	@touch $@
