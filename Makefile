# `make` alone says what there is. Needs a Python from 3.11 on, make, pip's package index and, for speed, a C compiler.
# The stamps inside .venv remember what was installed: nothing is installed twice, and a changed pyproject.toml
# (entry points are registered at installation) or constraints.txt installs anew.

SHELL := /bin/bash
.SHELLFLAGS := -eu -o pipefail -c
.DEFAULT_GOAL := help

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip --disable-pip-version-check
# setuptools warns of folders named like the package, which its import hook does not find; deep5 adds what does (setup.py).
# constraints.txt without its hashes: with them, pip would refuse this folder, which has none.
VERSIONS := $(VENV)/versions.txt
INSTALL := PYTHONWARNINGS='ignore:Editable installation' $(PIP) install --progress-bar off --no-build-isolation -c $(VERSIONS)
# The back-ends, and the browser, without which the suite fails instead of skipping what needs them.
DEEP5_REQUIRE ?= pytorch,tensorflow,jax,onnxruntime,openvino,reference,browser,slurm
# Of what pip says, the large downloads and the outcome; errors go another way and are all shown.
BRIEFLY := | sed -u -n '/ MB)/p; / GB)/p; /^Successfully installed/p'
APT := apt-get -qq -o DPkg::Lock::Timeout=120 -o Dpkg::Use-Pty=0
# Programs, the packages with them, and their word in DEEP5_REQUIRE.
INSTALLED = for program in $(1); do command -v $$program >/dev/null || lacking=$$program; done; \
	if [ -z "$${lacking:-}" ]; then exit 0; fi; \
	if [ "$$(id -u)" != 0 ] || ! command -v apt-get >/dev/null; then \
		echo "$$lacking is missing. Remedy: install $(2), or leave '$(3)' out: make test DEEP5_REQUIRE=pytorch" >&2; \
		exit 1; \
	fi; \
	echo "Installing $(2)"; \
	export DEBIAN_FRONTEND=noninteractive; \
	log=$$(mktemp); \
	if ! { timeout 300 $(APT) update && timeout 900 $(APT) install -y --no-install-recommends $(2); } \
		> "$$log" 2>&1; then tail -n 20 "$$log" >&2; rm -f "$$log"; exit 1; fi; \
	rm -f "$$log"
FAST := not slow and not gpu
# How many processes share the tests, each with some 3 GB of frameworks; 0: they run in this one.
WORKERS ?= 2
PARALLEL := -n $(WORKERS) --dist worksteal
# The tutorials that `make test` executes, of seven.
TUTORIALS ?= first_steps your_own_model
# How many processes share the drawn cases of `make validate`.
JOBS ?= 1
# `make test-all` runs these folders of tests/ one after another.
PARTS := $(sort $(filter-out support benchmarks,$(notdir $(patsubst %/,%,$(dir $(wildcard tests/*/test_*.py))))))
# A new version of PyTorch is a decision: `make constraints TORCH=2.14.0`.
TORCH ?= $(shell sed -n 's/^torch==\([^ ]*\).*/\1/p' constraints.txt)

.PHONY: help run venv browser slurm test test-all bench bench-smoke operator-bench overhead real-files validate docs figures mutants coverage lint constraints sbom clean

help: ## Say what there is (this text)
	@sed -n 's/^\([a-z-]*\): [^#]*## \(.*\)/  make \1\t\2/p' Makefile | expand -t 22
	@echo "  PYTHON=python3.12 chooses the interpreter; PIP_EXTRA_INDEX_URL reaches pip, as everywhere (for PyTorch without CUDA)"

run: $(VENV)/.pytorch ## Install deep5 with PyTorch and run the first recipe, digits_lenet
	$(BIN)/deep5 run digits_lenet

venv: $(VENV)/.complete ## The complete environment; HASHES=1: only files whose SHA-256 is in constraints.txt

browser: ## Chromium for the tests of the report, where it is missing: from the system's packages, as root
	@$(call INSTALLED,chromium chromedriver,chromium chromium-driver libturbojpeg0,browser)

slurm: ## Slurm for the tests of its engine, where it is missing: from the system's packages, as root
	@PATH="$$PATH:/usr/sbin"; $(call INSTALLED,munged slurmctld slurmd sbatch,munge slurmctld slurmd slurm-client,slurm)

test: $(VENV)/.complete ## The fast suite: a sample of every function's cases
	$(BIN)/python docs/building/notebooks.py $(TUTORIALS) # Tutorials measure times: nothing runs beside them. Kept until their content changes.
	DEEP5_TUTORIALS=kept DEEP5_REQUIRE=$(DEEP5_REQUIRE) $(BIN)/python -m pytest -m "$(FAST)" $(PARALLEL)

test-all: $(VENV)/.complete ## Every test, or PART=networks: one folder; counts in tests/counts.md, long tests in tests/long_tests.txt
	@status=0; \
	export DEEP5_REQUIRE=$(DEEP5_REQUIRE); \
	mkdir -p $(VENV)/test-all; \
	for part in $(or $(PART),$(PARTS)); do \
		echo "tests/$$part"; \
		xml=$(VENV)/test-all/$${part//\//-}.xml; \
		rm -f "$$xml"; \
		$(BIN)/python -m pytest tests/$$part $(PARALLEL) --junitxml="$$xml" || status=$$?; \
		[ -f "$$xml" ] || continue; \
		$(BIN)/python tests/support/counts.py tests/counts.md "$$xml"; \
		$(BIN)/python tests/support/longest.py tests/long_tests.txt "$$xml"; \
	done; \
	exit $$status

bench: $(VENV)/.complete ## HEAD against the merge base: slower, faster or no difference; FULL=1, ONLY=part,of,names, BASE=commit
	$(BIN)/python tests/benchmarks/bench.py $(if $(FULL),--full) $(if $(ONLY),--only $(ONLY)) $(if $(BASE),--base $(BASE))

bench-smoke: $(VENV)/.complete ## Each benchmark of the quick run once, without a comparison
	$(BIN)/python tests/benchmarks/bench.py --smoke

operator-bench: $(VENV)/.complete ## Each operator's time and peak memory against BASE=commit, which above 1.2: 20 minutes; ONLY=names, ALL=1
	$(BIN)/python tests/benchmarks/operator_bench.py $(if $(BASE),--base $(BASE)) $(if $(ONLY),--only $(ONLY)) $(if $(ALL),--all)

overhead: $(VENV)/.complete ## Run the recipes of docs/results/overhead.md and write its tables: two hours; ONLY=part,of,names
	$(BIN)/python tests/benchmarks/overhead_tables.py docs/results/overhead.md results/overhead --run $(if $(ONLY),--only $(ONLY))
	$(BIN)/python docs/building/overhead_chart.py

real-files: $(VENV)/.complete ## Run the ONNX files of packages and exporters, and write docs/results/real_files.md: hours; ONLY=part,of,names
	$(BIN)/python tests/real_files.py $(if $(ONLY),--only $(ONLY))

validate: $(VENV)/.complete ## Compare drawn cases of every operator with what deep5 did not write; writes docs/results/validation.md: hours, resumes
	$(BIN)/python tests/support/drawn.py --all --jobs $(JOBS) --out results/validation
	$(BIN)/python tests/support/drawn_page.py results/validation docs/results/validation.md

docs: $(VENV)/.complete ## The site of the documentation in site/, which fails at the first warning: open site/index.html
	NO_MKDOCS_2_WARNING=1 $(BIN)/python -m mkdocs build

figures: $(VENV)/.complete ## Run the commands whose results the site shows, on an otherwise idle machine: an hour; ONLY=name,name
	$(BIN)/python docs/building/stored_results.py $(if $(ONLY),--only $(ONLY))

mutants: $(VENV)/.complete ## Plant each fault of tests/mutants.txt in a copy: the tests that it names must catch it
	$(BIN)/python tests/support/mutants.py

coverage: $(VENV)/.complete ## The fast suite once more, with what of the code it ran; a third slower
	DEEP5_REQUIRE=$(DEEP5_REQUIRE) $(BIN)/python -m pytest -m "$(FAST)" $(PARALLEL) --cov --cov-report=term:skip-covered

lint: $(VENV)/.complete ## ruff, plain English, mypy in strict mode, and the imports between packages
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/python tests/support/plain_english.py
	$(BIN)/python tests/support/staging.py types imports

constraints: $(VENV)/.python ## Renew constraints.txt: the newest of everything but PyTorch, in a throw-away environment
	rm -rf $(VENV)/renewed
	$(BIN)/python -m venv $(VENV)/renewed
	$(VENV)/renewed/bin/python -m pip install --progress-bar off --upgrade pip setuptools wheel
	$(VENV)/renewed/bin/python -m pip install --progress-bar off --no-build-isolation -e '.[all,openvino,dev]' torch==$(TORCH)
	sed -n 1p constraints.txt > $(VENV)/constraints.new
	$(VENV)/renewed/bin/python -m pip freeze --all --exclude-editable \
		| sed -E '/^(nvidia-|triton|cuda-)/d; s/ @ .*//; s/\+[A-Za-z0-9.]+$$//' | LC_ALL=C sort -f >> $(VENV)/constraints.new
	$(VENV)/renewed/bin/python -m pip install --progress-bar off uv
	sed -n 1p constraints.txt > $(VENV)/constraints.hashed
	$(VENV)/renewed/bin/uv pip compile $(VENV)/constraints.new --universal --python-version 3.11 --generate-hashes \
		--no-header --no-annotate --quiet >> $(VENV)/constraints.hashed
	mv $(VENV)/constraints.hashed constraints.txt
	rm -rf $(VENV)/renewed $(VENV)/constraints.new
	@echo "constraints.txt is renewed; 'make test' tries it"

sbom: $(VENV)/.complete ## Write sbom.json: the packages of .venv, their licenses and sources, as CycloneDX
	$(BIN)/python -m cyclonedx_py environment --pyproject pyproject.toml --mc-type library --output-reproducible \
		--of JSON -o sbom.json $(BIN)/python

clean: ## Remove what was built; .venv, .staging (its types) and results stay
	rm -rf .staging/.mypy_cache .coverage .hypothesis .mypy_cache .pytest_cache .ruff_cache .import_linter_cache build dist site *.egg-info
	find . -path ./$(VENV) -prune -o -type d -name __pycache__ -prune -exec rm -rf {} +

# The first Python that runs and is neither too old nor newer than the pinned versions know.
$(VENV)/.python: constraints.txt
	@chosen=""; newer=""; \
	for candidate in "$(PYTHON)" python3.11 python3.12 python3.13; do \
		minor=$$("$$candidate" -c 'import ensurepip, sys, venv; print(sys.version_info[1] if sys.version_info[0] == 3 else 0)' 2>/dev/null) || continue; \
		if [ "$$minor" -ge 11 ] && { [ "$$minor" -le 13 ] || [ "$(origin PYTHON)" != file ]; }; then chosen="$$candidate"; break; fi; \
		if [ "$$minor" -gt 13 ] && [ -z "$$newer" ]; then newer="$$candidate"; fi; \
	done; \
	chosen="$${chosen:-$$newer}"; \
	if [ -z "$$chosen" ]; then \
		echo "deep5 needs Python 3.11 or newer with the venv and ensurepip modules; found: $$("$(PYTHON)" --version 2>&1 | sed -n 1p)." >&2; \
		echo "Remedy: install one (on Debian and Ubuntu: python3.11 and python3.11-venv), or name one: make PYTHON=/path/to/python3.11" >&2; \
		exit 1; \
	fi; \
	echo "$$("$$chosen" --version) ($$chosen) makes $(VENV)"; \
	"$$chosen" -m venv $(VENV)
	@sed -E '/^ +--hash=/d; s/ \\$$//' constraints.txt > $(VERSIONS)
	@$(PIP) install --progress-bar off -c $(VERSIONS) --upgrade pip setuptools wheel $(BRIEFLY)
	@touch $@

$(VENV)/.pytorch: $(VENV)/.python pyproject.toml entry_points.txt setup.py constraints.txt
	@echo "Installing deep5 with PyTorch into $(VENV): a few minutes the first time"
	@$(INSTALL) -e '.[pytorch]' $(BRIEFLY)
	@touch $@

$(VENV)/.complete: $(VENV)/.python pyproject.toml entry_points.txt setup.py constraints.txt
	@echo "Installing deep5 with every framework and the development tools into $(VENV): some minutes the first time"
	@$(if $(HASHES),$(PIP) install --progress-bar off --no-build-isolation --require-hashes --no-deps -r constraints.txt $(BRIEFLY))
	@$(INSTALL) $(if $(HASHES),--no-deps) -e '.[all,openvino,dev]' $(BRIEFLY)
	@touch $(VENV)/.pytorch $@
