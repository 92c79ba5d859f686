# SPDX-License-Identifier: Apache-2.0
"""
sentences.py FILE... - fails if a sentence has more than 30 words: of Markdown, or of the comments
of a header. Code, tables and formulas are left out.
"""

import pathlib
import re
import sys

LIMIT = 30


def markdown(text):
    """(line, paragraph) of the prose of a page."""
    text = re.sub(r"^```.*?^```", lambda m: "\n" * m[0].count("\n"), text, flags=re.M | re.S)
    lines = text.split("\n")
    yield from joined(lines, lambda line: not re.match(r" *\||#|    |!\[|<", line), r"[-*] |\d+\. ")


def header(text):
    """(line, paragraph) of comments; what is indented is a table or a formula."""
    lines = [m[1] if (m := re.match(r"^(?:/\*| \*) ?(.*?)(?:\*/)?$", line)) else ""
             for line in text.split("\n")]
    lines = ["" if line.startswith("  ") else line for line in lines]
    yield from joined(lines, lambda line: True, r"gdn_\w+ +- ")


def joined(lines, is_prose, opener):
    start, words = 0, []
    for i, line in enumerate([*lines, ""]):
        if not line.strip() or not is_prose(line) and not words or re.match(opener, line):
            if words:
                yield start + 1, " ".join(words)
            words = []
        if line.strip() and (is_prose(line) or words):
            start = start if words else i
            words.append(line.strip())


def long_sentences(path):
    text = pathlib.Path(path).read_text()
    for line, paragraph in (header if path.endswith(".h") else markdown)(text):
        paragraph = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", paragraph)
        for sentence in re.split(r"(?<=[.:;!?])\)? ", paragraph):
            n = len(re.findall(r"[A-Za-z_]\w*[^ ]*", sentence))
            if n > LIMIT:
                yield f"{path}:{line}: {n} words: {sentence[:60]}..."


found = [text for path in sys.argv[1:] for text in long_sentences(path)]
print("\n".join(found), end="\n" if found else "")
sys.exit(bool(found))
