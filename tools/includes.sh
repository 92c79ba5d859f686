#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# includes.sh - who may include whom (docs/design/architecture.md): the rules of rooms.awk; and of
# another area of kernels its face alone. tools/style.sh runs this; calls.sh checks who calls
# whom.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C

# Device code that a higher area takes beside the face.
parts='cuda/decode/token.cuh cuda/decode/warp.cuh cuda/prefill/general_gram.cuh
cuda/prefill/stages.cuh cuda/prefill/sm90/units.cuh cuda/prefill/squares.cuh
cuda/prefill/portable/turned.cuh cuda/prefill/channels/products.cuh
cuda/prefill/channels/walk.cuh cuda/prefill/channels/chunks.cuh'

mapfile -t files < <(find include src examples cli tests -type f |
    grep -E '\.(c|h|inc|cpp|cu|cuh|def)$' | sort)
{
    printf '%s\n' "${files[@]}"
    grep -oE '^ *# *include +"[^"]+"' "${files[@]}" | sed -E 's/: *# *include +"/ /; s/"$//'
} | awk -f tools/rooms.awk -f <(cat <<'AWK'
    function file_of(from, name,    i, path) {
        for (i = 1; i <= n_folders; i++) {
            path = folders[i] name
            if (i == 1) { path = from; sub(/[^\/]*$/, name, path) }
            if (path in is_file && (i > 1 || name !~ /\//)) return path
        }
        return ""
    }
    # The face of an area: <area>.h and args.h.
    function is_face(name, room) {
        return name == room "/args.h" || name == room "/" substr(room, 6) ".h"
    }
    BEGIN {
        search = "itself src/ include/ cli/ examples/ examples/generate/ tests/harness/" \
            " tests/harness/draw/"
        n_folders = split(search, folders, " ")
        n = split(parts, list, " ")
        for (i = 1; i <= n; i++) is_part[list[i]] = 1
    }
    NF == 1 { is_file[$1]; next }
    {
        target = file_of($1, $2)
        a = room_of($1)
        b = room_of(target)
        if (target == "") why = "is in no folder of the search path"
        else if (a == b || a == "tests" || (a == "cli" && target ~ /^tests\/harness\//)) next
        else if (a == "examples" && b == "include") next
        else if ($1 == "src/internal/internal.h" && b != "include") why = "is no public header"
        else if (a == "examples") why = "is neither gdn.h nor of an example"
        else if (a == "cli" && b == "examples" && target !~ /(program\/|generate\/generate\.h)/)
            why = "is the inside of an example"
        else if (a == "cli" && b !~ /^(include|examples)$/ && target !~ /^src\/core\/os\// &&
                 target != "src/internal/internal.h")
            why = "belongs to the library, not to its interface"
        else if (wall(a, b)) why = wall(a, b)
        else if (is_area(a) && is_area(b) && !is_face($2, b) &&
                 !($1 ~ /\.cuh?$/ && $2 in is_part))
            why = "is not the face of " b
        else next
        print $1 ": " $2 " " why
        bad = 1
    }
    END { exit bad }
AWK
) -v parts="$parts"
