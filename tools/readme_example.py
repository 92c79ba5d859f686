# SPDX-License-Identifier: Apache-2.0
"""
readme_example.py README LIBRARY CC [COMMAND] - runs the first C, Python and sh block of README, and
the quick start of include/gdn.h: what a newcomer copies must work. The Python block needs NumPy,
the sh block COMMAND (the command gdn). A block whose need is missing is named and left out.
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


def compile_and_run(text):
    with tempfile.TemporaryDirectory() as folder:
        source = pathlib.Path(folder, "example.c")
        program = pathlib.Path(folder, "example")
        source.write_text(text)
        subprocess.run(
            [cc, "-std=c11", "-Wall", "-Wextra", "-Werror", f"-I{root / 'include'}", source,
             library, "-lm", f"-Wl,-rpath,{library.parent}", "-o", program],
            check=True,
        )
        subprocess.run([program], check=True)


def quick_start():
    """The quick start of the header as a program, with its arrays made."""
    header = (root / "include/gdn.h").read_text()
    lines = re.findall(r"^ \*     (.*)$", header[:header.index("THE RULE")], re.M)
    return "\n".join([
        "#include <gdn.h>", "#include <stdio.h>",
        "enum { B = 2, Hk = 1, Hv = 2, K = 4, V = 4, P = 3 };",
        "int main(void)", "{", "    int32_t slots[B] = { 2, 0 };",
        "    static float q[B * Hk * K], k[B * Hk * K], v[B * Hv * V], g[B * Hv], beta[B * Hv],",
        "        pool[P * Hv * V * K], out[B * Hv * V];",
        *lines, "    gdn_ctx_destroy(ctx);", "    return status != GDN_OK;", "}", ""])


compile_and_run(block_of("c"))
compile_and_run(quick_start())

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
