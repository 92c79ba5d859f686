/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The format of state blobs, and gdn_blob_inspect. A blob is believed only after everything
 * was checked: its length and checksum, each field, and that the fields describe exactly so
 * many bytes. Content has one form only, so that equal states are equal bytes.
 */
#include "state/blob.h"

#include "batch/plan.h"
#include "core/limits.h"
#include "core/tensor_check.h"

static const char magic[] = "GDNSTATE";

/* ---- Checksum ------------------------------------------------------------------------------ */

/* CRC-32C (Castagnoli), reflected, eight bytes per step. */
struct crc {
    uint32_t table[8][256];
};

static void crc_init(struct crc *crc)
{
    for (uint32_t i = 0; i < 256; i++) {
        uint32_t x = i;
        for (int bit = 0; bit < 8; bit++) x = x & 1 ? x >> 1 ^ UINT32_C(0x82f63b78) : x >> 1;
        crc->table[0][i] = x;
    }
    for (int t = 1; t < 8; t++)
        for (int i = 0; i < 256; i++) {
            const uint32_t x = crc->table[t - 1][i];
            crc->table[t][i] = x >> 8 ^ crc->table[0][x & 255];
        }
}

static uint32_t crc_add(const struct crc *crc, uint32_t sum, const void *bytes, uint64_t n)
{
    const unsigned char *p = bytes;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t x;
        memcpy(&x, p, 8);
        x ^= sum;
        sum = 0;
        for (int i = 0; i < 8; i++) sum ^= crc->table[7 - i][x >> 8 * i & 255];
    }
    for (; n > 0; n--) sum = sum >> 8 ^ crc->table[0][(sum ^ *p++) & 255];
    return sum;
}

/* Returns the checksum of the blob with this header, whose field of the checksum counts as zero. */
static uint32_t checksum(const void *blob, const struct gdn_blob_header *header)
{
    struct gdn_blob_header h = *header;
    struct crc crc;
    h.checksum = 0;
    crc_init(&crc);
    uint32_t sum = crc_add(&crc, UINT32_MAX, &h, sizeof h);
    sum = crc_add(&crc, sum, (const char *)blob + sizeof h, h.total_bytes - sizeof h);
    return ~sum;
}

void gdn_blob_seal(void *blob, const struct gdn_blob_header *header)
{
    struct gdn_blob_header h = *header;
    h.checksum = checksum(blob, header);
    memcpy(blob, &h, sizeof h);
}

/* ---- Places -------------------------------------------------------------------------------- */

/* *at becomes the end, rounded up, of n parts of so many bytes; false: more than a memory. */
static bool add_bytes(uint64_t *at, uint64_t n, uint64_t bytes)
{
    uint64_t all;
    if (__builtin_mul_overflow(n, bytes, &all) || __builtin_add_overflow(*at, all, at) ||
        *at > (uint64_t)PTRDIFF_MAX - 63)
        return false;
    *at = (*at + 63) & ~(uint64_t)63;
    return true;
}

static uint64_t state_heads(const struct gdn_blob_header *h)
{
    return (uint64_t)(h->n_query_heads > h->n_value_heads ? h->n_query_heads : h->n_value_heads);
}

/* Returns channels of q, k and v: three products of 31 bits each. */
static uint64_t channels(const struct gdn_blob_header *h)
{
    return ((uint64_t)h->n_query_heads + (uint64_t)h->n_key_heads) * (uint64_t)h->key_head_dim +
           (uint64_t)h->n_value_heads * (uint64_t)h->value_head_dim;
}

static gdn_status check_field(gdn_ctx *ctx, const char *name, const char *field, int64_t value,
                              int64_t low, int64_t high)
{
    if (value >= low && value <= high) return GDN_OK;
    return gdn_fail(ctx, GDN_E_ARG, "%s: %s is %lld, wanted %lld to %lld", name, field,
                    (long long)value, (long long)low, (long long)high);
}

static bool has_scales(const struct gdn_blob_header *h)
{
    return gdn_is_q8(h->state_dtype) && !h->no_scales;
}

/* Returns the lowest version that can hold the content. */
static uint32_t lowest_version(const struct gdn_blob_header *h)
{
    if (h->no_scales || h->state_dtype == GDN_E5M2) return 3;
    const bool has_copies = h->copies[0] > 1 || h->copies[1] > 1 || h->copies[2] > 1;
    return has_scales(h) || has_copies ? 2 : 1;
}

void gdn_blob_set_version(struct gdn_blob_header *h)
{
    h->version = lowest_version(h);
    for (int i = 0; i < 3; i++) h->copies[i] = h->version < 2 ? 0 : h->copies[i] ? h->copies[i] : 1;
}

/* Checks copies of heads (version 2): a part with a head that other ranks have too has no other
 * head. */
static gdn_status check_copies(gdn_ctx *ctx, const struct gdn_blob_header *h, const char *name)
{
    const int32_t heads[] = { h->n_query_heads, h->n_key_heads, h->n_value_heads };
    static const char *const fields[] = { "query_copies", "key_copies", "value_copies" };
    for (int i = 0; i < 3; i++)
        if (h->n_ranks % h->copies[i] || (h->copies[i] > 1 && heads[i] != 1))
            return gdn_fail(ctx, GDN_E_ARG,
                            "%s: %s is %d for %d heads of %d ranks, wanted a "
                            "divisor of the ranks, and 1 for several heads",
                            name, fields[i], (int)h->copies[i], (int)heads[i], (int)h->n_ranks);
    if (lowest_version(h) == h->version) return GDN_OK;
    return gdn_fail(ctx, GDN_E_ARG, "%s: version %u of what version %u can hold", name,
                    (unsigned)h->version, (unsigned)lowest_version(h));
}

static gdn_status check_fields(gdn_ctx *ctx, const struct gdn_blob_header *h, const char *name)
{
    const bool has_state = h->state_dtype != GDN_BLOB_NO_DTYPE;
    const bool has_conv = h->conv_dtype != GDN_BLOB_NO_DTYPE;
    const int64_t most_copies = h->version < 2 ? 0 : INT32_MAX;
    const bool may_lack = h->version > 2 && h->state_dtype > GDN_I8;
    const struct {
        const char *name;
        int64_t value, low, high;
    } fields[] = {
        { "n_sequences", h->n_sequences, 0, (int64_t)1 << 31 },
        { "head_map", h->head_map, 0, GDN_HEADS_INTERLEAVED },
        { "n_key_heads", h->n_key_heads, 1, INT32_MAX },
        { "n_query_heads", h->n_query_heads, 1, INT32_MAX },
        { "n_value_heads", h->n_value_heads, 1, INT32_MAX },
        { "key_head_dim", h->key_head_dim, 1, GDN_MAX_HEAD },
        { "value_head_dim", h->value_head_dim, 1, GDN_MAX_VALUE },
        { "state_dtype", h->state_dtype, GDN_BLOB_NO_DTYPE,
          h->version < 2   ? GDN_F16
          : h->version < 3 ? GDN_E4M3
                           : GDN_E5M2 },
        { "state_layout", h->state_layout, 0, has_state ? GDN_STATE_KV : 0 },
        { "conv_dtype", h->conv_dtype, GDN_BLOB_NO_DTYPE, GDN_F16 },
        { "conv_length", h->conv_length, has_conv ? 1 : 0, has_conv ? INT32_MAX : 0 },
        { "n_ranks", h->n_ranks, 1, INT32_MAX },
        { "rank", h->rank, 0, (int64_t)h->n_ranks - 1 },
        { "query_copies", h->copies[0], h->version > 1, most_copies },
        { "key_copies", h->copies[1], h->version > 1, most_copies },
        { "value_copies", h->copies[2], h->version > 1, most_copies },
        { "no_scales", h->no_scales, 0, may_lack },
    };
    for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
        TRY(check_field(ctx, name, fields[i].name, fields[i].value, fields[i].low, fields[i].high));
    const int64_t H = (int64_t)state_heads(h);
    if (H % h->n_query_heads || H % h->n_key_heads || H % h->n_value_heads)
        return gdn_fail(ctx, GDN_E_SHAPE, "%s: %d, %d, %d heads of q, k, v, wanted divisors of %d",
                        name, (int)h->n_query_heads, (int)h->n_key_heads, (int)h->n_value_heads,
                        (int)H);
    if (!has_state && !has_conv)
        return gdn_fail(ctx, GDN_E_ARG, "%s: neither state nor conv_state", name);
    return h->version < 2 ? GDN_OK : check_copies(ctx, h, name);
}

gdn_status gdn_blob_place(gdn_ctx *ctx, const struct gdn_blob_header *h, const char *name,
                          struct gdn_blob_places *p)
{
    const uint64_t n = (uint64_t)h->n_sequences;
    TRY(check_fields(ctx, h, name));
    *p = (struct gdn_blob_places){ .position = GDN_BLOB_HEADER, .total = GDN_BLOB_HEADER };
    if (h->state_dtype != GDN_BLOB_NO_DTYPE)
        p->state_bytes = state_heads(h) * (uint64_t)h->key_head_dim * (uint64_t)h->value_head_dim *
                         gdn_dtype_bytes(h->state_dtype);
    if (has_scales(h))
        p->scales_bytes = state_heads(h) * (uint64_t)h->value_head_dim * sizeof(float);
    bool fits = true;
    if (h->conv_dtype != GDN_BLOB_NO_DTYPE)
        fits = !__builtin_mul_overflow(channels(h) * gdn_dtype_bytes(h->conv_dtype),
                                       (uint64_t)h->conv_length, &p->conv_bytes);
    fits = fits && p->conv_bytes <= (uint64_t)PTRDIFF_MAX; /* of no sequence too */
    fits = fits && add_bytes(&p->total, n, sizeof(int64_t));
    p->state = p->total;
    fits = fits && add_bytes(&p->total, n, p->state_bytes);
    p->scales = p->total;
    fits = fits && add_bytes(&p->total, n, p->scales_bytes);
    p->conv = p->total;
    fits = fits && add_bytes(&p->total, n, p->conv_bytes);
    if (!fits) return gdn_fail(ctx, GDN_E_SHAPE, "%s: sizes leave the address space", name);
    return GDN_OK;
}

/* ---- Opening ------------------------------------------------------------------------------- */

gdn_status gdn_blob_check_memory(gdn_ctx *ctx, const void *blob, const char *name)
{
    if (__BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: little-endian, which this machine is not",
                        name);
    if (!blob) return gdn_fail(ctx, GDN_E_ARG, "%s: NULL", name);
    if ((uintptr_t)blob % 8)
        return gdn_fail(ctx, GDN_E_ARG, "%s: %p, wanted a multiple of 8", name, blob);
    return GDN_OK;
}

/* Checks what the checksum depends on. */
static gdn_status check_envelope(gdn_ctx *ctx, const struct gdn_blob_header *h, size_t bytes,
                                 const char *name)
{
    if (memcmp(h->magic, magic, sizeof h->magic))
        return gdn_fail(ctx, GDN_E_ARG, "%s: does not begin with %s: not a state blob", name,
                        magic);
    if (h->version > GDN_BLOB_VERSION)
        return gdn_fail(ctx, GDN_E_UNSUPPORTED, "%s: version %u, this library reads up to %d", name,
                        (unsigned)h->version, GDN_BLOB_VERSION);
    if (h->version < 1 || h->header_bytes != GDN_BLOB_HEADER)
        return gdn_fail(ctx, GDN_E_ARG, "%s: version %u with a header of %u bytes: damaged", name,
                        (unsigned)h->version, (unsigned)h->header_bytes);
    if (h->total_bytes != bytes)
        return gdn_fail(ctx, GDN_E_ARG,
                        "%s: %zu bytes, but it says %llu: cut, lengthened or "
                        "damaged",
                        name, bytes, (unsigned long long)h->total_bytes);
    return GDN_OK;
}

static bool is_zero(const void *bytes, uint64_t n)
{
    const unsigned char *p = bytes;
    for (uint64_t i = 0; i < n; i++)
        if (p[i]) return false;
    return true;
}

/* Bytes that mean nothing are zero. */
static bool has_zero_padding(const char *blob, const struct gdn_blob_header *h,
                             const struct gdn_blob_places *p)
{
    const uint64_t n = (uint64_t)h->n_sequences;
    const uint64_t ends[] = { p->position + n * sizeof(int64_t), p->state + n * p->state_bytes,
                              p->scales + n * p->scales_bytes, p->conv + n * p->conv_bytes };
    const uint64_t starts[4] = { p->state, p->scales, p->conv, p->total };
    for (int i = 0; i < 4; i++)
        if (!is_zero(blob + ends[i], starts[i] - ends[i])) return false;
    return h->zero == 0 && is_zero(h->reserved, sizeof h->reserved);
}

gdn_status gdn_blob_open(gdn_ctx *ctx, const void *blob, size_t bytes, const char *name,
                         struct gdn_blob_header *h, struct gdn_blob_places *p)
{
    TRY(gdn_blob_check_memory(ctx, blob, name));
    if (bytes < sizeof *h)
        return gdn_fail(ctx, GDN_E_ARG, "%s: %zu bytes, wanted %zu at least", name, bytes,
                        sizeof *h);
    memcpy(h, blob, sizeof *h);
    TRY(check_envelope(ctx, h, bytes, name));
    const uint32_t sum = checksum(blob, h);
    if (sum != h->checksum)
        return gdn_fail(ctx, GDN_E_ARG, "%s: checksum %08x, but it says %08x: damaged", name,
                        (unsigned)sum, (unsigned)h->checksum);
    TRY(gdn_blob_place(ctx, h, name, p));
    if (p->total != bytes)
        return gdn_fail(ctx, GDN_E_ARG, "%s: %zu bytes, but its fields need %llu", name, bytes,
                        (unsigned long long)p->total);
    if (!has_zero_padding(blob, h, p))
        return gdn_fail(ctx, GDN_E_ARG, "%s: bytes that mean nothing are not zero", name);
    const gdn_tensor position = gdn_blob_position(h, p, blob);
    for (int64_t b = 0; b < h->n_sequences; b++)
        if (gdn_index(&position, b) < 0)
            return gdn_fail(ctx, GDN_E_ARG, "%s: position[%lld] is %lld, wanted 0 or more", name,
                            (long long)b, (long long)gdn_index(&position, b));
    return GDN_OK;
}

void gdn_blob_clear(char *blob, const struct gdn_blob_header *h, const struct gdn_blob_places *p)
{
    const uint64_t n = (uint64_t)h->n_sequences;
    memset(blob, 0, (size_t)p->state);
    const uint64_t ends[] = { p->state + n * p->state_bytes, p->scales + n * p->scales_bytes,
                              p->conv + n * p->conv_bytes };
    const uint64_t next[] = { p->scales, p->conv, p->total };
    for (int i = 0; i < 3; i++) memset(blob + ends[i], 0, (size_t)(next[i] - ends[i]));
}

struct gdn_blob_header gdn_blob_new_header(void)
{
    struct gdn_blob_header h;
    memset(&h, 0, sizeof h);
    memcpy(h.magic, magic, sizeof h.magic);
    h.version = 1;
    h.header_bytes = GDN_BLOB_HEADER;
    return h;
}

/* ---- Views --------------------------------------------------------------------------------- */

gdn_tensor gdn_blob_state(const struct gdn_blob_header *h, const struct gdn_blob_places *p,
                          const void *blob)
{
    const bool vk = h->state_layout == GDN_STATE_VK;
    const int64_t K = h->key_head_dim, V = h->value_head_dim;
    const bool has = blob && h->state_dtype != GDN_BLOB_NO_DTYPE;
    void *data = has ? (char *)blob + p->state : NULL;
    return gdn_dense(data, has ? h->state_dtype : 0, 4, h->n_sequences, (int64_t)state_heads(h),
                     vk ? V : K, vk ? K : V);
}

gdn_tensor gdn_blob_scales(const struct gdn_blob_header *h, const struct gdn_blob_places *p,
                           const void *blob)
{
    void *data = blob && has_scales(h) ? (char *)blob + p->scales : NULL;
    return gdn_dense(data, GDN_F32, 3, h->n_sequences, (int64_t)state_heads(h), h->value_head_dim,
                     0);
}

gdn_tensor gdn_blob_conv(const struct gdn_blob_header *h, const struct gdn_blob_places *p,
                         const void *blob)
{
    const bool has = blob && h->conv_dtype != GDN_BLOB_NO_DTYPE;
    void *data = has ? (char *)blob + p->conv : NULL;
    return gdn_dense(data, has ? h->conv_dtype : 0, 3, h->n_sequences, (int64_t)channels(h),
                     h->conv_length, 0);
}

gdn_tensor gdn_blob_position(const struct gdn_blob_header *h, const struct gdn_blob_places *p,
                             const void *blob)
{
    return gdn_dense((char *)blob + p->position, GDN_I64, 1, h->n_sequences, 0, 0, 0);
}

/* ---- Inspecting ---------------------------------------------------------------------------- */

static gdn_status inspect(gdn_ctx *ctx, const void *blob, size_t bytes, gdn_blob_info *info)
{
    struct gdn_blob_header h;
    struct gdn_blob_places p;
    gdn_blob_info own;
    TRY(gdn_copy_args(ctx, &own, sizeof own, info, "gdn_blob_info"));
    TRY(gdn_blob_open(ctx, blob, bytes, "blob", &h, &p));
    const uint32_t size = own.struct_size;
    own = (gdn_blob_info){ .struct_size = size,
                           .version = h.version,
                           .state = gdn_blob_state(&h, &p, blob),
                           .conv_state = gdn_blob_conv(&h, &p, blob),
                           .position = gdn_blob_position(&h, &p, blob),
                           .state_layout = h.state_layout,
                           .head_map = h.head_map,
                           .n_query_heads = h.n_query_heads,
                           .n_key_heads = h.n_key_heads,
                           .n_value_heads = h.n_value_heads,
                           .key_head_dim = h.key_head_dim,
                           .value_head_dim = h.value_head_dim,
                           .rank = h.rank,
                           .n_ranks = h.n_ranks,
                           .checksum = h.checksum,
                           .state_scales = gdn_blob_scales(&h, &p, blob),
                           .query_copies = gdn_blob_copies(&h, 0),
                           .key_copies = gdn_blob_copies(&h, 1),
                           .value_copies = gdn_blob_copies(&h, 2) };
    memcpy(info, &own, size < sizeof own ? size : sizeof own);
    return GDN_OK;
}

gdn_status gdn_blob_inspect(gdn_ctx *ctx, const void *blob, size_t bytes, gdn_blob_info *info)
{
    uint32_t fp;
    TRY(gdn_enter(ctx, &fp));
    return gdn_leave(ctx, fp, inspect(ctx, blob, bytes, info));
}
