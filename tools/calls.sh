#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# calls.sh BUILD - who calls whom, by the symbols of a build's objects: what includes.sh checks of
# includes. A prototype could hide a call upwards; here the folder that defines a symbol and the
# folder that asks for it are compared. An area of kernels calls of another what its face declares,
# and the prototypes of a room's headers are of functions that the room defines. Files that call
# each other make no circle.
set -euo pipefail
shopt -s inherit_errexit
cd "$(dirname "$0")/.."
build=${1:?usage: calls.sh BUILD}
export LC_ALL=C
objects=$build/CMakeFiles/gdn_objects.dir
mapfile -t headers < <(find src -name '*.h' | sort)

facts=$(
    # defined SYMBOL FILE, asked SYMBOL FILE
    # Objects whose source is gone lie in older builds.
    find src -name '*.c' -printf '%p.o\n' |
        (cd "$objects" && { xargs ls 2>/dev/null || true; } | xargs nm -A) |
        sed -nE 's/^(.*)\.o:[0-9a-f]* +([A-Za-z]) (.*)$/\2 \3 \1/p' |
        sed -nE 's/^[TDBRVW] /defined /p; s/^U /asked /p'
    # declared SYMBOL FILE: lines that begin with a type, which calls do not; and rows of ops
    grep -HE -e '^[a-z].*\bgdn_[a-z0-9_]+\(' -e '^extern const struct gdn_op_backend .*;$' \
        "${headers[@]}" |
        grep -vE ':(static|typedef|return) ' |
        sed -E 's/^([^:]*):.*\b(gdn_[a-z0-9_]+)[(;].*/declared \2 \1/'
    # includes of a header: face OF
    grep -HoE '^#include "cuda/[^"]+\.h"' "${headers[@]}" |
        sed -E 's/^([^:]*):#include "(.*)"/includes src\/\2 \1/'
)
bad=0

awk -f tools/rooms.awk -f <(cat <<'AWK'
    # Whether an area's face, <area>.h, or a header of the area that it includes declares it.
    function face_has(symbol, room,    face) {
        face = "src/" room "/" substr(room, 6) ".h"
        return (symbol, face) in declares || index(within[symbol], " " face " ")
    }
    function blame(file, symbol, why) {
        print file ": " symbol " of " where[symbol] " " why
        bad = 1
    }
    $1 == "defined" { where[$2] = $3; n_defined++ }
    $1 == "asked" { asked[$2, $3] = 1 }
    $1 == "declared" { declares[$2, $3] = 1 }
    $1 == "includes" { includers[$2] = includers[$2] " " $3 }
    END {
        if (!n_defined) { print "calls: no objects"; exit 1 }
        for (key in declares) {
            split(key, part, SUBSEP)
            within[part[1]] = within[part[1]] includers[part[2]] " "
            if (part[1] in where && room_of(where[part[1]]) != room_of(part[2]))
                blame(part[2], part[1], "is declared here, in another room")
        }
        for (key in asked) {
            split(key, part, SUBSEP)
            symbol = part[1]
            # The two tables of backends are where calls go up by design.
            if (!(symbol in where) || symbol ~ /^gdn_(cpu|cuda)_backend$/) continue
            a = room_of(part[2])
            b = room_of(where[symbol])
            if (wall(a, b)) blame(part[2], symbol, wall(a, b))
            else if (a != b && is_area(a) && is_area(b) && symbol !~ /^gdn_cuda_op_/ &&
                     !face_has(symbol, b))
                blame(part[2], symbol, "is not in the face of " b)
        }
        exit bad
    }
AWK
) <<<"$facts" || bad=1

# The two tables of backends are left out, as above.
pairs=$(awk '
    $1 == "defined" { where[$2] = $3 }
    $1 == "asked" && $2 !~ /^gdn_(cpu|cuda)_backend$/ { asked[$2, $3] }
    END {
        for (key in asked) {
            split(key, part, SUBSEP)
            if (part[1] in where && where[part[1]] != part[2]) print part[2], where[part[1]]
        }
    }' <<<"$facts")
circle=$(tsort <<<"$pairs" 2>&1 >/dev/null || true)
if [ -n "$circle" ]; then
    echo "$circle"
    echo "calls: files that call each other in a circle"
    bad=1
fi
exit $bad
