/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of a form for chunks of Gated DeltaNet. `forms` lists the forms, the fastest first.
 * The first one without a reason against a call takes it. */
#include "cuda/driver/choice.h"
#include "cuda/prefill/forms.h"

static void plan_general(gdn_ctx *ctx, const struct gdn_cu_rule *rule, struct gdn_cuda_chunks *how)
{
    (void)ctx, (void)rule;
    how->bytes = 0;
}

static const char *why_not_general(const gdn_ctx *ctx, const struct gdn_cu_rule *rule)
{
    (void)ctx, (void)rule;
    return NULL;
}

/* The forms of chunks. plan() decides the cut and the bytes. */
static const struct chunk_form {
    const char *name;
    const char *(*why_not)(const gdn_ctx *ctx, const struct gdn_cu_rule *rule);
    void (*plan)(gdn_ctx *ctx, const struct gdn_cu_rule *rule, struct gdn_cuda_chunks *how);
    gdn_status (*launch)(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                         const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran, void *stream);
} forms[] = {
    { "sm90", gdn_cuda_prefill_sm90_why_not, gdn_cuda_prefill_sm90_plan, gdn_cuda_prefill_sm90 },
    { "portable", gdn_cuda_prefill_portable_why_not, gdn_cuda_prefill_portable_plan,
      gdn_cuda_prefill_portable },
    { "general", why_not_general, plan_general, gdn_cuda_prefill_general },
};

int gdn_cuda_prefill_form_of(const gdn_ctx *ctx, const struct gdn_cu_rule *rule)
{
    int form = 0;
    while (forms[form].why_not(ctx, rule)) form++;
    return form;
}

const char *gdn_cuda_prefill_why_not(const gdn_ctx *ctx, const struct gdn_cu_rule *rule, int form)
{
    return forms[form].why_not(ctx, rule);
}

void gdn_cuda_prefill_choose(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                             struct gdn_cuda_chunks *how)
{
    how->form = gdn_cuda_prefill_form_of(ctx, rule);
    forms[how->form].plan(ctx, rule, how);
}

/* Logs the form, and why the forms before it do not take the call. */
static void log_choice(gdn_ctx *ctx, const struct gdn_cu_rule *rule, int form)
{
    enum { N = sizeof forms / sizeof *forms };
    struct gdn_cuda_form list[N];
    if (!ctx->options.log) return;
    for (int i = 0; i <= form; i++)
        list[i] = (struct gdn_cuda_form){ forms[i].name, forms[i].why_not(ctx, rule) };
    gdn_cuda_log_forms(ctx, GDN_CUDA_PREFILL_CHOICE, "prefill", list);
}

gdn_status gdn_cuda_prefill_chunks(gdn_ctx *ctx, const struct gdn_cu_rule *rule,
                                   const struct gdn_cuda_chunks *how, struct gdn_cuda_ran *ran,
                                   void *stream)
{
    log_choice(ctx, rule, how->form);
    return forms[how->form].launch(ctx, rule, how, ran, stream);
}
