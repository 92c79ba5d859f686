#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# cjson.sh - the sources of cJSON in build/cjson, for builds that find no library of it
# (-DGDN_CJSON_DIR=build/cjson): those for other systems. They are of Debian's source package, which
# apt-get checks by its signature, with its security patches. Exit status 77: not to be had here.
set -euo pipefail
cd "$(dirname "$0")/.."
[ ! -f build/cjson/cJSON.c ] || exit 0
command -v apt-get >/dev/null && command -v dpkg-source >/dev/null || exit 77
work=$PWD/build/cjson-source
rm -rf "$work"
mkdir -p "$work/parts" "$work/lists/partial"
# The machine's own sources, with "deb-src" beside "deb".
for file in /etc/apt/sources.list /etc/apt/sources.list.d/debian*.sources; do
    [ -f "$file" ] || continue
    sed -E 's/^Types: deb$/Types: deb-src/; s/^deb /deb-src /' "$file" \
        >"$work/parts/$(basename "$file")"
done
apt=(apt-get -qq -o "Dir::Etc::SourceParts=$work/parts" -o Dir::Etc::SourceList=/dev/null
    -o "Dir::State::Lists=$work/lists" -o APT::Sandbox::User=root)
cd "$work"
"${apt[@]}" update || exit 77
"${apt[@]}" source cjson || exit 77
cd - >/dev/null
mkdir -p build/cjson
cp "$work"/cjson-*/cJSON.[ch] build/cjson/
