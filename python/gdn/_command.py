# SPDX-License-Identifier: Apache-2.0
"""The console entry gdn: runs the command gdn that is part of the wheel."""

import os
import subprocess
import sys


def main():
    command = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "gdn")
    if sys.platform == "win32":
        command += ".exe"
    if not os.path.exists(command):
        sys.exit("gdn: this build of the package has no command (libcjson-dev was not there when "
                 "it was built); the library works all the same")
    if sys.platform == "win32":  # where execv() does not wait
        sys.exit(subprocess.call([command, *sys.argv[1:]]))
    os.execv(command, [command, *sys.argv[1:]])
