#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# includes.sh - who may include whom (docs/design/architecture.md): a room includes itself and rooms
# of lower floors. tools/style.sh runs this.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

# Rooms and their floors. The folders of src/cuda that are not listed are families of kernels, on
# floor 8; gradients are above them, because they use parts of prefill. ops, cpu and cuda/* are
# wings: one never includes another. src/internal.h is what the command may include beside gdn.h and
# examples/program. Examples include gdn.h and each other.
floors='include 0 cpu/loops 1 core 2 batch 3 state 4 calls 5 ops 6 cpu 6
cuda/driver 6 cuda/device 7 cuda/backward 9 cuda/layer 10 examples 11 internal.h 11 cli 12 tests 13'

mapfile -t files < <(find include src examples cli tests -type f |
    grep -E '\.(c|h|inc|cpp|cu|cuh|def)$' | sort)
{
    printf '%s\n' "${files[@]}"
    grep -oE '^ *# *include +"[^"]+"' "${files[@]}" | sed -E 's/: *# *include +"/ /; s/"$//'
} | awk -v floors="$floors" '
    function room_of(path,    part) {
        split(path, part, "/")
        if (part[1] != "src") return part[1]
        if (part[2] == "cuda" && path ~ /\.cu$/ && part[3] == "driver") return "cuda/image"
        return part[2] == "cuda" || (part[2] "/" part[3]) in floor ? part[2] "/" part[3] : part[2]
    }
    function floor_of(room) { return room in floor ? floor[room] : room ~ /^cuda\// ? 8 : 99 }
    function wing(room) { return room ~ /^(ops|cpu|cuda\/.*)$/ ? substr(room, 1, 3) : "" }
    function file_of(from, name,    i, path) {
        for (i = 1; i <= n_folders; i++) {
            path = folders[i] name
            if (i == 1) { path = from; sub(/[^\/]*$/, name, path) }
            if (path in is_file && (i > 1 || name !~ /\//)) return path
        }
        return ""
    }
    BEGIN {
        count = split(floors, word)
        for (i = 1; i < count; i += 2) floor[word[i]] = word[i + 1]
        search = "itself src/ include/ cli/ examples/ examples/generate/ tests/harness/"
        n_folders = split(search, folders, " ")
    }
    NF == 1 { is_file[$1]; next }
    {
        target = file_of($1, $2)
        a = room_of($1)
        b = room_of(target)
        if (target == "") why = "is in no folder of the search path"
        else if (a == b || a == "tests" || (a == "cli" && target ~ /^tests\/harness\//)) next
        else if (a == "examples" && b == "include") next
        else if (a == "examples") why = "is neither gdn.h nor of an example"
        else if (a == "cli" && b == "examples" && target !~ /(program\/|generate\/generate\.h)/)
            why = "is the inside of an example"
        else if (a == "cli" && b !~ /^(include|internal\.h|examples)$/ &&
                 target !~ /^src\/core\/os\//)
            why = "belongs to the library, not to its interface"
        else if (wing(a) && wing(b) && wing(a) != wing(b)) why = "is of another wing"
        else if (floor_of(b) >= floor_of(a)) why = "is not below " a
        else next
        print $1 ": " $2 " " why
        bad = 1
    }
    END { exit bad }'
