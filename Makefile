# make serve | test | lint | check | bench. Everything lives in .venv and build/.
PYTHON ?= python3
TORCH ?= torch==2.13.0
VENV ?= .venv
BIN := $(VENV)/bin
WHEELS := -e . -e ./sdk -e ./plugins_reference -e ./plugins_nvidia -e ./plugins_amd
SOURCES := core sdk plugins_reference plugins_nvidia plugins_amd
MODEL ?=
ARGS ?=

.PHONY: serve install test ctest pytest lint check slow sanitize bench model clean

serve: install model
	$(BIN)/tokenspeed serve $(MODEL) $(ARGS)

install: $(VENV)/.installed

$(VENV)/.packages: requirements.txt
	@echo "== downloading into $(VENV): $(TORCH) unless a torch is there, and the packages of requirements.txt (about 450 MB)"
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Python 3.11 or newer is needed; set PYTHON=..."; exit 2; }
	@test -x $(BIN)/python || $(PYTHON) -m venv $(VENV)
	@$(BIN)/python -c 'import torch' 2>/dev/null || $(BIN)/python -m pip install -q "$(TORCH)"
	$(BIN)/python -m pip install -q -r requirements.txt
	@touch $@

# Our five wheels come from these paths only, never from an index.
$(VENV)/.installed: $(VENV)/.packages pyproject.toml csrc/CMakeLists.txt $(wildcard csrc/*/*.cc csrc/*/*.h */pyproject.toml)
	@command -v c++ >/dev/null || { echo "a C++20 compiler is needed: apt-get install g++"; exit 2; }
	$(BIN)/python -m pip install -q --no-index --no-deps --no-build-isolation $(WHEELS)
	$(BIN)/python -m pip check
	@touch $@

model: install

test: install ctest pytest

ctest:
	@test -e /usr/include/gtest/gtest.h || { echo "GoogleTest is needed: apt-get install libgtest-dev libgmock-dev"; exit 2; }
	$(BIN)/cmake -S csrc -B build/cpp -G Ninja -DTOKENSPEED_TESTS=ON -DTOKENSPEED_PYTHON=OFF -DCMAKE_BUILD_TYPE=RelWithDebInfo -DCMAKE_MAKE_PROGRAM=$(abspath $(BIN))/ninja
	$(BIN)/cmake --build build/cpp
	$(BIN)/ctest --test-dir build/cpp --output-on-failure

pytest:
	$(BIN)/python -m pytest $(ARGS)

lint: install
	$(BIN)/ruff check $(SOURCES) tests benchmarks
	$(BIN)/ruff format --check $(SOURCES) tests benchmarks
	$(BIN)/mypy
	clang-format-19 --dry-run --Werror $$(git ls-files 'csrc/*.h' 'csrc/*.cc' 'tests/csrc/*.cc')

clean:
	rm -rf build

# Side by side with public engines: make bench-peers once, then make bench.
bench-peers:
	benchmarks/serving/setup_peers.sh $(PYTHON)

bench: install model
	$(BIN)/python benchmarks/serving/compare.py $(ARGS)
	$(BIN)/python docs/generate_readme.py
