/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The two walks of walk.cuh by products of warpgroups. A block has a sequence, a head and
 * a direction. Each of its warpgroups has 64 columns of V, and one more warp loads. The transposed
 * part of S, or of its gradient J, is in a warpgroup's registers, the first factor of every product
 * too. If K is above 128, two warpgroups share the columns, and have 128 keys each (deep): each
 * adds the other's products of S, or J, with keys to its own. All else they compute alike.
 *
 *     forward    R^T = beta (V^T - from_start S^T K^T)           U^T = R^T T^T
 *                S^T <- decay S^T + (to_end U)^T K
 *     reverse    dU^T = to_end J^T K^T + dO^T P                  Z^T = dU^T T
 *                J^T <- decay J^T + (q_start dO)^T Q - (from_start beta Z)^T K
 *
 * J does not need S, so both directions run at once. If dstate is the only gradient, nothing but
 * the last J is stored (SCAN_ALONE). For fused.cuh only J behind its segments is (SCAN_ENDS).
 */
#ifndef GDN_CUDA_BACKWARD_SM90_SCAN_CUH
#define GDN_CUDA_BACKWARD_SM90_SCAN_CUH

#include "cuda/backward/scan.cuh"
#include "cuda/backward/sm90/tiles.cuh"

enum scan_kind { SCAN_FORWARD, SCAN_REVERSE, SCAN_ALONE, SCAN_ENDS };

/* The warpgroups of a walk: one with 64 columns; two with 64 each, or with 128 keys each. */
enum scan_form { SCAN_HALF, SCAN_WHOLE, SCAN_DEEP };

/* Shared memory of a walk, and the places of a chunk's tiles in a stage. */
template <scan_kind kind, scan_form form> struct scan_shared {
    static constexpr bool deep = form == SCAN_DEEP;
    static constexpr int groups = form == SCAN_HALF ? 1 : 2, columns = deep ? 1 : groups;
    static constexpr bool reverse = kind != SCAN_FORWARD, ends = kind == SCAN_ENDS;
    static constexpr bool stores = kind == SCAN_FORWARD || kind == SCAN_REVERSE;
    static constexpr int keys = deep ? 4 : 2; /* tiles */
    static constexpr int K = 0, Q = keys, T = reverse ? 2 * keys : keys, P = T + 1;
    static constexpr int X = reverse ? P + 1 : P; /* of V or dO */
    static constexpr int n_tiles = X + columns;
    static constexpr int n_stages = reverse ? form == SCAN_HALF ? 3 : 2 : deep ? 3 : 4;
    char stages[n_stages][n_tiles][TILE];
    char states[groups][2][TILE], rows[columns][TILE]; /* parts that go to memory: S and U, or J and
                                                          Z */
    alignas(16) vectors g[n_stages];
    uint64_t full[n_stages], free[n_stages]; /* barriers */
    uint32_t dead[groups][2];
    struct scan_way way; /* it is here, because registers are scarce */
};
static_assert(sizeof(scan_shared<SCAN_FORWARD, SCAN_HALF>) <= GDN_CU_WALK_BYTES, "scan_shared");
static_assert(sizeof(scan_shared<SCAN_FORWARD, SCAN_WHOLE>) <= GDN_CU_WALK_BYTES, "scan_shared");
static_assert(sizeof(scan_shared<SCAN_FORWARD, SCAN_DEEP>) <= GDN_CU_WALK_BYTES, "scan_shared");
static_assert(sizeof(scan_shared<SCAN_REVERSE, SCAN_HALF>) <= GDN_CU_WALK_BYTES, "scan_shared");
static_assert(sizeof(scan_shared<SCAN_REVERSE, SCAN_WHOLE>) <= GDN_CU_WALK_BYTES, "scan_shared");
static_assert(sizeof(scan_shared<SCAN_REVERSE, SCAN_DEEP>) <= GDN_CU_WALK_BYTES, "scan_shared");

template <class Shared> GDN_DEVICE int64_t first_chunk(const struct backward_window &in)
{
    return Shared::reverse ? in.n_chunks - 1 : 0;
}
/* Returns how many chunks a walk goes through. A walk for J after segments leaves out the first
 * segment. */
template <class Shared> GDN_DEVICE int64_t count_chunks(const struct scan_way &w)
{
    const int64_t n = w.part.in.n_chunks;
    return Shared::ends ? max(n - w.segment_chunks, (int64_t)0) : n;
}

/* ---- J behind segments --------------------------------------------------------------------- */

/* Returns the address of four numbers of J before the chunk at `place`, with which a segment
 * begins. The thread's warpgroup has 64 columns from 64 half on. The next numbers are GROUP such
 * addresses further. Starts of segments are at least way.segment_chunks places apart. */
GDN_DEVICE float4 *end_of(const struct gdn_cu_backward &a, const struct scan_way &way,
                          int64_t place, int half)
{
    const int64_t slot = place / way.segment_chunks * a.rule.H + way.head;
    return (float4 *)a.ends + (slot * 2 + half) * (DEEP / 8 * GROUP) + threadIdx.x % GROUP;
}
GDN_DEVICE void store_end(float4 *to, const scan_state &J)
{
#pragma unroll
    for (int i = 0; i < 16; i++)
        to[i * GROUP] = make_float4(J[4 * i], J[4 * i + 1], J[4 * i + 2], J[4 * i + 3]);
}
GDN_DEVICE void load_end(scan_state &J, const float4 *from)
{
#pragma unroll
    for (int i = 0; i < 16; i++) {
        const float4 x = from[i * GROUP];
        J[4 * i] = x.x, J[4 * i + 1] = x.y, J[4 * i + 2] = x.z, J[4 * i + 3] = x.w;
    }
}

/* ---- Warpgroups ---------------------------------------------------------------------------- */

/* The barriers of a warpgroup, and of all threads. */
enum { SCAN_BARRIER_GROUP = 1, SCAN_BARRIER_ALL = 3 };
GDN_DEVICE int scan_group(void) { return (int)threadIdx.x / GROUP; }
GDN_DEVICE bool leads_group(void) { return threadIdx.x % GROUP == 0; }
GDN_DEVICE void meet_group(void) { barrier_wait(SCAN_BARRIER_GROUP + scan_group(), GROUP); }

/* Return the first tile of columns, and of keys, that a group has in the block. */
template <class Shared> GDN_DEVICE int own_columns(void) { return Shared::deep ? 0 : scan_group(); }
template <class Shared> GDN_DEVICE int own_keys(void)
{
    return Shared::deep ? 2 * scan_group() : 0;
}

/* Adds the products of the other group, with its keys. They go through the memory of states. */
template <class Shared> GDN_DEVICE void add_other_keys(Shared &sh, float (&x)[32])
{
    enum { ALL = Shared::groups * GROUP };
    static_assert(sizeof sh.states[0] == sizeof x * GROUP, "a group's products");
    float *own = (float *)sh.states[scan_group()] + threadIdx.x % GROUP;
    const float *other = (const float *)sh.states[scan_group() ^ 1] + threadIdx.x % GROUP;
    if (leads_group()) copy_out_wait_read();
    meet_group();
#pragma unroll
    for (int e = 0; e < 32; e++) own[e * GROUP] = x[e];
    barrier_wait(SCAN_BARRIER_ALL, ALL);
#pragma unroll
    for (int e = 0; e < 32; e++) x[e] += other[e * GROUP];
    barrier_wait(SCAN_BARRIER_ALL, ALL);
}

/* ---- To memory ----------------------------------------------------------------------------- */

/* Sends rows that the group has written from shared memory to memory. On return the rows sent
 * before have been read, so their place may be written again. */
GDN_DEVICE void send(char *to, const char *from, int bytes)
{
    async_fence();
    if (leads_group()) copy_out_wait_read();
    meet_group();
    if (!leads_group()) return;
    copy_out(to, shared_address(from), bytes);
    copy_out_commit();
}

/* Store a group's part of a state before or after a chunk, and rows of U or Z. */
template <class Shared>
GDN_DEVICE void send_state(Shared &sh, const uint32_t (&a)[32], char *to,
                           const struct record_form &form)
{
    const int first = own_keys<Shared>();
    store_factor(sh.states[scan_group()][0], a);
    send(to + first * TILE, sh.states[scan_group()][0], (form.keys - first > 1 ? 2 : 1) * TILE);
}
template <class Shared> GDN_DEVICE void send_rows(Shared &sh, const uint32_t (&x)[16], char *to)
{
    char *rows = sh.rows[own_columns<Shared>()];
    /* Both groups have the same rows, so one stores them. */
    if (Shared::deep && in_warp(scan_group() == 1)) return;
    store_factor(rows, x);
    send(to, rows, TILE);
}

/* ---- What is not finite, where a gate forgets ------------------------------------------------ */

/* Clears rows of keys and of queries behind the last token. All warpgroups call it. */
template <class Shared> GDN_DEVICE void clear_stage(Shared &sh, int stage)
{
    enum { ALL = Shared::groups * GROUP };
    clear_rows(sh.stages[stage][0], Shared::T, sh.g[stage].n, (int)threadIdx.x, ALL);
    async_fence();
    barrier_wait(SCAN_BARRIER_ALL, ALL);
}
/* Cleans rows of keys and of queries (clean_rows()). Forward, queries count for nothing: U and S do
 * not depend on them. All warpgroups call it. */
template <class Shared> GDN_DEVICE void clean_stage(Shared &sh, int stage)
{
    enum { ALL = Shared::groups * GROUP };
    vectors &g = sh.g[stage];
    char *tile = sh.stages[stage][0];
    enum { KEYS = Shared::keys };
    if (!Shared::reverse) {
        if (threadIdx.x < 2) g.dead[threadIdx.x] = 0;
        barrier_wait(SCAN_BARRIER_ALL, ALL);
    }
    clean_rows(tile + Shared::K * TILE, KEYS, g.dead, (int)threadIdx.x, ALL);
    if (Shared::reverse) clean_rows(tile + Shared::Q * TILE, KEYS, g.dead, (int)threadIdx.x, ALL);
    async_fence();
    barrier_wait(SCAN_BARRIER_ALL, ALL);
    if (leads_group()) {
        sh.dead[scan_group()][0] = g.dead[0];
        sh.dead[scan_group()][1] = g.dead[1];
    }
    meet_group();
}
/* ---- Forward ------------------------------------------------------------------------------- */

/* Walks through a chunk. There is no branch between a product and its wait, because ptxas would
 * serialise the products. */
template <bool forgets, class Shared>
GDN_DEVICE void forward_chunk(Shared &sh, int stage, scan_state &S, char *to,
                              const struct record_form &form, int half)
{
    const int group = scan_group();
    vectors &g = sh.g[stage];
    char(*tile)[TILE] = sh.stages[stage];
    const char *keys = tile[Shared::K + own_keys<Shared>()];
    uint32_t a[32], u[16], r[16];
    float x[32], v[32];
    if (forgets) clean_stage(sh, stage);
    load_tokens(u, tile[Shared::X + own_columns<Shared>()], g.n);
    pack(a, S);
    multiply_rows(x, a, keys);
    unpack(v, u);
    weigh<forgets>(v, pairs_of(g.beta));
    if constexpr (!Shared::deep) send_state(sh, a, to + form.S(half), form);
    wgmma_wait<0>();
    if constexpr (Shared::deep) {
        add_other_keys(sh, x);
        send_state(sh, a, to + form.S(half), form);
    }
    make_r<forgets>(r, x, v, g);
    if (forgets) {
        clean_factor(r, sh.dead[group]);
        meet_group();
    }
    multiply_rows(x, r, tile[Shared::T]);
    decay_scan<forgets>(S, g.decay);
    const struct token_pairs end = pairs_of(g.to_end);
    wgmma_wait<0>();
    if (forgets) spoil(x, sh.dead[group], g);
    pack(u, x);
    weigh<forgets>(x, end);
    pack(r, x);
    if constexpr (Shared::deep) send_rows(sh, u, to + form.u(half));
    add_columns(S, r, keys);
    if constexpr (!Shared::deep) send_rows(sh, u, to + form.u(half));
    wgmma_wait<0>();
}

/* ---- Reverse ------------------------------------------------------------------------------- */

/* A chunk in a stage, and where the walk stores its results: columns from 64 half on in a
 * record. */
template <class S> struct scan_stage {
    typedef S Shared;
    static constexpr bool deep = S::deep, stores = S::stores, has_room = true; /* of registers */
    Shared &sh;
    int stage;
    char *to;
    const struct record_form &form;
    int half;

    __device__ __forceinline__ char *tile(int i) const { return sh.stages[stage][i]; }
    __device__ __forceinline__ vectors &g(void) const { return sh.g[stage]; }
    __device__ __forceinline__ const char *k(void) const { return tile(S::K + own_keys<S>()); }
    __device__ __forceinline__ const char *q(void) const { return tile(S::Q + own_keys<S>()); }
    __device__ __forceinline__ const char *T(void) const { return tile(S::T); }
    __device__ __forceinline__ const char *P(void) const { return tile(S::P); }
    __device__ __forceinline__ const char *dout(void) const
    {
        return tile(S::X + own_columns<S>());
    }
    __device__ __forceinline__ uint32_t (&dead(void) const)[2] { return sh.dead[scan_group()]; }
    __device__ __forceinline__ void clean(void) const { clean_stage(sh, stage); }
    __device__ __forceinline__ void add_others(float (&x)[32]) const { add_other_keys(sh, x); }
    __device__ __forceinline__ void give_state(const uint32_t (&a)[32]) const
    {
        send_state(sh, a, to + form.J(half), form);
    }
    __device__ __forceinline__ void give_rows(const uint32_t (&z)[16]) const
    {
        send_rows(sh, z, to + form.z(half));
    }
};

/* Walks back through a chunk. Its tiles are at the places of c, which takes J and Z. */
template <bool forgets, class Chunk> GDN_DEVICE void reverse_chunk(const Chunk &c, scan_state &J)
{
    vectors &g = c.g();
    uint32_t a[32], dout[16], r[16];
    float x[32], y[32];
    if (forgets) c.clean();
    load_tokens(dout, c.dout(), g.n);
    if (forgets) {
        clean_factor(dout, c.dead());
        meet_group();
    }
    pack(a, J);
    multiply_rows(x, a, c.k());
    multiply_columns(y, dout, c.P());
    if constexpr (Chunk::stores && !Chunk::deep) c.give_state(a);
    struct token_pairs end;
    if constexpr (Chunk::has_room) end = pairs_of(g.to_end);
    wgmma_wait<0>();
    if constexpr (!Chunk::has_room) end = pairs_of(g.to_end);
    if constexpr (Chunk::deep) c.add_others(x);
    if constexpr (Chunk::deep && Chunk::stores) c.give_state(a);
#pragma unroll
    for (int e = 0; e < 32; e++)
        x[e] = forgets && end.at(e) == 0 ? y[e] : fmaf(end.at(e), x[e], y[e]);
    pack(r, x);
    if (forgets) {
        clean_factor(r, c.dead());
        meet_group();
    }
    multiply_columns(y, r, c.T());
    decay_scan<forgets>(J, g.decay);
    unpack(x, dout);
    weigh<forgets>(x, pairs_of(g.q_start));
    pack(dout, x);
    add_columns(J, dout, c.q());
    const struct token_pairs read = pairs_of(g.read);
    wgmma_wait<forgets ? 0 : 1>();
    if (forgets) spoil(y, c.dead(), g);
    uint32_t z[16];
    if constexpr (Chunk::stores) pack(z, y);
    weigh<forgets>(y, read);
    pack(r, y);
    if constexpr (Chunk::stores && Chunk::deep) c.give_rows(z);
    add_columns(J, r, c.k());
    if constexpr (Chunk::stores && !Chunk::deep) c.give_rows(z);
    wgmma_wait<0>();
}

/* ---- A block ------------------------------------------------------------------------------- */

/* A stage, and the parity of the rounds through the ring. */
struct scan_turn {
    int stage;
    uint32_t odd;
};
template <class Shared> GDN_DEVICE void take_turn(struct scan_turn &t)
{
    if (++t.stage < Shared::n_stages) return;
    t.stage = 0;
    t.odd ^= 1;
}

/* Loads the chunks in their order. One thread calls it. */
template <class Shared> GDN_DEVICE void load_way(Shared &sh, const struct gdn_cu_backward &a)
{
    enum { N = Shared::reverse ? 2 : 1, SQUARES = N * TILE };
    enum { BYTES = SQUARES + Shared::columns * TILE + (int)sizeof(vectors) };
    const struct scan_way &w = sh.way;
    const struct backward_window &in = w.part.in;
    const int key = source_head(a.rule, w.head, a.rule.Hk);
    const int64_t first = first_chunk<Shared>(in);
    const int step = Shared::reverse ? -1 : 1;
    const struct gdn_cu_map &map = Shared::reverse ? a.dout_map : a.v_map;
    const struct chunk_record *from = &record_at(a, in.first + first, w.head);
    const char *keys = keys_of(a, in.first + first, key);
    const int n_keys = form_of(a).keys;
    struct scan_turn turn = { 0, 0 };
    int at[4] = { w.col, w.head, (int)(in.seq.first + first * CHUNK), (int)in.seq.batch };
    for (int64_t i = count_chunks<Shared>(w); i > 0; i--) {
        const int stage = turn.stage;
        uint64_t &full = sh.full[stage];
        char(*to)[TILE] = sh.stages[stage];
        mbarrier_wait(shared_address(&sh.free[stage]), turn.odd ^ 1);
        mbarrier_expect(shared_address(&full), BYTES + N * n_keys * TILE);
        const int key_at[4] = { 0, key, at[2], at[3] };
        load_keys(to[Shared::K], a, a.k_map, keys, key_at, n_keys, full);
        if (Shared::reverse)
            load_keys(to[Shared::Q], a, a.q_map, keys + n_keys * TILE, key_at, n_keys, full);
        load_bytes(to[Shared::T], from->T, SQUARES, full);
        load_bytes(&sh.g[stage], &from->v, sizeof(vectors), full);
        for (int j = 0; j < Shared::columns; j++)
            load_tile(to[Shared::X + j], map, at, 64 * j, full);
        at[2] += step * CHUNK;
        from = &next_record(a, *from, step);
        keys += (int64_t)step * a.rule.Hk * a.key_bytes;
        take_turn<Shared>(turn);
    }
}

/* Walks through the chunks. A whole warpgroup calls it. */
template <class Shared> GDN_DEVICE void run_way(Shared &sh, const struct gdn_cu_backward &a)
{
    const struct scan_way &w = sh.way;
    const struct backward_part &p = w.part;
    const struct backward_window &in = p.in;
    const int col = w.col + 64 * own_columns<Shared>();
    const int key = 64 * own_keys<Shared>();
    const struct walk_item own = { p.row, w.head, col, min(a.rule.V - col, 64) };
    const int half = col / 64, step = Shared::reverse ? -1 : 1;
    const struct record_form form = form_of(a);
    char *to = (char *)&record_at(a, in.first + first_chunk<Shared>(in), w.head);
    struct scan_turn turn = { 0, 0 };
    scan_state S;
    if (Shared::reverse)
        load_scan(S, gradient_behind(a, own, p), key, 1 / a.drop);
    else if (in.before)
        load_scan(S, state_before(a, own, in), key, 1);
    else
        load_scan(S, strip_of(a, own, a.rule.from, p.row), key, 1);
#pragma unroll 1
    for (int i = (int)count_chunks<Shared>(w); in_warp(i > 0); i--) {
        const int stage = turn.stage;
        mbarrier_wait(shared_address(&sh.full[stage]), turn.odd);
        if (in_warp(sh.g[stage].n < CHUNK)) clear_stage(sh, stage);
        const bool forgets = in_warp(tokens_of(sh.g[stage].resets) != 0);
        if constexpr (Shared::reverse) {
            const scan_stage<Shared> c = { sh, stage, to, form, half };
            if (forgets)
                reverse_chunk<true>(c, S);
            else
                reverse_chunk<false>(c, S);
        } else {
            if (forgets)
                forward_chunk<true>(sh, stage, S, to, form, half);
            else
                forward_chunk<false>(sh, stage, S, to, form, half);
        }
        if (threadIdx.x % 32 == 0) mbarrier_arrive(shared_address(&sh.free[stage]));
        take_turn<Shared>(turn);
        if (Shared::stores) to += (int64_t)step * a.rule.H * a.record_bytes;
        if (Shared::ends && in_warp((i - 1) % w.segment_chunks == 0))
            store_end(end_of(a, w, in.first + w.segment_chunks + i - 1, half), S);
    }
    if (Shared::ends) return;
    if (Shared::reverse) {
        const struct stage_strip place = gradient_before(a, own, p);
        if (place.view.data) store_scan(place, S, key, a.drop, !in.before && a.adds);
    } else if (!in.is_last && !a.starts_every) {
        store_scan(strip_of(a, own, a.starts, own_start(a, p.row, a.window + 1)), S, key, 1, false);
    }
    if (Shared::stores && leads_group()) copy_out_wait();
}

template <class Shared>
GDN_DEVICE void run_scan(const struct gdn_cu_backward &a, const struct scan_way &w)
{
    enum { ALL = Shared::groups * GROUP };
    Shared &sh = *(Shared *)gdn_shared;
    if (form_of(a).keys < 2) clear_tiles(sh.stages[0][0], (int)sizeof sh.stages);
    if (threadIdx.x == 0) {
        sh.way = w;
        for (int i = 0; i < Shared::n_stages; i++) {
            mbarrier_init(shared_address(&sh.full[i]), 1);
            mbarrier_init(shared_address(&sh.free[i]), ALL / 32);
        }
        mbarrier_init_fence();
    }
    __syncthreads();
    if (in_warp(threadIdx.x < ALL)) {
        if (Shared::groups == 2) raise_registers<WORKER_REGISTERS>();
        run_way(sh, a);
    } else {
        if (Shared::groups == 2) lower_registers<LOADER_REGISTERS>();
        if (threadIdx.x == ALL) load_way(sh, a);
    }
}

/* Runs the walks. Blocks of reverse walks come first, because they take longer. */
template <scan_form form, scan_kind kind = SCAN_REVERSE>
GDN_DEVICE void backward_sm90_walks(const struct gdn_cu_backward &a)
{
    typedef scan_shared<kind, form> reverse;
    typedef scan_shared<SCAN_FORWARD, form> forward;
    const int64_t n_walks = a.n_parts * a.rule.H * a.n_strips;
    struct scan_way w;
    if (!find_way<reverse::columns>(w, a, blockIdx.x % n_walks)) return;
    if (in_warp((a.walks & GDN_CU_WALK_REVERSE) && blockIdx.x < n_walks))
        run_scan<reverse>(a, w);
    else
        run_scan<forward>(a, w);
}

/* Runs the walks to dstate alone. */
template <scan_form form> GDN_DEVICE void walk_alone(const struct gdn_cu_backward &a)
{
    typedef scan_shared<SCAN_ALONE, form> alone;
    struct scan_way w;
    if (find_way<alone::columns>(w, a, blockIdx.x)) run_scan<alone>(a, w);
}

#endif
