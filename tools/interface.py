#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
interface.py FOLDER - what the Python package knows of the library, from the headers in include and
from src/calls/ops.def: FOLDER/gdn_interface.json, constants, structs and ops, which
python/gdn/_abi.py reads; and FOLDER/__init__.pyi, the types of the package.
"""

import json
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
# gdn.h first: the others need its types.
HEADERS = sorted((ROOT / "include").glob("*.h"), key=lambda path: (path.stem != "gdn", path.stem))
KINDS = {"int32_t": "int32", "uint32_t": "uint32", "int64_t": "int64", "uint64_t": "uint64",
         "float": "float", "size_t": "size", "gdn_tensor": "tensor"}
HIDDEN = ("struct_size", "workspace", "workspace_bytes", "reserved")
TYPES = {"tensor": "Array | None", "float": "float", "pointer": "Stream | None",
         "batch": "Batch | None"}


def manual():
    return "".join(path.read_text() for path in HEADERS)


def header_text():
    return re.sub(r"/\*.*?\*/", "", manual(), flags=re.S)


def text_of(op, text):
    """The first sentence about the op: behind a dash, else in a list of ops."""
    for between in (" - ", " +"):
        found = re.search(rf"^ \* +gdn_{op}{between}(.*?)(?=[.:]\s|\n \*\n|\n \* +gdn_\w+  )", text,
                          re.M | re.S)
        if found:
            return re.sub(r"\s*\n \*\s+", " ", found[1])
    raise SystemExit(f"interface.py: no header has a line gdn_{op} - what it does")


def constants(text):
    """Enumerators and sizes without the prefix, as name: number."""
    found = {}
    for _, body in re.findall(r"typedef enum (\w+) \{(.*?)\}", text, re.S):
        found.update(re.findall(r"GDN_(\w+) = (\d+)", body))
    found["MAX_DIMS"] = re.search(r"#define GDN_MAX_DIMS (\d+)", text)[1]
    return {name: int(number) for name, number in found.items()}


def members(body, sizes):
    """The members of a struct, as (name, kind, length); length 0: no array."""
    for member in filter(None, (part.strip() for part in body.split(";"))):
        if pointer := re.search(r"\(\*(\w+)\)\(", member):
            yield pointer[1], "pointer", 0
            continue
        kind, names = re.fullmatch(r"(?:const )?(\w+)\s+(.*)", member, re.S).groups()
        for name, length in re.findall(r"(\*?\w+)(?:\[GDN_(\w+)\])?", names):
            if name[0] == "*":
                kind_of = {"gdn_batch": "batch", "char": "text"}.get(kind, "pointer")
                yield name[1:], kind_of, 0
            else:
                yield name, KINDS[kind], sizes[length] if length else 0


def structs(text, sizes):
    found = re.findall(r"typedef struct (gdn_\w+) \{\n(.*?)\n\} \1;", text, re.S)
    return {name: list(members(body, sizes)) for name, body in found}


def rows(table, macro):
    """The arguments of each row of a table."""
    found = re.findall(rf"^{macro}\(([^()]*)", table, re.M)
    return [[word.strip() for word in row.split(",")] for row in found]


def ops(table, struct_of):
    """Each op with its struct and a sentence; and of each struct the tensors that are needed, and
    are written."""
    needs, writes = {}, {}
    for args, tensor, presence, *_ in rows(table, "GDN_TENSOR"):
        needs.setdefault(args, []).extend([tensor] if presence == "NEEDED" else [])
    for macro in ("GDN_WRITES", "GDN_WRITES_FINAL", "GDN_WRITES_FINAL_UNLESS"):
        for args, tensor, *_ in rows(table, macro):
            writes.setdefault(args, []).append(tensor)
    text = manual()
    return [{"name": name, "text": text_of(name, text), "struct": f"gdn_{args}_args",
             "needs": needs[args],
             "outputs": [f for f, *_ in struct_of[f"gdn_{args}_args"] if f in writes[args]]}
            for _, name, args in rows(table, "GDN_OP_ROW")]


def interface():
    text, table = header_text(), (ROOT / "src/calls/ops.def").read_text()
    numbers = constants(text)
    found = structs(text, numbers)
    public = {name: n for name, n in numbers.items() if not name.startswith("OP_")}
    return {"constants": public, "structs": found, "ops": ops(table, found)}


def stub_class(name, base, fields):
    lines = [f"    {field}: {TYPES.get(kind, 'int')}\n"
             for field, kind, _ in fields if field not in HIDDEN]
    return f"\nclass {name}({base}, total=False):\n" + "".join(lines)


def stubs(of):
    """The types of the package: python/types.pyi.in with these classes and methods."""
    struct_of = of["structs"]
    calls, fields = "", ""
    for op in of["ops"]:
        calls += f"    def {op['name']}(self, **fields: Unpack[_{op['struct'][4:]}]) -> None: ...\n"
    for name in dict.fromkeys(op["struct"] for op in of["ops"]):
        batch = any(kind == "batch" for _, kind, _ in struct_of[name])
        fields += stub_class(f"_{name[4:]}", "_batch_fields" if batch else "TypedDict",
                             struct_of[name])
    parts = {
        "constants": "".join(f"{name}: int\n" for name in of["constants"]),
        "batch_fields": stub_class("_batch_fields", "TypedDict", struct_of["gdn_batch"]),
        "op_fields": fields,
        "ops": calls,
        "structs": "".join(f"class {name}(ctypes.Structure): ...\n" for name in struct_of),
    }
    text = (ROOT / "python/types.pyi.in").read_text()
    return re.sub(r"^@(\w+)@\n", lambda match: parts[match[1]], text, flags=re.M)


def main():
    folder = pathlib.Path(sys.argv[1])
    of = interface()
    (folder / "gdn_interface.json").write_text(json.dumps(of) + "\n")
    (folder / "__init__.pyi").write_text(stubs(of))


main()
