# SPDX-License-Identifier: Apache-2.0
"""
vLLM's Gated DeltaNet layers on a CPU, where vLLM takes neither its layer's methods nor its class of
prefill: what runs between the projections of a batch without drafts.

With lazy states a layer has a gdn.torch.Record beside its pool. A sequence always begins in a slot
by a prompt without an initial state, even if that prompt is one token or comes again after a
preemption. gdn_prefill() then empties the record of the slot, so nothing is left of the sequence
before. What else moves states in vLLM does not know records, and is refused.
"""

import functools
import os

import gdn
import gdn.torch

from . import _drop_in


LAZY = "GDN_VLLM_LAZY"


def lazy_rows():
    """The rows of a record that the environment asks for; 0: states are not lazy."""
    text = os.environ.get(LAZY) or "0"
    if not text.isdecimal() or int(text) > 65536:
        raise ValueError(f"{LAZY}: {text!r}, wanted the rows of a record, up to 65536, or 0")
    return int(text)


def _refuse_moves(config):
    """Refuses a configuration in which states are copied or sent without the call that folds."""
    if config is None:
        raise ValueError(f"{LAZY}: given, but the layer has no vllm_config, wanted that of a Qwen "
                         "layer of vLLM 0.33")
    for name, found, wanted in (
            ("mamba_cache_mode", config.cache_config.mamba_cache_mode, "none"),
            ("kv_transfer_config", config.kv_transfer_config, None),
            ("speculative_config", config.speculative_config, None)):
        if found != wanted:
            raise ValueError(f"{LAZY}: given, but {name} is {found!r}, wanted {wanted!r}: vLLM "
                             "would move states and leave their records behind")


def _record_of(layer, state):
    """The record of the layer's pool, a new one if the pool is new; None without lazy states."""
    rows, record = lazy_rows(), vars(layer).get("_gdn_record")
    if rows and (record is None or record.state.data_ptr() != state.data_ptr() or
                 record.state.shape != state.shape):
        _refuse_moves(getattr(layer, "vllm_config", None))
        record = gdn.torch.Record(state, layer.num_k_heads // layer.tp_size, rows,
                                  state_layout=gdn.STATE_KV)
        layer._gdn_record = record
    return record if rows else None


def _op(name, pools):
    """The function of gdn.torch or the method of the record that updates the states."""
    if pools["record"] is not None:
        return getattr(pools["record"], name)
    return functools.partial(getattr(gdn.torch, name), state=pools["state"],
                             state_layout=gdn.STATE_KV)


def _cpu_gdn_attention_nonspec(layer, attn_metadata_i, mixed_qkv, b, a, core_attn_out):
    """
    Rows of one token each as one gdn_step(), and behind them prompts by gdn_conv1d() and
    gdn_prefill(). mixed_qkv [N, 2 H K + HV V] as projected; a, b [N, HV]; core_attn_out
    [N, HV, V]. Both pools of the layer are updated in place; slots of 0 and below are padding.
    """
    from vllm.model_executor.layers.mamba.ops.cpu import gdn_attention as theirs

    batch, conv_state = attn_metadata_i, theirs._conv_buffer_view(layer)
    state = theirs._ssm_state_view(layer)
    pools = dict(conv_state=conv_state, state=state, record=_record_of(layer, state),
                 weight=theirs._unpacked_conv_weight(layer))
    slots = batch.non_spec_state_indices_tensor
    n, tokens = batch.num_decodes, batch.num_decode_tokens
    if n:
        _decode(layer, mixed_qkv[:tokens], b[:tokens], a[:tokens], core_attn_out[:tokens],
                slots[:n], pools)
    if batch.num_prefills:
        rows, end = slice(n, n + batch.num_prefills), tokens + batch.num_prefill_tokens
        _prefill(layer, mixed_qkv[tokens:end], b[tokens:end], a[tokens:end],
                 core_attn_out[tokens:end], pools, read_slots=slots[rows], first_slot=1,
                 cu_seqlens=batch.non_spec_query_start_loc[n:rows.stop + 1] - tokens,
                 has_initial_state=batch.has_initial_state[rows])


def _decode(layer, mixed_qkv, b, a, out, slots, pools):
    step = _op("step", pools)
    step(*(x[:, None] for x in (mixed_qkv, a, b)), pools["weight"], layer.A_log,
         conv_bias=layer.conv1d.bias, dt_bias=layer.dt_bias, conv_state=pools["conv_state"],
         out=out[:, None], first_slot=1, key_heads=layer.num_k_heads // layer.tp_size,
         value_heads=layer.num_v_heads // layer.tp_size, key_dim=layer.head_k_dim,
         value_dim=layer.head_v_dim, read_slots=slots)


def _prefill(layer, mixed_qkv, b, a, out, pools, **places):
    rows = gdn.torch.conv1d(mixed_qkv, pools["weight"], layer.conv1d.bias,
                            state=pools["conv_state"], activation=gdn.ACT_SILU, **places)
    keys = layer.num_k_heads // layer.tp_size * layer.head_k_dim
    q, k, v = (x.unflatten(-1, (-1, d)) for x, d in zip(
        rows.split((keys, keys, rows.shape[-1] - 2 * keys), -1),
        (layer.head_k_dim, layer.head_k_dim, layer.head_v_dim)))
    prefill = _op("prefill", pools)
    prefill(q, k, v, a, b, A_log=layer.A_log, dt_bias=layer.dt_bias, out=out, norm=gdn.NORM_L2,
            **places, **_drop_in.RAW_GATES)


def wrap(theirs):
    """Returns ours around vLLM's function of this name. Other activations go to vLLM's."""
    _drop_in.require_same(_cpu_gdn_attention_nonspec, theirs)

    def call(layer, attn_metadata_i, mixed_qkv, b, a, core_attn_out):
        ours = _cpu_gdn_attention_nonspec if layer.activation in ("silu", "swish") else theirs
        return ours(layer, attn_metadata_i, mixed_qkv, b, a, core_attn_out)

    return call
