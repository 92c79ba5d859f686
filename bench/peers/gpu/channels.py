# SPDX-License-Identifier: Apache-2.0
"""
Peers of KDA, whose gates are one a key channel; contenders.py says how calls look. Where gates have
a bound, peers may know it: FLA's faster kernels want that promise, others have no formula but the
bounded one.
"""
import pathlib

import gates
import torch
from contenders import as_inputs, first_k, gradients_of, mine, packed, refuse_if, training_of


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


class Vllm:
    """The functions of vLLM's layer of Kimi K3, as engines.py says of the others: raw gates, states
    k-last in slots, of which the first is for padding."""
    name, is_ours = "vllm", False

    def __init__(self, device):
        import vllm
        from vllm.models.kimi_k3.nvidia.ops.third_party.kda import chunk, fused_recurrent

        self.version, self.chunked = vllm.__version__, chunk.chunk_kda_with_fused_gate
        self.one = fused_recurrent.fused_recurrent_kda_packed_decode

    def prefill(self, case, x):
        refuse_if(case.inside != "raw", "its engine gives raw gates")
        refuse_if(case.Hq != case.Hv, "as many heads of q as of v")
        q, k, v, a, b, out = (x[n][None] for n in ("q", "k", "v", "a", "b", "out"))
        offsets = x["cu_seqlens"].int()

        def call():
            _, state = self.chunked(
                q, k, v, a, b, x["A_log"], x["dt_bias"].flatten(), initial_state=x["state"],
                output_final_state=True, lower_bound=gates.bound(case.gates),
                use_qk_l2norm_in_kernel=True, cu_seqlens=offsets, out=out)
            return x["out"], state
        return call

    def decode(self, case, x):
        refuse_if(case.T > 1 or case.layout == "k_first", "one token, states k-last")
        refuse_if(case.Hq != case.Hv, "as many heads of q as of v")
        states, out = mine(case, x), torch.empty_like(x["v"])
        pool = torch.cat([states[:1], states])
        row, slots, bias = packed(x), x["slots"] + 1, x["dt_bias"].flatten()
        a, b = (x[n].transpose(0, 1) for n in ("a", "b"))
        places = out.transpose(0, 1)

        def call():
            self.one(row, a, b, x["A_log"], bias, gates.bound(case.gates), pool, slots, out=places)
            return out, pool[1:]
        return call


class FlashKda:
    """FlashKDA as vLLM's wheel has it, compiled: it knows the bounded gate alone."""
    name, is_ours = "flashkda", False

    def __init__(self, device):
        import vllm

        file = pathlib.Path(vllm.__file__).with_name("_flashkda_C.abi3.so")
        torch.ops.load_library(str(file))
        self.version, self.ops = f"of vllm {vllm.__version__}", torch.ops._flashkda_C

    def prefill(self, case, x):
        bound = gates.bound(case.gates)
        refuse_if(case.inside != "raw" or bound is None, "raw gates with a bound")
        refuse_if(case.Hq != case.Hv, "as many heads of q as of v")
        refuse_if(case.dim != 128, "heads of 128")
        rows = [x[n][None] for n in ("q", "k", "v", "a", "b")]
        size = self.ops.get_workspace_size(sum(case.lengths), case.Hv, case.B)
        room = torch.empty(size, dtype=torch.uint8, device=x["v"].device)

        def call():
            self.ops.fwd(*rows, case.dim**-0.5, x["out"][None], room, x["A_log"], x["dt_bias"],
                         bound, x["state"], x["state_out"], x["cu_seqlens"], None, None)
            return x["out"], x["state_out"]
        return call


class Cudnn:
    """cuDNN frontend's fused engine for Hopper, by name: others would take its place unasked."""
    name, is_ours = "cudnn", False
    ENGINE = dict(plan_name="kda_hopper_cuda")

    def __init__(self, device):
        import cudnn
        from cudnn.linear_attention.ops import kimi_delta_attention

        self.version, self.op = cudnn.__version__, kimi_delta_attention

    def prefill(self, case, x):
        bound, is_raw = gates.bound(case.gates), case.inside == "raw"
        refuse_if(is_raw and bound is None, "raw gates have a bound")
        names = ("q", "k", "v", "a", "b") if is_raw else ("q", "k", "v", "g", "beta")
        rows, offsets, options = [x[n] for n in names], x["cu_seqlens"].int(), {}
        if is_raw:
            options = dict(use_beta_sigmoid_in_kernel=True, safe_gate=True, gate_lower_bound=bound,
                           a_log=x["A_log"], dt_bias=x["dt_bias"])

        def call():
            return self.op(*rows, offsets, scale=case.dim**-0.5, initial_state=x["state"],
                           output_final_state=True, **self.ENGINE, **options,
                           use_qk_l2norm_in_kernel=case.inside != "neither")
        return call

    def passes(self, case, x):
        """It saves nothing: its backward call computes the states again."""
        refuse_if(case.Hq != case.Hv, "gradients of as many heads of q as of v")
        rows, forward = [x[n] for n in ("q", "k", "v", "g", "beta")], self.prefill(case, x)
        offsets = x["cu_seqlens"].int()

        def backward():
            return torch.ops.cudnn.kimi_delta_attention_bwd(
                x["dout"], *rows, offsets, case.dim**-0.5, initial_state=x["state"],
                d_final_state=x["dstate_out"], **self.ENGINE)[:6]
        return lambda: (forward(), ()), backward

    gradients, training = gradients_of, training_of


class FlashInfer:
    """Its kernels of prefill are for sm_100 and later ones, so that its decode alone is raced."""
    name, is_ours = "flashinfer", False

    def __init__(self, device):
        import flashinfer
        from flashinfer.kda_decode import recurrent_kda

        self.version, self.recurrent = flashinfer.__version__, recurrent_kda

    def decode(self, case, x):
        refuse_if(case.T > 1 or case.layout == "k_first", "one token, states k-last")
        refuse_if(case.state != "bf16", "states are bfloat16")
        state, out = mine(case, x), torch.empty_like(x["v"])
        slots = dict(ssm_state_indices=x["slots"]) if case.pool else {}
        rows, bias = [x[n] for n in ("q", "k", "v", "a", "b")], x["dt_bias"].flatten()

        def call():
            self.recurrent(*rows, A_log=x["A_log"], dt_bias=bias, initial_state=state,
                           use_qk_l2norm_in_kernel=True, use_gate_in_kernel=True,
                           lower_bound=gates.bound(case.gates), beta_is_logit=True, output=out,
                           backend="auto", **slots)
            return out, state
        return call


PEERS = {peer.name: peer for peer in (Fla, Vllm, FlashKda, Cudnn, FlashInfer)}
