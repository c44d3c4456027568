# `make book` and `make test` are the two commands; everything else stands under them.

PYTHON  ?= python3
VENV    ?= .venv
PORT    ?= 8000
BIN     := $(VENV)/bin
SITE    := _build/html

CHAPTERS := $(wildcard notebooks/*.ipynb)
PACKAGE  := $(shell find src -name '*.py' -o -name '*.mjs' -o -name '*.css')
RESULTS  := $(shell find results -type f)
PINS     := requirements.txt constraints.txt pyproject.toml
PAGES    := _config.yml _toc.yml $(shell find book -type f)
CHECKED  := $(CHAPTERS:notebooks/%.ipynb=_build/nbval/%.passed)

.DEFAULT_GOAL := help
.PHONY: help book test serve lab install nbval notebooks lint format pins clean

help:  ## show this list
	@grep -hE '^[a-z]+:.*##' $(MAKEFILE_LIST) | sed -E 's/:[^#]*## /\t/' | expand -t 12

# ---- set-up ---------------------------------------------------------------------------------

install: $(VENV)/.installed  ## make the virtual environment, with everything pinned in it

$(VENV)/.installed: $(PINS)
	@$(PYTHON) -c 'import sys; sys.exit("Python 3.11 or newer is needed; this is " + sys.version.split()[0] + ". Name another: make PYTHON=python3.12 …") if sys.version_info < (3, 11) else None'
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet --upgrade pip
	$(BIN)/pip install --quiet -r requirements.txt
	$(BIN)/pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

# ---- the book -------------------------------------------------------------------------------

book: $(SITE)/.built  ## execute every notebook and build the site
	@echo
	@echo "The book is in $(SITE)/index.html."
	@echo "'make serve' shows it on http://localhost:$(PORT); opening the file works too."

# Executed notebooks are cached by their own code; the cache does not see the package they import, or what they read.
_build/.package: $(PACKAGE) $(RESULTS) $(PINS)
	@rm -rf _build/.jupyter_cache _build/.doctrees
	@mkdir -p _build && touch $@

$(SITE)/.built: $(VENV)/.installed _build/.package $(CHAPTERS) $(PAGES)
	ATTNCONV_STATIC=1 $(BIN)/jupyter-book build . -n -W --keep-going --quiet
	@test -f $(SITE)/index.html || { echo "jupyter-book built no index.html" >&2; exit 1; }
	@touch $@

serve: book  ## serve the site on localhost
	$(BIN)/python -m http.server $(PORT) --bind localhost --directory $(SITE)

lab: install  ## open the notebooks in JupyterLab
	$(BIN)/jupyter lab notebooks

# ---- the tests ------------------------------------------------------------------------------

test: book lint nbval  ## run every check: package, notebooks, built site
	$(BIN)/python -m pytest

lint: install  ## formatting and lint, notebooks included
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

nbval: $(CHECKED)  ## re-run the notebooks if text, package, results or pins changed; compare the numbers

_build/nbval/%.passed: notebooks/%.ipynb $(PACKAGE) $(RESULTS) $(PINS) | $(VENV)/.installed
	$(BIN)/python -m pytest -p no:cacheprovider -W default --nbval-lax --nbval-cell-timeout=120 $<
	@mkdir -p $(@D) && touch $@

# ---- for contributors -----------------------------------------------------------------------

notebooks: install  ## execute the notebooks in place and keep what belongs in the repository
	$(BIN)/python tools/notebooks.py run $(CHAPTERS)

format: install  ## format code and notebooks
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

pins: install  ## write constraints.txt anew from requirements.txt alone
	rm -rf _build/pins && $(PYTHON) -m venv _build/pins
	sed '/^-c /d' requirements.txt > _build/pins/direct.txt
	_build/pins/bin/pip install --quiet -r _build/pins/direct.txt
	_build/pins/bin/pip freeze | sed -E '/^(pip|torch|triton|nvidia-[a-z0-9-]+|cuda-[a-z-]+)==/d; s/\+[a-z0-9]+$$//' > constraints.txt

clean:  ## remove what was built, keep the virtual environment
	rm -rf _build
