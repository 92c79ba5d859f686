#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# emulate_arm.sh ARM_BUILD BUILD - runs what was cross-compiled (cmake/aarch64.cmake) on an
# emulated processor, about two minutes of it, and compares the bits of GDN_EXACT with those of
# the machine's own build wherever that has a table with FMA (G17).
set -euo pipefail
cd "$(dirname "$0")/.."
arm=${1:?usage: emulate_arm.sh ARM_BUILD BUILD}/tests
here=${2:?usage: emulate_arm.sh ARM_BUILD BUILD}/tests
unset GDN_CPU

on() { # on TABLE PROGRAM [ARG...]
    local table=$1
    shift
    echo "+ $table: $*" >&2
    GDN_CPU=$table qemu-aarch64 -L /usr/aarch64-linux-gnu "$@"
}

ops() { # ops TABLE
    for op in op_gates op_norm op_conv1d; do on "$1" "$arm/$op"; done
}

export GDN_TEST_EVERY=24

# Two at a time: nothing here has threads to speak of.
on "" "$arm/unit_detect"
{
    ops scalar
    ops neon
    on neon "$arm/op_exact" --every=20
    on neon "$arm/op_rule" --every=20
} &
other=$!
on neon "$arm/ring1" --isa=neon # the loops; the scalar ones are plain C
wait $other

sums=$arm/exact_sums
on neon "$sums" >"$sums.neon"
for table in avx2 avx512; do
    status=0
    "$here/with_isa" $table "$here/exact_sums" >"$sums.$table" || status=$?
    [ $status != 77 ] || { echo "no $table here" && continue; }
    [ $status = 0 ] && diff "$sums.neon" "$sums.$table" || { echo "not as $table" && exit 1; }
    echo "neon and $table: the same bits"
done
