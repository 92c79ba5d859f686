# SPDX-License-Identifier: Apache-2.0
# Shortcuts over CMake; what is missing on the machine, tools/bootstrap.sh sees to.
#
#   make         build the library and the command in build/release, no tests; device code where
#                a GPU's driver and nvcc are. GDN_CUDA=ON compiles it anywhere, GDN_CUDA=OFF nowhere
#   make run     the same, then run every file of tests/vectors and a large synthetic case, and let
#                a small language model write a sentence
#   make check   build the tests too, and run them
#   make test    every stage of tools/ci.sh: compilers, sanitizers, emulated CPUs, install, ...
#   make format  lay out C, C++ and CUDA as .clang-format says (tools/format.sh)
#   make plots   draw docs/plots from bench/results; needs matplotlib
#   make docs    build the site in build/site; needs the packages of docs/site/requirements.txt

MAKEFLAGS += --no-print-directory
GDN_CUDA ?= AUTO
build = . ./tools/env.sh && cmake --preset release -DGDN_CUDA=$(GDN_CUDA) --log-level=NOTICE && \
    cmake --build build/release

# The same for one target, and a line that says how long it took.
product = start=$$(date +%s) && $(build) --target product && \
    echo "Built the library and the command in $$(($$(date +%s) - start)) s."

.PHONY: all run check test format plots docs clean

all:
	@tools/bootstrap.sh build
	@$(product)

run: all
	./build/release/gdn run --all
	./build/release/gdn generate examples/tinylm/model -p "The value of " -n 82 -t 0.4 --seed 1
	@echo

check:
	@tools/bootstrap.sh check
	@$(build)
	@. ./tools/env.sh && ctest --test-dir build/release --output-on-failure

test:
	@tools/bootstrap.sh test
	@tools/ci.sh

format:
	@tools/format.sh

PYTHON ?= python3

plots:
	@$(PYTHON) bench/plots.py

docs:
	@$(PYTHON) docs/site/build.py build/site

clean:
	rm -rf build
