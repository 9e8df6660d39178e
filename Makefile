# Each target makes what it needs; the second time it is there.
PYTHON ?= python3
BIN := .venv/bin
INSTALL := -m pip install -qq --disable-pip-version-check

.PHONY: demo demo-delta demo-redis test bench bench-quick torture mutants oldest next-scrapy scrapys-own deltafetchs-own field recipes lint docs dist wheel-test sbom clean

demo: .venv/.demo
	@$(BIN)/python example_project/demo.py

# what a second crawl skips, and what it fetches
demo-delta: .venv/.demo
	@$(BIN)/python example_project/demo_delta.py

demo-redis: .venv/.test
	$(BIN)/python example_project/demo_redis.py

# compiled once, and not in each process of a run
export PYTHONDONTWRITEBYTECODE :=
torture: export SLOW_DAY := all

# ORDER=--random-order has modules, and the tests of each, in another order; it prints the seed
test: .venv/.test
	$(BIN)/python -m pytest -n 4 --dist worksteal $(ORDER)

bench: .venv/.bench
	$(BIN)/python -m benchmarks

# five minutes of them
bench-quick: .venv/.bench
	$(BIN)/python -m benchmarks --quick

torture: .venv/.test
	$(BIN)/python -m pytest -s -m "torture or hypothesis" --hypothesis-profile torture

# small changes of a package, a file or `lua`, of which the tests must notice 90 %
PACKAGE ?= scrapy_bloom/bloom
SEED ?= 20261123
SAMPLE ?= 60
mutants: .venv/.mutants
	$(BIN)/python -m tests.mutants $(PACKAGE) --seed $(SEED) --sample $(SAMPLE)

# the filter, the dupefilter and the scheduler with the oldest releases that we support
oldest: .venv-oldest/.made
	.venv-oldest/bin/python -m pytest -n 2 --dist worksteal \
		tests/bloom tests/contracts tests/crawl tests/fingerprints tests/test_dupefilter.py

# the same, crawls and more with pull requests of the next Scrapy, or with the tree in NEXT_SCRAPY
next-scrapy:
	@$(PYTHON) .ci/next_scrapy.py

# Scrapy's own tests, with our add-on in every crawler
scrapys-own: .venv-scrapys-own/.made
	.venv-scrapys-own/bin/python -m tests.scrapys_own

# the own tests of other add-ons, and a project in the style of real ones, with ours
field: .venv-field/.made
	.venv-field/bin/python -m tests.field

# scrapy-deltafetch's own tests, against the delta store
deltafetchs-own: .venv/.test
	$(BIN)/python -m tests.deltafetchs_own

# those that need a server or a tool of others; what is not installed is skipped, and named at the end
recipes: .venv/.recipes
	$(BIN)/python -m pytest -m recipe tests/test_recipes.py

SCHEMA := $(BIN)/check-jsonschema --quiet --builtin-schema vendor
lint: .venv/.lint
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/jactionlint .github/workflows/*.yml .github/dependabot.yml
	$(BIN)/zizmor --offline --quiet .github
	$(SCHEMA).github-workflows .github/workflows/*.yml
	$(SCHEMA).dependabot .github/dependabot.yml
	$(SCHEMA).github-issue-config .github/ISSUE_TEMPLATE/config.yml
	$(SCHEMA).github-issue-forms $(filter-out %/config.yml,$(wildcard .github/ISSUE_TEMPLATE/*.yml))
	$(SCHEMA).readthedocs .readthedocs.yaml

# the site, in docs/_build/html
docs: .venv/.docs
	$(BIN)/python -m sphinx -W --keep-going -q docs docs/_build/html

# the wheel and the source distribution in dist/, the recipe for conda and the notes in build/;
# TAG=v1.2.3 refuses another version
dist: .venv/.dist
	rm -rf dist build
	$(BIN)/python -m build
	$(BIN)/python -m twine check --strict dist/*
	$(BIN)/python .ci/papers.py
	$(BIN)/python -c "from rattler_build import Stage0Recipe, VariantConfig; \
		Stage0Recipe.from_file('build/recipe.yaml').render(VariantConfig({'python_min': ['3.10']}))"

# a crawl with the wheel of dist/, alone in an empty environment of PYTHON
wheel-test:
	@$(PYTHON) .ci/wheel.py

# what the wheel of dist/ brings into an environment, in build/
sbom: .venv/.dist
	rm -rf .venv-sbom
	$(PYTHON) -m venv --without-pip .venv-sbom
	$(BIN)/python -m pip --python .venv-sbom/bin/python install -qq dist/*.whl
	$(BIN)/cyclonedx-py environment -o build/sbom.json .venv-sbom/bin/python

clean:
	rm -rf .venv .venv-*

.venv/.demo: pyproject.toml | $(BIN)/python
	@echo "Installing scrapy-bloom and Scrapy into .venv: once, 20 seconds"
	@$(BIN)/python $(INSTALL) --no-compile -e .
	@touch $@

.venv/.bench: .venv/.test
	$(BIN)/python $(INSTALL) -e ".[bench]"
	$(BIN)/python $(INSTALL) pybloomfiltermmap3 \
		|| echo "without pybloomfiltermmap3, which needs a compiler"
	touch $@

.venv/.%: pyproject.toml | $(BIN)/python
	$(BIN)/python $(INSTALL) -e ".[$*]"
	touch $@

.venv-oldest/.made: pyproject.toml .ci/oldest.py | .venv-oldest/bin/python
	.venv-oldest/bin/python .ci/oldest.py
	touch $@

.venv-scrapys-own/.made: pyproject.toml tests/scrapys_own/requirements.txt \
		| .venv-scrapys-own/bin/python
	.venv-scrapys-own/bin/python $(INSTALL) -e . -r tests/scrapys_own/requirements.txt
	touch $@

.venv-field/.made: pyproject.toml tests/field/requirements.txt | .venv-field/bin/python
	.venv-field/bin/python $(INSTALL) -e ".[redis]" -r tests/field/requirements.txt
	touch $@

# keep what the pattern makes on the way
.PRECIOUS: %/bin/python
%/bin/python:
	@$(PYTHON) -m venv $*
