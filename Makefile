# Every target sets up .venv by itself; the second time that takes no time.
PYTHON ?= $(shell command -v python3.11 || command -v python3)
BIN := .venv/bin
READY := .venv/.ready
READY_TO_FUZZ := .venv/.ready-to-fuzz
READY_TO_BROWSE := .venv/.ready-to-browse
READY_FOR_EXAMPLES := .venv/.ready-for-examples
FUZZ_SECONDS ?= 60
# Real data sets beside the checkout, where there are any; tests that need them are skipped elsewhere.
export PROXSKIP_DATA ?= $(abspath $(wildcard ../shared/data))
PROTOC = $(BIN)/python -m grpc_tools.protoc --proto_path=. --python_out=$(1) --pyi_out=$(1) common/messages/messages.proto

.PHONY: install demo test test-slow test-browser docker-test check messages reference bench fuzz format clean

install: $(READY)  ## the programs, in .venv/bin

demo: $(READY)  ## three methods on handwritten digits, each a server and four client processes over gRPC
	@rm -rf runs/demo && mkdir -p runs/demo
	@echo "Three methods learn to read digits: a server and four clients, each a process,"
	@echo "and gRPC between them. sparse_proxskip and fediht keep 65 of 650 weights, fedavg"
	@echo "keeps all. Each has its own settings, from the same search: those with which it"
	@echo "uploads the least until it reads 82 % of unseen digits."
	@echo "Open the address that comes first in a browser, and look on."
	@echo
	$(BIN)/proxskip-server local demo --watch --output runs/demo/sparse_proxskip
	@echo
	$(BIN)/proxskip-server local demo --watch --set algorithm.name=fediht \
	    --output runs/demo/fediht
	@echo
	$(BIN)/proxskip-server local demo --watch --set algorithm.name=fedavg \
	    --output runs/demo/fedavg
	@echo
	$(BIN)/proxskip-server report --reach 0.82 --reach 0.88 \
	    runs/demo/sparse_proxskip runs/demo/fediht runs/demo/fedavg \
	    --output runs/demo/comparison.png
	@echo
	@echo "A dense model can get further. With the settings of that search that end best,"
	@echo "fedavg gets to 0.96 with 750 kB per client, sparse_proxskip to 0.91 with 8 kB."
	@echo "All curves in a browser: $(BIN)/proxskip-server watch runs/demo"

test: $(READY)  ## the fast tests
	$(BIN)/python -m pytest -n 3 --dist worksteal  # on two cores: some of them wait for processes

test-slow: $(READY_FOR_EXAMPLES)  ## the tests that take minutes
	$(BIN)/python -m pytest -m slow

test-browser: $(READY_TO_BROWSE)  ## the page of watch in a real browser: needs chromium and chromedriver
	$(BIN)/python -m pytest -m browser tests/browser

docker-test: $(READY)  ## the compose federation, for real: needs a Docker engine, or root, dockerd and debootstrap
	docker/test.sh

check: $(READY)  ## style, types, who imports whom, the messages, the container files
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	@rm -rf build/messages && mkdir -p build/messages
	$(call PROTOC,build/messages)
	@echo "is what is committed the same? (otherwise: make messages)"
	diff build/messages/common/messages/messages_pb2.py common/messages/messages_pb2.py
	diff build/messages/common/messages/messages_pb2.pyi common/messages/messages_pb2.pyi
	$(BIN)/hadolint docker/Dockerfile
	$(BIN)/check-jsonschema --builtin-schema vendor.compose-spec docker/compose*.yaml

messages: $(READY)  ## the code of messages.proto
	$(call PROTOC,.)

reference: $(READY)  ## docs/reference/cli.md, from the programs
	$(BIN)/python -m tests.harness.cli_reference > docs/reference/cli.md

bench: $(READY)  ## ratios that do not depend on the machine
	$(BIN)/python -m bench

fuzz: $(READY_TO_FUZZ)  ## bytes that nobody would send, at each reader for FUZZ_SECONDS
	$(BIN)/python -m fuzz $(FUZZ_SECONDS)

format: $(READY)
	$(BIN)/ruff check --fix .
	$(BIN)/ruff format .

clean:
	rm -rf .venv build *.egg-info .mypy_cache .ruff_cache .pytest_cache .hypothesis .import_linter_cache

$(READY): pyproject.toml
	@echo "setting up .venv (once; a few minutes)"
	$(PYTHON) -c 'import sys; sys.exit(0 if sys.version_info >= (3, 11) else "Python 3.11 or newer is needed")'
	$(PYTHON) -m venv .venv
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[dev]'
	@touch $@

$(READY_TO_BROWSE): $(READY)
	@command -v chromedriver >/dev/null || { echo "needs chromium and chromedriver (Debian: apt install chromium chromium-driver)"; exit 1; }
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[browser]'
	@touch $@

$(READY_FOR_EXAMPLES): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[examples]'
	@touch $@

$(READY_TO_FUZZ): $(READY)
	$(BIN)/python -m pip install --quiet --disable-pip-version-check --editable '.[fuzz]'
	@touch $@
