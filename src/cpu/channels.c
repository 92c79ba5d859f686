/* SPDX-License-Identifier: Apache-2.0 */
/* See channels.h. If the tokens of a channel lie side by side (channels first), whole lines are
 * moved and turned. If no elements do, each is moved by itself. */
#include "cpu/channels.h"

typedef float lines[GDN_CHANNEL_TILE * GDN_CHANNEL_TILE];

static char *place(const struct gdn_rows *rows, const struct gdn_seq *seq,
                   const struct gdn_channel_tile *tile)
{
    return gdn_row(rows, seq, tile->token, tile->channel);
}

void gdn_load_channels(const struct gdn_kernels *kr, const struct gdn_rows *from,
                       const struct gdn_seq *seq, const struct gdn_channel_tile *tile, float *to,
                       ptrdiff_t ld)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(from->dtype);
    const int T = tile->n_tokens, n = tile->n_channels;
    const char *p = place(from, seq, tile);
    lines turned;
    if (!gdn_is_strided(from, n)) {
        for (int t = 0; t < T; t++)
            kr->load_row[from->dtype](to + t * ld, p + t * from->token, (size_t)n);
    } else if (from->token != unit) {
        for (int t = 0; t < T; t++)
            for (int c = 0; c < n; c++)
                kr->load_row[from->dtype](to + t * ld + c, p + t * from->token + c * from->head, 1);
    } else if (from->dtype == GDN_F32) {
        kr->transpose(to, ld, (const float *)(const void *)p, from->head / unit, n, T);
    } else {
        for (int c = 0; c < n; c++)
            kr->load_row[from->dtype](turned + c * T, p + c * from->head, (size_t)T);
        kr->transpose(to, ld, turned, T, n, T);
    }
}

void gdn_store_channels(const struct gdn_kernels *kr, const float *from, ptrdiff_t ld,
                        const struct gdn_rows *to, const struct gdn_seq *seq,
                        const struct gdn_channel_tile *tile)
{
    const int64_t unit = (int64_t)gdn_dtype_bytes(to->dtype);
    const int T = tile->n_tokens, n = tile->n_channels;
    char *p = place(to, seq, tile);
    lines turned;
    if (!gdn_is_strided(to, n)) {
        for (int t = 0; t < T; t++)
            kr->store_row[to->dtype](p + t * to->token, from + t * ld, (size_t)n);
    } else if (to->token != unit) {
        for (int t = 0; t < T; t++)
            for (int c = 0; c < n; c++)
                kr->store_row[to->dtype](p + t * to->token + c * to->head, from + t * ld + c, 1);
    } else if (to->dtype == GDN_F32) {
        kr->transpose((float *)(void *)p, to->head / unit, from, ld, T, n);
    } else {
        kr->transpose(turned, T, from, ld, T, n);
        for (int c = 0; c < n; c++)
            kr->store_row[to->dtype](p + c * to->head, turned + c * T, (size_t)T);
    }
}
