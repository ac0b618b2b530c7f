# `make run` and `make test` need Python 3.11 to 3.13, pip and a C compiler; everything else they set up themselves, in .venv.
# The first Python that runs and is of a supported version (a name may exist and not run, as version managers' shims do).
SUPPORTED := import sys; sys.exit(not (3, 11) <= sys.version_info < (3, 14))
PYTHON ?= $(shell for name in python3 python3.13 python3.12 python3.11; do $$name -c '$(SUPPORTED)' 2>/dev/null && echo $$name && break; done)
VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
TRITON := triton==3.9.0
# Bytecode comes last and from every core, where pip would use one.  Code that neither fusebench nor its tests import gets none.
# Some packages hold templates that do not compile, which is no error.
UNUSED := tests?|testing/_internal|(modular_)?pipelines|pip|setuptools|mypyc?|moto/stepfunctions|sympy/physics|pygments/lexers|fontTools
INSTALL := $(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile
# The five published cases where there is an NVIDIA GPU; a suite of seconds where there is none.
SUITE ?= $(if $(shell nvidia-smi -L 2>/dev/null),qknorm_rope,smoke)
# Extra options for pytest, for example PYTEST='-m gpu' or PYTEST='tests/store -x'.
# Tests of a module share what it prepares: each process gets a stretch of all tests, and takes from another's when it is done early.
# One process more than there are cores: many tests wait for processes that they start.
PYTEST ?= -n $(shell echo $$(($$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN) + 1))) --dist worksteal

# Tests start hundreds of processes: without stored bytecode each would compile fusebench, and pytest rewrite its plugins, anew.
unexport PYTHONDONTWRITEBYTECODE

.PHONY: run test test-all lint types contract docs browser clean

run: $(READY)
	$(BIN)/fusebench run --suite $(SUITE)

# All but the exhaustive matrices, of which it runs a few combinations; PYTEST with a -m of its own chooses otherwise.
test: $(READY) browser
	$(BIN)/pytest -m 'not exhaustive' $(PYTEST)

# The tests of HTML reports drive a headless Chromium; where it is absent and cannot be installed they are skipped with that reason.
browser:
	@command -v chromium chromium-browser google-chrome >/dev/null || { test "$$(id -u)" = 0 && command -v apt-get >/dev/null && \
		apt-get update -qq && apt-get install -y -qq --no-install-recommends chromium >/dev/null; } || \
		echo "no Chromium, and it cannot be installed here: tests of HTML reports in a browser are skipped"

test-all: $(READY) browser
	$(BIN)/pytest $(PYTEST)

lint: $(READY)
	$(BIN)/ruff check
	$(BIN)/ruff format --check

types: $(READY)
	$(BIN)/mypy

contract: $(READY)
	$(BIN)/lint-imports

# The guides as a site in site/; a broken link or a page without a place in the navigation ends it.
docs: $(VENV)/.docs
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build

# Needs no torch, so it is made apart from READY.
$(VENV)/.docs: pyproject.toml constraints.txt
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check -c constraints.txt "$$(grep '^mkdocs-material==' constraints.txt)"
	touch $@

# torch first, alone and pinned: any other package that asks for torch would otherwise choose its version.
$(READY): pyproject.toml constraints.txt
	@test -n "$(PYTHON)" && $(PYTHON) -c '$(SUPPORTED)' || { echo "fusebench needs Python 3.11 to 3.13, and found none; pass PYTHON=/path/to/python3.13" >&2; exit 2; }
	test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	$(INSTALL) "$$(grep '^torch==' constraints.txt)"
	$(BIN)/python -c 'import triton' 2>/dev/null || $(INSTALL) "$(TRITON)"
	$(INSTALL) -c constraints.txt -e '.[gpu,dev]'
	$(BIN)/python -m compileall -q -j 0 -x '/($(UNUSED))/' $(VENV)/lib >/dev/null || true
	touch $@

clean:
	rm -rf $(VENV) build dist site harness/*.egg-info
