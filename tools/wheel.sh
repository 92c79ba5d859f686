#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# wheel.sh [PLATFORM]... - wheels in dist/, and the sdist. Without arguments: for Linux on this
# processor. "all": for every platform of the table below. A wheel for Linux on this processor has
# device code, of GDN_IMAGES_FROM (a folder of fatbins) or, with GDN_CUDA=ON, compiled here. The
# others have none. GDN_BUILD_TYPE is CMake's (MinSizeRel compiles quickest), else Release. With
# GDN_WERROR=ON warnings are errors.
#
# It wants packages of Python: build and scikit-build-core (the build), ziglang (a compiler for all
# these systems) and auditwheel (it checks and names what is for glibc). cJSON, for the command gdn,
# comes from tools/cjson.sh; without it there is no command.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh
export PYTHONDONTWRITEBYTECODE=1

# Platform of the wheel, target of zig, platform as Python names it.
platforms='
manylinux_x86_64   x86_64-linux-gnu.2.28   linux-x86_64
manylinux_aarch64  aarch64-linux-gnu.2.28  linux-aarch64
musllinux_x86_64   x86_64-linux-musl       musllinux-1.2-x86_64
win_amd64          x86_64-windows-gnu      win-amd64
macosx_arm64       aarch64-macos.11.0      macosx-11.0-arm64
macosx_x86_64      x86_64-macos.11.0       macosx-11.0-x86_64
'

# device_code PLATFORM: the setting of CMake for it.
device_code() {
    if [ "$1" != "manylinux_$(uname -m)" ]; then
        echo GDN_CUDA=OFF
    elif [ -n "${GDN_IMAGES_FROM:-}" ]; then
        echo "GDN_IMAGES_FROM=$(realpath "$GDN_IMAGES_FROM")"
    else
        echo "GDN_CUDA=${GDN_CUDA:-AUTO}"
    fi
}

build_for() {
    local platform=$1 target python_platform raw=build/wheel-$1
    read -r _ target python_platform < <(grep "^$platform " <<<"$platforms")
    [ -n "$target" ] || { echo "wheel: no platform $platform in:$platforms" >&2 && exit 2; }
    local settings=(
        -C "cmake.args=-DCMAKE_TOOLCHAIN_FILE=$PWD/cmake/zig.cmake"
        -C "cmake.define.GDN_TARGET=$target" -C "cmake.define.$(device_code "$platform")"
        -C "build-dir=build/zig-$platform" -C install.strip=false
        -C "cmake.build-type=${GDN_BUILD_TYPE:-Release}"
        -C "cmake.define.GDN_WERROR=${GDN_WERROR:-OFF}"
    )
    [ ! -f build/cjson/cJSON.c ] || settings+=(-C "cmake.define.GDN_CJSON_DIR=$PWD/build/cjson")
    # By way of the sdist, which must hold all that the build wants; or faster.
    local how=()
    [[ $platform = manylinux* ]] || how=(--wheel)
    rm -rf "$raw"
    _PYTHON_HOST_PLATFORM=$python_platform python3 -m build "${how[@]}" --no-isolation \
        -o "$raw" "${settings[@]}"
    mkdir -p dist
    case $platform in
    manylinux*)
        python3 -m auditwheel repair -w dist --plat auto "$raw"/*.whl
        cp "$raw"/*.tar.gz dist/
        ;;
    *) cp "$raw"/*.whl dist/ ;;
    esac
}

[ $# -gt 0 ] || set -- "manylinux_$(uname -m)"
# shellcheck disable=SC2046 # platforms are words
[ "$1" != all ] || set -- $(awk 'NF { print $1 }' <<<"$platforms")
tools/cjson.sh || echo "wheel: no sources of cJSON, so the wheels have no command gdn"
for platform; do build_for "$platform"; done
ls -l dist
