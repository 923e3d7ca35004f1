# `make demo` needs nothing but Python 3.11 or newer, `make test` Chromium, too; they make .venv themselves.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN = .venv/bin

.PHONY: demo test fuzz faults test-deployment docs outputs pins audit-pins images-check bars clean

demo: .venv/demo
	$(BIN)/discretion demo --out runs/demo

test: .venv/test .venv-flower/test
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	sh scripts/get-chromium.sh
	$(BIN)/pytest -n 2 --cov --cov-report=json
	$(BIN)/python scripts/coverage_gate.py build/coverage.json
	$(FLOWER_PYTEST) tests/flower/test_transport.py tests/flower/test_deploy_options.py tests/flower/test_flower.py tests/flower/test_hospitals.py
	sh scripts/test-core.sh 3.12 3.13

# Flower's pins are not ours: what needs it is tested in an environment of its own, where typer is older than click
FLOWER_PYTEST = .venv-flower/bin/python -m pytest -W ignore::DeprecationWarning:typer

# The site, in the folder site: open site/index.html. Broken links are errors.
docs: .venv/docs
	$(BIN)/python scripts/site/write.py build/docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --quiet

# What commands and the notebook print, written down anew in the documents that show it
outputs: .venv/test
	$(BIN)/python scripts/site/console.py docs/index.md docs/first-hour.md
	$(BIN)/python scripts/site/tutorial.py docs/tutorial.ipynb
	$(BIN)/python scripts/site/reviewing.py

# Mutations of every file and message that is read, more than in `make test`, and others for each seed
CASES = 20000
SEED = 1
fuzz: .venv/test
	FUZZ_CASES=$(CASES) FUZZ_SEED=$(SEED) $(BIN)/pytest -n 2 tests/fuzz

# A fault at every file-system call of ledgers, guards and runs; `make test` tries some of them. FAULTS bounds how many of
# each scenario are tried; SEED chooses which sectors of a torn or lost write are on the disk.
FAULTS = 1000000
faults: .venv/test
	FAULT_CASES=$(FAULTS) FAULT_SEED=$(SEED) $(BIN)/pytest -n 2 -rP tests/faults

# everything on Flower: 20 kills of each part at random moments take their time
test-deployment: .venv-flower/simulation
	$(FLOWER_PYTEST) tests/flower --durations=0

.venv-flower/test: .venv/test scripts/make-flower-venv.sh requirements/flower.txt
	sh scripts/make-flower-venv.sh "$(PYTHON)" flower
	touch $@

.venv-flower/simulation: .venv-flower/test
	sh scripts/make-flower-venv.sh "$(PYTHON)" flower flower-sim
	touch $@

.venv/demo: pyproject.toml setup.py constraints.txt $(wildcard requirements/*.txt src/discretion/engine/_*pp)
	sh scripts/make-venv.sh "$(PYTHON)" .venv
	sh scripts/install-pins.sh .venv core torch
	$(BIN)/pip install -q --no-deps --no-build-isolation -e .
	touch $@

.venv/test: .venv/demo
	sh scripts/install-pins.sh .venv test docs dev
	touch $@

.venv/docs: .venv/demo
	sh scripts/install-pins.sh .venv docs
	touch $@

.venv-tools/made: requirements/tools.txt
	sh scripts/make-venv.sh "$(PYTHON)" .venv-tools
	sh scripts/install-pins.sh .venv-tools tools
	touch $@

# Write constraints.txt, constraints-flower.txt and requirements/ anew for what pyproject.toml asks for, in the versions
# that they have or, with UPGRADE=--upgrade, the newest
pins: .venv-tools/made
	PATH="$(CURDIR)/.venv-tools/bin:$$PATH" .venv-tools/bin/python scripts/pins.py $(UPGRADE)

# Look up known vulnerabilities of all pins; fails, too, where they cannot be looked up
audit-pins: .venv-tools/made
	.venv-tools/bin/python scripts/audit_pins.py

# Lint deploy/ and build its images' steps in fresh root folders: as root, with debootstrap, Node.js and a network.
# BIND="--bind PATH" names what pip needs of this machine.
IMAGES = build/images
images-check: .venv/test
	$(BIN)/hadolint deploy/Dockerfile
	npx --yes dclint@3.1.0 deploy/compose.yaml
	mkdir -p $(IMAGES)
	sh scripts/check-images.sh $(IMAGES) $(BIND)

# The engine's bars beside its peers, on an idle machine: make bars PFL=environment FLOWER=environment
# (benchmarks/engine.py says how the environments are made; the first needs opacus, too).
bars: .venv/test
	$(BIN)/python benchmarks/engine.py --pfl $(PFL) --flower $(FLOWER)
	$(BIN)/python benchmarks/records.py --peer-python $(PFL)/bin/python
	$(BIN)/python benchmarks/sequence.py
	$(BIN)/python benchmarks/growth.py

clean:
	rm -rf .venv .venv-flower .venv-tools .venv-3.12 .venv-3.13
