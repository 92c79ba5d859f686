# SPDX-License-Identifier: Apache-2.0
"""
Who is raced, and how each is called: ours, and the peers of Gated DeltaNet. An op's method takes a
case and its inputs and returns a call, which runs on torch's current stream and returns the results
of cases.RESULTS in one layout whoever computed them. Outputs are [N][Hv][V] or [B][T][Hv][V],
states [B][Hv][V][K], each token's [B][T][Hv][V][K]; gradients are as what they are of.
"""
import importlib.metadata
import os

import gates
import torch
from cases import DTYPES, GRADIENTS

os.environ.setdefault("FLA_FLASH_QLA", "0")  # else FLA calls FlashQLA where that is installed
os.environ.setdefault("FLA_FLASH_KDA", "0")
WINDOW_MIB = 1536  # of ours in training: gdn.torch's default


class Refused(Exception):
    """A contender has no way to do this."""


def refuse_if(wrong, why):
    if wrong:
        raise Refused(why)


def mine(case, x):
    """States of one's own, in the layout of the case: calls work in place."""
    state = x["state"].clone()
    return state.mT.contiguous() if case.layout == "k_first" else state


def shown(case, x, result):
    """A result whose states are in order and k-last, as decode does not leave them. Not in a call:
    it would be timed."""
    if case.op != "decode" or case.each:
        return result
    out, state = result
    state = state[x["slots"].long()] if case.pool else state
    return out, state.mT if case.layout == "k_first" else state


def kept_states(case, x):
    """Room for the state after every token."""
    shape = case.B, case.T, *x["state"].shape[1:]
    return torch.zeros(shape, device=x["state"].device, dtype=DTYPES[case.state])


def packed(x):
    """One token of each sequence behind the convolution: q, k, v in one row."""
    return torch.cat([x[n].flatten(1) for n in ("q", "k", "v")], 1)


def fused_gates(x):
    """alpha and beta of raw gates: where they are, and what writes them."""
    import gate_kernel

    room = [torch.empty_like(x["beta"]) for _ in range(2)]
    raw = [x[n] for n in ("a", "b", "A_log", "dt_bias")]
    return *room, lambda: gate_kernel.write(*raw, *room)


class Saves:
    """States that the forward call leaves for the gradients: where, and after how many tokens."""

    def __init__(self, **batch):
        self.batch, self.fields = batch, {}

    @classmethod
    def of(cls, case, x):
        """As gdn.torch has them by default: of long sequences alone."""
        n, every = sum(case.lengths), 2048
        if case.T <= 4 * every or n < 1024 * case.B:
            return cls()
        saves = cls(checkpoint_every=every)
        saves.fields["checkpoints"] = x["state"].new_empty(n // every, *x["state"].shape[1:])
        return saves


class Ours:
    """libgdn; path: another file of it than the package's."""
    is_ours = True

    def __init__(self, device, path=None):
        import gdn

        self.gdn, self.version, self.path = gdn, gdn.version(), path
        self.ctx = gdn.Context(backend=device, library=path)
        self.isa, self.on_gpu = self.ctx.isa, device == "cuda"

    def kernel(self):
        return self.ctx.last_kernel

    def call(self, op, **fields):
        stream = torch.cuda.current_stream() if self.on_gpu else None
        getattr(self.ctx, op)(stream=stream, **fields)

    def raw_gates(self, case, x, a):
        gdn = self.gdn
        return dict(g=a, beta=x["b"], A_log=x["A_log"], dt_bias=x["dt_bias"], gate=gdn.GATE_RAW,
                    beta_kind=gdn.BETA_SIGMOID, gate_lower_bound=gates.bound(case.gates) or 0)

    def prefill(self, case, x, saves=None):
        """saves: checkpoints that the gradients take."""
        gdn, saves = self.gdn, saves or Saves()
        batch = gdn.Batch(cu_seqlens=x["cu_seqlens"], **saves.batch)
        fields = {n: x[n] for n in ("q", "k", "v", "g", "beta", "state", "state_out", "out")}
        if case.inside != "neither":
            fields["norm"] = gdn.NORM_L2
        if case.inside == "raw":
            fields |= self.raw_gates(case, x, x["a"])

        def call():
            self.call("prefill", **fields, **saves.fields, batch=batch)
            return x["out"], x["state_out"]
        return call

    def backward(self, case, x, saves):
        inputs = {n: x[n] for n in ("q", "k", "v", "g", "beta", "state")}
        made = {f"d{n}": torch.empty_like(t) for n, t in inputs.items()}
        fields = inputs | made | dict(dout=x["dout"], dstate_out=x["dstate_out"],
                                      window_mib=WINDOW_MIB, **saves.fields)
        batch = self.gdn.Batch(cu_seqlens=x["cu_seqlens"], **saves.batch)

        def call():
            self.call("prefill_backward", **fields, batch=batch)
            return [made[n] for n in GRADIENTS]
        return call

    def gradients(self, case, x):
        saves = Saves.of(case, x)
        self.prefill(case, x, saves)()
        return self.backward(case, x, saves)

    def training(self, case, x):
        saves = Saves.of(case, x)
        forward, backward = self.prefill(case, x, saves), self.backward(case, x, saves)
        return lambda: (*forward(), *backward())

    def decode(self, case, x):
        gdn, out, state = self.gdn, torch.empty_like(x["v"]), mine(case, x)
        fields = dict(q=x["q"], k=x["k"], v=x["v"], norm=gdn.NORM_L2, out=out, state=state,
                      state_layout=gdn.STATE_KV if case.layout == "k_first" else gdn.STATE_VK,
                      **self.raw_gates(case, x, x["a"]))
        slots = dict(read_slots=x["slots"]) if case.pool else {}
        if case.each:
            kept = kept_states(case, x)
            fields["state_out"] = kept.flatten(0, 1)
            order = torch.arange(case.B * case.T, dtype=torch.int32, device=out.device)
            slots |= dict(write=gdn.WRITE_EACH, write_slots=order.view(case.B, case.T))
        batch = gdn.Batch(**slots)

        def call():
            self.call("decode", batch=batch, **fields)
            return out, kept if case.each else state
        return call


def first_k(x, *names):
    """States k-first."""
    return [x[name].mT.contiguous() for name in names]


def as_inputs(gradients, inputs):
    """In the dtypes of what they are of, as autograd wants them; without the batch of one."""
    return (d.to(t.dtype)[0] for d, t in zip(gradients, inputs, strict=True))


def gradients_of(peer, case, x):
    """A peer's backward call alone, on what its forward call saved."""
    forward, backward = peer.passes(case, x)
    _, saved = forward()
    return lambda: backward(*saved)


def training_of(peer, case, x):
    """Both calls of a peer."""
    forward, backward = peer.passes(case, x)

    def call():
        result, saved = forward()
        return *result, *backward(*saved)
    return call


class Fla:
    name, is_ours = "fla", False

    def __init__(self, device):
        import fla
        from fla.ops import gated_delta_rule as ops
        from fla.ops.gated_delta_rule import chunk
        from fla.ops.utils import prepare_chunk_indices

        self.ops, self.version, self.chunk = ops, fla.__version__, chunk
        self.indices = prepare_chunk_indices

    def prefill(self, case, x):
        refuse_if(case.inside == "raw", "raw gates are not raced")
        q, k, v, g, beta = (x[n][None] for n in ("q", "k", "v", "g", "beta"))
        state, offsets = x["state"].mT.contiguous(), x["cu_seqlens"]
        host = offsets.cpu()

        def call():
            out, final = self.ops.chunk_gated_delta_rule(
                q, k, v, g, beta, scale=case.dim**-0.5, initial_state=state,
                output_final_state=True, use_qk_l2norm_in_kernel=case.inside == "norm",
                cu_seqlens=offsets, cu_seqlens_cpu=host)
            return out[0], final.mT
        return call

    def passes(self, case, x):
        """The forward call, which returns what it saves too, and the backward one, as the function
        of autograd makes them."""
        q, k, v, g, beta, dout = (x[n][None] for n in ("q", "k", "v", "g", "beta", "dout"))
        offsets, (state, last) = x["cu_seqlens"], first_k(x, "state", "dstate_out")
        common = dict(scale=case.dim**-0.5, initial_state=state, cu_seqlens=offsets,
                      chunk_indices=self.indices(offsets, 64))

        def forward():
            sums, out, A, final, *_ = self.chunk.chunk_gated_delta_rule_fwd(
                q, k, v, g, beta, output_final_state=True, **common)
            return (out[0], final.mT), (sums, A)

        def backward(sums, A):
            *rows, dbeta, dg, dstate, _, _ = self.chunk.chunk_gated_delta_rule_bwd(
                q, k, v, sums, beta, A=A, do=dout, dht=last, **common)
            return *as_inputs((*rows, dg, dbeta), (q, k, v, g, beta)), dstate.mT
        return forward, backward

    gradients, training = gradients_of, training_of

    def decode(self, case, x):
        refuse_if(case.each or case.pool, "neither slots nor every token's state")
        refuse_if(case.state != "f32", "final states are float32")
        state = mine(case, x)

        def call():
            out, final = self.ops.fused_recurrent_gated_delta_rule(
                x["q"], x["k"], x["v"], g=x["a"], beta=x["b"], A_log=x["A_log"],
                dt_bias=x["dt_bias"], use_gate_in_kernel=True, use_beta_sigmoid_in_kernel=True,
                use_qk_l2norm_in_kernel=True, initial_state=state, output_final_state=True,
                state_v_first=case.layout == "k_last")
            return out, final
        return call


class FlashInfer:
    name, is_ours = "flashinfer", False

    def __init__(self, device):
        import flashinfer
        from flashinfer import gdn_decode, gdn_prefill

        self.version = flashinfer.__version__
        self.chunked = gdn_prefill.chunk_gated_delta_rule
        self.k_last = gdn_decode.gated_delta_rule_decode_pretranspose
        self.k_first = gdn_decode.gated_delta_rule_decode
        self.several = gdn_decode.gated_delta_rule_mtp

    def prefill(self, case, x):
        refuse_if(case.inside == "raw" and gates.bound(case.gates), "no bound of raw gates")
        alpha, beta, write = x["g"].exp(), x["beta"], None
        if case.inside == "raw":
            alpha, beta, write = fused_gates(x)
        norm = dict(use_qk_l2norm_in_kernel=True) if case.inside != "neither" else {}

        def call():
            if write:
                write()
            self.chunked(x["q"], x["k"], x["v"], alpha, beta, scale=case.dim**-0.5,
                         initial_state=x["state"], output_final_state=True,
                         cu_seqlens=x["cu_seqlens"], output=x["out"], output_state=x["state_out"],
                         **norm)
            return x["out"], x["state_out"]
        return call

    def decode(self, case, x):
        refuse_if(case.layout == "k_first" and (case.T > 1 or case.state != "f32" or case.pool),
                  "k-first: one token, float32, no slots")
        out, state = torch.empty_like(x["v"]), mine(case, x)
        rows, raw = (x["q"], x["k"], x["v"]), (x["A_log"], x["a"], x["dt_bias"], x["b"])
        slots, more = x["slots"], dict(output=out, use_qk_l2norm=True)
        if case.each:
            kept = kept_states(case, x)
            more |= dict(intermediate_states_buffer=kept, disable_state_update=True)

        def call():
            if case.layout == "k_first":
                self.k_first(*rows, state, *raw, **more)
            elif case.T > 1 and case.state == "f32":
                self.several(*rows, state, slots, *raw, **dict(disable_state_update=False) | more)
            elif case.T > 1 or case.pool:
                self.k_last(*rows, None, *raw, initial_state=state, initial_state_indices=slots,
                            **more)
            else:
                self.k_last(*rows, state, *raw, **more)
            return out, kept if case.each else state
        return call


class FlashQla:
    name, is_ours = "flashqla", False

    def __init__(self, device):
        import flash_qla

        self.version, self.chunked = flash_qla.__version__, flash_qla.chunk_gated_delta_rule_fwd
        self.backward = flash_qla.chunk_gated_delta_rule_bwd

    def prefill(self, case, x):
        refuse_if(case.inside != "neither", "neither norms nor raw gates inside")
        q, k, v, g, beta = (x[n][None] for n in ("q", "k", "v", "g", "beta"))
        state, offsets = x["state"].mT.contiguous(), x["cu_seqlens"].int()

        def call():
            _, _, out, _, final, _ = self.chunked(
                q, k, v, g, beta, scale=case.dim**-0.5, initial_state=state,
                output_final_state=True,
                output_h=False, cu_seqlens=offsets, auto_cp=True)
            return out[0], final.mT
        return call

    def passes(self, case, x):
        """As its function of autograd makes them."""
        q, k, v, g, beta, dout = (x[n][None] for n in ("q", "k", "v", "g", "beta", "dout"))
        state, last = first_k(x, "state", "dstate_out")
        common = dict(scale=case.dim**-0.5, initial_state=state,
                      cu_seqlens=x["cu_seqlens"].int(), auto_cp=True)

        def forward():
            sums, A, out, _, final, cache = self.chunked(
                q, k, v, g, beta, output_final_state=True, enable_fwd_cp_cache=True, **common)
            return (out[0], final.mT), (sums, A, cache)

        def backward(sums, A, cache):
            *rows, dbeta, dg, dstate = self.backward(
                q, k, v, sums, beta, A, dout, dht=last, cp_cache=cache, **common)
            return *as_inputs((*rows, dg, dbeta), (q, k, v, g, beta)), dstate.mT
        return forward, backward

    gradients, training = gradients_of, training_of


PEERS = {peer.name: peer for peer in (FlashInfer, Fla, FlashQla)}


def versions():
    """Of what the peers' kernels are compiled with."""
    found = [f"torch {torch.__version__}"]
    for name in ("triton", "tilelang", "nvidia-cutlass-dsl"):
        try:
            found.append(f"{name} {importlib.metadata.version(name)}")
        except importlib.metadata.PackageNotFoundError:
            pass
    return ", ".join(found)
