#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# emulate.sh BUILD - runs a build on CPUs that this machine only pretends to be, which proves
# that dispatch keeps instructions away from CPUs that lack them: an emulated Penryn has no
# AVX, an emulated Haswell has AVX2 and no AVX-512. Exits 77 if qemu is too old to have AVX2.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: emulate.sh BUILD}
unset GDN_CPU

on() { # on CPU PROGRAM [ARG...]
    local cpu=$1
    shift
    echo "+ $cpu: $*"
    qemu-x86_64 -cpu "$cpu" "$@" 2> >(grep -v "TCG doesn't support" >&2)
}
expect() { # expect STATUS COMMAND...
    local wanted=$1 status=0
    shift
    "$@" || status=$?
    [ "$status" = "$wanted" ] || { echo "exit status $status, not $wanted: $*" && exit 1; }
}

has="$build/tests/with_isa" nothing=$(type -P true)
qemu-x86_64 -cpu max "$has" avx2 "$nothing" || exit $?
expect 0 on Haswell "$has" avx2 "$nothing"
expect 77 on Haswell "$has" avx512 "$nothing"
expect 77 on Penryn "$has" avx2 "$nothing"

for pair in Penryn:scalar Haswell:avx2; do
    cpu=${pair%:*} isa=${pair#*:}
    on "$cpu" "$build/gdn" info | tee "$build/info.txt"
    grep -qE "chosen +$isa$" "$build/info.txt" || { echo "$isa was not chosen" && exit 1; }
    on "$cpu" "$build/gdn" run tests/vectors/*.safetensors
done

export GDN_TEST_EVERY=12
# The tests that end their buffers at a guard page, where there is time for them; two at a time, as
# long as each other. Not on the Haswell: qemu 7.2 loads the masked-out part of a vector too and
# faults at the page.
{
    on Penryn "$build/gdn" check --isa=scalar
    for op in op_gates op_norm op_rule_traps; do on Penryn "$build/tests/$op"; done
} &
other=$!
for op in op_conv1d op_block; do on Penryn "$build/tests/$op"; done
wait $other
