# Each target sets up what it needs in .venv: on a fresh machine `make demo` or `make test` is the whole installation.

PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
WORDS ?=
WORKERS ?= auto

.PHONY: demo test lint format docs clean

demo: .venv/demo.stamp ## Train a pronunciation model in a few minutes, then pronounce: make demo WORDS="tokenizer chatbot"
	$(BIN)/python demo/pronounce.py $(WORDS)

test: .venv/test.stamp ## Run all tests, on all cores: make test TESTS=tests/nn WORKERS=0 to run some, one after another
	$(BIN)/python -m pytest --numprocesses $(WORKERS) --dist worksteal $(TESTS)

lint: .venv/lint.stamp ## Check style, types and the direction of imports
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/pyrefly check
	$(BIN)/lint-imports

format: .venv/lint.stamp ## Format all code
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

docs: .venv/test.stamp ## Write the tables of docs/training.md, docs/rules, what docs/learn prints and draws, and docs/lab
	$(BIN)/python docs/tables.py
	$(BIN)/python docs/rules.py
	$(BIN)/python docs/learn.py
	$(BIN)/python docs/lab/write.py

clean: ## Remove the environment and all caches; runs and prepared data stay
	rm -rf .venv .pytest_cache .ruff_cache .hypothesis .import_linter_cache

# One stamp for each set of extras; a stamp is stale when what is to be installed has changed. Python compiles a module
# when it is first imported: most of those that are installed never are.
.venv/%.stamp: pyproject.toml constraints.txt | .venv/bin/python
	$(BIN)/python -m pip install --quiet --no-compile --disable-pip-version-check -c constraints.txt -e '.[$*]'
	touch $@

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "surd needs Python 3.11 or newer: make PYTHON=…")'
	$(PYTHON) -m venv .venv
