#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes examples/generate/text/unicode_classes.inc: the ranges of letters, marks and numbers."""
import sys
import unicodedata

CLASSES = {"L": "LETTER", "M": "MARK", "N": "NUMBER"}


def ranges(kind_of):
    """(first, last, kind) of neighbours for which kind_of(character) is the same and not empty."""
    first = last = kind = None
    for code in range(0x110001):
        now = kind_of(chr(code)) if code < 0x110000 else None
        if now != kind:
            if kind:
                yield first, last, kind
            first, kind = code, now
        last = code


def write(entries):
    """Prints entries, as many on a line as fit."""
    line = ""
    for text in entries:
        if len(line) + len(text) > 98:
            print(line)
            line = ""
        line += (" " if line else "") + text
    print(line)


def main():
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print(f"/* Written by tools/unicode_classes.py: Unicode {unicodedata.unidata_version}. */")
    found = ranges(lambda x: CLASSES.get(unicodedata.category(x)[0]))
    write("{ 0x%x, 0x%x, %s }," % entry for entry in found)


if __name__ == "__main__":
    sys.exit(main())
