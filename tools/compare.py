# SPDX-License-Identifier: Apache-2.0
"""
Writes the tables of docs/compare.md, from "## Features" on, from docs/compare.tsv. With --check it
writes nothing, and fails if the page has other tables. A cell is "value @source", "?" or "-". Each
source must be listed, and used.
"""

import pathlib
import sys

docs = pathlib.Path(__file__).resolve().parent.parent / "docs"
HEADING = "## Features\n"


def read(lines):
    """The sources {key: (project, version, file)}, the columns, and the rows: a list of cells, or
    of one title."""
    sources, rows = {}, []
    for line in lines:
        cells = line.split("\t")
        if line.startswith("@"):
            sources[cells[0][1:]] = cells[1:]
        elif line.startswith("= "):
            rows.append([line[2:]])
        elif not line.startswith("#"):
            rows.append(cells)
    return sources, rows[0], rows[1:]


def split(cell):
    """The value of a cell and its source, which is None for "?" and "-"."""
    value, at, source = cell.rpartition(" @")
    return (value, source) if at else (cell, None)


def faults(sources, columns, rows):
    used = set()
    for row in rows:
        if len(row) not in (1, len(columns)):
            yield f"{row[0]}: {len(row)} cells, wanted {len(columns)}"
        for cell in row[1:]:
            value, source = split(cell)
            used.add(source)
            if source not in sources and (source or value not in ("?", "-")):
                yield f"{row[0]}: '{cell}' has no listed source"
    for key in sources.keys() - used:
        yield f"{key}: a source of no cell"


def table(rows):
    return ["| " + " | ".join(row) + " |" for row in (rows[0], ["---"] * len(rows[0]), *rows[1:])]


def tables(sources, columns, rows):
    """The page from HEADING on."""
    body = []
    for row in rows:
        title = [f"**{row[0]}**"] + [""] * (len(columns) - 1)
        body.append(title if len(row) == 1 else [row[0]] + [split(cell)[0] for cell in row[1:]])
    listed = [("source", "project", "version", "file")]
    listed += [(f"`{key}`", *source) for key, source in sources.items()]
    lines = [HEADING, *table([["", *columns[1:]], *body]), "", "## Sources\n", *table(listed)]
    return "\n".join(lines) + "\n"


def main():
    found = read((docs / "compare.tsv").read_text().splitlines())
    wrong = list(faults(*found))
    page = (docs / "compare.md").read_text()
    wanted = page.partition(HEADING)[0] + tables(*found)
    if "--check" not in sys.argv:
        (docs / "compare.md").write_text(wanted)
    elif page != wanted:
        wrong.append("docs/compare.md: differs from docs/compare.tsv; run tools/compare.py")
    sys.exit("\n".join(wrong) or None)


main()
