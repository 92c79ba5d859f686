#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# peer_tests.sh PEER PATH [--device cuda] [pytest arguments] - a peer's own tests, from its checkout
# at PATH, which is only read, through gdn's drop-in. PEER: flashinfer, flashqla, fla, fla_family,
# fla_ranks, gdn_cuda, transformers. For ggml PATH is a build of it with its tests, GDN_GGML the
# backend's .so. For megatron PATH is a folder with the package, and the tests are
# tools/peers/test_megatron.py. Prints passed, failed, skipped, how many went through libgdn, and
# what was converted or copied.
#
# The Python of PYTHON (python3) has torch, pytest, einops and gdn (installed, or by PYTHONPATH,
# GDN_LIBRARY and GDN_NATIVE); for fla, fla_family and gdn_cuda also FLA. GDN_PEER_SPOIL=1.05
# multiplies every result: tests that still pass look at something else.
set -euo pipefail
usage() { sed -n '4,9s/^# //p' "$0"; exit 2; }
[ $# -ge 2 ] || usage
peer=$1 checkout=$(realpath "$2")
shift 2
tests_in=$checkout
export GDN_PEER=$peer GDN_PEER_PATH=$checkout GDN_PEER_DEVICE=cpu
if [ "${1:-}" = --device ]; then
    [ $# -ge 2 ] || usage
    GDN_PEER_DEVICE=$2
    shift 2
fi
case $peer in
# Private kernels, which other files name, have no drop-in.
flashinfer) tests="tests/gdn/test_prefill_delta_rule.py tests/gdn/test_prefill_state_indices.py
    tests/gdn/test_decode_delta_rule.py tests/gdn/test_decode_pretranspose_bf16_padded_pool.py
    tests/gdn/test_decode_pretranspose_noncontiguous_pool.py" ;;
flashqla) tests=tests/test_gdr_unit.py ;;
fla) tests="tests/ops/test_gdn.py tests/modules/test_l2norm.py
    tests/modules/test_layernorm_gated.py tests/modules/test_conv.py"
    # What FLA chooses for FlashQLA is no business of gdn, nor is a norm with a mean.
    set -- -k "not flash_qla and not test_layernorm_gated[ and not rmsFalse" "$@" ;;
# KDA, GDN-2, DeltaProduct; without other libraries, intermediate states and private kernels.
fla_family) tests="tests/ops/test_kda.py tests/ops/test_gdn2.py tests/ops/test_delta_product.py"
    left="not flash_kda and not ascend and not vllm_decode and not intermediate_states"
    set -- -k "$left and not test_layer and not test_naive" "$@" ;;
# Several ranks: processes of a CPU, or GPUs. FLA need not be installed.
fla_ranks) tests=tests/context_parallel/test_cp_gdn.py ;;
gdn_cuda) tests="test/test_py/fla_comparison.py test/test_py/test_fla_recurrent_comparison.py" ;;
# The checkout's own package and tests; tests that load real weights skip themselves.
transformers) tests="tests/models/qwen3_next tests/models/qwen3_5/test_modeling_qwen3_5.py"
    export PYTHONPATH=$checkout/src:$checkout${PYTHONPATH:+:$PYTHONPATH} ;;
megatron) tests=test_megatron.py tests_in=$(realpath "$(dirname "$0")/peers")
    export PYTHONPATH=$checkout${PYTHONPATH:+:$PYTHONPATH} ;;
ggml) exec "${PYTHON:-python3}" "$(dirname "$0")/peers/ggml_tests.py" "$checkout" ;;
*) usage ;;
esac
here=$(cd "$(dirname "$0")" && pwd)
files=()
for test in $tests; do files+=("$tests_in/$test"); done
cd "$here/peers" # python -m puts the current folder before an installed FLA
export PYTHONPATH=$here/peers${PYTHONPATH:+:$PYTHONPATH} PYTHONDONTWRITEBYTECODE=1
exec "${PYTHON:-python3}" -m pytest -p peer_plugin -c /dev/null --rootdir="$checkout" \
    --import-mode=importlib -p no:cacheprovider -q --disable-warnings "${files[@]}" "$@"
