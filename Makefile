# make demo, make test: everything a fresh machine with Python, pip and make needs.
PYTHON ?= python3
VENV   := .venv
BIN    := $(VENV)/bin
PIP    := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo docs test lint format results benchmark clean
.DEFAULT_GOAL := help

help:
	@echo "make demo       install into .venv and show FedPALS at work"
	@echo "make test       lint, type-check and test"
	@echo "make docs       build the site, out/site/index.html, with notebooks and the report"
	@echo "make results    write the tables of the READMEs from the stored results"
	@echo "make benchmark  measure against other libraries, side by side"

$(BIN)/python:
	$(PYTHON) -m venv $(VENV)

$(VENV)/.demo: $(BIN)/python pyproject.toml constraints.txt Makefile
	$(PIP) --editable '.[learn,plots]'
	@touch $@

$(VENV)/.dev: $(VENV)/.demo
	$(PIP) --editable '.[learn,vision,plots,flower,nvflare,privacy,docs,dev]'
	@touch $@

$(VENV)/.bench: $(VENV)/.dev
	$(PIP) --editable '.[learn,vision,plots,flower,nvflare,privacy,docs,dev,bench]'
	@touch $@

demo: $(VENV)/.demo
	$(BIN)/fedpals weights examples/retail/stores.csv --target examples/retail/new-store.csv --plot out/weights.png
	@echo
	$(BIN)/fedpals demo

docs: $(VENV)/.dev
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

lint: $(VENV)/.dev
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy

format: $(VENV)/.dev
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

test: lint
	$(BIN)/pytest -n 2

results: $(VENV)/.dev
	$(BIN)/python -m tests.published

benchmark: $(VENV)/.bench
	$(BIN)/python benchmarks/weights.py

clean:
	rm -rf $(VENV) out .mypy_cache .pytest_cache .ruff_cache .hypothesis
