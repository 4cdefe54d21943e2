# Everything is installed into virtual environments inside this folder; `make help` lists the targets.
PYTHON ?= python3
TORCH ?= torch==2.13.0

BIN := .venv/bin
# Modules are compiled once, into the environment, even where Python is told not to: tests start many processes.
export PYTHONDONTWRITEBYTECODE :=
SOURCES := $(shell find csrc -name '*.cpp' -o -name '*.h')
CORE := pyproject.toml CMakeLists.txt $(SOURCES)
SANITIZED := .venv-sanitize/bin

.NOTPARALLEL:
.DELETE_ON_ERROR:
.PHONY: help demo test lint types unit browser fuzz docs test-gpu compile-gpu sanitize-gpu sanitize sanitize-threads clang wheel clean

help:  ## list the targets
	@sed -n 's/^\([a-z-]*\):.*## \(.*\)/\1\t\2/p' $(MAKEFILE_LIST) | expand -t 12

demo: .venv/.core  ## install the package and run the worked examples (NumPy only)
	$(BIN)/ndpool demo

test: lint types unit  ## what every change must pass: lint, types, tests

lint: .venv/.development  ## check and format-check Python and C++
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/clang-format --dry-run --Werror $(SOURCES) tests/new_reducers.cpp

types: .venv/.development  ## check the types of the package
	$(BIN)/mypy --strict src

unit: .venv/.development browser  ## run the tests and the examples in the documentation
	$(BIN)/pytest -n 2 --dist worksteal

SECONDS ?= 60
SEED ?=

fuzz: .venv/.development  ## compare random calls with their definition for SECONDS=60, from SEED=n or a random one
	PYTHONPATH=tests:. $(BIN)/python -m fuzz --seconds $(SECONDS) $(if $(SEED),--seed $(SEED))

# The explorer is tested in Chromium. Where there is none, root gets Debian's; otherwise those tests are skipped.
browser:
	@command -v chromedriver >/dev/null || { \
	    test "$$(id -u)" = 0 && command -v apt-get >/dev/null && apt-get -qq update && \
	    DEBIAN_FRONTEND=noninteractive apt-get -qq -y --no-install-recommends install chromium chromium-driver \
	        >/dev/null; \
	} || echo 'No chromedriver, and no way to install it: the tests in a browser are skipped.'

docs: .venv/.development  ## build the documentation into site/, strictly
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

# Needs no compiled core: the Python that runs it has PyTorch, Triton and pytest.
GPU_CHECKS := -m pytest -q -o addopts= -p no:cacheprovider --import-mode=importlib tests/gpu_checks.py tests/gpu_checks_cupy.py \
    tests/gpu_checks_requests.py

# Most of the time is compilation, so as many processes as there are processors each take a part.
JOBS ?= $(shell nproc)

test-gpu:  ## run the checks of the GPU kernels, on a GPU, in JOBS processes
	@for part in $$(seq 0 $$(($(JOBS) - 1))); do \
	    NDPOOL_PART=$$part/$(JOBS) PYTHONPATH=src:tests $(PYTHON) $(GPU_CHECKS) & started="$$started $$!"; \
	done; failed=0; for process in $$started; do wait $$process || failed=1; done; exit $$failed

DRAWS ?= 500

compile-gpu:  ## compile the GPU kernels of DRAWS drawn calls; needs Triton, but no GPU
	PYTHONPATH=src:tests $(PYTHON) tests/gpu_compile.py --draws $(DRAWS)

# As few checks as start every kind of kernel in every form, and unpooling. The first run is not watched: it
# compiles the kernels, which would take too long under a sanitizer. Then every tensor is allocated on its own, so
# that one read or written beyond its end is seen.
WATCHED := -k "each_kind or unpooling or far_apart or meet or many_windows"

sanitize-gpu:  ## watch the memory and the races of every kind of GPU kernel, on a GPU
	PYTHONPATH=src:tests $(PYTHON) $(GPU_CHECKS) $(WATCHED)
	set -e; for tool in memcheck racecheck; do \
	    PYTHONPATH=src:tests PYTORCH_NO_CUDA_MEMORY_CACHING=1 \
	    compute-sanitizer --tool $$tool --error-exitcode 9 $(PYTHON) $(GPU_CHECKS) $(WATCHED); \
	done

# AddressSanitizer has to be loaded before Python, and the C++ library with it, or it cannot catch what is thrown.
# Left out are tests that run no compiled kernel, or measure memory that the sanitizer itself takes.
SANITIZED_TESTS := $(filter-out $(addprefix tests/test_,$(addsuffix .py,arguments bench bench_cuda cli docs explore \
    explore_browser geometry gpu memory nn oracle plot torch_compile torch_models)),$(wildcard tests/test_*.py))

sanitize: .venv-sanitize/.installed  ## run the tests of all kernels with a core that watches its memory (slow)
	LD_PRELOAD="$$($(CXX) -print-file-name=libasan.so) $$($(CXX) -print-file-name=libstdc++.so)" \
	ASAN_OPTIONS=detect_leaks=0:detect_odr_violation=0 UBSAN_OPTIONS=print_stacktrace=1 \
	$(SANITIZED)/pytest -n 2 --dist worksteal $(SANITIZED_TESTS)

# ThreadSanitizer sees what two threads do to the same memory without a lock between them.
sanitize-threads: .venv-tsan/.installed  ## run the tests of threads with a core that watches for races (slow)
	LD_PRELOAD="$$($(CXX) -print-file-name=libtsan.so)" TSAN_OPTIONS=halt_on_error=0:exitcode=66 \
	.venv-tsan/bin/pytest tests/test_runtime.py -k "thread"

wheel: .venv/.made  ## build a wheel into dist/
	$(BIN)/python -m pip wheel --no-deps --wheel-dir dist .

clang: .venv/.made  ## compile a wheel with CLANG=clang++ into build/; warnings are errors
	CXX=$(or $(CLANG),clang++) CXXFLAGS='-Wall -Wextra -Werror' $(BIN)/python -m pip wheel --no-build-isolation --no-deps \
	    --config-settings=build-dir=build/clang --wheel-dir build .

clean:  ## remove everything that make made
	rm -rf .venv .venv-sanitize .venv-tsan build dist site .mypy_cache .ruff_cache .hypothesis ndpool-demo.svg
	find src tests fuzz examples -name __pycache__ -type d -prune -exec rm -rf {} +

# If the path of CMake or nanobind changes, everything is compiled again. So the build's requirements are installed here
# and not into a new temporary environment for every installation: those that pyproject.toml lists, and CMake and Ninja
# where there are none.
NEEDED := import scikit_build_core.build as build; print(*build.get_requires_for_build_editable())

.venv/.made .venv-sanitize/.made .venv-tsan/.made: pyproject.toml
	$(PYTHON) -m venv $(@D)
	sed -n 's/^requires = \[\(.*\)\]$$/\1/p' pyproject.toml | tr , ' ' | xargs $(@D)/bin/python -m pip install
	$(@D)/bin/python -c '$(NEEDED)' | xargs -r $(@D)/bin/python -m pip install
	touch $@

# The package is imported from src/, and the core is compiled in build/: a second installation compiles nothing, and
# after a change only what depends on it. Modules are compiled when they are first imported, which few of PyTorch's are.
INSTALL = $(@D)/bin/python -m pip install --no-build-isolation --config-settings=build-dir=build/$(@D:.%=%) --no-compile --editable

.venv/.core: .venv/.made $(CORE)
	$(INSTALL) .
	touch $@

.venv/.development: .venv/.made | .venv/.core
	$(INSTALL) '.[test]' $(TORCH)
	touch $@

.venv-sanitize/.installed: .venv-sanitize/.made $(CORE)
	$(INSTALL) '.[test]' $(TORCH) --config-settings=cmake.define.NDPOOL_SANITIZE=address,undefined
	touch $@

.venv-tsan/.installed: .venv-tsan/.made $(CORE)
	$(INSTALL) '.[test]' --config-settings=cmake.define.NDPOOL_SANITIZE=thread
	touch $@
