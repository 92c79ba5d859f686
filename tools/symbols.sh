#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# symbols.sh BUILD - what the objects of a build contain: the library exports what the
# headers declare and nothing else; wide registers occur only in the files that
# dispatch guards; the stack is not executable.
set -euo pipefail
cd "$(dirname "$0")/.."
build=${1:?usage: symbols.sh BUILD}
export LC_ALL=C
bad=0
fail() {
    echo "symbols: $*"
    bad=1
}

library=$build/libgdn.so
declared=$(sed -nE 's/^GDN_API .*[ *](gdn_[a-z0-9_]+)\(.*/\1/p' include/*.h | sort)
exported=$(nm -D --defined-only "$library" | sed -nE 's/.* [^A] ([^@]*)@.*/\1/p' | sort)
[ -n "$declared" ] || fail "no GDN_API function found in include"
diff <(echo "$declared") <(echo "$exported") || fail "the headers (<) and the exports (>) differ"

if [ "$(uname -m)" = x86_64 ]; then
    seen=
    while read -r object; do
        case $object in
        *avx512.c.o | *avx512bf16.c.o) pattern=%tmm ;;
        *amx.c.o) pattern= ;;
        *avx2.c.o) pattern="%[zt]mm" ;;
        *) pattern="%[yzt]mm" ;;
        esac
        seen="$seen $(basename "$object" .c.o)"
        [ -n "$pattern" ] || continue
        wide=$(objdump -d --no-show-raw-insn "$object" | grep -cE "$pattern" || true)
        [ "$wide" = 0 ] || fail "$object: $wide lines with $pattern"
    done < <(find "$build/CMakeFiles/gdn_objects.dir/src" -name '*.o' | sort)
    for object in scalar avx2 avx512 avx512bf16 amx; do
        case " $seen " in *" $object "*) ;; *) fail "no object $object in $build" ;; esac
    done
fi

readelf -lW "$library" | grep -qE 'GNU_STACK.* RW ' || fail "$library: the stack is executable"
if readelf -dW "$library" | grep -q TEXTREL; then fail "$library: text relocations"; fi
readelf -dW "$library" | grep -q 'SONAME.*\[libgdn\.so\.0\]' || fail "$library: wrong soname"

echo "$(echo "$exported" | wc -l) symbols exported"
exit $bad
