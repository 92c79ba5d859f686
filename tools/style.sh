#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# style.sh - what can be said about the text of the repository by grep: tabs, trailing blanks,
# final newline, ASCII, length of lines and of files, the licence line, paths of somebody's machine,
# links between pages, who includes whom (includes.sh), names that are nowhere (names.sh), layout
# (format.sh), prose (sentences.py), and public functions without a comment (header_doc.py).
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C
bad=0

mapfile -t text < <(find . \( -path ./.git -o -path ./build -o -path ./dist -o -name '__pycache__' \
    -o -name '*.egg-info' -o -name .pytest_cache \) -prune -o -type f \
    ! -name '*.safetensors' ! -name LICENSE -print | sed 's|^\./||' | sort)
suffixes='c|h|inc|cpp|cu|cuh|def|py|sh|cmake|map'
mapfile -t code < <(printf '%s\n' "${text[@]}" |
    grep -E "\.($suffixes)\$|CMakeLists\.txt\$|(^|/)Makefile\$|^\.ci/run\$")

# refuse WHAT PATTERN FILE...
refuse() {
    local what=$1 pattern=$2
    shift 2
    if grep -nPH -e "$pattern" -- "$@"; then
        echo "style: $what"
        bad=1
    fi
}
# select PATTERN | leave PATTERN: from the list of code files
choose() { printf '%s\n' "${code[@]}" | grep "$@" || true; }

mapfile -t wide < <(choose -E '^src/cpu/loops/avx[^/]*\.c$')
# The kernels of prefill/sm90 have longer lines still; to be wrapped, then this goes.
mapfile -t narrow < <(choose -vE '^src/cpu/loops/avx[^/]*\.c$|^src/cuda/prefill/sm90/.*\.cuh?$')
mapfile -t tabless < <(printf '%s\n' "${text[@]}" | grep -vE '(^|/)Makefile$|\.tsv$')

refuse "tab" '\t' "${tabless[@]}"
refuse "trailing blank" '[ \t\r]$' "${text[@]}"
refuse "not ASCII" '[^\x00-\x7f]' "${text[@]}"
refuse "line over 100 columns" '^.{101}' "${narrow[@]}"
[ ${#wide[@]} = 0 ] || refuse "line over 120 columns" '^.{121}' "${wide[@]}"
refuse "a path of one machine" '(^|[^\w.])/(work|root|home|tmp)/' "${text[@]}"

# The public header is one, and a table is as long as it must be.
mapfile -t short < <(choose -vE '^include/|\.def$|/unicode_nfc\.inc$')
long=$(wc -l "${short[@]}" | awk '$1 > 700 && $2 != "total" { print $2 ": " $1 " lines" }')
if [ -n "$long" ]; then
    echo "$long"
    echo "style: file over 700 lines"
    bad=1
fi

# Prose. A comment begins with a verb or a noun, and names who acts.
mapfile -t manuals < <(printf '%s\n' "${text[@]}" |
    grep -E '\.md$|^include/')
mapfile -t spoken < <(choose -E '^(src|cli|include|tests|examples)/.*\.(c|h|inc|cu|cuh|cpp|def)$')
refuse "a comment that opens with What, Whose, Of, Where or Which" \
    '^ *(/\*|//) (What|Whose|Whom|Who|Of|Where|Which)\b' "${spoken[@]}"
refuse "a comment that opens with a question" \
    '^ *(/\*|//) (Is|Are|Do|Does|Has|Have|Was|Can|May|Should|How)\b[^.]*\?' "${spoken[@]}"
refuse "a paragraph that opens with Whose or Of" \
    '^ *\* (Whose|Whom|Of (a|an|the|all|one|some|each|every|n)\b)' "${spoken[@]}"
words='\b([Ll]ikewise|[Nn]obody|[Bb]ut for)\b'
alive='\b([Kk]ernels?|[Ll]oops?|[Hh]osts?|[Ll]ibrary) (sees?|asks?|tells?|knows?)\b'
refuse "likewise, nobody or but for: repeat the noun, or say if and then" "$words" \
    "${manuals[@]}" "${spoken[@]}"
refuse "kernels do not see, ask, tell or know" "$alive" "${manuals[@]}"
refuse "kernels do not see, ask, tell or know" "(/\*|//|^ \*).*$alive" "${spoken[@]}"

for file in "${text[@]}"; do
    if [ -s "$file" ] && [ -n "$(tail -c 1 "$file")" ]; then
        echo "$file: no newline at the end"
        bad=1
    fi
done
for file in "${code[@]}"; do
    if ! head -n 2 "$file" | grep -q 'SPDX-License-Identifier: Apache-2\.0'; then
        echo "$file: no SPDX line on top"
        bad=1
    fi
done

# [text](page.md#part): the page is there.
for page in $(printf '%s\n' "${text[@]}" | grep '\.md$'); do
    while read -r link; do
        if [ ! -e "$(dirname "$page")/$link" ]; then
            echo "$page: a link to $link, which is not there"
            bad=1
        fi
    done < <(grep -oP '\]\(\K[^)#\s:]+(?=[)#])' "$page" || true)
done

tools/includes.sh || bad=1
tools/names.sh || bad=1
tools/format.sh --check || bad=1

# Sentences are short. Public functions have a comment. Pages are those of their tables and runs,
# and the times of the plan are those of the kept runs.
if command -v python3 >/dev/null; then
    python3 tools/sentences.py "${manuals[@]}" || bad=1
    python3 tools/header_doc.py || bad=1
    python3 tools/compare.py --check || bad=1
    python3 bench/bench.py tables --check || bad=1
    python3 tools/plan_times.py --check || bad=1
fi
echo "${#text[@]} files"
exit $bad
