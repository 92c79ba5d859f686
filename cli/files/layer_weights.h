/* SPDX-License-Identifier: Apache-2.0 */
/* The parameters of a layer: X(name in a file behind "layer.", argument of gdn_block). */
#ifndef LAYER_WEIGHTS_H
#define LAYER_WEIGHTS_H

#define LAYER_WEIGHTS(X)                             \
    X("in_proj_qkvz.weight", in_proj_qkvz)           \
    X("in_proj_ba.weight", in_proj_ba)               \
    X("in_proj_qkv.weight", in_proj_qkv)             \
    X("in_proj_z.weight", in_proj_z)                 \
    X("in_proj_b.weight", in_proj_b)                 \
    X("in_proj_a.weight", in_proj_a)                 \
    X("q_proj.weight", in_proj_q)                    \
    X("k_proj.weight", in_proj_k)                    \
    X("v_proj.weight", in_proj_v)                    \
    X("g_proj.weight", in_proj_z)                    \
    X("g_a_proj.weight", in_proj_z_down)             \
    X("g_b_proj.weight", in_proj_z)                  \
    X("b_proj.weight", in_proj_b)                    \
    X("a_proj.weight", in_proj_a)                    \
    X("f_proj.weight", in_proj_a)                    \
    X("f_a_proj.weight", in_proj_a_down)             \
    X("f_b_proj.weight", in_proj_a)                  \
    X("forget_gate.f_proj.weight", in_proj_a)        \
    X("forget_gate.f_a_proj.weight", in_proj_a_down) \
    X("forget_gate.f_b_proj.weight", in_proj_a)      \
    X("forget_gate.A_log", A_log)                    \
    X("forget_gate.dt_bias", dt_bias)                \
    X("conv1d.weight", conv_weight)                  \
    X("conv1d.bias", conv_bias)                      \
    X("A_log", A_log)                                \
    X("dt_bias", dt_bias)                            \
    X("norm.weight", norm_weight)                    \
    X("o_norm.weight", norm_weight)                  \
    X("out_proj.weight", out_proj)                   \
    X("o_proj.weight", out_proj)

/* The tensors of files with three convolutions that together are conv_weight, in its order. */
#define LAYER_CONVS(X) X("q_conv1d.weight") X("k_conv1d.weight") X("v_conv1d.weight")

#endif
