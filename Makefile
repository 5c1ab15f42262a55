# Targets for people. Everything is installed into .venv, beside this file, and nowhere else.

ARGS =
VENV = .venv
PY = $(VENV)/bin/python

# The newest Python that is new enough and really runs: a version manager's shim may only say that
# it does not.
NEW_ENOUGH = import sys; sys.exit(sys.version_info < (3, 11))
PYTHON = $(shell for name in python3.14 python3.13 python3.12 python3.11 python3; do \
	if $$name -c '$(NEW_ENOUGH)' >/dev/null 2>&1; then echo $$name; break; fi; done)

# Debian packs ensurepip apart: there the system's pip installs from outside.
PIP = $(shell if command -v uv >/dev/null; then echo uv pip install --quiet --python $(PY); \
	elif $(PY) -m pip --version >/dev/null 2>&1; then echo $(PY) -m pip install --quiet; \
	else echo $(PYTHON) -m pip --python $(PY) install --quiet; fi)

.PHONY: help run demo test lint format fuzz bench clean

help:
	@echo 'make run      install into .venv and serve the usage in ~/.gemini (ARGS="once" and the like)'
	@echo 'make demo     serve an invented home instead; no Gemini CLI is needed'
	@echo 'make test     install the tools and run the tests (ARGS="-k settings" and the like)'
	@echo 'make lint     check the style, the format and the types'
	@echo 'make format   write the format that `make lint` checks'
	@echo 'make fuzz     fuzz the parsers for a minute (ARGS="-max_total_time=600" and the like)'
	@echo 'make bench    run the benchmarks'
	@echo 'make clean    remove .venv and what the tools left behind'

run: $(VENV)/installed-run
	@$(PY) -m exporter $(ARGS)

demo: $(VENV)/installed-run
	@$(PY) -m exporter demo $(ARGS)

# Much of the tests is waiting for processes. Those of one file share what they start.
test: $(VENV)/installed-dev
	$(PY) -m pytest --numprocesses 2 --dist loadfile $(ARGS)

lint: $(VENV)/installed-dev
	$(PY) -m ruff check .
	$(PY) -m ruff format --check .
	$(PY) -m mypy

format: $(VENV)/installed-dev
	$(PY) -m ruff check --fix .
	$(PY) -m ruff format .

fuzz: $(VENV)/installed-fuzz
	$(PY) tests/fuzz_records.py -max_total_time=60 -print_final_stats=1 $(ARGS)

bench: $(VENV)/installed-dev
	$(PY) -m bench.run $(ARGS)

clean:
	rm -rf $(VENV) build dist .coverage htmlcov .hypothesis .mypy_cache .pytest_cache .ruff_cache
	find . -name __pycache__ -prune -exec rm -rf {} +

# A stamp is written last, so that what was interrupted is done again. The environment is not built
# under another name and renamed: its scripts hold the path that it was built at.
$(VENV)/installed-run: pyproject.toml | $(VENV)/created
	@echo 'Installing gemini-cli-exporter into $(VENV)' >&2
	@$(PIP) --editable .
	@touch $@

$(VENV)/installed-dev: pyproject.toml | $(VENV)/created
	@echo 'Installing gemini-cli-exporter and its tools into $(VENV)'
	@$(PIP) --editable '.[dev]'
	@touch $@ $(VENV)/installed-run

$(VENV)/installed-fuzz: $(VENV)/installed-dev
	@echo 'Installing the fuzzer into $(VENV)'
	@$(PIP) --editable '.[fuzz]'
	@touch $@

# An environment that is there and runs is taken as it is.
$(VENV)/created:
	@$(PY) -c '$(NEW_ENOUGH)' 2>/dev/null || { \
		python='$(PYTHON)'; \
		if [ -z "$$python" ]; then \
			echo 'make: install Python 3.11 or newer first' \
				'(Debian: apt-get install python3 python3-venv; macOS: brew install python)' >&2; \
			exit 1; \
		fi; \
		rm -rf $(VENV); \
		if command -v uv >/dev/null; then uv venv --quiet --python "$$python" $(VENV); \
		else "$$python" -m venv $(VENV) >/dev/null 2>&1 \
			|| { rm -rf $(VENV); "$$python" -m venv --without-pip $(VENV); }; fi; }
	@touch $@
