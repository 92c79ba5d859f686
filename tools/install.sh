#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# install.sh BUILD - installs a build into a fresh prefix, moves it, and builds and runs
# tools/consumer against it by find_package() (shared and static) and by pkg-config.
set -euo pipefail
cd "$(dirname "$0")/.."
build=$(cd "${1:?usage: install.sh BUILD}" && pwd)
work=$build/consumer
rm -rf "$work"
mkdir "$work"

cmake --install "$build" --prefix "$work/first"
mv "$work/first" "$work/moved" # an installation must not know where it was made
prefix=$work/moved

cmake -S tools/consumer -B "$work/cmake" -DCMAKE_PREFIX_PATH="$prefix"
cmake --build "$work/cmake"
"$work/cmake/shared"
"$work/cmake/static"

if command -v pkg-config >/dev/null; then
    PKG_CONFIG_PATH=$(dirname "$(find "$prefix" -name gdn.pc)")
    export PKG_CONFIG_PATH
    # shellcheck disable=SC2046 # flags are words
    "${CC:-cc}" tools/consumer/consumer.c -o "$work/pc" $(pkg-config --cflags --libs gdn)
    LD_LIBRARY_PATH=$(pkg-config --variable=libdir gdn) "$work/pc"
else
    echo "no pkg-config: gdn.pc was not tried"
fi

if [ -x "$prefix/bin/gdn" ]; then "$prefix/bin/gdn" info; fi
