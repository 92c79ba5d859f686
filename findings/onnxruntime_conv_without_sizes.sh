#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
#
# onnxruntime 1.32.0 on a CPU, CausalConvWithState of opset 27, made with onnx 1.23.2: ranks are
# declared, sizes are not.
# Guess: it runs as with declared sizes. The full check of onnx passes.
# Outcome: missed. "Could not find an implementation for CausalConvWithState(27)", as if the op were
#   not there. If the weight alone declares its sizes, the same model runs.
set -euo pipefail
dir=$(mktemp -d)
trap 'rm -rf "$dir"' EXIT
python3 -m venv "$dir/venv"
"$dir/venv/bin/python" -m pip install -q onnx==1.23.2 onnxruntime==1.32.0
cat > "$dir/check.py" <<'PY'
import sys

import numpy as np
import onnx
import onnxruntime as ort
from onnx import TensorProto, helper

ort.set_default_logger_severity(4)
ones = lambda *s: np.ones(s, np.float32)
feed = dict(input=ones(2, 6, 5), weight=ones(6, 1, 4), bias=ones(6), past_state=ones(2, 6, 3))


def run(weight_has_sizes):
    sizes = lambda n, x: x.shape if n == "weight" and weight_has_sizes else [None] * x.ndim
    info = lambda n, s: helper.make_tensor_value_info(n, TensorProto.FLOAT, s)
    node = helper.make_node("CausalConvWithState", list(feed), ["output", "present_state"])
    graph = helper.make_graph([node], "g", [info(n, sizes(n, x)) for n, x in feed.items()],
                              [info(n, [None] * 3) for n in ("output", "present_state")])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 27)], ir_version=11)
    onnx.checker.check_model(model, full_check=True)
    try:
        session = ort.InferenceSession(model.SerializeToString(),
                                       providers=["CPUExecutionProvider"])
        return session.run(None, feed)[0].shape
    except Exception as e:
        return str(e)


without, with_ = run(False), run(True)
print("without sizes:", without, "| with those of the weight:", with_)
sys.exit(not ("Could not find an implementation" in without and with_ == (2, 6, 5)))
PY
"$dir/venv/bin/python" "$dir/check.py"
