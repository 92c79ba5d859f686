/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Files of a whole layer: its Hugging Face parameters and a sequence of hidden states. The
 * first prefill_tokens go through as one call, each further token as a call of its own, with
 * the states carried; all of it together must give the expected output.
 */
#include <ctype.h>
#include <stdio.h>

#include "cli.h"
#include "files/job.h"
#include "files/layer_weights.h"
#include "oracle.h"

#define NAME(name, field) "layer." name,
#define PART(name) "layer." name,
static const char *const tensors[] = { "hidden_states", "token_ids", "embedding",
                                       LAYER_WEIGHTS(NAME) LAYER_CONVS(PART) "expected.output",
                                       NULL };
static const char *const metadata[] = { "kind", "config", "prefill_tokens", "gate_lower_bound",
                                        NULL };

/* ---- The configuration ------------------------------------------------------------------- */

static int config_size(const struct job *job, const cJSON *config, const char *key, int32_t *to)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, key);
    const double x = cJSON_IsNumber(item) ? item->valuedouble : 0;
    if (!(x >= 1 && x <= 65536) || x != (int32_t)x)
        return cli_bad("%s: metadata 'config': %s is not a whole number from 1 to 65536",
                       job->file.path, key);
    *to = (int32_t)x;
    return CLI_OK;
}

/* A layer of KDA has values of the size of its keys. Checkpoints have an object for these sizes. */
static int config_heads(const struct job *job, const cJSON *config, gdn_block_args *a)
{
    const cJSON *own = cJSON_GetObjectItemCaseSensitive(config, "linear_attn_config");
    const cJSON *bound = cJSON_GetObjectItemCaseSensitive(own, "gate_lower_bound");
    if (own || cJSON_HasObjectItem(config, "linear_num_heads")) {
        if (config_size(job, own ? own : config, own ? "num_heads" : "linear_num_heads",
                        &a->n_key_heads) ||
            config_size(job, own ? own : config, own ? "head_dim" : "linear_head_dim",
                        &a->key_head_dim))
            return CLI_BAD;
        if (cJSON_IsNumber(bound)) a->gate_lower_bound = (float)bound->valuedouble;
        a->n_value_heads = a->n_key_heads;
        a->value_head_dim = a->key_head_dim;
        return CLI_OK;
    }
    return config_size(job, config, "linear_num_key_heads", &a->n_key_heads) ||
                   config_size(job, config, "linear_num_value_heads", &a->n_value_heads) ||
                   config_size(job, config, "linear_key_head_dim", &a->key_head_dim) ||
                   config_size(job, config, "linear_value_head_dim", &a->value_head_dim)
               ? CLI_BAD
               : CLI_OK;
}

/* Reads the gate of the output; absent: stays. */
static int config_gate(const struct job *job, const cJSON *config, int32_t *activation)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(config, "output_gate_type");
    const char *text = cJSON_GetStringValue(item);
    if (!item || cJSON_IsNull(item)) return CLI_OK;
    if (!text || (strcmp(text, "silu") && strcmp(text, "swish") && strcmp(text, "sigmoid")))
        return cli_bad("%s: metadata 'config': output_gate_type is '%.30s', wanted silu, swish or "
                       "sigmoid",
                       job->file.path, text ? text : "no text");
    *activation = strcmp(text, "sigmoid") ? GDN_ACT_SILU : GDN_ACT_SIGMOID;
    return CLI_OK;
}

static int read_config(struct job *job, const cJSON *config)
{
    gdn_block_args *a = &job->args.block;
    const cJSON *eps = cJSON_GetObjectItemCaseSensitive(config, "rms_norm_eps");
    const cJSON *twice = cJSON_GetObjectItemCaseSensitive(config, "linear_allow_neg_eigval");
    if (config_heads(job, config, a) || config_gate(job, config, &a->activation)) return CLI_BAD;
    if (eps && !(cJSON_IsNumber(eps) && eps->valuedouble > 0 && eps->valuedouble < 1))
        return cli_bad("%s: metadata 'config': rms_norm_eps is not a number between 0 and 1",
                       job->file.path);
    if (twice && !cJSON_IsBool(twice))
        return cli_bad("%s: metadata 'config': linear_allow_neg_eigval is not true or false",
                       job->file.path);
    /* OLMo-Hybrid's module has an eps of its own, and beta up to 2 where its file is silent. */
    const bool is_olmo = job_tensor(job, "layer.a_proj.weight").data;
    if (is_olmo || eps) a->rms_eps = is_olmo ? 1e-5f : (float)eps->valuedouble;
    if (cJSON_IsTrue(twice) || (is_olmo && !twice)) a->beta_kind = GDN_BETA_TWICE_SIGMOID;
    return CLI_OK;
}

static int parse_config(struct job *job)
{
    const char *text = st_metadata(&job->file, "config");
    cJSON *config = text ? cJSON_Parse(text) : NULL;
    const int code = cJSON_IsObject(config) ? read_config(job, config)
                                            : cli_bad("%s: metadata 'config': %s", job->file.path,
                                                      text ? "not JSON" : "absent");
    cJSON_Delete(config);
    return code;
}

/* ---- The prompt -------------------------------------------------------------------------- */

/* Appends one byte of the text, or its escape. Returns false when there is no more room. */
static bool append_byte(char *text, size_t bytes, int c)
{
    char piece[8];
    const size_t used = strlen(text);
    if (c == '\n')
        snprintf(piece, sizeof piece, "\\n");
    else if (c < 128 && isprint(c))
        snprintf(piece, sizeof piece, "%c", c);
    else
        snprintf(piece, sizeof piece, "\\x%02x", (unsigned)c & 255);
    if (used + strlen(piece) + 4 > bytes) { /* leaves room for "..." */
        snprintf(text + used, bytes - used, "...");
        return false;
    }
    snprintf(text + used, bytes - used, "%s", piece);
    return true;
}

/* Checks that hidden_states are the embedding's rows of token_ids. */
static int check_prompt(struct job *job, const gdn_tensor *hidden)
{
    const char *path = job->file.path;
    const gdn_tensor ids = job_tensor(job, "token_ids"), table = job_tensor(job, "embedding");
    const int64_t n = hidden->size[0] * hidden->size[1], width = hidden->size[2];
    bool room = true;
    if (!ids.data && !table.data) return CLI_OK;
    if (!ids.data || ids.dtype < GDN_I32 || ids.dtype > GDN_I64 || ids.ndim != 1 ||
        ids.size[0] != n)
        return cli_bad("%s: tensor 'token_ids': wanted %lld I32 or I64 numbers, one per token",
                       path, (long long)n);
    if (!table.data || table.dtype > GDN_F16 || table.ndim != 2 || table.size[1] != width)
        return cli_bad("%s: tensor 'embedding': wanted rows of %lld floats", path,
                       (long long)width);
    for (int64_t t = 0; t < n; t++) {
        const int64_t id = (int64_t)oracle_load(ids.data, ids.dtype, t);
        if (id < 0 || id >= table.size[0])
            return cli_bad("%s: tensor 'token_ids': token %lld is %lld, wanted 0 to %lld", path,
                           (long long)t, (long long)id, (long long)table.size[0] - 1);
        for (int64_t i = 0; i < width; i++)
            if (oracle_load(table.data, table.dtype, id * width + i) !=
                oracle_load(hidden->data, hidden->dtype, t * width + i))
                return cli_bad("%s: tensor 'hidden_states': token %lld is not row %lld of the "
                               "embedding",
                               path, (long long)t, (long long)id);
        room = room && id < 256 && append_byte(job->prompt, sizeof job->prompt, (int)id);
    }
    return CLI_OK;
}

/* ---- Parameters -------------------------------------------------------------------------- */

#define FIELD(name, field) { "layer." name, offsetof(gdn_block_args, field) },
static const struct {
    const char *name;
    size_t at;
} weights[] = { LAYER_WEIGHTS(FIELD) };

/* Two families of models may have two names for one parameter. */
static int read_parameters(struct job *job)
{
    gdn_block_args *a = &job->args.block;
    for (size_t i = 0; i < sizeof weights / sizeof *weights; i++) {
        const gdn_tensor t = job_tensor(job, weights[i].name);
        gdn_tensor *to = (gdn_tensor *)((char *)a + weights[i].at);
        if (t.data && to->data)
            return cli_bad("%s: tensor '%s': there under another name too", job->file.path,
                           weights[i].name);
        if (t.data) *to = t;
    }
    return CLI_OK;
}

static int64_t elements(const gdn_tensor *t)
{
    int64_t n = 1;
    for (int i = 0; i < t->ndim; i++) n *= t->size[i];
    return n;
}

/* ---- Three convolutions ------------------------------------------------------------------ */

static const char *const convs[] = { LAYER_CONVS(PART) };

static int check_part(const struct job *job, const char *name, const gdn_tensor *t, int64_t taps)
{
    if (job_need(job, t, name)) return CLI_BAD;
    if (t->dtype > GDN_F16 || t->ndim != 3 || t->size[1] != 1 || t->size[2] < 2)
        return cli_bad("%s: tensor '%s': wanted floats [n,1,W] with W of 2 or more", job->file.path,
                       name);
    if (t->size[2] == taps) return CLI_OK;
    return cli_bad("%s: tensor '%s': W is %lld, wanted %lld as in '%s'", job->file.path, name,
                   (long long)t->size[2], (long long)taps, convs[0]);
}

/* Joins the convolutions of q, k and v to one, in float32, which changes no value. */
static int join_convs(struct job *job)
{
    gdn_tensor *to = &job->args.block.conv_weight, parts[3];
    int64_t size[3] = { 0, 1, 0 };
    bool some = false;
    for (int i = 0; i < 3; i++) {
        parts[i] = job_tensor(job, convs[i]);
        some = some || parts[i].data;
        if (parts[i].data && to->data)
            return cli_bad("%s: tensor '%s': there under another name too", job->file.path,
                           convs[i]);
    }
    if (!some) return CLI_OK;
    size[2] = parts[0].ndim == 3 ? parts[0].size[2] : 0;
    for (int i = 0; i < 3; i++) {
        if (check_part(job, convs[i], &parts[i], size[2])) return CLI_BAD;
        size[0] += parts[i].size[0];
    }
    *to = memory_tensor(&job->memory, GDN_F32, 3, size);
    if (!to->data) return cli_bad("%s: no memory for the convolution", job->file.path);
    float *next = to->data;
    for (int i = 0; i < 3; i++)
        for (int64_t j = 0; j < parts[i].size[0] * size[2]; j++)
            *next++ = (float)oracle_load(parts[i].data, parts[i].dtype, j);
    return CLI_OK;
}

/* ---- The call ---------------------------------------------------------------------------- */

/* Files have A_log as [1][1][H][1] too, and dt_bias of KDA as [H K]. */
static void shape_gates(gdn_block_args *a)
{
    const int64_t H = a->n_value_heads, K = a->key_head_dim, n = elements(&a->dt_bias);
    if (a->A_log.data && elements(&a->A_log) == H)
        a->A_log = gdn_dense(a->A_log.data, a->A_log.dtype, 1, H, 0, 0, 0);
    if (!a->dt_bias.data || n != H * K || n == H) return;
    a->dt_bias = gdn_dense(a->dt_bias.data, a->dt_bias.dtype, 2, H, K, 0, 0);
    if (!a->activation) a->activation = GDN_ACT_SIGMOID; /* as all models of KDA have it */
}

static int make_states(struct job *job)
{
    gdn_block_args *a = &job->args.block;
    const int64_t B = a->hidden.size[0];
    const int64_t taps = a->conv_weight.size[a->conv_weight.ndim - 1];
    const int64_t D = 2 * (int64_t)a->n_key_heads * a->key_head_dim +
                      (int64_t)a->n_value_heads * a->value_head_dim;
    const int64_t conv[] = { B, D, taps - 1 };
    const int64_t state[] = { B, a->n_value_heads, a->value_head_dim, a->key_head_dim };
    a->conv_state = memory_tensor(&job->memory, GDN_F32, 3, conv);
    a->state = memory_tensor(&job->memory, GDN_F32, 4, state);
    return a->conv_state.data && a->state.data
               ? CLI_OK
               : cli_bad("%s: no memory for the layer's states", job->file.path);
}

static int prepare(struct job *job)
{
    gdn_block_args *a = &job->args.block;
    const char *prefill = st_metadata(&job->file, "prefill_tokens");
    *a = gdn_block_args_init();
    a->hidden = job_tensor(job, "hidden_states");
    if (job_need(job, &a->hidden, "hidden_states") || parse_config(job) || read_parameters(job) ||
        join_convs(job) || job_number(job, "gate_lower_bound", &a->gate_lower_bound))
        return CLI_BAD;
    shape_gates(a);
    if (a->hidden.ndim != 3 || a->hidden.dtype > GDN_F16)
        return cli_bad("%s: tensor 'hidden_states': wanted floats [B,T,hidden]", job->file.path);
    if (job_need(job, &a->conv_weight, "layer.conv1d.weight")) return CLI_BAD;
    if (a->conv_weight.ndim < 2 || a->conv_weight.size[a->conv_weight.ndim - 1] < 2)
        return cli_bad("%s: tensor 'layer.conv1d.weight': wanted [D,1,W] with W of 2 or more",
                       job->file.path);
    job->prefill_tokens = a->hidden.size[1];
    if (prefill && !cli_integer(prefill, 0, a->hidden.size[1], &job->prefill_tokens))
        return cli_bad("%s: metadata 'prefill_tokens': '%.40s', wanted 0 to %lld", job->file.path,
                       prefill, (long long)a->hidden.size[1]);
    job->precision = a->hidden.dtype;
    if (check_prompt(job, &a->hidden) || make_states(job)) return CLI_BAD;
    return job_new_output(job, "output", a->hidden.dtype, 3, a->hidden.size, &a->out);
}

/* Returns tokens first .. first + n - 1 of every sequence. */
static gdn_tensor tokens_of(const gdn_tensor *t, int64_t first, int64_t n)
{
    gdn_tensor part = *t;
    part.size[1] = n;
    part.data = (char *)t->data + first * t->stride[1] * (int64_t)gdn_dtype_bytes(t->dtype);
    return part;
}

static void zero(const gdn_tensor *t)
{
    int64_t bytes = 0;
    memory_bytes(t->dtype, t->ndim, t->size, &bytes);
    memset(t->data, 0, (size_t)bytes);
}

static int compute(struct job *job, gdn_ctx *ctx)
{
    gdn_block_args *a = &job->args.block;
    const gdn_tensor hidden = a->hidden, out = a->out;
    const int64_t B = hidden.size[0], T = hidden.size[1], first = job->prefill_tokens;
    struct job_phase *phase = job->phases;
    int code = CLI_OK;
    zero(&a->conv_state);
    zero(&a->state);
    if (first > 0) {
        a->hidden = tokens_of(&hidden, 0, first);
        a->out = tokens_of(&out, 0, first);
        code = job_call_op(job, ctx, GDN_OP_BLOCK, a, phase++, "prefill", B * first);
    }
    for (int64_t t = first; t < T && !code; t++) {
        a->hidden = tokens_of(&hidden, t, 1);
        a->out = tokens_of(&out, t, 1);
        code = job_call_op(job, ctx, GDN_OP_BLOCK, a, phase, "decode", B * (T - first));
    }
    job->n_phases = (int)(phase - job->phases) + (first < T);
    a->hidden = hidden;
    a->out = out;
    return code;
}

const struct job_kind job_layer = { "layer", GDN_OP_BLOCK, tensors, metadata, prepare, compute };
