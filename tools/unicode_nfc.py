#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Writes examples/generate/text/unicode_nfc.inc: canonical decompositions, and classes of
combining marks."""
import sys
import unicodedata

from unicode_classes import ranges, write


def decompositions():
    """DECOMPOSES(code, first, second or 0, 1 if the pair composes again)"""
    for code in range(0x110000):
        parts = unicodedata.decomposition(chr(code)).split()
        if parts and not parts[0].startswith("<"):
            first, second = [int(p, 16) for p in parts] + [0] * (2 - len(parts))
            again = unicodedata.normalize("NFC", chr(code)) == chr(code)
            yield f"DECOMPOSES(0x{code:x}, 0x{first:x}, 0x{second:x}, {int(again)})"


def classes():
    """COMBINES(first, last, class)"""
    for entry in ranges(unicodedata.combining):
        yield "COMBINES(0x%x, 0x%x, %d)" % entry


def main():
    print("/* SPDX-License-Identifier: Apache-2.0 */")
    print(f"/* Written by tools/unicode_nfc.py: Unicode {unicodedata.unidata_version}. */")
    for entries, name in ((decompositions(), "DECOMPOSES"), (classes(), "COMBINES")):
        print(f"#ifdef {name}")
        write(entries)
        print("#endif")


if __name__ == "__main__":
    sys.exit(main())
