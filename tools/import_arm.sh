#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# import_arm.sh WHEEL - imports the wheel for aarch64 in Debian's Python for arm64, emulated by
# qemu, and computes with it. Nothing is installed: the packages are unpacked into build/arm-python.
# Exit status 77: the packages cannot be had.
set -euo pipefail
cd "$(dirname "$0")/.."
wheel=$(realpath "${1:?usage: import_arm.sh WHEEL}")
root=$PWD/build/arm-python
if [ ! -x "$root/usr/bin/python3" ]; then
    version=$(apt-cache depends python3-minimal |
        sed -n 's/.*Depends: \(python3\.[0-9]*\)-minimal.*/\1/p' | head -n 1)
    rm -rf "$root"
    mkdir -p "$root"
    cd "$root"
    apt-get download -qq "$version-minimal:arm64" "lib$version-minimal:arm64" \
        "lib$version-stdlib:arm64" zlib1g:arm64 libexpat1:arm64 libffi8:arm64 libc6:arm64 || exit 77
    for package in *.deb; do dpkg -x "$package" .; done
    ln -s "$version" usr/bin/python3
    cd - >/dev/null
fi
rm -rf "$root/site"
python3 -m zipfile -e "$wheel" "$root/site"
qemu-aarch64 -L "$root" "$root/usr/bin/python3" - "$root/site" <<'EOF'
import array, platform, sys
sys.path.insert(0, sys.argv[1])
import gdn, gdn._fast
print(platform.machine(), sys.version.split()[0], gdn.info(), "extension:", gdn._fast.native)
class Row:
    def __init__(self, *values):
        self.memory = array.array("f", values)
        self.__array_interface__ = dict(version=3, shape=(1, 2), typestr="<f4",
                                        data=(self.memory.buffer_info()[0], False))


x, out = Row(3, 4), Row(0, 0)
with gdn.Context(threads=2) as ctx:
    ctx.self_test()
    ctx.l2norm(x=x, out=out)
assert abs(out.memory[0] - 0.6) < 1e-6 and abs(out.memory[1] - 0.8) < 1e-6
assert platform.machine() == "aarch64" and gdn._fast.native
EOF
[ ! -f "$root/site/gdn/bin/gdn" ] || {
    chmod +x "$root/site/gdn/bin/gdn"
    qemu-aarch64 -L "$root" "$root/site/gdn/bin/gdn" info
}
