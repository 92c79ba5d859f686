/* SPDX-License-Identifier: Apache-2.0 */
/* The forms of gdn_prefill_backward, and why they do not take a call. */
#include "cuda/backward/select.h"

#include "cuda/driver/choice.h"
#include "cuda/prefill/prefill.h"

/* The most of K of forms by mma.sync. */
enum { DEEP = 128 };

/* Returns true if addresses and steps of all rows are multiples of `bytes`. */
static bool are_aligned(const struct gdn_rows *r, uint64_t bytes)
{
    const uint64_t all =
        (uint64_t)(uintptr_t)r->data | (uint64_t)r->batch | (uint64_t)r->token | (uint64_t)r->head;
    return all % bytes == 0;
}
static bool are_whole(const struct gdn_rows *r, int dtype)
{
    return r->dtype == dtype && are_aligned(r, 16);
}

/* Returns the part of the family that the forms of Gated DeltaNet do not take; NULL: there is
 * none. */
static const char *why_not_gdn(const gdn_ctx *ctx, const struct gdn_cu_backward *a)
{
    (void)ctx;
    const struct gdn_family *f = &a->rule.family;
    if (f->g_rows) return "g has a number per channel";
    if (f->beta_rows) return "beta has a number per channel";
    if (f->write.data) return "there is a write gate";
    if (f->is) return "a token has several updates";
    return a->rule.gate == GDN_GATE_RAW && !a->rule.A_log.data ? "A_log is absent" : NULL;
}

/* Returns why no form of Gated DeltaNet on tensor cores takes the call; NULL: one may. */
static const char *why_not_tiles(const gdn_ctx *ctx, const struct gdn_cu_backward *a)
{
    const struct gdn_cu_rule *r = &a->rule;
    const int dtype = a->q.dtype;
    const char *why = why_not_gdn(ctx, a);
    if (why) return why;
    if (dtype == GDN_F32) return "q is float32";
    if (r->K % 8 || r->V % 8) return "K or V is no multiple of 8";
    if (r->Hq != r->Hk || r->Hv != r->H) return "q has more heads than k, or v fewer than q";
    if (!are_whole(&a->q, dtype) || !are_whole(&a->k, dtype) || !are_whole(&r->v, dtype) ||
        !are_whole(&a->dout, dtype))
        return "rows of q, k, v, dout are not whole 16 bytes of one dtype";
    if (r->batch.N <= 0) return "there are no tokens";
    return r->batch.N > INT32_MAX - GDN_CU_BACKWARD_CHUNK ? "there are 2^31 tokens or more" : NULL;
}
static const char *why_not_sm90(const gdn_ctx *ctx, const struct gdn_cu_backward *a)
{
    const struct gdn_cu_rule *r = &a->rule;
    const char *why = why_not_tiles(ctx, a);
    if (why) return why;
    if (gdn_cuda_is_off(ctx, GDN_CUDA_SM90_GRADIENTS)) return "it is switched off";
    if (!gdn_cuda_has_kernel(ctx, GDN_CU_backward_sm90_prepare_BF16)) return "no Hopper";
    if (!gdn_cuda_is_mapped(&r->v, &r->batch, r->H) ||
        !gdn_cuda_is_mapped(&a->dout, &r->batch, r->H))
        return "v or dout has strides that no map has";
    return NULL;
}
static const char *why_not_portable(const gdn_ctx *ctx, const struct gdn_cu_backward *a)
{
    const char *why = why_not_tiles(ctx, a);
    if (why) return why;
    if (gdn_cuda_is_off(ctx, GDN_CUDA_PORTABLE_GRADIENTS)) return "it is switched off";
    if (a->rule.K > DEEP) return "K is above 128";
    return ctx->cuda->shared_most < GDN_CU_PORTABLE_WALK_LEAST
               ? "a block has too little shared memory"
               : NULL;
}

/* Returns why chunks of the family do not take the call; NULL: they do. */
static const char *why_not_chunks(const gdn_ctx *ctx, const struct gdn_cu_backward *a)
{
    const struct gdn_cu_rule *r = &a->rule;
    const int least = r->K <= DEEP / 2 ? GDN_CU_HEADS_64 : GDN_CU_HEADS_128;
    if (gdn_cuda_is_off(ctx, GDN_CUDA_PORTABLE_GRADIENTS)) return "it is switched off";
    if (r->family.updates > 1) return "a token has several updates";
    if (a->q.dtype != GDN_BF16 || a->k.dtype != GDN_BF16 || r->v.dtype != GDN_BF16 ||
        a->dout.dtype != GDN_BF16)
        return "q, k, v or dout is not bf16";
    if (r->K > DEEP) return "K is above 128";
    if (r->K % 2 || r->V % 8) return "K is odd, or V is no multiple of 8";
    if (!are_aligned(&a->q, 4) || !are_aligned(&a->k, 4)) return "q or k is not aligned to 4 bytes";
    if (!are_aligned(&r->v, 16) || !are_aligned(&a->dout, 16))
        return "v or dout is not aligned to 16 bytes";
    if (r->from.gap || r->to.gap || a->dstate_out.gap) return "a state has no stride of 1";
    if (r->batch.N <= 0) return "there are no tokens";
    return ctx->cuda->shared_most < least ? "a block has too little shared memory" : NULL;
}

static const char *never(const gdn_ctx *ctx, const struct gdn_cu_backward *a)
{
    (void)ctx, (void)a;
    return NULL;
}

/* The forms, the fastest one first. why_not() returns why a form does not take the call; NULL: it
 * does. */
static const struct {
    const char *name;
    const char *(*why_not)(const gdn_ctx *ctx, const struct gdn_cu_backward *a);
} forms[] = {
    [GDN_BACKWARD_SM90] = { "sm90", why_not_sm90 },
    [GDN_BACKWARD_PORTABLE] = { "portable", why_not_portable },
    [GDN_BACKWARD_GENERAL] = { "general", why_not_gdn },
    [GDN_BACKWARD_CHUNKS] = { "chunks", why_not_chunks },
    [GDN_BACKWARD_CHANNELS] = { "channels", never },
};

enum gdn_backward_form gdn_cuda_backward_form(const gdn_ctx *ctx, const struct gdn_cu_backward *a)
{
    enum gdn_backward_form form = 0;
    while (forms[form].why_not(ctx, a)) form++;
    return form;
}

bool gdn_cuda_backward_can_fuse(const gdn_ctx *ctx, const struct gdn_cu_backward *a)
{
    const struct gdn_cu_rule *r = &a->rule;
    if (gdn_cuda_is_off(ctx, GDN_CUDA_FUSED_GRADIENTS) || gdn_cuda_wanted(ctx)->segments < 0)
        return false;
    return r->H / r->Hk <= 2 && r->K > DEEP / 2 && r->K <= DEEP && r->V > DEEP / 2 && r->V <= DEEP;
}

void gdn_cuda_backward_log(gdn_ctx *ctx, const struct gdn_cu_backward *a,
                           enum gdn_backward_form form)
{
    struct gdn_cuda_form list[sizeof forms / sizeof *forms];
    if (!ctx->options.log) return;
    for (int i = 0; i <= (int)form; i++)
        list[i] = (struct gdn_cuda_form){ forms[i].name, forms[i].why_not(ctx, a) };
    gdn_cuda_log_forms(ctx, GDN_CUDA_GRADIENTS_CHOICE, "prefill_backward", list);
}
