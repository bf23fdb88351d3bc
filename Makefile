# make demo   the whole job against a throw-away host on this machine      make test   all tests
# make lint   format, lint, types      make image, make layer   what real test hosts are made of (cached)
# Nothing is installed outside .venv and the cache (~/.cache/ddtree-ops, /var/cache/testhost), but Debian packages (root).
SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
MAKEFLAGS += --no-print-directory

PYTHON ?= python3
VENV ?= .venv
CACHE := $(or $(DDTREE_CACHE),$(or $(XDG_CACHE_HOME),$(HOME)/.cache)/ddtree-ops)
LAYER := $(or $(DDTREE_TEST_LAYER),$(CACHE)/layers/cpu)
TESTHOST := tests/hosts/testhost.sh
HOST_PYTHON := /usr/bin/python3 -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))'
ARGS ?=

.PHONY: help test demo lint image layer browser packages clean

help:
	@sed -n '1,3s/^# //p' Makefile

# Real hosts, wheels and the CPU server are made on first use and cached; without root on Linux those tests skip and say why.
test: $(VENV)/.ready packages image layer browser
	@$(VENV)/bin/python -m pytest $(ARGS)

demo: $(VENV)/.ready packages
	@$(VENV)/bin/python -m demo $(ARGS)

lint: $(VENV)/.ready
	@$(VENV)/bin/ruff format --check . && $(VENV)/bin/ruff check . && $(VENV)/bin/mypy

# The root file system of the test hosts (systemd, sshd, python3): about 90 s, once.
image: packages
	@if bash $(TESTHOST) check >/dev/null; then bash $(TESTHOST) image >/dev/null; fi

# A layer with SGLang 0.5.20 serving on the CPU and the trained pair: about a minute and up to 0.9 GB of downloads, once.
layer: packages
	@if [ -z "$(DDTREE_TEST_LAYER)" ] && bash $(TESTHOST) check >/dev/null 2>&1 && $(HOST_PYTHON); then \
	  mkdir -p $(CACHE)/layers && bash tests/sglang_cpu/make_env.sh $(LAYER) >/dev/null || { rc=$$?; \
	  [ $$rc != 3 ] || echo "that is: TORCH_INDEX_URL=https://download.pytorch.org/whl/cpu make test" >&2; exit $$rc; }; fi

# A headless Chromium that opens report.html: Debian's package, about 10 s, once.
browser:
	@bash tests/reports/install_chromium.sh

packages:
	@bash tests/hosts/install_packages.sh

$(VENV)/.ready: pyproject.toml | packages
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=...")'
	@echo "setting up $(VENV)" >&2
	@$(PYTHON) -m venv $(VENV)
	@$(VENV)/bin/python -m pip install -qq --disable-pip-version-check -e '.[dev]'
	@touch $@

clean:
	@bash $(TESTHOST) down 2>/dev/null || true
	@rm -rf $(VENV) .demo .mypy_cache .ruff_cache .pytest_cache dist build
