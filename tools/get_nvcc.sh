#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# get_nvcc.sh - nvcc from NVIDIA's Python wheels into build/nvcc, where CMake looks for it. For
# machines without a CUDA toolkit; about 250 MB. The versions belong together.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh
python3 -m pip install -q --disable-pip-version-check --no-deps --upgrade --target build/nvcc \
    nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 \
    nvidia-cuda-runtime==13.0.96
chmod +x build/nvcc/nvidia/cu13/bin/* build/nvcc/nvidia/cu13/nvvm/bin/*
build/nvcc/nvidia/cu13/bin/nvcc --version | tail -n 1
