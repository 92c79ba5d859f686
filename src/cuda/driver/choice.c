/* SPDX-License-Identifier: Apache-2.0 */
#include "cuda/driver/choice.h"

#include <string.h>

struct log_text {
    char text[GDN_CUDA_CHOICE];
    size_t used;
};

/* Appends as much of a text as there is room for. */
static void add(struct log_text *l, const char *text)
{
    const size_t room = sizeof l->text - 1 - l->used, n = strlen(text);
    memcpy(l->text + l->used, text, n < room ? n : room);
    l->used += n < room ? n : room;
}

/* Appends why the first n forms do not take the call. Neighbours with one reason share it. If
 * all forms have one reason, it stands alone. */
static void add_reasons(struct log_text *l, const struct gdn_cuda_form *forms, int n)
{
    int n_same = 0;
    while (n_same < n && !strcmp(forms[n_same].why_not, forms[0].why_not)) n_same++;
    if (n > 1 && n_same == n) {
        add(l, forms[0].why_not);
        return;
    }
    for (int i = 0; i < n; i++) {
        const bool ends = i + 1 == n || strcmp(forms[i].why_not, forms[i + 1].why_not);
        add(l, forms[i].name);
        add(l, ends ? ": " : ", ");
        if (ends) add(l, forms[i].why_not);
        if (ends && i + 1 < n) add(l, "; ");
    }
}

void gdn_cuda_log_forms(gdn_ctx *ctx, enum gdn_cuda_choice choice, const char *op,
                        const struct gdn_cuda_form *forms)
{
    struct log_text l = { .used = 0 };
    int n = 0;
    if (!ctx->options.log) return;
    while (forms[n].why_not) n++;
    add(&l, op);
    add(&l, ": ");
    add(&l, forms[n].name);
    if (n) add(&l, " (");
    if (n) add_reasons(&l, forms, n);
    if (n) add(&l, ")");
    gdn_cuda_log_choice(ctx, choice, l.text);
}
