#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# names.sh - names in back ticks that are nowhere: functions and kernels gdn_..., and paths of the
# repository. Logs and changes tell of the past and are left out. tools/style.sh runs this.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C
rooms='bench cli cmake docs examples include integrations python src tests tools'
name_of_code='gdn_[a-z0-9_]+(\(\))?'
path="(${rooms// /|})/[A-Za-z0-9_./-]+"
bad=0

known=$( # names of the sources, and of kernels by the parts of their rows
    grep -rhowE --include='*.*' 'gdn_[a-z0-9_]+' ${rooms/docs /} CMakeLists.txt
    sed -nE 's/^GDN_KERNEL\([^,]+,[^,]+,[^,]+, *(.*)\).*/gdn_\1/p' src/cuda/driver/kernels.def |
        sed 's/, */_/g'
)
declare -A is_known
while read -r name; do is_known[$name]=1; done <<<"$known"

while IFS=$'\t' read -r at name; do
    case $name in
    */*) [ -e "$name" ] && continue ;;
    *) [ -n "${is_known[${name%()}]:-}" ] && continue ;;
    esac
    echo "$at: \`$name\` is nowhere"
    bad=1
done < <(find ./*.md docs integrations bench -name '*.md' ! -path 'docs/log/*' \
    ! -name CHANGELOG.md -exec grep -noHE '`[^` ]+`' {} + |
    sed -nE "s#^([^:]+:[0-9]+):\`($name_of_code|$path)\`\$#\1\t\2#p")
exit $bad
