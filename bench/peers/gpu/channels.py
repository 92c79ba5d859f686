# SPDX-License-Identifier: Apache-2.0
"""
Peers of KDA, whose gates are one a key channel; how calls look is said in contenders.py. Where gates
have a bound, peers may know it: FLA's faster kernels want that promise, others have no formula but
the bounded one.
"""
import gates
import torch
from contenders import as_inputs, first_k, gradients_of, mine, refuse_if, training_of


def bounded(case):
    """FLA's names of the bound, which is a promise where gates are made."""
    bound = gates.bound(case.gates)
    return dict(safe_gate=bound is not None, lower_bound=bound)


class Fla:
    name, is_ours = "fla", False

    def __init__(self, device):
        import fla
        from fla.ops import kda
        from fla.ops.kda import chunk_bwd, chunk_fwd
        from fla.ops.utils import prepare_chunk_indices

        self.version, self.ops, self.indices = fla.__version__, kda, prepare_chunk_indices
        self.forward, self.backward = chunk_fwd.chunk_kda_fwd, chunk_bwd.chunk_kda_bwd

    def prefill(self, case, x):
        refuse_if(case.inside == "norm", "norms alone are not raced")
        is_raw, offsets = case.inside == "raw", x["cu_seqlens"]
        names = ("q", "k", "v", "a", "b") if is_raw else ("q", "k", "v", "g", "beta")
        rows, (state,) = [x[n][None] for n in names], first_k(x, "state")
        options = bounded(case) | dict(
            use_gate_in_kernel=is_raw, use_beta_sigmoid_in_kernel=is_raw,
            use_qk_l2norm_in_kernel=is_raw, cu_seqlens=offsets, cu_seqlens_cpu=offsets.cpu())
        if is_raw:
            options |= dict(A_log=x["A_log"], dt_bias=x["dt_bias"].flatten())

        def call():
            out, final = self.ops.chunk_kda(*rows, scale=case.dim**-0.5, initial_state=state,
                                            output_final_state=True, **options)
            return out[0], final.mT
        return call

    def decode(self, case, x):
        refuse_if(case.each or case.pool, "neither slots nor every token's state")
        refuse_if(case.state != "f32", "final states are float32")
        state = mine(case, x)

        def call():
            out, final = self.ops.fused_recurrent_kda(
                x["q"], x["k"], x["v"], x["a"], x["b"], A_log=x["A_log"],
                dt_bias=x["dt_bias"].flatten(), lower_bound=gates.bound(case.gates),
                use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True,
                use_qk_l2norm_in_kernel=True, initial_state=state, output_final_state=True,
                state_v_first=case.layout == "k_last")
            return out, final
        return call

    def passes(self, case, x):
        """As its function of autograd makes them: it keeps two matrices a chunk."""
        q, k, v, g, beta, dout = (x[n][None] for n in ("q", "k", "v", "g", "beta", "dout"))
        offsets, (state, last) = x["cu_seqlens"], first_k(x, "state", "dstate_out")
        common = bounded(case) | dict(scale=case.dim**-0.5, initial_state=state,
                                      cu_seqlens=offsets, chunk_indices=self.indices(offsets, 64))
        host = offsets.cpu()

        def forward():
            out, final, sums, *matrices, _, _, _, _, _, _, _ = self.forward(
                q, k, v, g, beta, output_final_state=True, cu_seqlens_cpu=host, **common)
            return (out[0], final.mT), (sums, *matrices)

        def backward(sums, Aqk, Akk):
            *rows, dbeta, dg, dstate, _, _ = self.backward(
                q, k, v, beta, Aqk, Akk, g=sums, do=dout, dht=last, **common)
            return *as_inputs((*rows, dg, dbeta), (q, k, v, g, beta)), dstate.mT
        return forward, backward

    gradients, training = gradients_of, training_of


PEERS = {peer.name: peer for peer in (Fla,)}
