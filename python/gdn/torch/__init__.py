# SPDX-License-Identifier: Apache-2.0
"""
Gated DeltaNet for torch (2.10 and newer), on CPU and CUDA tensors.

    out = gdn.torch.prefill(q, k, v, g, beta, state=pool, cu_seqlens=cu, read_slots=slots)

decode, prefill, conv1d, conv1d_update, gates, l2norm, rmsnorm_gated, step, block, state_copy and
the stages chunk_cumsum, chunk_uw, chunk_states and chunk_output are functions over the operators
torch.ops.gdn.*, which torch.compile, torch.export and CUDA graphs take as they are. GatedDeltaNet
is the layer of Qwen3-Next, Qwen3.5 and OLMo-Hybrid as a module, KimiDeltaAttention that of
Kimi-Linear. Record is a pool of lazy states. Gradients flow through all but step and the
stages: there a tensor that requires a gradient is refused unless gradients are off.

Kernels run on the current stream of the tensors' device, and take scratch memory from torch's
allocator. On a CPU they run on torch's threads, and scratch memory stays with the context. An
operator may be called from several threads at once. Before a CUDA graph is captured, call
warm_up(device) or run the step once.
"""

try:
    import torch as _torch  # noqa: F401
except ImportError as error:
    raise ImportError("gdn.torch needs torch 2.10 or newer, which this Python cannot import "
                      f"({error}); gdn.Context works without it") from None

from ._block import block
from ._functions import (conv1d, conv1d_update, decode, gates, l2norm, prefill, rmsnorm_gated,
                         state_copy, step)
from ._heads import HeadShare
from ._kimi import KimiDeltaAttention
from ._layer import Cache, GatedDeltaNet
from ._operators import NUMBERS, OPERATORS, arguments, schema
from ._packing import cu_seqlens_of
from ._record import Record
from ._stages import chunk_cumsum, chunk_output, chunk_states, chunk_uw
from ._warm_up import warm_up

__all__ = ["Cache", "GatedDeltaNet", "HeadShare", "KimiDeltaAttention", "NUMBERS", "OPERATORS",
           "Record", "arguments", "block", "conv1d", "conv1d_update", "cu_seqlens_of", "decode",
           "gates", "l2norm", "prefill", "rmsnorm_gated", "schema", "state_copy", "step", "warm_up"]
