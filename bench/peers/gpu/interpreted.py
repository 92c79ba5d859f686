# SPDX-License-Identifier: Apache-2.0
"""
For --check without a GPU, with TRITON_INTERPRET=1. Three things keep Triton's interpreter from running
the peers' kernels. It asks a driver how fast the forms of a kernel are: the one here says that all
are equal, so that the first one runs. Its products take the bits of bfloat16 for integers, and refuse
bf16x3; the ones here are of float32 throughout.
"""
import os


class Driver:
    def get_benchmarker(self):
        return lambda call, quantiles: [0.0] * len(quantiles)


def begin():
    if os.environ.get("TRITON_INTERPRET") != "1":
        return
    import numpy as np
    import triton.language as tl
    from triton.runtime import driver, interpreter

    def widened(x):
        bits = x.data
        return (bits.astype(np.uint32) << 16).view(np.float32) if x.dtype == tl.bfloat16 else bits

    def dot(self, a, b, d, *_):
        made = np.matmul(widened(a), widened(b), dtype=d.data.dtype)
        return interpreter.TensorHandle(made + d.data, d.dtype.scalar)

    driver.set_active(Driver())
    interpreter.InterpreterBuilder.create_dot = dot
    object.__setattr__(interpreter.interpreter_builder.options, "allowed_dot_input_precisions",
                       ("ieee", "tf32", "tf32x3", "bf16x3"))
