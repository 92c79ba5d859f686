/* SPDX-License-Identifier: Apache-2.0 */
/* gdn run: files as calls, compared with what they expect. */
#include <stdio.h>
#include <stdlib.h>

#include "cli.h"
#include "commands/run.h"
#include "report.h"

#ifndef GDN_VECTORS_DIR
#define GDN_VECTORS_DIR "tests/vectors"
#endif

static const char *const help[] = {
    "gdn run FILE.safetensors... [options]\n"
    "gdn run --all [--vectors DIR] [options]\n"
    "\n"
    "Runs the op that a file describes and compares each output with the file's expected.*\n"
    "tensor: exit 0 where all are within their limits, 1 where one is not, 2 for a bad file or\n"
    "arguments. Times are the best of up to five runs. --all runs the files of DIR\n"
    "(default " GDN_VECTORS_DIR
    "), then a rule of Qwen3-Next's size, judged by a float64 recurrence.\n"
    "\n"
    "  --backend B       cpu (default), cuda: device 0, on copies of the tensors\n"
    "  --threads N       threads that compute; 0: one per processor\n"
    "  --isa NAME        scalar, avx2, avx512 or neon: use no more than that\n"
    "  -o OUT            write the outputs to OUT.safetensors, whole or not at all (one FILE)\n"
    "  --json            one JSON line per file\n",

    "\nTensors. f32, bf16 or f16; [N,...] is packed, [B,T,...] padded.\n"
    "\n"
    "  prefill, decode   q k v; state or initial_state; A_log dt_bias; scale (one f32);\n"
    "                    one gate: g_log (logarithm), g (alpha), a (raw);\n"
    "                    one of beta, b (its sigmoid is beta); write. Shapes decide: KDA has\n"
    "                    gates [N,H,K], dt_bias [H,K]; an erase gate is beta [N,H,K]\n"
    "      expected.     output; final_state or new_state\n"
    "  conv1d            x weight bias; state or initial_state\n"
    "      expected.     output; final_state or new_state\n"
    "  gates             a b A_log dt_bias             expected.g expected.beta (f32)\n"
    "  l2norm            x                             expected.output\n"
    "  rmsnorm_gated     x z weight                    expected.output\n"
    "  prefill_backward  as prefill; grad_output grad_final_state\n"
    "      expected.     as prefill; dq dk dv; dg or da; dbeta or db; dA_log ddt_bias;\n"
    "                    dwrite dinitial_state\n"
    "  layer             hidden_states [B,T,hidden], layer.<Hugging Face name>, three names of\n"
    "                    convolutions too (q_conv1d); token_ids and embedding: hidden_states must\n"
    "                    be their rows\n"
    "      expected.     output\n"
    "  layer_backward    hidden_states, layer.<Hugging Face name>; grad_output\n"
    "      expected.     output; dhidden_states; d<Hugging Face name> of each\n"
    "  for states        cu_seqlens read_slots write_slots has_initial_state\n"
    "                    num_accepted_tokens token_count (see gdn_batch in gdn.h)\n",

    "\nMetadata, all of it optional. Unknown keys and unknown tensors are errors.\n"
    "\n"
    "  op                prefill, decode, layer, conv1d, gates, l2norm, rmsnorm_gated,\n"
    "                    prefill_backward, layer_backward. Absent: with hidden_states layer, or\n"
    "                    layer_backward if there is grad_output; with that alone\n"
    "                    prefill_backward; with q, k and v decode if there is state, a\n"
    "                    or b, else prefill (traces of FlashInfer have these names); with x\n"
    "                    conv1d if weight has 2 or more dimensions, rmsnorm_gated if there is z\n"
    "                    or weight, else l2norm; with a or b alone gates\n"
    "  gate              log, linear, raw. Default: by the tensor's name. For gates: log, linear\n"
    "  gate_lower_bound  below 0: the bounded gate of KDA; layers too\n"
    "  beta              given, sigmoid, twice_sigmoid. Default: given for beta, sigmoid for b\n"
    "  head_map          grouped (default), interleaved\n"
    "  norm              none, l2, l2_add, l2_max; of q and k, or of l2norm\n"
    "  use_qk_l2norm     0, 1: the same as norm none, l2. Default: 1 for a decode with a raw gate\n"
    "                    (as FlashInfer's), else 0\n"
    "  norm_eps          default 1e-6\n"
    "  scale             default 1 / sqrt(K)\n"
    "  state_layout      k_last [P,H,V,K] (default), k_first [P,H,K,V]\n"
    "  exact             0 (default), 1: prefill, decode with GDN_EXACT\n"
    "  pad_policy        zero (default), keep (outputs start as zero), sink\n"
    "  sink_slot         for sink\n"
    "  first_slot        slots below it are padding. Default: 0\n"
    "  write             final (default), each, none\n"
    "  updates           rows of k, v, beta and write for each token. Default: 1\n"
    "  activation        conv1d: none (default), silu; rmsnorm_gated: silu (default), sigmoid\n"
    "  config            layers: JSON with linear_num_key_heads, linear_num_value_heads,\n"
    "                    linear_key_head_dim, linear_value_head_dim; of KDA linear_num_heads,\n"
    "                    linear_head_dim, or linear_attn_config with num_heads, head_dim;\n"
    "                    rms_norm_eps, output_gate_type, linear_allow_neg_eigval\n"
    "  prefill_tokens    layer: so many in one call, the rest one by one. Default: all\n"
    "  kind              layers: not needed, the tensors say it\n",

    "\nLimits. RMS and largest value are those of the expected tensor; the dtypes those of the\n"
    "activations and the state.\n"
    "\n"
    "  all f32           largest error 2e-5 RMS + 1e-6\n"
    "  any f16, no bf16  RMS error 8e-4 RMS, largest 3 units of 2^-11 of the largest value\n"
    "  any bf16          RMS error 6e-3 RMS, largest 3 units of 2^-8 of the largest value\n"
    "  gradients         f32: 5e-5 RMS + 1e-6; f16: 2e-3 RMS, 6 units; bf16: 8e-3 RMS (gates and\n"
    "                    betas 1.5e-2), 6 units\n",
};

struct run_options {
    struct cli_device device;
    const char *out, *vectors;
    bool json, all, help;
};

static int larger(int a, int b) { return a > b ? a : b; }

static int run_file(gdn_ctx *ctx, const char *path, const struct run_options *o)
{
    struct job job;
    int code = job_run(&job, ctx, path);
    if (code != CLI_BAD && o->out) code = larger(code, report_write(&job, o->out));
    if (code != CLI_BAD) (o->json ? report_json : report_text)(&job, ctx);
    job_close(&job);
    return code;
}

static int run_files(const struct run_options *o, const char *const *files, int n)
{
    gdn_ctx *ctx;
    int code = CLI_OK;
    if (cli_open(&o->device, &ctx)) return CLI_BAD;
    for (int i = 0; i < n; i++) code = larger(code, run_file(ctx, files[i], o));
    gdn_ctx_destroy(ctx);
    return code;
}

static int run_everything(const struct run_options *o)
{
    gdn_ctx *ctx;
    if (cli_open(&o->device, &ctx)) return CLI_BAD;
    int code = run_vectors(ctx, o->vectors, o->json);
    if (code != CLI_BAD) code = larger(code, run_model(ctx, o->json));
    if (!o->json && code != CLI_BAD)
        printf("\n%s\n", code ? "FAIL: outside the limits." : "All within their limits.");
    gdn_ctx_destroy(ctx);
    return code;
}

static int dispatch(const struct run_options *o, const char *const *files, int n)
{
    if (o->help) {
        for (size_t i = 0; i < sizeof help / sizeof *help; i++) fputs(help[i], stdout);
        return CLI_OK;
    }
    if (o->all && (n || o->out)) return cli_bad("run: --all takes no FILE and no -o");
    if (o->all) return run_everything(o);
    if (!n) return cli_bad("run: no FILE (gdn run --help)");
    if (o->out && n > 1) return cli_bad("-o: one FILE wanted, found %d", n);
    return run_files(o, files, n);
}

int run_main(int argc, char **argv)
{
    struct run_options o = { .vectors = GDN_VECTORS_DIR };
    const struct cli_option options[] = {
        { "--backend", CLI_TEXT, &o.device.backend, 0, 0 },
        { "--threads", CLI_INT, &o.device.threads, 0, 1024 },
        { "--isa", CLI_TEXT, &o.device.isa, 0, 0 },
        { "-o", CLI_TEXT, &o.out, 0, 0 },
        { "--json", CLI_FLAG, &o.json, 0, 0 },
        { "--all", CLI_FLAG, &o.all, 0, 0 },
        { "--vectors", CLI_TEXT, &o.vectors, 0, 0 },
        { "--help", CLI_FLAG, &o.help, 0, 0 },
        { "-h", CLI_FLAG, &o.help, 0, 0 },
        { NULL, CLI_FLAG, NULL, 0, 0 },
    };
    const char **files = malloc((size_t)argc * sizeof *files);
    int n, code;
    if (!files) return cli_bad("no memory");
    code = cli_parse(argc, argv, options, files, &n);
    if (!code) code = dispatch(&o, files, n);
    free(files);
    return code;
}
