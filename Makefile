# Each target sets itself up: the first one that needs it makes .venv and installs the project into it.
# `make serve ARGS="demo --stages 2"` passes arguments on.

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help demo test serve bench results lint soak conformance chaos clean

PYTHON ?= python3
ARGS ?=
BIN := .venv/bin
INSTALLED := .venv/.installed
# Clients that are not ours bring other versions of what the tests use, and plugins: an environment of their own.
CONFORMANCE := .venv-conformance

# Tests run beside each other: waiting threads must not spin long on a core that others could use (see
# src/longspan/openmp.py, which chooses for a server).
test soak conformance chaos: export OMP_WAIT_POLICY ?= passive
test soak conformance chaos: export GOMP_SPINCOUNT ?= 1000

help: ## this list
	@printf 'make demo && make test   is all a fresh clone needs\n\n'
	@sed -n 's/^\([a-z]*\):.*## \(.*\)/  make \1|\2/p' $(MAKEFILE_LIST) | awk -F'|' '{ printf "%-14s %s\n", $$1, $$2 }'

demo: $(INSTALLED) ## split the demo model over two processes, 25 ms apart, and ask it a question
	@$(BIN)/longspan demo $(ARGS)

test: $(INSTALLED) ## the whole test suite
	@$(BIN)/python -m pytest -n 2 --dist loadfile $(ARGS)

serve: $(INSTALLED) ## serve a model: make serve ARGS="demo --stages 2 --port 8080"
	@$(BIN)/longspan serve $(or $(ARGS),demo --stages 2)

bench: $(INSTALLED) ## measure: make bench ARGS="ring --json"; alone, what windows bring over a slow link
	@$(BIN)/longspan bench $(or $(ARGS),wan --quick)

results: $(INSTALLED) ## measure, and write docs/results and the README's table; ARGS="wan ring" only these
	@$(BIN)/python -m tools.results $(ARGS)

lint: $(INSTALLED) ## style, format and types
	@$(BIN)/ruff check $(if $(CI),--output-format concise,--quiet)
	@$(BIN)/ruff format --check --quiet
	@$(BIN)/mypy --no-error-summary
	@echo "lint: ruff and mypy found nothing"

soak: $(INSTALLED) ## the long runs that `make test` leaves out
	@$(BIN)/python -m pytest -m soak -o timeout=0 $(ARGS)

conformance: $(CONFORMANCE)/.installed ## clients and checkers that are not ours, against the demo over two processes
	@$(CONFORMANCE)/bin/python -m pytest -m 'conformance or not soak' tests/conformance tests/end_to_end -rs $(ARGS)

chaos: $(INSTALLED) ## 200 faults against rings of real processes; every token is compared
	@$(BIN)/python -m tests.chaos.run $(ARGS)

clean: ## remove .venv and what tools left behind
	rm -rf .venv $(CONFORMANCE) .mypy_cache .ruff_cache .pytest_cache .hypothesis

$(INSTALLED): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || \
		{ echo 'Longspan needs Python 3.11 or newer: make PYTHON=/path/to/python3' >&2; exit 1; }
	@echo 'setting up .venv (only the first time; a minute or so)' >&2
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[test,lint]'
	@touch $@

$(CONFORMANCE)/.installed: pyproject.toml
	@echo 'setting up $(CONFORMANCE) (only the first time; a few minutes)' >&2
	@$(PYTHON) -m venv $(CONFORMANCE)
	@$(CONFORMANCE)/bin/python -m pip install --quiet --disable-pip-version-check --editable '.[test,conformance]'
	@touch $@
