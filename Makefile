# Every target installs what it needs; only make and python3 with venv and pip must be present.
# To use another interpreter: make test PYTHON=python3.12

PYTHON ?= python3
TRAINING := .venv-training
CPU := .venv-cpu
NODE := examples/anywhere/javascript tests/kits/node
TOOLS := .venv-tools
PYTHONS := .pythons
JAVA := examples/anywhere/java/lib
HEADERS := examples/anywhere/c/include

# Two processes of one thread each use two cores; more threads would only compete.
PYTEST := -m pytest -n 2 --dist worksteal
# Most tests run on one of the two runtimes; with HALF= all run on both.
HALF := --half
PROOF := -m 'slow or proof' -p tools.proof_report --proof=bench/results
# The tests of gradients and engines once more, with rewrites that apply at any size.
UNLIMITED := --limits=zero tests/autodiff tests/contracts tests/execution tests/rewrites tests/training
ONE_THREAD := OMP_NUM_THREADS=1
GALLERY := 1

# pip leaves compiling to the first import, and dozens of processes import torch: where images of containers forbid
# Python to keep what it compiled, each compiles anew, which takes about one minute of the tests.
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help demo test test-training test-cpu environments node java headers lint bench proof proof-training proof-cpu \
	coverage fuzz docs matrix package tables clean distclean

help:
	@echo "make demo    train four models on real data, beside scikit-learn"
	@echo "make test    all tests, on onnxruntime-training and on the newest onnxruntime"
	@echo "make lint    ruff, mypy, the complexity of functions by radon, and zizmor for the workflows"
	@echo "make docs    the documentation, in docs/_build/html; without figures of the examples: make docs GALLERY=0"
	@echo "make package  wheel and archive of sources, checked and tried where nothing else is installed"
	@echo "make matrix  the fast part of the tests on every Python, with the oldest and the newest packages"
	@echo "make bench   speed and memory, beside other libraries and on every version of onnxruntime"
	@echo "make fuzz    changed files of every kind, for an hour"
	@echo "make coverage  the share of lines that the tests run, in docs/coverage.md; lines: coverage_html/index.html"
	@echo "make proof   the long proofs that make test only samples"
	@echo "make tables  write the tables of operators and of doors into docs and the README of the rules"
	@echo "make clean   remove caches and outputs; make distclean removes the environments, too"

demo: $(TRAINING)/.installed-demo
	$(TRAINING)/bin/python examples/demo.py

test: test-training test-cpu

test-training: $(TRAINING)/.installed-dev node
	$(ONE_THREAD) $(TRAINING)/bin/python $(PYTEST) $(HALF)

test-cpu: $(CPU)/.installed-test node java headers
	$(ONE_THREAD) $(CPU)/bin/python $(PYTEST) $(HALF)

# With --jobs=2, two environments are installed at once: pip uses one core.
environments: $(TRAINING)/.installed-dev $(CPU)/.installed-test $(TOOLS)/.installed node java headers

# Some tests train in JavaScript; without npm they are skipped.
node: $(if $(shell command -v npm),$(NODE:%=%/node_modules/.installed))

# Some train in Java; without a JDK they are skipped.
java: $(if $(shell command -v javac),$(JAVA)/.installed)

# And some in C and C++; without what they are compiled with they are skipped.
headers: $(if $(shell command -v apt-get),$(HEADERS)/.installed)

lint: $(TRAINING)/.installed-dev
	$(TRAINING)/bin/ruff check .
	$(TRAINING)/bin/mypy
	$(TRAINING)/bin/python -m tools.complexity
	$(TRAINING)/bin/zizmor --offline --pedantic --quiet .github

# The data of both runtimes, and of all processes, count together. A test that fails counts, too: make test says so.
coverage: $(TRAINING)/.installed-dev $(CPU)/.installed-test node java headers
	rm -f .coverage .coverage.*
	-$(ONE_THREAD) $(TRAINING)/bin/python -m coverage run $(PYTEST) $(HALF)
	-$(ONE_THREAD) $(CPU)/bin/python -m coverage run $(PYTEST) $(HALF)
	$(TRAINING)/bin/python -m coverage combine --quiet
	$(TRAINING)/bin/python -m coverage html --quiet
	$(TRAINING)/bin/python -m coverage json --quiet
	$(TRAINING)/bin/python -m tools.coverage_table coverage.json docs/coverage.md

# Sphinx imports the package and, unless GALLERY=0, runs the examples. Warnings are errors, and every link has a target.
docs: $(CPU)/.installed-test
	$(ONE_THREAD) PYTHONPATH=$(CURDIR) $(CPU)/bin/python -m sphinx --fresh-env --jobs=2 --quiet \
		--fail-on-warning --keep-going --nitpicky -D plot_gallery=$(GALLERY) docs docs/_build/html

package: $(TOOLS)/.installed
	$(TOOLS)/bin/nox --session package

# A session whose interpreter is missing, or for which there is no package, is skipped, and the end says so: all of them
# are listed there. Some alone: make matrix SESSIONS='fast-3.12'
SESSIONS ?= fast coming torch
# Interpreters are looked for in PATH and where pyenv installs them.
matrix: export PATH := $(CURDIR)/$(PYTHONS)/3.14/usr/bin:$(subst $() ,:,$(wildcard $(HOME)/.pyenv/versions/*/bin)):$(PATH)
matrix: $(TOOLS)/.installed $(if $(shell command -v apt-get),$(PYTHONS)/3.14/.installed)
	$(TOOLS)/bin/nox --no-error-on-missing-interpreters --sessions $(SESSIONS)

# The last step writes docs/benchmarks.md from the results of all.
# Changed files for an hour, or MINUTES; what ends in no clear error is printed with its seed.
fuzz: $(CPU)/.installed-test
	$(ONE_THREAD) PYTHONPATH=.:tests/support $(CPU)/bin/python tests/support/file_mutants.py $(or $(MINUTES),60)

bench: $(TRAINING)/.installed-bench
	$(TRAINING)/bin/python bench/bench.py
	taskset -c 0 $(TRAINING)/bin/python bench/engines.py
	taskset -c 0 $(TRAINING)/bin/python bench/layer.py
	taskset -c 0 $(TRAINING)/bin/python bench/derivatives.py
	$(TRAINING)/bin/python bench/memory.py
	$(TRAINING)/bin/python bench/parallel.py
	$(TRAINING)/bin/python bench/runtimes.py
	$(TRAINING)/bin/python bench/page.py

proof: proof-training proof-cpu

proof-training: $(TRAINING)/.installed-dev
	$(ONE_THREAD) $(TRAINING)/bin/python $(PYTEST) $(PROOF) --limits=usual
	$(ONE_THREAD) $(TRAINING)/bin/python $(PYTEST) $(UNLIMITED)

proof-cpu: $(CPU)/.installed-test
	$(ONE_THREAD) $(CPU)/bin/python $(PYTEST) $(PROOF) --limits=usual
	$(ONE_THREAD) $(CPU)/bin/python $(PYTEST) $(UNLIMITED)

tables: $(TRAINING)/.installed-dev
	$(TRAINING)/bin/python tools/operator_table.py
	$(TRAINING)/bin/python tools/door_table.py

# One call of pip installs an environment, again only when pyproject.toml has changed.

$(TRAINING)/.installed-dev: pyproject.toml
	$(call install,$(TRAINING),training$(,)sklearn$(,)plot$(,)test$(,)lint,12)
	@touch $@ $(TRAINING)/.installed-demo

# Skipped where the test environment, which includes the packages of the demonstration, is installed.
$(TRAINING)/.installed-demo: pyproject.toml
	$(call install,$(TRAINING),training$(,)sklearn$(,)plot,12)
	@touch $@

$(TRAINING)/.installed-bench: pyproject.toml
	$(call install,$(TRAINING),training$(,)bench,12)
	@touch $@

$(CPU)/.installed-test: pyproject.toml
	$(call install,$(CPU),cpu$(,)oldest$(,)sklearn$(,)plot$(,)test$(,)genai$(,)docs,99)
	@touch $@

$(TOOLS)/.installed: tools/requirements.txt
	@test -x $(TOOLS)/bin/pip || $(PYTHON) -m venv --clear --upgrade-deps $(TOOLS) > /dev/null
	$(TOOLS)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --requirement $<
	@touch $@

# The newest Python, where the machine has none: Debian's, in a folder.
$(PYTHONS)/%/.installed: tools/fetch_python.sh | $(TOOLS)/.installed
	-$(if $(shell command -v python$*),,PATH=$(CURDIR)/$(TOOLS)/bin:$$PATH $< $* $(@D) && touch $@)

# Takes seconds; scripts of packages are not run.
%/node_modules/.installed: %/package.json %/package-lock.json
	cd $* && npm ci --ignore-scripts --no-audit --no-fund --loglevel=error
	@touch $@

# What cannot be had from a registry may be installed in another way, or not at all: its tests are then skipped.
$(JAVA)/.installed: tools/install_java_runtime.py
	-$(PYTHON) -m tools.install_java_runtime $(@D) && touch $@

$(HEADERS)/.installed: tools/fetch_onnxruntime_headers.sh
	-$< $(@D) && touch $@

# $(call install,folder,extras,newest minor version of Python): a virtual environment, and ortpartial[extras] in it.
# venv installs pip last: a folder without pip was left by an interrupted call and is created anew. Python compiles a
# module when it is first imported; pip would compile all of them, which takes half of its time. pip 23.2, which comes
# with Python 3.11, takes twice the time of pip 26.3: it compares the tags of every file in the index.
define install
	@test -x $(1)/bin/pip || { $(PYTHON) -c '$(CHECK_PYTHON)' $(3) && $(PYTHON) -m venv --clear --upgrade-deps $(1) > /dev/null; }
	$(1)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[$(2)]'
	@$(1)/bin/python -c '$(CHECK_RUNTIME)'
endef

, := ,

CHECK_PYTHON := import sys; here, newest = sys.version_info[:2], (3, int(sys.argv[1])); \
	here >= (3, 10) or sys.exit("ortpartial needs Python 3.10 or later, and $(PYTHON) is %d.%d" % here); \
	here <= newest or sys.exit("onnxruntime-training-cpu 1.19.2 exists up to Python 3.12, and $(PYTHON) is %d.%d: call \
	make with PYTHON=python3.12, or make test-cpu, which does without it" % here)

# All builds of the runtime install the package `onnxruntime`: with two, neither works, and pip does not warn.
CHECK_RUNTIME := import sys; from importlib.metadata import packages_distributions as provided; \
	builds = sorted(set(provided().get("onnxruntime", []))); \
	len(builds) == 1 or sys.exit(f"{sys.prefix} must hold one build of onnxruntime and holds {builds}: make distclean")

clean:
	rm -rf demo_output build dist .coverage* coverage.json coverage_html docs/_build docs/examples docs/reference/generated .pytest_cache .mypy_cache .ruff_cache *.egg-info
	find . -path './.venv-*' -prune -o -name __pycache__ -type d -exec rm -rf {} +

distclean: clean
	rm -rf $(TRAINING) $(CPU) $(TOOLS) $(PYTHONS) .nox $(NODE:%=%/node_modules) $(JAVA) $(HEADERS) bench/.runtimes
