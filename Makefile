# On a fresh machine with Python 3.11+ and make: `make demo`, `make test`. Everything goes into .venv/.
PYTHON ?= python3
BIN := .venv/bin
PIP := $(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt

.PHONY: demo test browser docs clean

demo: .venv/demo-ready
	$(BIN)/rarefish demo

# Without compiled modules, each of the processes that the tests start would compile what it imports.
test: export PYTHONDONTWRITEBYTECODE =
test: .venv/test-ready browser
	$(BIN)/python -m pytest -n auto --dist loadgroup

# A Chromium for the tests of pages: the system's, else one from the system's packages or from Playwright, else none:
# then those tests say why they skip.
browser: .venv/test-ready
	@command -v chromium chromium-browser google-chrome >/dev/null 2>&1 \
	|| { [ "$$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1 \
	     && apt-get update -qq >/dev/null && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq chromium >/dev/null; } \
	|| $(BIN)/playwright install chromium >/dev/null 2>&1 \
	|| echo "No Chromium to be had: the tests of pages will be skipped."

# Regenerates docs/reference/ from the code and the tables of README and docs/results/ from records.
docs: .venv/demo-ready
	$(BIN)/python tools/make_pages.py
	$(BIN)/python tools/make_results.py

.venv/demo-ready: pyproject.toml constraints.txt
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "rarefish needs Python 3.11 or later: make PYTHON=python3.12 …"; exit 1; }
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@echo "Installing into .venv (torch is large: the first time takes a minute or more) …"
	@$(PIP) --editable '.[report]'
	@touch $@

.venv/test-ready: .venv/demo-ready
	@echo "Installing the test tools into .venv …"
	@$(PIP) --editable '.[test]'
	@touch $@

clean:
	rm -rf .venv rarefish-demo .pytest_cache .ruff_cache .hypothesis
