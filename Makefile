# `make demo` needs nothing but Python 3.11 or newer, `make test` Chromium, too; they make .venv themselves.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN = .venv/bin

.PHONY: demo test test-deployment docs outputs bars clean

demo: .venv/demo
	$(BIN)/discretion demo --out runs/demo

test: .venv/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	sh scripts/get-chromium.sh
	$(BIN)/pytest -n 2

# The site, in the folder site: open site/index.html. Broken links are errors.
docs: .venv/docs
	$(BIN)/python scripts/site/write.py build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# What commands and the notebook print, written down anew in the documents that show it
outputs: .venv/test
	$(BIN)/python scripts/site/console.py docs/index.md docs/first-hour.md
	$(BIN)/python scripts/site/tutorial.py docs/tutorial.ipynb

# with Flower, whose pins are not ours: in an environment of its own
test-deployment: .venv-flower/test
	.venv-flower/bin/pytest tests/deployment

.venv-flower/test: pyproject.toml setup.py constraints.txt
	sh scripts/make-venv.sh "$(PYTHON)" .venv-flower
	grep '^torch==' constraints.txt > .venv-flower/constraints.txt
	.venv-flower/bin/pip install -q -c .venv-flower/constraints.txt -e '.[flower]' pytest hypothesis
	touch $@

.venv/demo: pyproject.toml setup.py constraints.txt $(wildcard src/discretion/engine/_*pp)
	sh scripts/make-venv.sh "$(PYTHON)" .venv
	$(BIN)/pip install -q -c constraints.txt -e '.[torch]'
	touch $@

.venv/test: .venv/demo
	$(BIN)/pip install -q -c constraints.txt -e '.[torch,docs,dev]'
	touch $@

.venv/docs: .venv/demo
	$(BIN)/pip install -q -c constraints.txt -e '.[torch,docs]'
	touch $@

# The engine's bars beside its peers, on an idle machine: make bars PFL=environment FLOWER=environment
# (benchmarks/engine.py says how the environments are made; the first needs opacus, too).
bars: .venv/test
	$(BIN)/python benchmarks/engine.py --pfl $(PFL) --flower $(FLOWER)
	$(BIN)/python benchmarks/records.py --peer-python $(PFL)/bin/python
	$(BIN)/python benchmarks/sequence.py
	$(BIN)/python benchmarks/growth.py

clean:
	rm -rf .venv .venv-flower
