# SPDX-License-Identifier: Apache-2.0
"""ggml_tests.py BUILD: ggml's test-backend-ops of a build of ggml, with the backend of GDN_GGML."""

import collections
import os
import re
import subprocess
import sys

OPS = ("GATED_DELTA_NET", "SSM_CONV", "L2_NORM")
COPIED = {"SSM_CONV": "inputs, transposed"}


def outcomes(program, op):
    """How many cases of an op passed, failed, or are none of the backend's."""
    environment = {**os.environ, "GGML_BACKEND_PATH": os.environ["GDN_GGML"]}
    run = subprocess.run([program, "test", "-b", "GDN", "-o", op], env=environment, text=True,
                         stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    text = re.sub(r"\x1b\[[0-9;]*m", "", run.stdout)
    if "Backend 1/" not in text:
        sys.exit(f"{program}: no backend was tested:\n{text[-2000:]}")
    cases = re.findall(rf" {op}\w*\(.*\): (OK|FAIL|not supported)", text)
    return collections.Counter(cases)


def main(build):
    total, program = collections.Counter(), os.path.join(build, "bin/test-backend-ops")
    for op in OPS:
        found = outcomes(program, op)
        total += found
        print(f"  {op}: {found['OK']} passed, {found['FAIL']} failed, "
              f"{found['not supported']} left to other backends; "
              f"copied: {COPIED.get(op, 'nothing')}")
    through = total["OK"] + total["FAIL"]
    print(f"ggml on cpu: {total['OK']} passed, {total['FAIL']} failed, "
          f"{total['not supported']} skipped")
    print(f"  went through libgdn: {through} tests")
    sys.exit(bool(total["FAIL"]) or not through)


main(sys.argv[1])
