/* SPDX-License-Identifier: Apache-2.0 */
/* gdn generate: a language model continues a text. */
#include <stdio.h>
#include <stdlib.h>

#include "draft.h"
#include "generate.h"
#include "model/forward.h"
#include "model/past_file.h"
#include "program/command_line.h"
#include "program/os.h"
#include "text/tokenizer.h"

static const char help[] =
    "gdn generate MODEL -p PROMPT [-n N] [options]\n"
    "gdn generate MODEL --load-state F [-p PROMPT] [-n N] [options]\n"
    "\n"
    "Continues a text with a dense model of Qwen3.5, OLMo-Hybrid or Kimi-Linear. MODEL is a\n"
    "folder of Hugging Face (config.json, tokenizer.json, model.safetensors or shards with their\n"
    "index), or one safetensors file whose metadata has config.json as \"config\". Without a\n"
    "tokenizer.json a token is a byte, of 256. The prompt goes through each layer in one call,\n"
    "and is part of what is printed (docs/start/generate.md).\n"
    "\n"
    "  -p PROMPT         the text so far; after --load-state, what follows it\n"
    "  -n N              tokens to add (default 100); fewer where the model ends the text\n"
    "  -t T              temperature; 0 (default): always the most likely token\n"
    "  --seed S          other random numbers (default 0)\n"
    "  --save-state F    write the state after the last token, whole or not at all\n"
    "  --load-state F    continue that text; -t and --seed as saved, if not given\n"
    "  --exact           any split of a text over prompts, tokens and states gives the same bits\n"
    "  --draft N         check up to N guessed tokens (7 at most) in one call: the same text, in\n"
    "                    fewer calls where it repeats itself\n"
    "  --lazy R          keep up to R tokens beside each state, then write it once (CPU alone)\n"
    "  --logits F        write tokens and the logits after each to a safetensors file\n"
    "  --speed           times on stderr, in one line\n"
    "  --backend B       cpu (default); cuda: GDN layers and products of matrices on device 0, in\n"
    "                    f32; attention to past tokens and norms stay on the CPU\n"
    "  --threads N, --isa NAME\n"
    "\n"
    "Exit status: 0 good, 2 a bad file or bad arguments.\n";

struct generate_options {
    struct cli_device device;
    const char *prompt, *save, *load, *logits;
    double temperature; /* below 0: not given */
    int64_t seed, n;    /* seed below 0: not given */
    int64_t draft, lazy;
    bool exact, speed, help;
};

/* Tokens and logits for --logits. */
struct recording {
    int32_t *tokens;
    float *logits; /* [n][vocab], of the tokens that went through the model */
    int64_t n_tokens, n;
};

struct generation {
    const struct generate_options *o;
    struct model model;
    struct tokenizer tokenizer;
    struct sampler sampler;
    struct past past;
    struct forward forward;
    int32_t *prompt;
    int64_t n_prompt, n_added, n_calls;
    float *logits; /* for the next token */
    struct draft draft;
    float *checked; /* logits of guesses */
    struct recording recording;
    double prompt_seconds, text_seconds;
    struct memory memory;
};

/* ---- Recording ------------------------------------------------------------------------------- */

static int make_recording(struct generation *g)
{
    const int64_t n = g->n_prompt + g->o->n, vocab = g->model.config.vocab;
    if (!g->o->logits) return CLI_OK;
    const int64_t size[] = { n, vocab };
    g->recording.tokens = memory_tensor(&g->memory, GDN_I32, 1, size).data;
    g->recording.logits = memory_tensor(&g->memory, GDN_F32, 2, size).data;
    return g->recording.tokens && g->recording.logits ? CLI_OK
                                                      : cli_bad("--logits: no memory for them");
}

static void record_tokens(struct generation *g, const int32_t *tokens, int64_t n)
{
    struct recording *r = &g->recording;
    if (!g->o->logits) return;
    memcpy(r->tokens + r->n_tokens, tokens, (size_t)n * sizeof *tokens);
    r->n_tokens += n;
}

static int record_logits(struct generation *g, int64_t n)
{
    struct recording *r = &g->recording;
    if (!g->o->logits) return CLI_OK;
    float *to = r->logits + r->n * g->model.config.vocab;
    r->n += n;
    return forward_logits(&g->forward, 0, n, to);
}

static int write_recording(const struct generation *g)
{
    const struct recording *r = &g->recording;
    const struct st_tensor tensors[] = {
        { .name = "tokens", .view = gdn_dense(r->tokens, GDN_I32, 1, r->n_tokens, 0, 0, 0) },
        { .name = "logits",
          .view = gdn_dense(r->logits, GDN_F32, 2, r->n, g->model.config.vocab, 0, 0) },
    };
    return g->o->logits ? st_write(g->o->logits, tensors, 2, NULL) : CLI_OK;
}

/* ---- The text -------------------------------------------------------------------------------- */

static double clock_seconds(void) { return 1e-9 * (double)os_now_ns(); }

/* Takes tokens through the model; then g->logits are those of the next one. */
static int take(struct generation *g, const int32_t *tokens, int64_t n)
{
    if (forward_run(&g->forward, tokens, n) || forward_logits(&g->forward, n - 1, 1, g->logits))
        return CLI_BAD;
    return record_logits(g, n);
}

static int take_prompt(struct generation *g)
{
    const double start = clock_seconds();
    record_tokens(g, g->prompt, g->n_prompt);
    draft_add(&g->draft, g->prompt, g->n_prompt);
    if (g->n_prompt && take(g, g->prompt, g->n_prompt)) return CLI_BAD;
    g->prompt_seconds = clock_seconds() - start;
    if (g->o->prompt) fputs(g->o->prompt, stdout);
    return cli_flush();
}

static bool is_end(const struct config *c, int32_t token)
{
    for (int i = 0; i < c->n_ends; i++)
        if (c->ends[i] == token) return true;
    return false;
}

static int32_t sample(const struct generation *g, const float *logits, int64_t position)
{
    return sampler_next(&g->sampler, logits, g->model.config.vocab, position);
}

static int add_token(struct generation *g, int32_t token)
{
    tokenizer_write(&g->tokenizer, token, stdout);
    record_tokens(g, &token, 1);
    draft_add(&g->draft, &token, 1);
    g->n_added++;
    return cli_flush();
}

/* The last token goes through the model only where a state is saved. */
static int64_t tokens_to_take(const struct generation *g)
{
    return g->o->n - g->n_added + (g->o->save ? 1 : 0);
}

/* Adds the first *accepted of the guesses, those that the sampler takes. The first one's logits are
 * g->checked. */
static int accept(struct generation *g, const int32_t *guesses, int64_t n, int64_t position,
                  int64_t *accepted)
{
    const struct config *c = &g->model.config;
    int64_t i = 0;
    for (; i < n; i++) {
        if (sample(g, g->checked + i * c->vocab, position + i) != guesses[i]) break;
        if (is_end(c, guesses[i])) break;
        if (add_token(g, guesses[i])) return CLI_BAD;
    }
    *accepted = i;
    return CLI_OK;
}

/* Takes the last token of the text, with guesses behind it, through the model. Of those that are
 * not the sampler's nothing remains. */
static int take_with_guesses(struct generation *g, int32_t token)
{
    const int64_t vocab = g->model.config.vocab, position = g->past.n + 1;
    const int64_t left = tokens_to_take(g) - 1;
    int32_t tokens[1 + DRAFT_MOST] = { token };
    int64_t accepted;
    const int64_t n =
        1 + draft_guess(&g->draft, tokens + 1, g->o->draft < left ? g->o->draft : left);
    if (n == 1) return take(g, &token, 1);
    if (forward_run(&g->forward, tokens, n) || forward_logits(&g->forward, 0, n, g->checked) ||
        accept(g, tokens + 1, n - 1, position, &accepted))
        return CLI_BAD;
    const int64_t kept = 1 + accepted;
    memcpy(g->logits, g->checked + (kept - 1) * vocab, (size_t)vocab * sizeof *g->logits);
    if (record_logits(g, kept)) return CLI_BAD;
    return past_undo(&g->past, &g->model, n, kept);
}

static int add_tokens(struct generation *g)
{
    const double start = clock_seconds();
    while (g->n_added < g->o->n) {
        const int32_t token = sample(g, g->logits, g->past.n);
        if (token < 0)
            return cli_bad("token %lld: the model's logits are not finite", (long long)g->past.n);
        if (is_end(&g->model.config, token)) break;
        if (add_token(g, token)) return CLI_BAD;
        if (tokens_to_take(g) == 0) break;
        g->n_calls++;
        if (take_with_guesses(g, token)) return CLI_BAD;
    }
    g->text_seconds = clock_seconds() - start;
    if (os_is_terminal(stdout)) putchar('\n');
    return CLI_OK;
}

static void print_speed(const struct generation *g)
{
    fprintf(stderr,
            "gdn: prompt %lld tokens, %.3g s, %.4g tokens/s; text %lld tokens in %lld "
            "calls, %.3g s, %.4g tokens/s\n",
            (long long)g->n_prompt, g->prompt_seconds, (double)g->n_prompt / g->prompt_seconds,
            (long long)g->n_added, (long long)g->n_calls, g->text_seconds,
            (double)g->n_added / g->text_seconds);
}

/* ---- From the options to a text -------------------------------------------------------------- */

static int64_t larger(int64_t a, int64_t b) { return a > b ? a : b; }

/* Makes memory for the logits of guesses, and for the states that are needed to forget guesses. */
static int make_checks(struct generation *g)
{
    const int64_t n = 1 + g->o->draft;
    g->checked = memory_get(&g->memory, (size_t)(n * g->model.config.vocab) * sizeof *g->checked);
    return g->checked ? past_keep_steps(&g->past, &g->model, n)
                      : cli_bad("no memory for the logits of guesses");
}

/* Begins an empty past, or the file's. */
static int begin(struct generation *g)
{
    const struct generate_options *o = g->o;
    const int64_t more = g->n_prompt + o->n;
    g->logits = memory_get(&g->memory, (size_t)g->model.config.vocab * sizeof *g->logits);
    if (!g->logits) return cli_bad("no memory for the logits");
    if (o->load ? past_load(&g->past, &g->model, &g->sampler, g->logits, o->load, more)
                : past_make(&g->past, &g->model, more))
        return CLI_BAD;
    if (o->temperature >= 0) g->sampler.temperature = o->temperature;
    if (o->seed >= 0) g->sampler.seed = (uint64_t)o->seed;
    const int64_t most = larger(1 + o->draft, g->n_prompt);
    if (forward_make(&g->forward, &g->model, &g->past, most) ||
        draft_make(&g->draft, &g->memory, more) || (o->draft && make_checks(g)) ||
        (o->lazy && past_be_lazy(&g->past, &g->model, o->lazy)))
        return CLI_BAD;
    if (o->exact) g->forward.flags = GDN_EXACT;
    return make_recording(g);
}

static int generate(struct generation *g, gdn_ctx *ctx, struct threads *threads, struct gpu *gpu,
                    const char *path)
{
    const char *prompt = g->o->prompt ? g->o->prompt : "";
    if (model_open(&g->model, ctx, threads, gpu, path) ||
        tokenizer_open(&g->tokenizer, &g->model.checkpoint, g->model.config.vocab) ||
        tokenizer_encode(&g->tokenizer, prompt, &g->memory, &g->prompt, &g->n_prompt) || begin(g) ||
        take_prompt(g) || add_tokens(g) || write_recording(g))
        return CLI_BAD;
    if (g->o->speed) print_speed(g);
    if (past_fold(&g->past, &g->model)) return CLI_BAD;
    return g->o->save ? past_save(&g->past, &g->model, &g->sampler, g->logits, g->o->save) : CLI_OK;
}

/* A context on the CPU that computes on the program's threads. */
static int open_host(const struct cli_device *device, gdn_ctx **ctx, struct threads **threads)
{
    gdn_options options = gdn_options_init();
    *threads = threads_new();
    if (!*threads) return cli_bad("no memory for threads");
    options.parallel_for = threads_for;
    options.parallel_user = *threads;
    if (cli_open_with(device, options, ctx)) return CLI_BAD;
    return threads_start(*threads, gdn_n_threads(*ctx));
}

static int run(const struct generate_options *o, const char *path)
{
    struct generation g = { .o = o };
    struct gpu gpu = { 0 };
    struct cli_device host = o->device;
    struct threads *threads = NULL;
    gdn_ctx *ctx = NULL;
    const bool on_gpu = host.backend && !strcmp(host.backend, "cuda");
    if (on_gpu && o->lazy) return cli_bad("--lazy: given, wanted none with --backend cuda");
    if (on_gpu) host.backend = NULL;
    int code = open_host(&host, &ctx, &threads);
    if (!code && on_gpu) code = gpu_open(&gpu, o->exact);
    if (!code) code = generate(&g, ctx, threads, on_gpu ? &gpu : NULL, path);
    forward_free(&g.forward);
    past_free(&g.past);
    memory_free(&g.memory);
    model_close(&g.model);
    gpu_close(&gpu);
    gdn_ctx_destroy(ctx);
    threads_free(threads);
    return code;
}

int generate_main(int argc, char **argv)
{
    struct generate_options o = { .temperature = -1, .seed = -1, .n = 100 };
    const struct cli_option options[] = {
        { "-p", CLI_TEXT, &o.prompt, 0, 0 },
        { "-n", CLI_INT, &o.n, 0, 1 << 30 },
        { "-t", CLI_REAL, &o.temperature, 0, 1000 },
        { "--seed", CLI_INT, &o.seed, 0, 0x1p53 },
        { "--save-state", CLI_TEXT, &o.save, 0, 0 },
        { "--load-state", CLI_TEXT, &o.load, 0, 0 },
        { "--exact", CLI_FLAG, &o.exact, 0, 0 },
        { "--draft", CLI_INT, &o.draft, 0, DRAFT_MOST },
        { "--lazy", CLI_INT, &o.lazy, 1, 1 << 16 },
        { "--logits", CLI_TEXT, &o.logits, 0, 0 },
        { "--speed", CLI_FLAG, &o.speed, 0, 0 },
        { "--backend", CLI_TEXT, &o.device.backend, 0, 0 },
        { "--threads", CLI_INT, &o.device.threads, 0, 1024 },
        { "--isa", CLI_TEXT, &o.device.isa, 0, 0 },
        { "--help", CLI_FLAG, &o.help, 0, 0 },
        { "-h", CLI_FLAG, &o.help, 0, 0 },
        { NULL, CLI_FLAG, NULL, 0, 0 },
    };
    const char **models = calloc((size_t)argc, sizeof *models);
    int n, code;
    if (!models) return cli_bad("no memory");
    code = cli_parse(argc, argv, options, models, &n);
    const char *path = models[0];
    free(models);
    if (code) return code;
    if (o.help) {
        fputs(help, stdout);
        return CLI_OK;
    }
    if (n != 1) return cli_bad("generate: one MODEL wanted, found %d (gdn generate --help)", n);
    if (!o.load && (!o.prompt || !*o.prompt)) return cli_bad("-p: wanted a prompt");
    return run(&o, path);
}
