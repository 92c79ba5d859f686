#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# wine.sh BUILD [NATIVE] - runs what was built for Windows (cmake/zig.cmake), under wine: the loops,
# a part of the op tests, the vectors, files with names in Unicode, a text. NATIVE is a build for
# this machine: its text and its bits of GDN_EXACT must be the same.
#
# Wine implements the calls of Windows on Linux. It shows neither Windows' own scheduler, console
# and file system, nor Control-C.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: wine.sh BUILD [NATIVE]}
native=${2:-}
export WINEPREFIX=$PWD/build/wine WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml,winedbg.exe="
unset GDN_CPU DISPLAY
units="unit_ctx unit_busy unit_self_test unit_blob"
ops="op_norm op_gates op_conv1d op_decode op_rule op_state_copy op_block op_conv1d_backward"

on() { # on PROGRAM [ARG...]
    echo "+ $*" >&2
    timeout 300 wine "$build/$1.exe" "${@:2}"
}
fail() {
    echo "wine: $*"
    exit 1
}
mkdir -p "$WINEPREFIX" # or the server does not start
# Wine's own services start once, not with each program.
wineserver -k || true
wineserver -p
trap 'wineserver -k' EXIT
wine wineboot -i

# shellcheck disable=SC2086 # names are words
cmake --build "$build" --target gdn_cli exact_sums $units $ops

model=examples/tinylm/model
folder=$build/$(printf 'z\303\274rich \346\227\245\346\234\254') # names in Unicode
state=$folder/$(printf 's\303\274\303\237')
rm -rf "$folder"
mkdir -p "$folder"

on gdn info
on gdn run tests/vectors/*.safetensors >"$folder/run.txt"
loops() { on gdn check --isa "$1" --function "$2" || [ $? = 77 ]; }
loops avx2 "*_row"
loops scalar "*_row"
loops avx512 "*_row"

# Threads, memory and errors; then ops, of which each 60th case.
for test in $units; do on "tests/$test"; done
export GDN_TEST_EVERY=60
for test in $ops; do
    on "tests/$test" | tail -n 1
done

# Texts and states: saved twice (the second replaces the first), then continued.
say=(generate "$folder/model" -t 0.4 --seed 1 --exact)
cp -r $model "$folder/model"
on gdn "${say[@]}" -p "The value of " -n 24 >"$folder/whole.txt"
for _ in 1 2; do
    on gdn "${say[@]}" -p "The value of " -n 12 --save-state "$state" >"$folder/begin.txt"
done
on gdn generate "$folder/model" --exact --load-state "$state" -n 12 >"$folder/end.txt"
cat "$folder/whole.txt"
cat "$folder/begin.txt" "$folder/end.txt" | cmp - "$folder/whole.txt" || fail "another text"
if find "$folder" -name '*.gdn-*' | grep .; then fail "files were left behind"; fi
error=$folder/error.txt
if on gdn run "$state.none" 2>"$error"; then fail "a missing file was found"; fi
grep -q "${state##*/}.none: No such file" "$error" || fail "$(cat "$error")"

# State files, by the tests of the command.
wrapper=$build/wine-gdn
printf '#!/bin/sh\nexec wine "%s/gdn.exe" "$@"\n' "$(realpath "$build")" >"$wrapper"
chmod +x "$wrapper"
for group in inspect slice_and eight_bits; do
    python3 tests/package/cli_state_test.py "$wrapper" --filter $group | tail -n 1
done

if [ -n "$native" ]; then
    "$native/gdn" "${say[@]}" -p "The value of " -n 24 | cmp - "$folder/whole.txt" ||
        fail "another text than on this machine"
    table=$("$native/gdn" info | sed -n 's/^  chosen *//p')
    GDN_CPU=$table "$native/tests/exact_sums" >"$folder/here.txt"
    GDN_CPU=$table on tests/exact_sums | tr -d '\r' | cmp - "$folder/here.txt" ||
        fail "other bits than on this machine"
    echo "$table: the same text and the same bits as on this machine"
fi
