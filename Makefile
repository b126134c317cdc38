# Two commands matter: `make lab` to read, `make test` to check everything. Plain `make` explains the rest.

PY := .venv/bin/python
# Another Python for the environment: make lab PYTHON=python3.12
PYTHON ?=
NB ?=
FRESH ?=
FAST ?=
RECORD ?=
PDF ?=
CHECK ?=
UPDATE ?=
REPO ?=
REF ?=
FOLDER ?=
JSON ?=
SECONDS ?=

# Where make lab begins: in your own copy, if make copy has made one.
FIRST = $(firstword $(wildcard mine/00_start_here.ipynb notebooks/00_start_here.ipynb))

.DEFAULT_GOAL := help
.PHONY: help lab copy test prove run save site ledger grade bench lint stamp readme environment environment-test

help: ## show this list
	@echo "make TARGET, where TARGET is one of"
	@sed -n 's/^\([a-z]*\):[^#]*## /  \1|/p' Makefile | awk -F'|' '{ printf "%-8s %s\n", $$1, $$2 }'

# Does nothing (0.1 s) unless requirements.txt, constraints.txt or pyproject.toml changed since the last time.
environment:
	@python=$$(sh tools/find_python $(PYTHON)) && "$$python" tools/environment.py

environment-test:
	@python=$$(sh tools/find_python $(PYTHON)) && "$$python" tools/environment.py --test

lab: environment ## open JupyterLab at the first notebook (first time 3 minutes, then 5 s)
	@$(PY) -m jupyter trust $(wildcard $(addsuffix .ipynb,notebooks/* notebooks/solutions/* mine/* mine/solutions/*)) >/dev/null
	@$(PY) -m tools.device &
	@echo "Opening JupyterLab at $(FIRST) (about 5 s; Ctrl-C twice to stop)."
	@$(PY) -m jupyterlab --ip=127.0.0.1 --allow-root --ServerApp.root_dir=. \
		--LabApp.default_url=/lab/tree/$(FIRST) --LabApp.extension_manager=readonly

copy: environment ## copy the notebooks to mine/, for you to write in: git looks past it, and make lab opens it (1 s)
	@$(PY) -m tools.copies

test: environment-test ## run the suite (10 to 21 minutes); one notebook: NB=03 (90 s); no notebook, browser, ranks: FAST=1
	@echo "Running $(if $(FAST),the fast tests (2 minutes),$(if $(NB),all that concerns notebook $(NB) (90 s),the suite: units, properties, simulated GPUs, every notebook compared output by output, widgets in a browser (10 to 21 minutes)))."
	@$(PY) -m tools.test $(if $(FAST),--fast) $(NB)

prove: environment-test ## run what is larger than a suite needs: more examples, more seeds, all cases, full sizes (about an hour)
	@echo "Running what make test leaves out or tries small, in its full size (about an hour)."
	@$(PY) -m tools.test --prove

run: environment ## run every notebook, save nothing, report seconds (5 minutes; one: NB=03; RECORD=1 keeps them)
	@echo "Running the notebooks without saving them (up to 1 minute each)."
	@$(PY) -m tools.run_all $(if $(RECORD),--record) $(NB)

save: environment-test ## run one notebook and save its outputs: NB=03, NB=all (1 minute each; FRESH=1 measures again)
	@echo "Running and saving $(or $(NB),… which one? make save NB=03, or NB=all) (up to 1 minute each)."
	@$(PY) -m tools.save $(if $(FRESH),--fresh) $(NB)

site: environment-test ## build the course as pages that need no kernel, build/site (15 minutes once, then what has changed): NB=03 runs one, PDF=1, CHECK=1
	@echo "Building build/site (the first time each notebook is run and each figure drawn in its settings: 15 minutes)."
	@$(PY) -m tools.site $(NB) $(if $(PDF),--pdf) $(if $(CHECK),--check)

ledger: environment ## run published claims again, say what has flipped (1 minute; UPDATE=1 stores what they say now)
	@echo "Running the ledger of published claims (1 minute)."
	@$(PY) -m tools.ledger $(if $(UPDATE),--update)

grade: environment ## check a folder of a student's notebooks, exercise by exercise (10 s a notebook): FOLDER=anna JSON=file SECONDS=120
	@echo "Checking the notebooks in $(or $(FOLDER),… which folder? make grade FOLDER=anna) (about 10 s each)."
	@$(PY) -m tools.grade $(if $(JSON),--json "$(JSON)") $(if $(SECONDS),--seconds $(SECONDS)) $(if $(FOLDER),"$(FOLDER)")

bench: environment ## print the benchmark tables (8 minutes)
	@echo "Measuring the benchmark tables: ours against torch's, interleaved (8 minutes; close what else is running)."
	@$(PY) -m tests.bench

lint: environment-test ## check style, types, spelling, links, workflows; change nothing (30 s)
	@echo "Checking (30 s; to repair the style: $(PY) -m ruff check --fix && $(PY) -m ruff format; to list links that lead outside: $(PY) -m tools.prose --outside)."
	@$(PY) -m ruff check
	@$(PY) -m ruff format --check
	@$(PY) -m mypy
	@$(PY) -m tools.prose
	@$(PY) -m check_jsonschema --quiet --builtin-schema vendor.github-workflows .github/workflows/ci.yml .github/workflows/pages.yml
	@$(PY) -m check_jsonschema --quiet --builtin-schema vendor.github-issue-forms .github/ISSUE_TEMPLATE/idea.yml .github/ISSUE_TEMPLATE/judged_wrongly.yml .github/ISSUE_TEMPLATE/mistake.yml
	@$(PY) -m check_jsonschema --quiet --builtin-schema vendor.github-issue-config .github/ISSUE_TEMPLATE/config.yml
	@$(PY) -m check_jsonschema --quiet --builtin-schema vendor.citation-file-format CITATION.cff
	@$(dir $(PY))zizmor --quiet --offline .github

stamp: environment-test ## write the repository's address and the links to neighbours into notebooks (1 s): REPO=owner/name REF=v1.0
	@echo "Writing the repository's address and the links to neighbours into every notebook (1 s)."
	@$(PY) -m tools.stamp $(if $(REPO),--repository $(REPO)) $(if $(REF),--ref $(REF))

readme: environment-test ## make README's table and moving picture from the notebooks (15 s)
	@echo "Making README's table of notebooks and its moving picture (15 s)."
	@$(PY) -m tools.readme
