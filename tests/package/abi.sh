#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# abi.sh PROGRAM LIBRARY - compares what PROGRAM (abi.c) and the symbols of LIBRARY say with
# the committed list. A struct may only grow at its end; a function may only be added. Either
# is then written into abi.txt by hand, which is the moment to think.
set -eu
here=$(dirname "$0")
export LC_ALL=C

found=$({
    "$1"
    nm -D --defined-only "$2" | sed -n 's/.* T \(gdn_[a-z0-9_]*\).*/function \1/p'
} | sort)
wanted=$(grep -E '^(struct|function) ' "$here/abi.txt" | sort)
if [ "$found" != "$wanted" ]; then
    echo "the ABI differs from tests/package/abi.txt; found:"
    echo "$found"
    exit 1
fi

# abi.c must know every struct of the headers.
for name in $(sed -n 's/^typedef struct \(gdn_[a-z0-9_]*\) {$/\1/p' "$here"/../../include/*.h); do
    echo "$found" | grep -q "^struct $name " || { echo "tests/package/abi.c lacks $name"; exit 1; }
done
echo "$(echo "$found" | wc -l) names and sizes as listed"
