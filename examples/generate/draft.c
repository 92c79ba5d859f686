/* SPDX-License-Identifier: Apache-2.0 */
#include "draft.h"

#include "program/command_line.h"

enum { SHORTEST = 3, LONGEST = 16 }; /* tokens that are compared */

int draft_make(struct draft *d, struct memory *memory, int64_t capacity)
{
    d->n = 0;
    d->tokens = memory_get(memory, (size_t)capacity * sizeof *d->tokens);
    return d->tokens ? CLI_OK : cli_bad("no memory for a text of %lld tokens", (long long)capacity);
}

void draft_add(struct draft *d, const int32_t *tokens, int64_t n)
{
    memcpy(d->tokens + d->n, tokens, (size_t)n * sizeof *tokens);
    d->n += n;
}

/* So many tokens before place `at` are the last ones of the text. */
static int64_t shared(const struct draft *d, int64_t at)
{
    int64_t n = 0;
    while (n < LONGEST && n < at && d->tokens[at - 1 - n] == d->tokens[d->n - 1 - n]) n++;
    return n;
}

int64_t draft_guess(const struct draft *d, int32_t *guesses, int64_t most)
{
    int64_t best = SHORTEST - 1, from = d->n;
    for (int64_t at = d->n - 1; at > 0 && best < LONGEST; at--) {
        const int64_t n = shared(d, at);
        if (n > best) best = n, from = at;
    }
    if (most > d->n - from) most = d->n - from;
    for (int64_t i = 0; i < most; i++) guesses[i] = d->tokens[from + i];
    return most;
}
