# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=sh
# Sourced at the root of the repository: tools that bootstrap.sh put into build/venv come
# first, Ninja is used where it is, and everything runs on all processors.
PATH="$PWD/build/venv/bin:$PATH"
processors=$(nproc 2>/dev/null || getconf _NPROCESSORS_ONLN)
CMAKE_BUILD_PARALLEL_LEVEL=${CMAKE_BUILD_PARALLEL_LEVEL:-$processors}
CTEST_PARALLEL_LEVEL=${CTEST_PARALLEL_LEVEL:-$processors}
if [ -z "${CMAKE_GENERATOR:-}" ] && command -v ninja >/dev/null; then CMAKE_GENERATOR=Ninja; fi
export PATH CMAKE_BUILD_PARALLEL_LEVEL CTEST_PARALLEL_LEVEL
if [ -n "${CMAKE_GENERATOR:-}" ]; then export CMAKE_GENERATOR; fi
