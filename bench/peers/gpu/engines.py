# SPDX-License-Identifier: Apache-2.0
"""
More contenders: the Triton functions of vLLM and SGLang, as unpack_engines.py leaves them in a
folder of PYTHONPATH, in the calls that the engines make of them. Both keep states k-last in slots.
vLLM's first slot is for padding, and where it keeps every token's state the first of a sequence
lies where the sequence began, so that the state it began with is gone.
"""
import torch
from contenders import kept_states, mine, packed, refuse_if


def joined(x):
    """Tokens of all sequences as one packed batch, and where each sequence begins."""
    B, T = x["v"].shape[:2]
    rows = {n: x[n].reshape(1, B * T, *x[n].shape[2:]) for n in ("q", "k", "v", "a", "b")}
    starts = torch.arange(0, B * T + 1, T, dtype=torch.int32, device=x["v"].device)
    return rows, starts


def gates_of(x):
    return dict(A_log=x["A_log"], dt_bias=x["dt_bias"])


class Vllm:
    name, is_ours = "vllm", False

    def __init__(self, device):
        import vllm
        from vllm.third_party.flash_linear_attention.ops import (chunk, fused_recurrent,
                                                                 fused_sigmoid_gating, index)

        self.version, self.index = vllm.__version__, index
        self.chunked = chunk.chunk_gated_delta_rule
        self.one = fused_recurrent.fused_recurrent_gated_delta_rule_packed_decode
        self.several = fused_sigmoid_gating.fused_sigmoid_gating_delta_rule_update

    def prefill(self, case, x):
        refuse_if(case.inside == "raw", "no raw gates in this function")
        rows = [x[n][None] for n in ("q", "k", "v", "g", "beta")]
        offsets = x["cu_seqlens"].int()
        options = dict(cu_seqlens=offsets, chunk_indices=self.index.prepare_chunk_indices(
            offsets, 64), chunk_offsets=self.index.prepare_chunk_offsets(offsets, 64))

        def call():
            out, state = self.chunked(*rows, initial_state=x["state"], output_final_state=True,
                                      use_qk_l2norm_in_kernel=case.inside == "norm", **options)
            return out[0], state
        return call

    def decode(self, case, x):
        refuse_if(case.layout == "k_first", "states are k-last")
        if case.T == 1:
            return self.packed(case, x)
        refuse_if(not case.each, "of several tokens every state is kept")
        return self.drafts(case, x)

    def packed(self, case, x):
        states = mine(case, x)
        pool = torch.cat([states[:1], states])
        row, out, slots = packed(x), torch.empty_like(x["v"]), x["slots"] + 1
        gates = dict(a=x["a"][:, 0], b=x["b"][:, 0], **gates_of(x))

        def call():
            self.one(row, scale=case.dim**-0.5, initial_state=pool, out=out,
                     ssm_state_indices=slots, use_qk_l2norm_in_kernel=True, **gates)
            return out, pool[1:]
        return call

    def drafts(self, case, x):
        (rows, starts), kept = joined(x), kept_states(case, x)
        kept[:, 0] = x["state"][x["slots"].long()]
        pool = torch.cat([kept.new_zeros(1, *kept.shape[2:]), kept.flatten(0, 1)])
        kept = pool[1:].view_as(kept)
        slots = 1 + torch.arange(case.B * case.T, dtype=torch.int32, device=pool.device)
        slots, accepted = slots.view(case.B, case.T), torch.ones_like(slots[:case.B])
        a, b = (rows.pop(n)[0] for n in ("a", "b"))

        def call():
            out, _ = self.several(a=a, b=b, **gates_of(x), **rows, initial_state=pool,
                                  cu_seqlens=starts, ssm_state_indices=slots,
                                  num_accepted_tokens=accepted, use_qk_l2norm_in_kernel=True)
            return out.view_as(x["v"]), kept
        return call


class Sglang:
    name, is_ours = "sglang", False

    def __init__(self, device):
        import sglang
        from sglang.kernels.ops.attention.fla import chunk, fused_recurrent
        from sglang.kernels.ops.attention.linear import fused_sigmoid_gating_recurrent as several

        self.version, self.chunked = sglang.__version__, chunk.chunk_gated_delta_rule
        self.one = fused_recurrent.fused_recurrent_gated_delta_rule_packed_decode
        self.several = several.fused_sigmoid_gating_delta_rule_update

    def prefill(self, case, x):
        refuse_if(case.inside == "raw", "no raw gates in this function")
        rows = [x[n][None] for n in ("q", "k", "v", "g", "beta")]
        offsets, state = x["cu_seqlens"].int(), x["state"].clone()
        slots = torch.arange(case.B, dtype=torch.int32, device=state.device)

        def call():
            out, *_ = self.chunked(*rows, initial_state=state, initial_state_indices=slots,
                                   cu_seqlens=offsets,
                                   use_qk_l2norm_in_kernel=case.inside == "norm")
            return out[0], state
        return call

    def decode(self, case, x):
        refuse_if(case.layout == "k_first", "states are k-last")
        return (self.packed if case.T == 1 else self.drafts)(case, x)

    def packed(self, case, x):
        pool, row, out = mine(case, x), packed(x), torch.empty_like(x["v"])
        gates = dict(a=x["a"][:, 0], b=x["b"][:, 0], **gates_of(x))

        def call():
            self.one(row, scale=case.dim**-0.5, initial_state=pool, out=out,
                     ssm_state_indices=x["slots"], use_qk_l2norm_in_kernel=True, **gates)
            return out, pool
        return call

    def drafts(self, case, x):
        (rows, starts), pool, more = joined(x), mine(case, x), {}
        if case.each:
            kept = kept_states(case, x)
            order = torch.arange(case.B, dtype=torch.int32, device=pool.device)
            more = dict(disable_state_update=True, intermediate_states_buffer=kept,
                        intermediate_state_indices=order, cache_steps=case.T)
        a, b = (rows.pop(n)[0] for n in ("a", "b"))

        def call():
            out = self.several(a=a, b=b, **gates_of(x), **rows, softplus_beta=1.0,
                               softplus_threshold=20.0, initial_state_source=pool,
                               initial_state_indices=x["slots"], cu_seqlens=starts,
                               use_qk_l2norm_in_kernel=True, **more)
            return out.view_as(x["v"]), kept if case.each else pool
        return call


PEERS = {peer.name: peer for peer in (Vllm, Sglang)}
