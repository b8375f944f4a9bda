# oplab: two commands, nothing before them.
#
#   make lab              JupyterLab opens on notebooks/
#   make lab HEADLESS=1   runs all notebooks instead, and says where their results lie
#   make test             every check: ruff, pytest, then the notebooks' stored outputs (nbval)
#
# Both make the environment .venv first, when it is missing or stale.
#   PYTHON=/path/to/python3.12   the interpreter to make it with (3.11 to 3.13; the newest is taken by default)
#   VENV=folder                  the environment's place
#   JOBS=1                       for test: so many processes instead of two (a notebook always stays in one)
#   ARGS='-k walk'               for test-unit: more words for pytest

VENV ?= .venv
PYTHON ?=
HEADLESS ?=
JOBS ?= 2
ARGS ?=
RESULTS ?= build/notebooks

py := $(VENV)/bin/python
parallel := $(if $(filter-out 1,$(JOBS)),-n $(JOBS) --dist loadfile)

# The kernel is this environment's own, whatever kernels and settings the user's home holds.
export JUPYTER_PREFER_ENV_PATH := 1
unexport PYTHONHOME

.DEFAULT_GOAL := help
.PHONY: help venv lab test test-lint test-unit test-notebooks test-programs test-targets outputs site clean

help:
	@echo 'make lab              open JupyterLab on the notebooks'
	@echo 'make lab HEADLESS=1   run all notebooks without a browser; results in $(RESULTS)/'
	@echo 'make test             all checks: ruff, pytest, notebooks (also alone: test-lint, test-unit, test-notebooks)'
	@echo 'make test-programs    walk programs of other libraries, in an environment of their own'
	@echo 'make test-targets     compile the kernels for TPU and NVIDIA hardware, in an environment of their own (Linux)'
	@echo 'make outputs          run the notebooks and store their outputs in them, as the tests compare them'
	@echo 'make site             the notebooks as pages that need no Python, in build/site/'
	@echo 'make clean            remove the environment and everything that was built'
	@echo
	@echo 'PYTHON=/path/to/python3.12 chooses the interpreter (3.11 to 3.13), VENV=folder the environment.'

venv:
	@tools/venv.sh '$(VENV)' '$(PYTHON)'

lab: venv
ifneq ($(filter-out 0,$(HEADLESS)),)
	@$(py) -m oplab.tools.notebooks run notebooks --to $(RESULTS)
else
	@$(py) -m oplab lab notebooks
endif

# One recipe, so that the checks keep their order under `make -j` too.
test: venv
	@$(MAKE) --no-print-directory test-lint
	@$(MAKE) --no-print-directory test-unit
	@$(MAKE) --no-print-directory test-notebooks

test-lint: venv
	@echo '== ruff'
	@$(py) -m ruff check .

test-unit: venv
	@echo '== pytest'
	@$(py) -m pytest $(if $(parallel),-n $(JOBS) --dist worksteal) $(ARGS)

test-notebooks: venv
	@echo '== nbval: every notebook cell, against its stored output'
	@OPLAB_STABLE=1 $(py) -m pytest -p oplab.tools.nbval_guard --nbval \
	    --nbval-sanitize-with tests/nbval_sanitize.cfg $(parallel) notebooks

# Programs of other libraries, walked: in an environment of their own, which holds those libraries too.
test-programs:
	@tools/venv.sh .venv-programs '$(PYTHON)'
	@.venv-programs/bin/python -m pip install --quiet --disable-pip-version-check \
	    -c requirements.lock -r tests/programs/requirements.txt
	@.venv-programs/bin/python -m pytest tests/test_programs.py $(ARGS)

# Kernels compiled for a TPU and an H100 that are not here: an environment of its own holds their compilers.
test-targets:
	@tools/venv.sh .venv-targets '$(PYTHON)'
	@.venv-targets/bin/python -m pip install --quiet --disable-pip-version-check \
	    -c requirements.lock -r tests/targets/requirements.txt
	@OPLAB_TARGETS=1 .venv-targets/bin/python -m pytest tests/test_targets.py $(ARGS)

outputs: venv
	@$(py) -m oplab.tools.notebooks store notebooks

site: venv
	@$(py) -m oplab.tools.site --to build/site

clean:
	rm -rf '$(VENV)' .venv-programs .venv-targets build dist *.egg-info .pytest_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
	find . -name .ipynb_checkpoints -type d -prune -exec rm -rf {} +
