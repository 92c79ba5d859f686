#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# device.sh [BUILD [CTEST ARGUMENT...]] - builds, then runs the op tests on a GPU, which CI does not
# have. Without a driver each of them is skipped, and says so.
set -euo pipefail
cd "$(dirname "$0")/.."
folder=${1:-build/device}
shift || true
cmake -S . -B "$folder" -G Ninja -DGDN_CUDA=ON -DGDN_WERROR=ON >/dev/null
cmake --build "$folder" | tail -n 1
ctest --test-dir "$folder" -L device --output-on-failure --no-tests=error "$@"
