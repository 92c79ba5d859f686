#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# wheel_check.sh WHEEL... - what can be known of a wheel without its system: it has no device code
# and thus less than 5 MB; the library exports what the headers declare and nothing else; it needs
# the system's own libraries alone, and no newer macOS than its name says. One for musl is loaded by
# musl's loader, if that is here (Debian's package musl). It wants LLVM's nm and objdump.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C
fail() {
    echo "wheel_check: $wheel: $*"
    exit 1
}
declared=$(sed -nE 's/^GDN_API .*[ *](gdn_[a-z0-9_]+)\(.*/\1/p' include/*.h | sort)

same_exports() { # same_exports < NAMES
    diff <(echo "$declared") <(sort) || fail "the headers (<) and the exports (>) differ"
}
# Names that remain of the lines on standard input, if all that match PATTERN are left out.
none_but() {
    local others
    others=$(grep -vE "$1" || true)
    [ -z "$others" ] || fail "needs $others"
}

check_windows() {
    llvm-readobj --coff-exports gdn/gdn.dll | sed -n 's/^  Name: //p' | same_exports
    local file
    for file in gdn/gdn.dll gdn/bin/gdn.exe; do
        llvm-readobj --coff-imports "$file" | sed -n 's/^  Name: //p' |
            none_but '^(KERNEL32\.dll|api-ms-win-crt-[a-z]+-l1-1-0\.dll)$'
    done
}

check_macos() {
    llvm-nm --extern-only --defined-only --format=just-symbols gdn/libgdn.0.dylib 2>/dev/null |
        sed -n 's/^_gdn/gdn/p' | same_exports
    local file load minimum=${wheel#*macosx_}
    minimum=$(cut -d _ -f 1,2 <<<"$minimum" | tr _ .)
    for file in gdn/libgdn.0.dylib gdn/bin/gdn gdn/_native.abi3.so; do
        load=$(llvm-objdump --macho --private-headers "$file")
        grep -qE "^ *minos $minimum$" <<<"$load" || fail "$file: not for macOS $minimum"
        llvm-objdump --macho --dylibs-used "$file" | sed -n 's/^\t\([^ ]*\) .*/\1/p' |
            none_but '^(/usr/lib/libSystem\.B\.dylib|@rpath/(libgdn\.0\.dylib|_native\.abi3\.so))$'
        # Python has the rest of the extension's symbols; it is found at run time.
        llvm-nm --format=posix -m -u "$file" | none_but 'from libSystem|external __?Py|: *$'
    done
}

check_musl() {
    local loader file
    loader=/lib/ld-musl-$(uname -m).so.1
    nm -D --defined-only gdn/libgdn.so.0 | sed -nE 's/.* [^A] ([^@]*)@.*/\1/p' | same_exports
    for file in gdn/libgdn.so.0 gdn/bin/gdn; do
        readelf -dW "$file" | sed -nE 's/.*\(NEEDED\).*\[(.*)\]/\1/p' | none_but '^libc\.so$'
    done
    [ -x "$loader" ] || { echo "no $loader: not loaded" && return 0; }
    "$loader" --list gdn/libgdn.so.0
    chmod +x gdn/bin/gdn
    gdn/bin/gdn info
}

for wheel; do
    [ "$(stat -c %s "$wheel")" -le 5000000 ] || fail "more than 5 MB"
    folder=build/wheel-check
    rm -rf $folder
    python3 -m zipfile -e "$wheel" $folder
    case $wheel in
    *win_amd64*) check=check_windows ;;
    *macosx*) check=check_macos ;;
    *musllinux*) check=check_musl ;;
    *) check=true ;;
    esac
    (cd $folder && $check)
    echo "$wheel: ok"
done
