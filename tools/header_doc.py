# SPDX-License-Identifier: Apache-2.0
"""
header_doc.py - fails if a public function of the headers in include has no comment, or a public
name of the Python package no docstring.

A function is documented by a comment directly above it, by one behind it, or by a line of any
comment that begins with its name. docs/site/build.py makes the reference pages with `sections`.
"""

import ast
import pathlib
import re
import sys
import textwrap

ROOT = pathlib.Path(__file__).resolve().parent.parent
COMMENT = re.compile(r"/\*.*?\*/", re.S)
FUNCTION = re.compile(r"^GDN_API\s+([^;{]+?)\s*;", re.M)
STRUCT = re.compile(r"^typedef struct (\w+) \{\n(.*?)^\} \w+;", re.M | re.S)
ENUM = re.compile(r"^typedef enum (\w+) \{(.*?)\} \w+;", re.M | re.S)
MEMBER = re.compile(r"(?P<code>[^;]+);[ ]*(?P<note>/\*.*?\*/)?", re.S)
ENUMERATOR = re.compile(r"(GDN_\w+)\s*(?:=\s*(\d+))?,?[ ]*(/\*.*?\*/)?", re.S)


def headers():
    """The paths of the public headers, gdn.h first."""
    return sorted((ROOT / "include").glob("*.h"), key=lambda path: path.stem)


def text_of(comment):
    """The text of a comment without its stars."""
    lines = comment.removeprefix("/*").removesuffix("*/").split("\n")
    return "\n".join(re.sub(r"^ \* ?", "", line) for line in lines).strip("\n ").rstrip()


def name_of(prototype):
    return re.search(r"(\w+)\(", prototype)[1]


def parts(body):
    """The comments and declarations of a piece of the header, in order: (kind, ...) tuples."""
    found = []
    for pattern, kind in ((FUNCTION, "function"), (STRUCT, "struct"), (ENUM, "enum")):
        found += [(m.start(), m.end(), kind, m.groups()) for m in pattern.finditer(body)]
    inside = [(start, end) for start, end, *_ in found]
    for m in re.finditer(r"^/\*.*?\*/", body, re.M | re.S):
        if not any(start < m.start() < end for start, end in inside):
            found.append((m.start(), m.end(), "text", (text_of(m[0]),)))
    return [(kind, *groups) for _, _, kind, groups in sorted(found)]


def sections(path):
    """(title, parts) of each section of a header; the first is its manual on top."""
    pieces = re.split(r"^/\* ---- (.*?) -+ \*/$", path.read_text(), flags=re.M)
    yield "The manual", [("text", text_of(COMMENT.findall(pieces[0])[1]))]
    for title, body in zip(pieces[1::2], pieces[2::2]):
        yield title, parts(body)


def members(body):
    """(declaration, note) of each member of a struct; one that declares several names is cut."""
    body = re.sub(r"^\s*/\*.*?\*/\n", "", body, flags=re.M | re.S)
    for m in MEMBER.finditer(body):
        code = " ".join(m["code"].split())
        note = " ".join(text_of(m["note"] or "").split())
        pointer = re.fullmatch(r"(.+?)\(\*(\w+)\)\((.*)\)", code)
        if pointer:
            yield "{} (*{})({})".format(*(part.strip() for part in pointer.groups())), note
            continue
        kind, names = re.fullmatch(r"((?:const )?\w+(?: const)?)\s*(.*)", code).groups()
        for name in names.split(","):
            yield f"{kind} {name.strip()}", note


def enumerators(body):
    for name, value, note in ENUMERATOR.findall(COMMENT.sub(lambda m: m[0], body)):
        yield name, value, " ".join(text_of(note).split())


def undocumented_functions(path):
    text = path.read_text()
    comments = "\n".join(text_of(c) for c in COMMENT.findall(text))
    for m in FUNCTION.finditer(text):
        name = name_of(m[1])
        above = text[:m.start()].rstrip("\n").endswith("*/")
        behind = re.match(r"[ ]*/\*", text[m.end():])
        if not above and not behind and not re.search(rf"^ *{name}\b", comments, re.M):
            yield f"{path.relative_to(ROOT)}: {name}() has no comment"


def python_objects(path):
    """(name, kind, signature, docstring) of the public functions, classes and methods of a file."""
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)) and not node.name.startswith("_"):
            yield from describe(node, "")


def describe(node, prefix):
    if isinstance(node, ast.FunctionDef):
        kind = "method" if prefix else "function"
        yield prefix + node.name, kind, f"({ast.unparse(node.args)})", ast.get_docstring(node)
        return
    yield node.name, "class", "", ast.get_docstring(node)
    for child in node.body:
        if isinstance(child, ast.FunctionDef) and not child.name.startswith("_"):
            yield from describe(child, f"{node.name}.")


def exported(package):
    """(path, name, kind, signature, docstring) of what a package's __init__.py offers."""
    folder = ROOT / "python" / package
    tree = ast.parse((folder / "__init__.py").read_text())
    names = {}
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.level == 1 and node.module:
            names.setdefault(folder / f"{node.module}.py", set()).update(
                alias.name for alias in node.names if not alias.name.startswith("_"))
        elif isinstance(node, ast.FunctionDef):
            names.setdefault(folder / "__init__.py", set()).add(node.name)
    for path, wanted in names.items():
        for name, *rest in python_objects(path):
            if name.partition(".")[0] in wanted:
                yield path, name, *rest


def undocumented_python():
    for package in ("gdn", "gdn/torch"):
        for path, name, kind, _, doc in exported(package):
            if kind != "method" and not doc:
                yield f"{path.relative_to(ROOT)}: {name} has no docstring"


def paragraphs(text):
    """Blocks of a comment: lines between blank ones, without their common indentation."""
    for block in re.split(r"\n\s*\n", text):
        lines = block.split("\n")
        yield min(len(line) - len(line.lstrip()) for line in lines), textwrap.dedent(block)


if __name__ == "__main__":
    missing = [line for path in headers() for line in undocumented_functions(path)]
    missing += undocumented_python()
    print("\n".join(missing), end="\n" if missing else "")
    sys.exit(bool(missing))
