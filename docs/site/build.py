#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""build.py OUT - builds the site in OUT/html from the documents, the headers and the docstrings.

The packages of requirements.txt must be installed. A link to a page or a part of one that is not
there is an error. The documents are copied to OUT/source, where they keep their places, and the
reference pages are made there.
"""

import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
sys.path.insert(0, str(ROOT / "tools"))
import header_doc  # noqa: E402

LINK = re.compile(r"\]\(([^)#\s:]+)(#[^)\s]*)?\)")
FOLDER = re.compile(r"\[([^\]]+)/\]\([^)#\s:.]+\)")  # [name/](name): a folder is no page


def heading(text, line):
    return [text, line * len(text), ""]


def literal(text):
    return [".. code-block:: none", "", *(f"   {line}" for line in text.split("\n")), ""]


def prose(text):
    """A paragraph of a comment as reStructuredText: nothing in it is markup."""
    return [re.sub(r"([\\*`|_])", r"\\\1", text), ""]


def comment(text):
    """A comment: titles, paragraphs, and what is indented as it stands."""
    lines = []
    for indent, block in header_doc.paragraphs(text):
        if re.fullmatch(r"[A-Z][A-Z ]+", block):
            lines += heading(block.capitalize(), "-")
        elif indent == 0 and not re.search(r"^ {2,}", block, re.M):
            lines += prose(block)
        else:
            lines += literal(block)
    return lines


def struct(name, body):
    yield from [f".. c:struct:: {name}", ""]
    for declaration, note in header_doc.members(body):
        yield from [f"   .. c:member:: {declaration}", ""]
        if note:
            yield from ["      " + prose(note)[0], ""]


def enum(name, body):
    yield from [f".. c:enum:: {name}", ""]
    for name, value, note in header_doc.enumerators(body):
        yield from [f"   .. c:enumerator:: {name}{f' = {value}' if value else ''}", ""]
        if note:
            yield from ["      " + prose(note)[0], ""]


def part(kind, name, body=None):
    if kind == "text":
        return comment(name)
    if kind == "function":
        return [f".. c:function:: {' '.join(name.split())}", ""]
    return [*(struct if kind == "struct" else enum)(name, body)]


def header_pages(folder):
    """One page per section of each header, and their index."""
    index = heading("The headers", "=")
    for path in header_doc.headers():
        index += [*heading(path.name, "-"), ".. toctree::", "   :maxdepth: 1", ""]
        for title, parts in header_doc.sections(path):
            name = re.sub(r"\W+", "-", f"{path.stem} {title}".lower())
            lines = [*heading(title, "="), *(line for p in parts for line in part(*p))]
            (folder / f"{name}.rst").write_text("\n".join(lines) + "\n")
            index.append(f"   {name}")
        index.append("")
    (folder / "index.rst").write_text("\n".join(index) + "\n")


def python_page(path):
    lines = [*heading("Python", "="),
             *prose("Arguments, constants and guarantees of the ops are those of the headers, "
                    "under the same names without their prefix.")]
    for package in ("gdn", "gdn/torch"):
        module = package.replace("/", ".")
        lines += [*heading(module, "-"), f".. py:module:: {module}", ""]
        for _, name, kind, signature, doc in header_doc.exported(package):
            lines += [f".. py:{kind}:: {name}{signature}", ""]
            if doc:
                lines += [f"   {line}" for line in literal(doc)]
    path.write_text("\n".join(lines) + "\n")


def stage(source):
    """Copies the documents and the files that they link to."""
    pages = [ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md",
                                      "bench/README.md", "bench/peers/gpu/README.md",
                                      "tests/vectors/README.md", "examples/tinylm/README.md",
                                      "examples/generate/README.md",
                                      "integrations/ggml/README.md")]
    pages += [path for folder in ("start", "design", "gpu", "log") for path
              in sorted((ROOT / "docs" / folder).glob("*.md"))]
    pages += [ROOT / "docs" / name for name in ("index.md", "plots.md", "compare.md")]
    for page in pages:
        text = page.read_text()
        for match in LINK.finditer(text):
            target = (page.parent / match[1]).resolve()
            if target.is_file() and target.suffix != ".md":
                copy(target, source)
        up = "../" * len(page.relative_to(ROOT).parents[:-1])
        text = re.sub(r"\]\([^)]*include/gdn\w*\.h\)", f"]({up}reference/index.rst)", text)
        text = re.sub(r"\]\([^)]*LICENSE\)", "](https://www.apache.org/licenses/LICENSE-2.0)", text)
        text = FOLDER.sub(r"\1", text)
        copy(page, source).write_text(text)
    for name in ("conf.py", "site.css"):
        shutil.copy(ROOT / "docs/site" / name, source / name)
    shutil.copytree(ROOT / "docs/plots", source / "docs/plots", dirs_exist_ok=True)


def copy(path, source):
    to = source / path.relative_to(ROOT)
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(path, to)
    return to


def main():
    out = pathlib.Path(sys.argv[1])
    source = out / "source"
    shutil.rmtree(source, ignore_errors=True)
    (source / "reference").mkdir(parents=True)
    stage(source)
    header_pages(source / "reference")
    python_page(source / "reference/python.rst")
    status = subprocess.run([sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going",
                             "-b", "html", source, out / "html"]).returncode
    (out / "html/index.html").write_text(
        '<!doctype html><meta http-equiv="refresh" content="0; url=docs/index.html">\n')
    sys.exit(status)


if __name__ == "__main__":
    main()
