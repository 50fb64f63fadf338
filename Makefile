# Everything starts here. Each target sets up what it needs in .venv; nothing but Python 3.11 and pip is required.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
PORT ?= 8080
ADMIN_PORT ?= 8081
export PIP_DISABLE_PIP_VERSION_CHECK := 1

.PHONY: run test test-real lint bench lock clean

run: .venv/run.stamp
	@PORT=$(PORT) ADMIN_PORT=$(ADMIN_PORT) $(BIN)/weighbridge demo

test: .venv/dev.stamp
	@$(BIN)/python -m pytest

# The gateway in front of real engines. They are built once into .cache/real (WEIGHBRIDGE_CACHE names another folder);
# that needs a C++ compiler, 3 GB of disk and some minutes.
test-real: .venv/dev.stamp
	@$(BIN)/python -m tests.real.backends
	@$(BIN)/python -m pytest -m real tests/real

lint: .venv/dev.stamp
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy
	@$(BIN)/lint-imports

bench: .venv/dev.stamp
	@$(BIN)/python -m bench

.venv/run.stamp: requirements.lock pyproject.toml
	@test -x $(BIN)/python || $(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements.lock
	@$(BIN)/python -m pip install --quiet --no-deps --no-build-isolation --editable .
	@touch $@

.venv/dev.stamp: requirements-dev.lock .venv/run.stamp
	@$(BIN)/python -m pip install --quiet --require-hashes -r requirements-dev.lock
	@touch $@

# The locks hold names, versions and hashes for every supported Python and platform.
LOCK = $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-annotate --no-header \
	--no-emit-index-url --no-emit-find-links pyproject.toml
lock: .venv/dev.stamp
	@$(BIN)/python -m pip install --quiet uv
	@$(LOCK) --extra build --output-file requirements.lock
	@$(LOCK) --extra build --extra dev --output-file requirements-dev.lock

clean:
	rm -rf .venv .weighbridge build *.egg-info
