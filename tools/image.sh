#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# image.sh [--strict] IMAGE NVCC ARGUMENT... - compiles device code and fails on a serialised WGMMA
# (C75xx), which ptxas only mentions, and on a kernel of the image in kernels.def that is not
# compiled. With --strict it also fails on a warning, and on a spill that
# src/cuda/driver/spills.txt does not allow. Without, it says so: code for other sets of chips, and
# by other compilers, spills other bytes.
set -uo pipefail
driver=$(dirname "$0")/../src/cuda/driver
list=$driver/spills.txt
strict=0
if [ "$1" = --strict ]; then
    strict=1
    shift
fi
image=$1
shift
said=$("$@" -Xptxas -v 2>&1)
status=$?

# ptxas -v: "Compiling entry function 'NAME' for 'sm_XX'", then "... N bytes spill stores ...".
found=$(awk '
    /Compiling entry function/ { split($0, part, "\047"); kernel = part[2] " " part[4] }
    /bytes spill stores/ {
        for (i = 1; i <= NF; i++) if ($i == "spill" && $(i + 1) ~ /^stores/) bytes = $(i - 2)
        if (bytes > 0) print kernel, bytes
    }' <<<"$said")
if [ $status -ne 0 ]; then
    echo "$said" >&2
    exit $status
fi
# GDN_KERNEL(image, threads, shared, part, part...): gdn_part_part
kernels=$(sed -nE "/^GDN_KERNEL\($image,/{
    s/^GDN_KERNEL\([^,]+, [^,]+, [^,]+, (.*)\)$/gdn_\1/; s/, /_/g; p; }" "$driver/kernels.def")
compiled=$(awk '/Compiling entry function/ { split($0, part, "\047"); print part[4], part[2] }' \
    <<<"$said")
for arch in $(cut -d ' ' -f 1 <<<"$compiled" | sort -u); do
    for kernel in $kernels; do
        grep -qx "$arch $kernel" <<<"$compiled" && continue
        echo "$kernel is not compiled for $arch" >&2
        status=1
    done
done
# A chip may have room for fewer blocks than a kernel's bounds want of all chips.
grep -vE 'Value of minnctapersm for entry [a-z_A-Z0-9]+ is out of range' <<<"$said" |
    grep -E '\(C75[0-9][0-9]\)|warning' >&2 && [ $strict = 1 ] && status=1
grep -qE '\(C75[0-9][0-9]\)' <<<"$said" && status=1
while read -r kernel arch bytes; do
    [ -n "$kernel" ] || continue
    allowed=$(awk -v k="$kernel" -v a="$arch" '$1 == k && $2 == a { print $3 }' "$list")
    [ "$bytes" -le "${allowed:-0}" ] && continue
    echo "$kernel for $arch spills $bytes bytes; not in src/cuda/driver/spills.txt" >&2
    [ $strict = 0 ] || status=1
done <<<"$found"
exit $status
