# SPDX-License-Identifier: Apache-2.0
"""
readme_example.py README LIBRARY CC - compiles the first C block of README against the shared
library and runs it: what a newcomer copies must work.
"""

import pathlib
import re
import subprocess
import sys
import tempfile

readme, library, cc = sys.argv[1:]
include = pathlib.Path(__file__).resolve().parent.parent / "include"
block = re.search(r"^```c\n(.*?)^```$", pathlib.Path(readme).read_text(), re.M | re.S)
if not block:
    sys.exit(f"{readme}: no block that begins with ```c")

with tempfile.TemporaryDirectory() as folder:
    source = pathlib.Path(folder, "example.c")
    program = pathlib.Path(folder, "example")
    source.write_text(block[1])
    subprocess.run(
        [cc, "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{include}", source, library, "-lm",
         f"-Wl,-rpath,{pathlib.Path(library).resolve().parent}", "-o", program],
        check=True,
    )
    subprocess.run([program], check=True)
