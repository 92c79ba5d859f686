# SPDX-License-Identifier: Apache-2.0
"""
Compares src/calls/ops.def with what cannot include it: the ops and outputs of python/gdn, and the
functions of src/core/gdn.map and tests/package/abi.txt. Reads text alone and imports nothing.

    ops_rows_test.py ROOT
"""
import pathlib
import re
import sys


def main(root):
    def text(path):
        return (root / path).read_text()

    table = text("src/calls/ops.def")
    python = "\n".join(path.read_text() for path in sorted(root.glob("python/gdn/*.py")))
    rows = re.findall(r"^GDN_OP_ROW\(\w+, +(\w+), +(\w+)\)", table, re.M)
    written = {args: set() for _, args in rows}
    for args, tensor in re.findall(r"^GDN_WRITES\w*\((\w+), (\w+)", table, re.M):
        written[args].add(tensor)

    failures = []

    def expect(what, found, wanted):
        if found != wanted:
            failures.append(f"{what}: {found}, but ops.def has {wanted}")

    listed = re.findall(r'^    "(\w+)": gdn_(\w+)_args,$', python, re.M)
    expect("python/gdn, _OPS", listed, rows)
    outputs = {}
    for args, rest in re.findall(r'= _struct\("gdn_(\w+)_args"(.*?)\)\n\n', python, re.S):
        names = re.search(r"outputs=\((.*)$", rest, re.S)
        outputs[args] = set(re.findall(r"\w+", names[1])) if names else set()
    for args, names in written.items():
        expect(f"python/gdn, outputs of gdn_{args}_args", outputs.get(args), names)
    for path in ("src/core/gdn.map", "tests/package/abi.txt"):
        names = set(re.findall(r"\bgdn_(\w+)", text(path)))
        expect(path, [name for name, _ in rows if name in names], [name for name, _ in rows])

    for failure in failures:
        print(failure)
    print(f"{len(rows)} ops, {len(failures)} failures")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(pathlib.Path(sys.argv[1])))
