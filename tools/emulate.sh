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

vectors() { # vectors CPU ISA
    local info=$build/info-$2.txt
    on "$1" "$build/gdn" info >"$info"
    grep -qE "chosen +$2$" "$info" || { echo "$2 was not chosen" && return 1; }
    on "$1" "$build/gdn" run tests/vectors/*.safetensors
}
vectors Penryn scalar &
other=$!
vectors Haswell avx2
wait $other

# Of the tests those that end their buffers at a guard page and take seconds. Not on the Haswell:
# qemu 7.2 loads the masked-out part of a vector too and faults at the page.
export GDN_TEST_EVERY=12
for op in op_gates op_norm op_conv1d; do on Penryn "$build/tests/$op"; done
