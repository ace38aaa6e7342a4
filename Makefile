# `make test` and `make quickstart` set everything up themselves; a second call reuses what is there.
PYTHON ?= python3
BIN := .venv/bin
# Every command and worker would otherwise compile the whole package again.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: quickstart test test-cpus check wheel bench docs clean

quickstart: .venv/.core
	@$(BIN)/mecheval quickstart

test: .venv/.dev
	$(BIN)/pytest -n auto --dist loadfile --no-loadscope-reorder

# A library's sums depend on the CPU: every op, and every law of every mixer, with the instructions of older CPUs too.
# Laws of tasks and of training hold one machine against itself, and Canon convolutions are short convolutions.
CPU_TESTS := -n auto --dist loadgroup tests/ops tests/golden -k "not canon" \
	tests/laws/test_mixers.py tests/laws/test_ragged.py tests/laws/test_interventions.py

test-cpus: .venv/.dev
	ATEN_CPU_CAPABILITY=default $(BIN)/pytest $(CPU_TESTS)
	ATEN_CPU_CAPABILITY=avx2 $(BIN)/pytest $(CPU_TESTS)

check: .venv/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

# As `python -m build` does: a source archive, and a wheel made from that archive alone. The wheel is then run from a
# folder of its own: what a package lacks does not show in a checkout.
WHEEL := build/wheel
wheel: .venv/.dev
	rm -rf build
	mkdir -p $(WHEEL)
	$(BIN)/python -W ignore -c "from setuptools.build_meta import build_sdist; build_sdist('$(WHEEL)')" >/dev/null
	$(BIN)/pip wheel --quiet --no-deps --no-build-isolation --wheel-dir $(WHEEL) $(WHEEL)/*.tar.gz
	$(BIN)/pip install --quiet --no-deps --target $(WHEEL)/site $(WHEEL)/*.whl
	export PYTHONPATH=$(CURDIR)/$(WHEEL)/site && cd $(WHEEL) && $(CURDIR)/$(BIN)/python -P -c \
		"import mecheval, pathlib; assert pathlib.Path(mecheval.__file__).is_relative_to(pathlib.Path.cwd())" && \
		site/bin/mecheval --version && site/bin/mecheval list pretrained && \
		site/bin/mecheval compare ar --scale paper --json >/dev/null

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
