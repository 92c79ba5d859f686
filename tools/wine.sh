#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# wine.sh BUILD [NATIVE] - runs what was built for Windows (cmake/zig.cmake) under wine: the loops,
# a part of the op tests, the vectors, files with names in Unicode, a text. NATIVE is a build for
# this machine: its text and its bits of GDN_EXACT must be the same.
#
# Wine implements the calls of Windows on Linux. It shows neither Windows' own scheduler, console
# and file system, nor Control-C.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: wine.sh BUILD [NATIVE]}
native=${2:-}
export WINEPREFIX=$PWD/build/wine WINEDEBUG=-all WINEDLLOVERRIDES="mscoree,mshtml="
unset GDN_CPU DISPLAY
on() { # on PROGRAM [ARG...]
    echo "+ $*" >&2
    wine "$build/$1.exe" "${@:2}"
}
fail() {
    echo "wine: $*"
    exit 1
}
model=examples/tinylm/model
folder="$build/zürich 日本"
rm -rf "$folder"
mkdir -p "$folder"

on gdn info
on gdn run tests/vectors/*.safetensors >"$folder/run.txt"
on gdn check --isa avx2 | tail -n 1
on gdn check --isa scalar --function "*_row" | tail -n 1
on gdn check --isa avx512 --function "*_row" || [ $? = 77 ]

# Threads, memory and errors; then ops, of which each eighth case.
for test in unit_ctx unit_busy unit_self_test unit_blob; do on "tests/$test"; done
export GDN_TEST_EVERY=8
for test in op_norm op_gates op_conv1d op_decode op_rule op_state op_block op_conv1d_backward; do
    on "tests/$test" | tail -n 1
done

# Texts and states: saved twice (the second replaces the first), then continued.
say=(generate "$folder/model" -t 0.4 --seed 1)
cp -r $model "$folder/model"
on gdn "${say[@]}" -p "The value of " -n 24 >"$folder/whole.txt"
for _ in 1 2; do
    on gdn "${say[@]}" -p "The value of " -n 12 --save-state "$folder/süß" >"$folder/begin.txt"
done
on gdn generate "$folder/model" --load-state "$folder/süß" -n 12 >"$folder/end.txt"
cat "$folder/whole.txt"
[ "$(ls "$folder" | sort | tr '\n' ' ')" = "begin.txt end.txt model run.txt süß whole.txt " ] ||
    fail "files were left behind: $(ls "$folder")"
on gdn state inspect "$folder/süß" >/dev/null || true
if on gdn run "$folder/no 日本 file" 2>"$folder/error.txt"; then fail "a missing file was found"; fi
grep -q "no 日本 file: No such file" "$folder/error.txt" || fail "$(cat "$folder/error.txt")"

if [ -n "$native" ]; then
    "$native/gdn" "${say[@]}" -p "The value of " -n 24 | cmp - "$folder/whole.txt" ||
        fail "another text than on this machine"
    table=$("$native/gdn" info | sed -n 's/^  chosen *//p')
    GDN_CPU=$table "$native/tests/exact_sums" >"$folder/here.txt"
    GDN_CPU=$table on tests/exact_sums | tr -d '\r' | cmp - "$folder/here.txt" ||
        fail "other bits than on this machine"
    echo "$table: the same text and the same bits as on this machine"
fi
