#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# names.sh - names in back ticks that are nowhere: functions and kernels gdn_..., and paths of the
# repository. In docs/design and docs/gpu also names without that prefix (a_name, a_call()), and
# files by the end of their path. Logs and changes tell of the past and are left out, and
# behaviours.md tells of other projects. Also images that are not called as their files, structs
# of one name that two headers have, and functions of an op that lack its name. tools/style.sh runs
# this.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C
rooms='bench cli cmake docs examples include integrations python src tests tools'
name_of_code='gdn_[a-z0-9_]+(\(\))?'
path="(${rooms// /|})/[A-Za-z0-9_./-]+"
bad=0

house_name='[A-Za-z0-9]+_[A-Za-z0-9_]+(\(\))?|[a-z][a-z0-9]+\(\)'
house_file='([A-Za-z0-9_-]+/)*[A-Za-z0-9_-]+\.(c|h|cu|cuh|def|inc|py|sh|md|txt|jsonl?)'

files=$(find . -path ./.git -prune -o -path ./build -prune -o -type f -print)
known=$( # words of the sources, names of programs, and of kernels by the parts of their rows
    sed -E 's|.*/||; s|\..*||; /^$/d' <<<"$files"
    grep -rhowIE --include='*.*' '[A-Za-z0-9_]+' ${rooms/docs /} CMakeLists.txt Makefile .ci
    sed -nE 's/^GDN_KERNEL\([^,]+,[^,]+,[^,]+, *(.*)\).*/\1/p' src/cuda/driver/kernels.def |
        sed -E 's/, */_/g; s/.*/&\ngdn_&/' | sed -E 'p; s/_[A-Z0-9]+$//' # also without the dtypes
)
declare -A is_known
while read -r name; do is_known[$name]=1; done < <(sort -u <<<"$known")

# names_in PATTERN FILE...: at, tab, name, of the names in back ticks
names_in() {
    local pattern=$1
    shift
    grep -noHE '`[^` ]+`' "$@" | sed -nE "s#^([^:]+:[0-9]+):\`($pattern)\`\$#\1\t\2#p"
}
mapfile -t pages < <(find ./*.md docs integrations bench -name '*.md' ! -path 'docs/log/*' \
    ! -name CHANGELOG.md)
mapfile -t house < <(find docs/design docs/gpu -name '*.md' ! -name behaviours.md)

while IFS=$'\t' read -r at name; do
    case $name in
    */* | *.*) [ -e "$name" ] || grep -qF "/$name" <<<"$files" && continue ;;
    *) [ -n "${is_known[${name%()}]:-}" ] && continue ;;
    esac
    echo "$at: \`$name\` is nowhere"
    bad=1
done < <(
    names_in "$name_of_code|$path" "${pages[@]}"
    names_in "$house_name|$house_file" "${house[@]}"
)

# prefill/sm90/cluster is prefill_sm90_cluster. A folder is left out where the file repeats its
# name, and rowwise, driver and layer always. A suffix tells images of one source apart.
while IFS=$'\t' read -r image source; do
    called=$(
        sed -E 's#^(rowwise|driver|layer)/##; s#(^|/)([a-z0-9]+)/\2#\1\2#; s#/#_#g' <<<"$source"
    )
    [[ $image == "$called" || $image == "$called"_* ]] && continue
    echo "src/cuda/driver/kernels.def: $image is made of $source.cu; wanted $called"
    bad=1
done < <(sed -nE 's/^GDN_IMAGE\(([a-z0-9_]+), [a-z0-9_]+, "([a-z0-9_\/]+)"\)$/\1\t\2/p' \
    src/cuda/driver/kernels.def)

# A struct gdn_... of one name in two headers: kernels and hosts would disagree about it.
headers=(--include='*.h' --include='*.cuh')
while read -r name; do
    echo "src: struct $name is in several headers:" \
        "$(grep -lrE "^struct $name \{" src include "${headers[@]}" | tr '\n' ' ')"
    bad=1
done < <(grep -rhoE '^struct gdn_[a-z0-9_]+ \{' src include "${headers[@]}" |
    sed -E 's/struct (.*) \{/\1/' | sort | uniq -d)

# What the row of an op takes is plan_<op> and run_<op>; what rows of several ops take has another.
rows=$(find src -name '*.c' -exec cat {} + | tr '\n' ' ' |
    grep -oE 'gdn_op_backend gdn_(cpu|cuda)_op_[a-z0-9_]+ = \{[^}]*\}' |
    sed -E 's/.*_op_([a-z0-9_]+) = \{(.*)\}/\1 \2/; s/\.(run|plan) = //g; s/, *|  +/ /g')
while read -r name functions; do
    for function in $functions; do
        [[ $function == NULL || $function == *_"$name" ]] && continue
        [[ $function == *_* && $(grep -cw "$function" <<<"$rows") -gt 1 ]] && continue
        echo "src: $function is in the row of $name; wanted ${function%%_*}_$name"
        bad=1
    done
done <<<"$rows"
exit $bad
