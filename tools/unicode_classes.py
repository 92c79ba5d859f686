#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes cli/generate/unicode_classes.inc: the ranges of letters, marks and numbers."""
import sys
import unicodedata

CLASSES = {"L": "LETTER", "M": "MARK", "N": "NUMBER"}


def ranges():
    first = last = kind = None
    for code in range(0x110001):
        now = unicodedata.category(chr(code))[0] if code < 0x110000 else None
        if now != kind:
            if kind in CLASSES:
                yield first, last, CLASSES[kind]
            first, kind = code, now
        last = code


def main():
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print(f"/* Written by tools/unicode_classes.py: Unicode {unicodedata.unidata_version}. */")
    line = ""
    for entry in ranges():
        text = "{ 0x%x, 0x%x, %s }," % entry
        if len(line) + len(text) > 98:
            print(line)
            line = ""
        line += (" " if line else "") + text
    print(line)


if __name__ == "__main__":
    sys.exit(main())
