# Each target makes what it needs; the second time it is there.
PYTHON ?= python3
BIN := .venv/bin

.PHONY: demo demo-redis test bench torture lint clean

demo: .venv/.demo
	$(BIN)/python example_project/demo.py

demo-redis: .venv/.test
	$(BIN)/python example_project/demo_redis.py

test: .venv/.test
	$(BIN)/python -m pytest -n 2 --dist worksteal

bench: .venv/.bench
	$(BIN)/python -m tests.benchmarks

torture: .venv/.test
	$(BIN)/python -m pytest tests/torture.py -s

lint: .venv/.lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy

clean:
	rm -rf .venv

.venv/.demo: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e .
	touch $@

.venv/.bench: .venv/.test
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[bench]"
	$(BIN)/python -m pip install --quiet --disable-pip-version-check pybloomfiltermmap3 \
		|| echo "without pybloomfiltermmap3, which needs a compiler"
	touch $@

.venv/.%: pyproject.toml
	test -x $(BIN)/python || $(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -e ".[$*]"
	touch $@
