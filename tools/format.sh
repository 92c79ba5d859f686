#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# format.sh [--check] - lays out C, C++ and CUDA as .clang-format says, or names the files that are
# not laid out so. It wants clang-format 14 (pip install clang-format==14.0.6), since others lay
# out otherwise. Templates (.inc) and tables (.def) stay as they are.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh
if ! clang-format --version 2>/dev/null | grep -q 'version 14\.'; then
    echo "format: no clang-format 14, so the layout is not looked at" >&2
    [ "${1:-}" = --check ] || exit 1
    exit 0
fi
how=(-i)
[ "${1:-}" != --check ] || how=(--dry-run -Werror)
git ls-files -co --exclude-standard '*.c' '*.h' '*.cu' '*.cuh' '*.cpp' |
    xargs -r -n 20 -P 2 clang-format "${how[@]}"
