#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# device.sh [--without SWITCHES] [BUILD [CTEST ARGUMENT...]] - builds, then runs the op tests on a
# GPU, which CI does not have, and small calls of each area under compute-sanitizer. Without a
# driver each of the tests is skipped, and says so.
#
# --without sm90: on Hopper, what every other GPU runs. Tests of Hopper's own kernels are skipped.
# Other names are in src/cuda/driver/switches.h, with commas between.
#
# GDN_CUDA_ARCHITECTURES=native in the environment compiles for this GPU alone, which is quickest.
set -euo pipefail
cd "$(dirname "$0")/.."
if [ "${1:-}" = --without ]; then
    export GDN_CUDA_WITHOUT=$2
    shift 2
fi
folder=${1:-build/device}
shift || true
cmake -S . -B "$folder" -G Ninja -DGDN_CUDA=ON -DGDN_EMULATED=OFF \
    -DGDN_CUDA_ARCHITECTURES="${GDN_CUDA_ARCHITECTURES:-all}" >/dev/null
cmake --build "$folder" | tail -n 1
ctest --test-dir "$folder" -L device --output-on-failure --no-tests=error "$@"

# Cases of gdn check, forward and backward.
cases=(
    "gates bf16 D7" "gates_backward *D7" "l2norm bf16 D1000" "l2norm_backward *D1000"
    "rmsnorm f16 D3000" "rmsnorm_backward *D3000" "conv bf16 state bf16 W4 D997*"
    "conv_backward *" "step bf16 state bf16 *" "decode bf16 state bf16 k_last 128x128*"
    "prefill bf16 state f32 k_last 128x128*" "prefill_backward *" "stages bf16 *" "record bf16 *"
    "layer bf16 *" "layer_backward *"
)
sanitizer=$(PATH=$PATH:/usr/local/cuda/bin command -v compute-sanitizer || true)
if [ -z "$sanitizer" ] || [ ! -e /dev/nvidiactl ]; then
    echo "compute-sanitizer: skipped, it or the GPU is not here"
    exit 0
fi
for tool in memcheck racecheck; do
    for pattern in "${cases[@]}"; do
        echo "$tool: $pattern"
        "$sanitizer" --tool "$tool" --error-exitcode 1 --print-limit 3 "$folder/gdn" check \
            --backend cuda --function "$pattern" | tail -n 3
    done
done
