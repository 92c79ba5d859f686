# SPDX-License-Identifier: Apache-2.0
"""
readme_example.py README LIBRARY CC [COMMAND] - runs the first C, Python and sh block of README:
what a newcomer copies must work. The Python block needs NumPy, the sh block COMMAND (the command
gdn). A block whose need is missing is named and left out.
"""

import importlib.util
import os
import pathlib
import re
import subprocess
import sys
import tempfile

readme, library, cc, *command = sys.argv[1:]
library = pathlib.Path(library).resolve()
root = pathlib.Path(__file__).resolve().parent.parent
text = pathlib.Path(readme).read_text()


def block_of(language):
    block = re.search(rf"^```{language}\n(.*?)^```$", text, re.M | re.S)
    if not block:
        sys.exit(f"{readme}: no block that begins with ```{language}")
    return block[1]


with tempfile.TemporaryDirectory() as folder:
    source = pathlib.Path(folder, "example.c")
    program = pathlib.Path(folder, "example")
    source.write_text(block_of("c"))
    subprocess.run(
        [cc, "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{root / 'include'}", source, library,
         "-lm", f"-Wl,-rpath,{library.parent}", "-o", program],
        check=True,
    )
    subprocess.run([program], check=True)

python = block_of("python")
if importlib.util.find_spec("numpy"):
    paths = {"GDN_LIBRARY": str(library), "PYTHONPATH": str(root / "python")}
    subprocess.run([sys.executable, "-c", python], check=True, env={**os.environ, **paths})
else:
    print("The Python block needs NumPy: left out.")

shell = block_of("sh")
if command:
    path = f"{pathlib.Path(command[0]).resolve().parent}:{os.environ['PATH']}"
    subprocess.run(["sh", "-ec", shell], check=True, cwd=root, env={**os.environ, "PATH": path})
else:
    print("The sh block needs the command gdn: left out.")
