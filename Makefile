# `make demo` and `make test` need nothing but Python 3.11 or newer; they make .venv themselves.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN = .venv/bin

.PHONY: demo test lint types clean

demo: .venv/demo
	$(BIN)/discretion demo --out runs/demo

test: .venv/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

.venv/demo: pyproject.toml setup.py constraints.txt $(wildcard src/discretion/engine/_*pp)
	sh scripts/make-venv.sh "$(PYTHON)" .venv
	$(BIN)/pip install -q -c constraints.txt -e '.[torch]'
	touch $@

.venv/test: .venv/demo
	$(BIN)/pip install -q -c constraints.txt -e '.[torch,dev]'
	touch $@

clean:
	rm -rf .venv
