#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# ci.sh [stage...] - every check of this repository, as named stages, cheapest first. The last
# line counts the stages and the single tests that ran in them. Output of a stage is in
# build/ci/STAGE.log, and is shown if it fails. With GDN_CI_TIDY what no later stage reads is
# removed behind a stage that passed, so that a run takes 8 GB of disk in place of 13.
set -uo pipefail
cd "$(dirname "$0")/.."
. tools/env.sh
all="style headers guarantees docs images gcc symbols install wheel torch systems qemu arm valgrind"
all="$all clang asan tsan msan" # ubsan is clang's; stage asan has gcc's
logs=build/ci
mkdir -p "$logs"

skip() { # skip REASON: ends the stage
    echo "$*" >"$logs/$stage.skip"
    exit 77
}
need() { command -v "$1" >/dev/null || skip "no $1"; }

# build PRESET FOLDER [CMAKE ARGUMENT...]
build() {
    local preset=$1 folder=build/$2
    shift 2
    cmake --preset "$preset" -B "$folder" "$@" && cmake --build "$folder"
}
have_nvcc() {
    [ -x /usr/local/cuda/bin/nvcc ] || [ -x build/nvcc/nvidia/cu13/bin/nvcc ] ||
        command -v nvcc >/dev/null
}
# The build that the stages gcc, symbols, install, qemu and arm look at. Its tests want device code.
build_gcc() {
    need gcc
    local device=OFF
    ! command -v c++ || ! have_nvcc || device=ON
    build release gcc -DCMAKE_C_COMPILER=gcc -DGDN_WERROR=ON -DGDN_CUDA=$device "$@"
}

# build_tests PRESET FOLDER -DNAME=VALUE... CTEST ARGUMENT...: the programs of these tests alone.
build_tests() {
    local preset=$1 folder=build/$2 define=()
    shift 2
    while [[ $1 == -D* ]]; do define+=("$1") && shift; done
    cmake --preset "$preset" -B "$folder" "${define[@]}"
    # A test is named after its program, and after a dot where it runs.
    ctest --test-dir "$folder" -N "$@" | sed -nE 's/^ *Test +#[0-9]+: ([a-z0-9_]+).*/\1/p' |
        sort -u >"$folder/programs"
    xargs cmake --build "$folder" --target with_isa <"$folder/programs"
}

# run_tests FOLDER [CTEST ARGUMENT...]: under $launcher; keeps each test's line for the count.
launcher=
#
# Tests take each 16th case of a table alone, and each 60th where they take many times as long
# (GDN_TEST_EVERY, tests/harness/ring2.c). `make check` takes all.
run_tests() {
    local folder=build/$1 status=0
    shift
    $launcher ctest --test-dir "$folder" --output-on-failure --no-tests=error "$@" || status=$?
    grep -E '^ *[0-9]+/[0-9]+ Test +#' "$logs/$stage.log" >"$logs/$stage.tests"
    return $status
}

# ---- stages ----------------------------------------------------------------------------------

stage_style() { tools/style.sh; }

stage_headers() {
    local strict=(-Wall -Wextra -Wpedantic -Wshadow -Werror -fsyntax-only -Iinclude -Isrc) n=0 cc
    for cc in gcc clang; do
        command -v $cc >/dev/null || continue
        $cc -std=c11 -Wstrict-prototypes -Wmissing-prototypes "${strict[@]}" \
            tests/package/header_c11.c
        n=$((n + 1))
    done
    for cc in g++ clang++; do
        command -v $cc >/dev/null || continue
        $cc -std=c++11 "${strict[@]}" tests/package/header_cxx.cpp
        $cc -std=c++20 "${strict[@]}" tests/package/header_cxx.cpp
        n=$((n + 1))
    done
    echo "$n compilers"
    [ $n -gt 0 ]
}

stage_guarantees() {
    need python3
    python3 tools/guarantees.py
}

# The site builds, and each link in it has a target.
stage_docs() {
    python3 -c "import sphinx, furo, myst_parser, sphinxcontrib.mermaid" 2>/dev/null ||
        skip "no packages of docs/site/requirements.txt"
    python3 docs/site/build.py build/site
}

# Device code compiles, without a spill that nobody knows and without a serialised WGMMA
# (tools/image.sh); what the other builds leave out. Each image is compiled once, for sm_80 or for
# sm_90a; a twin only to PTX, which shows no spills. A release compiles all of them for all chips:
# GDN_CUDA_ARCHITECTURES=all.
stage_images() {
    need c++
    have_nvcc || skip "no nvcc"
    build_gcc -DGDN_CUDA=ON \
        -DGDN_CUDA_ARCHITECTURES="${GDN_CUDA_ARCHITECTURES:-once}"
    ls -l build/gcc/images/*.fatbin
}

stage_gcc() {
    build_gcc
    export GDN_TEST_EVERY=16
    # `make check` runs these too: other loops at other widths, other layers on the emulated GPU.
    run_tests gcc -E '^op_rule_(properties|traps)[.](scalar|avx2)$|^op_block_wide[.]sm_80$'
}

stage_symbols() {
    build_gcc
    tools/symbols.sh build/gcc
    tools/calls.sh build/gcc
}

stage_install() {
    build_gcc
    tools/install.sh build/gcc
}

# A wheel with the device code of stage images, in an empty environment: the command, the tests of
# the package, and what is said where something is missing. Then one for aarch64, emulated.
stage_wheel() {
    need python3
    python3 -c "import build, scikit_build_core, ziglang, auditwheel" || skip "no ziglang or build"
    rm -rf dist build/wheel-env
    if [ -f build/gcc/images/step_vk.fatbin ]; then
        GDN_IMAGES_FROM=build/gcc/images tools/wheel.sh "manylinux_$(uname -m)"
    else
        GDN_CUDA=OFF tools/wheel.sh "manylinux_$(uname -m)"
    fi
    [ "$(stat -c %s dist/*manylinux*"$(uname -m)".whl)" -le 41943040 ] # 40 MB
    python3 -m venv build/wheel-env
    build/wheel-env/bin/pip install -q --no-deps dist/*manylinux*"$(uname -m)".whl
    (cd build/wheel-env && bin/gdn info && bin/python -c "import gdn, gdn._fast; print(gdn.info())
assert gdn._fast.native")
    build/wheel-env/bin/pip install -q numpy pytest
    build/wheel-env/bin/python -m pytest -q -p no:cacheprovider python/tests
    GDN_BUILD_TYPE=MinSizeRel tools/wheel.sh manylinux_aarch64
    tools/wheel_check.sh dist/*aarch64.whl
    need qemu-aarch64
    tools/import_arm.sh dist/*aarch64.whl || { [ $? = 77 ] && skip "no Python for arm64"; }
}

# Wheels for Windows and macOS. Wine runs what is for Windows. The compiler is quick: a release is
# optimised, and other stages run optimised loops. It has wheels for musl and Intel's macOS too.
stage_systems() {
    python3 -c "import build, scikit_build_core, ziglang" || skip "no ziglang or build"
    need llvm-readobj
    GDN_WERROR=ON GDN_BUILD_TYPE=MinSizeRel tools/wheel.sh win_amd64 macosx_arm64
    tools/wheel_check.sh dist/*win_amd64.whl dist/*macosx*.whl
    need wine
    build_gcc
    cmake -S . -B build/zig-win_amd64 -DGDN_TESTS=ON
    tools/wine.sh build/zig-win_amd64 build/gcc
}

# The operators for torch, from the wheel.
stage_torch() {
    # The environment may still be under way.
    while kill -0 "$(cat build/torch.pid 2>/dev/null)" 2>/dev/null; do sleep 1; done
    [ -x build/torch/bin/python ] || skip "no torch in build/torch (tools/bootstrap.sh test)"
    ls dist/*manylinux*"$(uname -m)".whl || skip "no wheel (stage wheel)"
    build/torch/bin/pip install -q --no-deps --force-reinstall dist/*manylinux*"$(uname -m)".whl
    local test=(build/torch/bin/python -m pytest -q -p no:cacheprovider python/torch_tests)
    "${test[@]}"
    build/torch/bin/python bench/python_calls.py
}

stage_qemu() {
    need qemu-x86_64
    [ "$(uname -m)" = x86_64 ] || skip "not an x86-64 machine"
    build_gcc
    tools/emulate.sh build/gcc || { [ $? = 77 ] && skip "this qemu emulates no AVX2"; }
}

# What is quick enough: memory errors in the library, the command and their tests. Valgrind knows
# AVX2 but no AVX-512, and not the float modes that other tests set.
stage_valgrind() {
    need valgrind
    build_gcc
    local isa=avx2 test
    build/gcc/tests/with_isa avx2 "$(type -P true)" || isa=scalar
    for test in op_padding op_huge unit_alloc unit_blob unit_blob_parts; do
        GDN_CPU=$isa valgrind -q --error-exitcode=9 "build/gcc/tests/$test" || [ $? = 77 ]
    done
    GDN_CPU=$isa valgrind -q --error-exitcode=9 --leak-check=full \
        --errors-for-leak-kinds=definite build/gcc/gdn run tests/vectors/decode_*.safetensors \
        tests/vectors/prefill_reset.safetensors tests/vectors/layer_qwen3_5.safetensors
}

# The library and the tests for Arm, and what of them an emulator has the time for.
stage_arm() {
    need aarch64-linux-gnu-gcc
    need qemu-aarch64
    build_gcc
    cmake --preset release -B build/arm --toolchain cmake/aarch64.cmake -DGDN_WERROR=ON \
        -DGDN_CUDA=OFF
    cmake --build build/arm --target libgdn.so ring1 unit_detect op_gates op_norm \
        op_conv1d op_exact op_rule exact_sums
    if command -v clang >/dev/null; then
        clang --target=aarch64-linux-gnu -std=c11 -O3 -ffp-contract=off -Wall -Wextra -Wpedantic \
            -Wshadow -Wstrict-prototypes -Wmissing-prototypes -Werror -Iinclude -Isrc \
            -c src/cpu/loops/neon.c -o "$logs/neon-clang.o"
    fi
    tools/emulate_arm.sh build/arm build/gcc
}

stage_clang() {
    need clang
    build clang clang -DGDN_EMULATED=OFF
    export GDN_TEST_EVERY=60
    # What takes longest with the best instruction set alone; gcc's build runs it with the others.
    local long='rule_.*|checkpoints|guarantees|mixed|q8_states_wide|block_.*|block'
    local less="^check[.](scalar|avx2)$|^op_block_wide$|^op_($long)[.](scalar|avx2)$"
    run_tests clang -L 'ring1|ring2' -E "$less"
}

stage_asan() {
    build asan asan
    # Failing allocations are part of the tests.
    export ASAN_OPTIONS=allocator_may_return_null=1 UBSAN_OPTIONS=print_stacktrace=1
    export GDN_TEST_EVERY=60
    # Ops on AVX2 are AVX-512's loops at another width, whose own tests run here; the longest ones
    # with the best instruction set alone.
    local long='checkpoints|stages|tree|exact|rule.*|mixed|block.*|step.*|summary.*|decode.*'
    long="$long|q8.*|strong_gates|embed|bf16_products|guarantees"
    local less="^readme$|^check[.]|^op_.*[.]avx2$|^op_($long)[.]scalar$"
    # Memory as op_rule, op_q8, op_block, `gdn bench`.
    less="$less|^op_(rule_.*|strong_gates|q8_wide|q8_states_wide|block_wide|block_checkpoints)$"
    less="$less|^cli_accuracy$"
    run_tests asan -L 'ring1|ring2|^cli$' -E "$less"
}

# Undefined behaviour that clang finds and gcc does not: offsets to NULL, indices past an array.
stage_ubsan() {
    need clang
    build clang ubsan -DCMAKE_BUILD_TYPE=Debug -DGDN_SANITIZE=undefined -DGDN_EMULATED=OFF
    export GDN_TEST_EVERY=60
    run_tests ubsan -L ring2 -R '^unit_|^fuzz_|[.]scalar$' \
        -E '^op_(checkpoints|stages|exact|mixed|block_checkpoints|strong_gates)[.]'
}

# Only what has threads; the best instruction set is enough for that.
stage_tsan() {
    need clang # quicker than gcc here
    echo 'int main(void) { return 0; }' >"$logs/probe.c"
    clang -fsanitize=thread -o "$logs/probe" "$logs/probe.c" || skip "clang has no TSan"
    # Where addresses are too random for TSan's shadow, without randomisation.
    "$logs/probe" || launcher="setarch $(uname -m) -R"
    $launcher "$logs/probe" || skip "TSan does not start here, see vm.mmap_rnd_bits"
    export GDN_TEST_EVERY=60
    local alone='checkpoints|block_checkpoints|exact|chunk_stage|tree|conv_tree|mixed|huge'
    alone="$alone|bf16_products|refused.*|summary_product|strong_gates|rule_.*|.*_properties"
    alone="$alone|.*_wide"
    local which=(-L ring2
        -E "[.](scalar|avx2)\$|^unit_(fuzz|cuda|workspace)|^op_($alone)\$")
    build_tests clang tsan -DCMAKE_BUILD_TYPE=Debug -DGDN_SANITIZE=thread "${which[@]}"
    run_tests tsan "${which[@]}"
}

# Reads of memory that nobody wrote; clang models plain C best, hence the scalar table.
stage_msan() {
    need clang
    echo 'int main(void) { return 0; }' >"$logs/probe.c"
    clang -fsanitize=memory -o "$logs/probe" "$logs/probe.c" || skip "clang has no MSan"
    "$logs/probe" || launcher="setarch $(uname -m) -R"
    $launcher "$logs/probe" || skip "MSan does not start here, see vm.mmap_rnd_bits"
    export GDN_TEST_EVERY=60
    local long='checkpoints|stages|exact|mixed|rule_.*|block_checkpoints|strong_gates|guarantees'
    long="$long|refused.*|.*_wide"
    local which=(-L ring2 -R '[.]scalar$' -E "^op_($long)[.]")
    build_tests clang msan -DCMAKE_BUILD_TYPE=Debug -DGDN_SANITIZE=memory "${which[@]}"
    run_tests msan "${which[@]}"
}

# Removes what the stage alone has read.
tidy() {
    case $stage in
    torch) rm -rf build/torch ;;
    wheel) rm -rf build/wheel-env ;;
    systems) rm -rf build/zig-* ;;
    arm | clang | asan | tsan | msan) rm -rf "build/$stage" ;;
    esac
}

# ---- run them --------------------------------------------------------------------------------

passed=0 failed=0 skipped=0
count() { grep -cE "$1" "$logs/$stage.tests"; }

[ $# -gt 0 ] || set -- $all
for stage; do
    case " $all ubsan " in
    *" $stage "*) ;;
    *)
        echo "unknown stage $stage; there are: $all ubsan" >&2
        exit 2
        ;;
    esac
    rm -f "$logs/$stage".*
    touch "$logs/$stage.tests"
    start=$SECONDS
    (
        set -e
        "stage_$stage"
    ) >"$logs/$stage.log" 2>&1 </dev/null
    status=$?
    seconds=$((SECONDS - start))

    total=$(count .) good=$(count ' Passed ') left=$(count 'Skipped|Not Run \(Disabled\)')
    bad=$((total - good - left))
    passed=$((passed + good)) failed=$((failed + bad)) skipped=$((skipped + left))
    case $status in
    0) passed=$((passed + 1)) ;;
    77) skipped=$((skipped + 1)) ;;
    *)
        failed=$((failed + 1))
        tail -n 200 "$logs/$stage.log"
        ;;
    esac
    if [ "$left" -gt 0 ]; then
        sed -nE 's/.*: ([^ ]+) .*(Skipped|Not Run \(Disabled\)).*/    skipped: \1/p' \
            "$logs/$stage.tests"
    fi
    [ "$total" = 0 ] || echo "    $stage tests: $good passed, $bad failed, $left skipped"
    case $status in
    0)
        echo "stage $stage: ok ($seconds s)"
        [ -z "${GDN_CI_TIDY:-}" ] || tidy
        ;;
    77) echo "stage $stage: SKIPPED ($(cat "$logs/$stage.skip"))" ;;
    *) echo "stage $stage: FAILED ($seconds s)" ;;
    esac
done

echo "$passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
