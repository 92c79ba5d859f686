# SPDX-License-Identifier: Apache-2.0
"""
Lists the guarantees that the headers in include state, and the tests that hold them: files with a
string (in Python also a function's name) that names the guarantee, as "G7 forgets by selection".
Fails if one has no test, or if a test names one that no header states.
"""

import pathlib
import re
import sys

root = pathlib.Path(__file__).resolve().parent.parent
headers = "".join(path.read_text() for path in sorted(root.glob("include/*.h")))
stated = re.findall(r"^ \*   (G\d+) +\S", headers, re.M)
stated.sort(key=lambda name: int(name[1:]))

C_STRING = re.compile(r'"(?:[^"\\\n]|\\.)*"')
PY_NAME = re.compile(r"(?<=\bdef )\w+|" + r"\"(?:[^\"\\\n]|\\.)*\"|'(?:[^'\\\n]|\\.)*'")
GUARANTEE = re.compile(r"(?<![A-Za-z0-9])[Gg](\d+)(?![A-Za-z0-9])")


def named_in(path):
    pattern = PY_NAME if path.suffix == ".py" else C_STRING
    text = path.read_text()
    return {"G" + n for string in pattern.findall(text) for n in GUARANTEE.findall(string)}


globs = ("tests/**/*.c", "tests/**/*.py", "python/tests/*.py")
tests = [p for glob in globs for p in root.glob(glob)]
holders = {g: [] for g in stated}
strays = []
for path in sorted(tests):
    name = path.relative_to(root).as_posix()
    for g in named_in(path):
        holders[g].append(name) if g in holders else strays.append((g, name))

for g in stated:
    print(f"{g:4} {' '.join(holders[g]) or '- no test names it'}")
for g, name in strays:
    print(f"{g:4} {name} names it, but no header states it")
if not stated:
    print("include states no guarantee")
sys.exit(not stated or bool(strays) or any(not h for h in holders.values()))
