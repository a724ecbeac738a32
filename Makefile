# make serve | test | lint | check | bench. Everything lives in .venv and build/.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
BIN := $(VENV)/bin
WHEELS := -e . -e ./sdk -e ./plugins_reference -e ./plugins_nvidia -e ./plugins_amd
SOURCES := core sdk plugins_reference plugins_nvidia plugins_amd
MODEL ?=
ARGS ?=
# Processes that share the tests, a file each at a time; each computes with one thread.
WORKERS ?= 2

.PHONY: serve install test ctest pytest lint stub check slow sanitize bench bench-peers bench-control \
	bench-control-peers clients clients-small ray judges gpu-check model clean

serve: install model
	$(BIN)/tokenspeed serve $(MODEL) $(ARGS)

install: $(VENV)/.installed

$(VENV)/.packages: requirements.txt requirements-grammar.txt
	@echo "== downloading into $(VENV): $(TORCH) unless a torch is there, and the packages of requirements.txt and requirements-grammar.txt (about 380 MB)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=..."; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV) || { echo "no venv module: apt-get install python3-venv"; exit 2; }
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install -q "$(TORCH)"
	@echo "== installing the packages of requirements.txt (about a minute)"
	$(BIN)/python -m pip install -q -r requirements.txt
	$(BIN)/python -m pip install -q --no-deps -r requirements-grammar.txt
	@touch $@

$(VENV)/.dev: $(VENV)/.packages requirements-dev.txt
	@echo "== installing the packages of requirements-dev.txt for tests and lint (about 150 MB)"
	$(BIN)/python -m pip install -q -r requirements-dev.txt
	@touch $@

# Our five wheels come from these paths only, never from an index.
$(VENV)/.installed: $(VENV)/.packages pyproject.toml csrc/CMakeLists.txt $(wildcard csrc/*/*.cc csrc/*/*.h */pyproject.toml)
	@command -v c++ >/dev/null || { echo "a C++20 compiler is needed: apt-get install g++"; exit 2; }
	@echo "== building the C++ core and installing the five wheels (about a minute)"
	$(BIN)/python -m pip install -q --no-index --no-deps --no-build-isolation $(WHEELS)
	@$(BIN)/python -m pip check >$@.check || ! grep -v '^xgrammar .* requires triton' $@.check
	@touch $@

# The default model, unless another is named.
model: install
	@test -n "$(MODEL)" || $(BIN)/python -m tokenspeed.checkpoint.default_model

test: install model ctest pytest

CMAKE_TESTS = $(BIN)/cmake -S csrc -G Ninja -DTOKENSPEED_TESTS=ON -DTOKENSPEED_PYTHON=OFF \
	-DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja

ctest: install
	@echo '#include <gtest/gtest.h>' | c++ -std=c++20 -E -x c++ - >/dev/null 2>&1 || { echo "GoogleTest is needed: apt-get install libgtest-dev libgmock-dev"; exit 2; }
	$(CMAKE_TESTS) -B build/cpp -DCMAKE_BUILD_TYPE=RelWithDebInfo
	$(BIN)/cmake --build build/cpp
	$(BIN)/ctest --test-dir build/cpp --output-on-failure -j 2

pytest: install $(VENV)/.dev clients-small
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -n $(WORKERS) --dist loadfile $(ARGS)

lint: install $(VENV)/.dev
	$(BIN)/ruff check $(SOURCES) tests benchmarks docs
	$(BIN)/ruff format --check $(SOURCES) tests benchmarks docs
	$(BIN)/mypy
	$(BIN)/python docs/generate_stub.py --check
	clang-format-19 --dry-run --Werror $$(git ls-files 'csrc/*.h' 'csrc/*.cc' 'tests/csrc/*.cc' 'tests/csrc/*.h')

# The extension's stub, written from its signatures and docstrings.
stub: install $(VENV)/.dev
	$(BIN)/python docs/generate_stub.py

slow: install $(VENV)/.dev clients-small model ctest ray
	$(BIN)/ctest --test-dir build/cpp -C slow -L slow --output-on-failure -j 2
	OMP_NUM_THREADS=1 $(BIN)/python -m pytest -m slow --timeout 1800 -n $(WORKERS) --dist loadfile $(ARGS)

# Ray, for its launcher and that one's tests.
ray: install
	$(BIN)/pip install -q -r requirements-ray.txt

# Agents' clients for tests/clients, of pinned versions in .cache/clients: the small ones, which the
# default suite runs, and all of them (2 GB).
CLIENTS := .cache/clients
clients: clients-small $(CLIENTS)/.npm $(CLIENTS)/.aider

clients-small: $(CLIENTS)/.small

$(CLIENTS)/.small: tests/clients/requirements-small.txt
	@echo "== installing agents' clients for the tests into $(CLIENTS) (about half a minute, 320 MB)"
	@tests/clients/install.sh $(PYTHON) $(CLIENTS)/small $< --no-deps --no-compile

$(CLIENTS)/.aider: tests/clients/requirements-aider.txt
	tests/clients/install.sh $(PYTHON) $(CLIENTS)/aider $<

$(CLIENTS)/.npm: tests/clients/package.json
	@command -v npm >/dev/null || { echo "npm is needed: apt-get install npm (Node 20 or newer)"; exit 2; }
	@mkdir -p $(CLIENTS)
	cp $< $(CLIENTS)/package.json
	npm install --prefix $(CLIENTS) --no-audit --no-fund
	@touch $@

# Strangers that judge the server: Schemathesis, AIPerf, and the public cases of JSON Schema.
JSON_SCHEMA_CASES := $(CLIENTS)/json-schema-cases/tests
judges: $(CLIENTS)/.schemathesis $(CLIENTS)/.aiperf $(JSON_SCHEMA_CASES)

$(CLIENTS)/.schemathesis $(CLIENTS)/.aiperf: $(CLIENTS)/.%: tests/clients/requirements-%.txt
	tests/clients/install.sh $(PYTHON) $(CLIENTS)/$* $<

# The cases come with the sources of a library (MIT).
$(JSON_SCHEMA_CASES): $(VENV)/.packages
	@mkdir -p $(CLIENTS)/json-schema-cases
	$(BIN)/python -m pip download -q --no-deps --no-binary jsonschema -d $(CLIENTS) jsonschema==4.26.0
	tar xzf $(CLIENTS)/jsonschema-4.26.0.tar.gz -C $(CLIENTS)/json-schema-cases --strip-components=2 \
		jsonschema-4.26.0/json/tests
	@touch $@

# The control plane's tests under AddressSanitizer, UndefinedBehaviorSanitizer and ThreadSanitizer.
sanitize: install
	$(CMAKE_TESTS) -B build/cpp-asan -DTOKENSPEED_SANITIZE=address,undefined
	$(BIN)/cmake --build build/cpp-asan
	$(BIN)/ctest --test-dir build/cpp-asan --output-on-failure
	$(CMAKE_TESTS) -B build/cpp-tsan -DTOKENSPEED_SANITIZE=thread
	$(BIN)/cmake --build build/cpp-tsan
	$(BIN)/ctest --test-dir build/cpp-tsan --output-on-failure

check: lint test slow sanitize

clean:
	rm -rf build

# On a machine with a GPU, where PYTHON has torch for it and our wheels (docs/plugins/nvidia.md).
gpu-check:
	$(PYTHON) -m benchmarks.gpu_check $(ARGS)

# Side by side with public engines: make bench-peers once, then make bench.
bench-peers:
	benchmarks/serving/setup_peers.sh $(PYTHON)

bench: install model
	$(BIN)/python benchmarks/serving/compare.py $(ARGS)
	$(BIN)/python docs/generate_readme.py

# CPU time of the control plane: make bench-control-peers once, then make bench-control. Hit rates on
# recorded traces need their folder in $$TRACES.
bench-control-peers:
	benchmarks/control_plane/setup_peers.sh $(PYTHON)

bench-control: install
	$(BIN)/python benchmarks/control_plane/compare.py $(ARGS)
	$(BIN)/python benchmarks/control_plane/hit_rates.py
	$(BIN)/python docs/generate_readme.py
