/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The walk in reverse and the gradients of its chunks in one block: J and Z stay in shared memory.
 * A block has a segment of a sequence and a state head. Of each chunk, from the last to the first:
 *
 *     walk        J behind the chunk and Z, in shared memory; J before it, in registers
 *     gradients   as in heads.cuh, of one state head
 *
 * Two warpgroups do both, one after the other: each has 64 columns of V of J, and 64 columns of K
 * of dq and dk. If two state heads read a key head, their blocks are a cluster. The first one adds
 * and stores dq, the second one dk: each sends its part of the other to the place of J, when
 * products there have read J. Sums are those of heads.cuh, bit by bit. A third warpgroup has a
 * thread that loads, and three warps that store dv and the gradients of gates.
 */
#ifndef GDN_CUDA_BACKWARD_SM90_FUSED_CUH
#define GDN_CUDA_BACKWARD_SM90_FUSED_CUH

#include "cuda/backward/sm90/heads.cuh"
#include "cuda/backward/sm90/scan.cuh"

enum { FUSED_REGISTERS = 224, FUSED_OTHER_REGISTERS = 56 };

/* The shared memory of a block. Keys and queries have places for this chunk and the next one. Rows,
 * S, T and P have one place, which is free early. v takes that of T and P after the walk. */
struct fused_shared {
    static constexpr bool wide = false;
    struct head_keys keys[2];
    char squares[2][TILE]; /* T, P; then v, [v / 64] */
    struct head_rows rows;
    char S[2][2][TILE], J[2][2][TILE]; /* [v / 64][k / 64] */
    char X[TILE], Y[TILE];
    alignas(16) struct key_norms norms_of[2];
    alignas(16) vectors g[4]; /* as heads_shared has them */
    alignas(16) struct head_parts parts[2][1];
    alignas(16) float norms[2][1][HEADS_GROUPS][CHUNK];
    uint64_t keys_full[2], keys_free[2], squares_full, squares_free, dout_full;
    uint64_t values_full, values_free; /* of v */
    uint64_t states_full, states_free; /* full: U and S are loaded; free: dout, U and S have been
                                          read */
    uint64_t z_full, z_free, parts_full[2], parts_free[2];
    uint64_t sums_full, sums_free; /* full: the sums of the other block have arrived; free: their
                                      memory may be written */
    uint32_t dead[HEADS_GROUPS][2];
    struct scan_way way; /* it is here, because registers are scarce */
    int rank;            /* number among the blocks that share a key head */
    int segment;
    bool is_last; /* it is the last segment of the window */
};
static_assert(sizeof(fused_shared) <= GDN_CU_FUSED_BYTES, "fused_shared");

GDN_DEVICE int block_of(const fused_shared &) { return 0; }
GDN_DEVICE void meet_norms(fused_shared &, int, uint32_t, int) { meet_workers(); }
GDN_DEVICE const struct key_norms &norms_of_item(const fused_shared &sh, uint32_t item)
{
    return sh.norms_of[item % 2];
}

/* Returns how many blocks share a key head. */
GDN_DEVICE int sharing_blocks(const struct gdn_cu_backward &a) { return a.rule.H / a.rule.Hk; }

/* Returns the chunk of step `step`: the last one first. */
GDN_DEVICE struct stage_chunk fused_chunk(const struct backward_window &in, uint32_t step)
{
    const int64_t i = in.n_chunks - 1 - step;
    struct stage_chunk c = {};
    c.seq = in.seq;
    c.seq.first += i * CHUNK;
    c.number = in.first + i;
    c.n = min(in.seq.n_valid - i * CHUNK, (int64_t)CHUNK);
    return c;
}

/* ---- Loads --------------------------------------------------------------------------------- */

/* Loads the chunks, in the order in which places become free. One thread calls it. */
GDN_DEVICE void load_fused(fused_shared &sh, const struct gdn_cu_backward &a)
{
    const struct scan_way &w = sh.way;
    const int key = source_head(a.rule, w.head, a.rule.Hk);
    const struct record_form f = form_of(a);
    for (uint32_t step = 0; step < w.part.in.n_chunks; step++) {
        const struct stage_chunk c = fused_chunk(w.part.in, step);
        const char *keys = keys_of(a, c.number, key);
        const struct chunk_record &from = record_at(a, c.number, w.head);
        const uint32_t now = step % 2, odd = step % 2;
        const int at[4] = { 0, w.head, (int)c.seq.first, (int)c.seq.batch };
        const int key_at[4] = { 0, key, at[2], at[3] };
        uint64_t &keys_full = sh.keys_full[now];
        mbarrier_wait(shared_address(&sh.keys_free[now]), step / 2 % 2 ^ 1);
        mbarrier_expect(shared_address(&keys_full),
                        sizeof sh.keys[0] + sizeof sh.norms_of[0] + sizeof(vectors));
        load_keys(sh.keys[now].k[0], a, a.k_map, keys, key_at, 2, keys_full);
        load_keys(sh.keys[now].q[0], a, a.q_map, keys + 2 * TILE, key_at, 2, keys_full);
        load_bytes(&sh.norms_of[now], norms_at(a, keys), sizeof sh.norms_of[0], keys_full);
        load_bytes(&sh.g[step % 4], &from.v, sizeof(vectors), keys_full);
        mbarrier_wait(shared_address(&sh.states_free), odd ^ 1);
        mbarrier_expect(shared_address(&sh.dout_full), sizeof sh.rows.dout);
        for (int i = 0; i < 2; i++) {
            load_tile(sh.rows.dout[i], a.dout_map, at, 64 * i, sh.dout_full);
            prefetch_tile(a.v_map, at, 64 * i);
        }
        mbarrier_expect(shared_address(&sh.states_full), sizeof sh.rows.u + sizeof sh.S);
        load_bytes(sh.rows.u, (const char *)&from + f.u(0), sizeof sh.rows.u, sh.states_full);
        load_bytes(sh.S, (const char *)&from + f.S(0), sizeof sh.S, sh.states_full);
        mbarrier_wait(shared_address(&sh.values_free), odd ^ 1);
        mbarrier_expect(shared_address(&sh.squares_full), sizeof sh.squares);
        load_bytes(sh.squares, from.T, sizeof sh.squares, sh.squares_full);
        mbarrier_wait(shared_address(&sh.squares_free), odd);
        mbarrier_expect(shared_address(&sh.values_full), sizeof sh.squares);
        for (int i = 0; i < 2; i++) load_tile(sh.squares[i], a.v_map, at, 64 * i, sh.values_full);
    }
}

/* ---- Values and gates: three warps ----------------------------------------------------------- */

GDN_DEVICE void store_values(fused_shared &sh, uint32_t step, const struct value_part &w,
                             const struct gdn_cu_backward &a)
{
    const int form = store_form(a.dv, a.adds), l = threadIdx.x % 32, head = opaque(sh.way.head);
    const struct stage_chunk c = fused_chunk(sh.way.part.in, opaque(step));
    const vectors &g = sh.g[step % 4];
    const char *z = sh.rows.z[w.half], *v = sh.squares[w.half];
    const auto value_of = [&](int r, int column, bool) {
        return *(const uint32_t *)(v + tile_place(w.m + l / 4 + 8 * r, column));
    };
    float sum[2];
    if (form == STORE_16)
        store_values<STORE_16, 4, 1>(sum, z, 64 * w.half, w.m, g, a, c, head, value_of);
    else if (form == STORE_F32)
        store_values<STORE_F32, 4, 1>(sum, z, 64 * w.half, w.m, g, a, c, head, value_of);
    else
        store_values<STORE_ANY, 4, 1>(sum, z, 64 * w.half, w.m, g, a, c, head, value_of);
#pragma unroll
    for (int r = 0; r < 2; r++)
        if (l % 4 == 0) sh.parts[step % 2][0].zv[w.half][w.m + l / 4 + 8 * r] = a.drop * sum[r];
}

/* Stores dv of the chunks, and the gradients of gates a step later. */
GDN_DEVICE void store_fused(fused_shared &sh, const struct gdn_cu_backward &a)
{
    const struct backward_window &in = sh.way.part.in;
#pragma unroll 1
    for (uint32_t step = 0; in_warp(step <= in.n_chunks); step++) {
        const uint32_t now = step % 2;
        if (in_warp(step < in.n_chunks)) {
            mbarrier_wait(shared_address(&sh.keys_full[now]), step / 2 % 2);
            mbarrier_wait(shared_address(&sh.parts_free[now]), step / 2 % 2 ^ 1);
            mbarrier_wait(shared_address(&sh.z_full), step % 2);
            mbarrier_wait(shared_address(&sh.values_full), step % 2);
#pragma unroll 1
            for (int i = 0; i < count_value_parts(1); i++)
                store_values(sh, step, find_value_part(0, i, 0, 1), a);
            const uint32_t again = opaque(step) % 2; /* an address would take a register */
            release(sh.parts_full[again]);
            release(sh.z_free);
            release(sh.values_free);
            release(sh.keys_free[again]);
        }
        if (in_warp(step == 0 || !has_gates())) continue;
        mbarrier_wait(shared_address(&sh.parts_full[now ^ 1]), (step - 1) / 2 % 2);
        store_head_gates(sh, step - 1, a, fused_chunk(in, step - 1), sh.way.head);
        release(sh.parts_free[now ^ 1]);
    }
}

/* ---- The walk ------------------------------------------------------------------------------ */

/* A chunk with the members that reverse_chunk() reads. */
struct fused_stage {
    static constexpr bool deep = false, stores = true, has_room = false;
    fused_shared &sh;
    uint32_t step;

    __device__ __forceinline__ struct head_keys &keys(void) const { return sh.keys[step % 2]; }
    __device__ __forceinline__ vectors &g(void) const { return sh.g[step % 4]; }
    __device__ __forceinline__ const char *k(void) const { return keys().k[0]; }
    __device__ __forceinline__ const char *q(void) const { return keys().q[0]; }
    __device__ __forceinline__ const char *T(void) const { return sh.squares[0]; }
    __device__ __forceinline__ const char *P(void) const { return sh.squares[1]; }
    __device__ __forceinline__ const char *dout(void) const { return sh.rows.dout[scan_group()]; }
    __device__ __forceinline__ uint32_t (&dead(void) const)[2] { return sh.dead[scan_group()]; }
    __device__ __forceinline__ void clean(void) const
    {
        clean_head(keys(), g());
        if (leads_group()) {
            dead()[0] = g().dead[0];
            dead()[1] = g().dead[1];
        }
        meet_group();
    }
    __device__ __forceinline__ void give_state(const uint32_t (&a)[32]) const
    {
        store_factor(sh.J[scan_group()][0], a);
    }
    __device__ __forceinline__ void give_rows(const uint32_t (&z)[16]) const
    {
        store_factor(sh.rows.z[scan_group()], z);
    }
};

/* Walks through a chunk, and shares Z and J with all threads. */
GDN_DEVICE void walk_fused(const struct fused_stage &c, scan_state &J, bool forgets)
{
    fused_shared &sh = c.sh;
    mbarrier_wait(shared_address(&sh.keys_full[c.step % 2]), c.step / 2 % 2);
    mbarrier_wait(shared_address(&sh.squares_full), c.step % 2);
    mbarrier_wait(shared_address(&sh.dout_full), c.step % 2);
    mbarrier_wait(shared_address(&sh.z_free), c.step % 2 ^ 1);
    if (forgets)
        reverse_chunk<true>(c, J);
    else
        reverse_chunk<false>(c, J);
    async_fence();
    release(sh.squares_free);
    release(sh.z_full);
    if (leads_group()) copy_out_wait_read(); /* of X and Y */
    meet_workers();
}

/* ---- Gradients of a chunk ------------------------------------------------------------------ */

/* Computes X or Y, a warpgroup each, and the products with states, with their factors. While those
 * of S run, products of tokens get their factors. Returns the thread's part of the sum of S J. */
template <bool forgets>
GDN_DEVICE float add_states(struct head_gradients &d, fused_shared &sh, const vectors &g, bool is_y,
                            float drop)
{
    const struct head_rows &in = sh.rows;
    head_sums x;
    if (is_y)
        multiply_values<false, false>(x, in.dout, in.u);
    else
        multiply_values<true, false>(x, in.z, in.u);
    wgmma_fence();
    multiply_state<false, false>(d.dq, in.dout, sh.S);
    multiply_state<true, false>(d.D, in.z, sh.S);
    wgmma_commit();
    wgmma_wait<1>();
    make_tokens<forgets>(sh, x, g, is_y, drop);
    wgmma_wait<0>();
    wgmma_fence();
    multiply_inner(x, sh);
    multiply_state<true, false>(d.dw, in.u, sh.J);
    wgmma_commit();
    const struct row_factors f = factors_of_rows(g, drop);
    weigh_rows<forgets>(d.dq, f.start);
    weigh_rows<forgets>(d.D, f.read);
    wgmma_wait<0>();
    weigh_rows<forgets>(d.dw, f.end);
    return g.decay == 0 ? 0 : drop * g.decay * diagonal_of(x);
}

/* Computes dq, D and dw of the chunk and the head. Frees the places that products with states have
 * read. */
GDN_DEVICE void differentiate(head_dots &dots, struct head_gradients &d, fused_shared &sh,
                              const struct gdn_cu_backward &a, uint32_t step, bool forgets)
{
    const int now = step % 2;
    vectors &g = sh.g[step % 4];
    const bool is_y = in_warp(heads_group() == 1);
    mbarrier_wait(shared_address(&sh.parts_free[now]), step / 2 % 2 ^ 1);
    mbarrier_wait(shared_address(&sh.states_full), step % 2);
    const float inner = forgets ? add_states<true>(d, sh, g, is_y, a.drop)
                                : add_states<false>(d, sh, g, is_y, a.drop);
    release(sh.states_free);
    if (sharing_blocks(a) > 1 && threadIdx.x % 32 == 0)
        mbarrier_arrive_cluster(map_shared(shared_address(&sh.sums_free), sh.rank ^ 1));
    add_tokens(dots, sh.parts[now][0], d, sh, sh.keys[now], g, forgets, inner);
}

/* ---- Two heads of a key head ----------------------------------------------------------------- */

/* Returns the address of a thread's sums e to e + 3 in the other block. */
GDN_DEVICE uint32_t place_of_sums(fused_shared &sh, int e)
{
    const int thread = opaque((int)threadIdx.x);
    return shared_address(sh.J[thread / GROUP]) + (e / 4 * GROUP + thread % GROUP) * 16;
}
/* Returns dk. keep: the share of D in it. */
GDN_DEVICE float dk_of(const struct head_gradients &d, int e, float keep)
{
    return (keep == 0 ? 0 : keep * d.D[e]) + d.dw[e];
}
/* Sends sums to the other block. spoil: for the thread's two rows, NaN if their tokens depend on
 * a value that is not finite, so that they are NaN there too. */
template <class Sum> GDN_DEVICE void send_each(fused_shared &sh, const float (&spoil)[2], Sum sum)
{
    const int to = sh.rank ^ 1;
    const uint32_t full = map_shared(shared_address(&sh.sums_full), to);
#pragma unroll
    for (int e = 0; e < 32; e += 4) {
        const float four[4] = { sum(e) + spoil[0], sum(e + 1) + spoil[0], sum(e + 2) + spoil[1],
                                sum(e + 3) + spoil[1] };
        send_to_block(map_shared(place_of_sums(sh, e), to), four, full);
    }
}
/* Sends a part of dk from the first block, of dq from the second one. Products in the other block
 * have read J by then. */
GDN_DEVICE void send_sums(fused_shared &sh, const struct head_gradients &d, const vectors &g,
                          uint32_t step)
{
    const int t = opaque(sum_row(0));
    const float spoil[2] = { spoil_with(g, t), spoil_with(g, t + 8) };
    const float keeps[2] = { beta_share(g.beta[t]), beta_share(g.beta[t + 8]) };
    if (threadIdx.x == 0) mbarrier_expect(shared_address(&sh.sums_full), sizeof sh.J);
    mbarrier_wait_cluster(shared_address(&sh.sums_free), step % 2);
    if (in_warp(sh.rank == 0))
        send_each(sh, spoil, [&](int e) { return dk_of(d, e, keeps[e / 2 % 2]); });
    else
        send_each(sh, spoil, [&](int e) { return d.dq[e]; });
}
/* Adds the part that the other block has sent. */
GDN_DEVICE void add_sums(fused_shared &sh, head_sums &x)
{
#pragma unroll
    for (int e = 0; e < 32; e += 4) {
        float four[4];
        load_shared(four, place_of_sums(sh, e));
#pragma unroll
        for (int i = 0; i < 4; i++) x[e + i] = x[e + i] + four[i];
    }
}

/* ---- dq and dk ----------------------------------------------------------------------------- */

/* Stores rows of a full chunk by a map: x is the gradient of `rows`, those of k (which = 0) or q.
 * They pass through the places of X and Y. */
GDN_DEVICE void store_tiles(fused_shared &sh, const head_sums &x, const char (&rows)[2][TILE],
                            int which, uint32_t step, const struct gdn_cu_map &map,
                            const struct gdn_cu_backward &a, const struct stage_chunk &c, int key,
                            const vectors &g)
{
    head_pairs given;
    load_pairs(given, rows);
    if (a.rule.norm != GDN_NO_NORM) {
        float along[2];
        dot_rows(along, x, given);
        share_norms(sh, along, which, step, 1);
    } else {
        meet_workers();
    }
    if (leads_group()) copy_out_wait_read();
    meet_group();
    const int thread = opaque((int)threadIdx.x); /* addresses would take registers */
    const int l = thread % 32, m = thread / 32 % 4 * 16, t = m + l / 4;
    const uint32_t place = shared_address(thread < GROUP ? sh.X : sh.Y);
    const uint32_t to = place + tile_place(m + l % 16, l / 16 * 8);
    const struct row_norm norms[2] = { norm_of_row(sh, which, step, a, t, g),
                                       norm_of_row(sh, which, step, a, t + 8, g) };
#pragma unroll
    for (int i = 0; i < 16; i += 4) {
        uint32_t z[4];
#pragma unroll
        for (int j = 0; j < 4; j++) {
            const int e = 2 * (i + j);
            const float2 y = norms[j % 2].through(x[e], x[e + 1], given[i + j]);
            z[j] = pairs::pair(y.x, y.y);
        }
        store_matrices(to ^ i / 4 * 32, z[0], z[1], z[2], z[3]);
    }
    async_fence();
    meet_group();
    if (!leads_group()) return;
    const int at[4] = { thread / GROUP * 64, key, (int)c.seq.first, (int)c.seq.batch };
    copy_tile_out(&map, at, place);
    copy_out_commit();
}
/* Stores dk (which = 0) or dq. */
GDN_DEVICE void store_gradient(fused_shared &sh, const head_sums &x, int which, uint32_t step,
                               const struct gdn_cu_backward &a, const vectors &g)
{
    const struct scan_way &w = sh.way;
    const struct head_keys &keys = sh.keys[step % 2];
    const struct stage_chunk c = fused_chunk(w.part.in, opaque(step));
    const int key = source_head(a.rule, w.head, a.rule.Hk);
    const char(&rows)[2][TILE] = which ? keys.q : keys.k;
    if (in_warp((a.maps_out >> which & 1) && g.n == CHUNK))
        store_tiles(sh, x, rows, which, step, which ? a.dq_map : a.dk_map, a, c, key, g);
    else
        store_rows(sh, x, rows, which, step, which ? a.dq : a.dk, a, c, key, g);
}

/* ---- A block ------------------------------------------------------------------------------- */

GDN_DEVICE struct walk_item own_strip(const fused_shared &sh, const struct gdn_cu_backward &a)
{
    const int col = 64 * scan_group();
    return { sh.way.part.row, sh.way.head, col, min(a.rule.V - col, 64) };
}
/* Computes the chunks of a segment. All multiplying threads call it. */
GDN_DEVICE void work_fused(fused_shared &sh, const struct gdn_cu_backward &a)
{
    const struct scan_way &w = sh.way;
    const int n_blocks = sharing_blocks(a);
    scan_state J;
    if (in_warp(sh.is_last))
        load_scan(J, gradient_behind(a, own_strip(sh, a), w.part), 0, 1 / a.drop);
    else
        load_end(J, end_of(a, w, w.part.in.first + w.part.in.n_chunks, scan_group()));
#pragma unroll 1
    for (uint32_t step = 0; in_warp(step < w.part.in.n_chunks); step++) {
        const struct fused_stage c = { sh, step };
        vectors &g = c.g();
        struct head_gradients d;
        head_dots dots;
        float keeps[2];
        mbarrier_wait(shared_address(&sh.keys_full[step % 2]), step / 2 % 2);
        if (in_warp(g.n < CHUNK)) {
            clear_rows(c.keys().k[0], 4, g.n, (int)threadIdx.x, HEADS_WORKERS);
            async_fence();
            meet_workers();
        }
        const bool forgets = in_warp(tokens_of(g.resets) != 0);
        walk_fused(c, J, forgets);
        differentiate(dots, d, sh, a, step, forgets);
        if (n_blocks > 1) send_sums(sh, d, g, step);
        share_tokens(keeps, dots, sh.parts[step % 2][0], d, c.keys(), g);
        release(sh.parts_full[step % 2]);
        if (n_blocks > 1) mbarrier_wait_cluster(shared_address(&sh.sums_full), step % 2);
        if (in_warp(sh.rank == 0)) {
            if (n_blocks > 1) add_sums(sh, d.dq);
            store_gradient(sh, d.dq, 1, step, a, g);
        }
        if (in_warp(sh.rank == n_blocks - 1)) {
#pragma unroll
            for (int e = 0; e < 32; e++) d.dw[e] = dk_of(d, e, keeps[e / 2 % 2]);
            if (n_blocks > 1) add_sums(sh, d.dw);
            store_gradient(sh, d.dw, 0, step, a, g);
        }
        release(sh.keys_free[step % 2]);
        meet_workers(); /* all places have been read */
    }
    if (leads_group()) copy_out_wait();
    if (in_warp(sh.segment > 0)) return;
    const struct stage_strip place = gradient_before(a, own_strip(sh, a), w.part);
    if (place.view.data) store_scan(place, J, 0, a.drop, !w.part.in.before && a.adds);
}

/* A segment of a walk of a window (row_of_walk()). */
struct fused_segment {
    int64_t walk;
    int number;
};
/* Finds segment `item` of a window. Windows through the batch number them like chunks: sequence i
 * of a window begins with number (place of its first chunk) / segment_chunks + i. A whole warp
 * calls it. */
GDN_DEVICE struct fused_segment segment_at(const struct gdn_cu_backward &a, int64_t item)
{
    if (a.window_chunks) return { item / a.segments, (int)(item % a.segments) };
    const struct gdn_cu_batch &b = a.rule.batch;
    const int64_t row = a.plan ? first_row(a, a.window) : 0, first = numbers_of(a).first;
    const int64_t each = find_segment(a), n = min(a.n_parts, b.B - row);
    const auto number = [&](int64_t i) {
        return max(first_number(b, row + i) - first, (int64_t)0) / each + i;
    };
    const int64_t walk = find_last(0, n, item, number);
    return { walk, (int)(item - (walk ? number(walk) : 0)) };
}

/* The block's work: a segment of a window's part. Blocks of a cluster have the state heads of a key
 * head. */
struct fused_share {
    struct scan_way way; /* with the chunks of the segment, and `before` and `is_last` of the
                            window */
    int segment;
    bool is_last;
};
GDN_DEVICE bool find_fused(struct fused_share &own, const struct gdn_cu_backward &a)
{
    const struct gdn_cu_rule &r = a.rule;
    const int n_blocks = sharing_blocks(a), i = blockIdx.x % n_blocks;
    const int64_t item = blockIdx.x / n_blocks / r.Hk;
    const int key = (int)(blockIdx.x / n_blocks % r.Hk);
    const int head = first_reader(r, key, r.Hk) + i * reader_step(r, r.Hk);
    const struct fused_segment found = segment_at(a, item);
    if (!find_way(own.way, a, found.walk, head, 0)) return false;
    own.segment = found.number;
    struct backward_window &in = own.way.part.in;
    const int64_t each = own.way.segment_chunks, first = own.segment * each,
                  rest = in.n_chunks - first;
    own.is_last = rest <= each;
    in.seq.first += first * CHUNK;
    in.seq.n_valid -= first * CHUNK;
    in.first += first;
    in.n_chunks = min(rest, each);
    return in_warp(own.segment == 0 || rest > 0);
}

GDN_DEVICE void start_fused(fused_shared &sh, const struct gdn_cu_backward &a,
                            const struct fused_share &own)
{
    if (threadIdx.x == 0) {
        sh.way = own.way;
        sh.segment = own.segment;
        sh.is_last = own.is_last;
        sh.rank = (int)blockIdx.x % sharing_blocks(a);
        for (int i = 0; i < 2; i++) {
            mbarrier_init(shared_address(&sh.keys_full[i]), 1);
            mbarrier_init(shared_address(&sh.keys_free[i]), HEADS_WARPS + HEADS_STORING);
            mbarrier_init(shared_address(&sh.parts_full[i]), HEADS_WARPS + HEADS_STORING);
            mbarrier_init(shared_address(&sh.parts_free[i]), 1);
        }
        mbarrier_init(shared_address(&sh.squares_full), 1);
        mbarrier_init(shared_address(&sh.squares_free), HEADS_WARPS);
        mbarrier_init(shared_address(&sh.values_full), 1);
        mbarrier_init(shared_address(&sh.values_free), HEADS_STORING);
        mbarrier_init(shared_address(&sh.dout_full), 1);
        mbarrier_init(shared_address(&sh.states_full), 1);
        mbarrier_init(shared_address(&sh.states_free), HEADS_WARPS);
        mbarrier_init(shared_address(&sh.z_full), HEADS_WARPS);
        mbarrier_init(shared_address(&sh.z_free), HEADS_STORING);
        mbarrier_init(shared_address(&sh.sums_full), 1);
        mbarrier_init(shared_address(&sh.sums_free), HEADS_WARPS);
        mbarrier_init_fence();
    }
    cluster_sync();
}

GDN_DEVICE void backward_sm90_fused(const struct gdn_cu_backward &a)
{
    fused_shared &sh = *(fused_shared *)gdn_shared;
    struct fused_share own;
    if (!find_fused(own, a)) return;
    start_fused(sh, a, own);
    if (in_warp(threadIdx.x < HEADS_WORKERS)) {
        raise_registers<FUSED_REGISTERS>();
        work_fused(sh, a);
    } else {
        lower_registers<FUSED_OTHER_REGISTERS>();
        if (threadIdx.x == HEADS_WORKERS) load_fused(sh, a);
        if (in_warp(threadIdx.x / 32 > HEADS_WARPS)) store_fused(sh, a);
    }
    __syncwarp();
    cluster_sync(); /* the other block may still signal here */
}

#endif
