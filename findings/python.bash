# SPDX-License-Identifier: Apache-2.0
#
# Findings source this. It makes a temporary folder $dir, removed at the end, and in it $python: a
# new environment, whose torch and pip may be those of the python around it.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv --without-pip "$dir/venv"
python3 -c 'import sysconfig; print(sysconfig.get_path("purelib"))' \
    > "$(echo "$dir"/venv/lib/python3*/site-packages)/outer.pth"
python=$dir/venv/bin/python

# Installs fla-core 0.6.0 alone, then what it imports on a CPU. Arguments are options of pip.
install_fla() {
    "$python" -c 'import torch' 2>/dev/null || "$python" -m pip install -q torch==2.15.0
    "$python" -m pip install -q --no-deps "$@" fla-core==0.6.0
    "$python" -m pip install -q einops==0.8.2 packaging numpy==2.4.6
}
