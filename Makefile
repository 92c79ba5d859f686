# SPDX-License-Identifier: Apache-2.0
# Shortcuts over CMake; what is missing on the machine, tools/bootstrap.sh sees to.
#
#   make         build the library and the command in build/release
#   make run     build, then run every file of tests/vectors and a large synthetic case
#   make check   build, then the tests of that build
#   make test    every stage of tools/ci.sh: compilers, sanitizers, emulated CPUs, install, ...

MAKEFLAGS += --no-print-directory
build = . ./tools/env.sh && cmake --preset release --log-level=NOTICE && cmake --build build/release

.PHONY: all run check test clean

all:
	@tools/bootstrap.sh build
	@$(build)

run: all
	./build/release/gdn run --all

check:
	@tools/bootstrap.sh check
	@$(build)
	@. ./tools/env.sh && ctest --test-dir build/release --output-on-failure

test:
	@tools/bootstrap.sh test
	@tools/ci.sh

clean:
	rm -rf build
