# `make demo` and `make test` need nothing but Python 3.11 or newer; they make .venv themselves.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN = .venv/bin

.PHONY: demo test test-deployment lint types clean

demo: .venv/demo
	$(BIN)/discretion demo --out runs/demo

test: .venv/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/pytest -n 2

# with Flower, whose pins are not ours: in an environment of its own
test-deployment: .venv-flower/test
	.venv-flower/bin/pytest tests/deployment

.venv-flower/test: pyproject.toml setup.py
	sh scripts/make-venv.sh "$(PYTHON)" .venv-flower
	.venv-flower/bin/pip install -q -e '.[flower]' pytest hypothesis
	touch $@

.venv/demo: pyproject.toml setup.py constraints.txt $(wildcard src/discretion/engine/_*pp)
	sh scripts/make-venv.sh "$(PYTHON)" .venv
	$(BIN)/pip install -q -c constraints.txt -e '.[torch]'
	touch $@

.venv/test: .venv/demo
	$(BIN)/pip install -q -c constraints.txt -e '.[torch,dev]'
	touch $@

clean:
	rm -rf .venv .venv-flower
