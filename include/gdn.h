/* SPDX-License-Identifier: Apache-2.0 */
/*
 * gdn.h - Gated DeltaNet: the gated delta rule and the operators around it.
 *
 * The manual of what an engine needs. "WHICH OP" lists the other headers. The library promises what
 * its headers say, and nothing else.
 *
 *
 * QUICK START
 *
 * One step of an engine: the next token of B sequences, whose states are in slots of a pool.
 *
 *     gdn_ctx      *ctx;
 *     gdn_status    status = gdn_ctx_create(NULL, &ctx); // once for each thread that calls
 *     gdn_batch     batch = gdn_batch_init();
 *     gdn_rule_args a = gdn_rule_args_init();            // every field has its default
 *     batch.read_slots = gdn_dense(slots, GDN_I32, 1, B, 0, 0, 0);
 *     a.batch = &batch;
 *     a.q     = gdn_dense(q, GDN_F32, 4, B, 1, Hk, K);   // views: nothing is copied
 *     a.k     = gdn_dense(k, GDN_F32, 4, B, 1, Hk, K);
 *     a.v     = gdn_dense(v, GDN_F32, 4, B, 1, Hv, V);
 *     a.g     = gdn_dense(g, GDN_F32, 3, B, 1, Hv, 0);   // log alpha
 *     a.beta  = gdn_dense(beta, GDN_F32, 3, B, 1, Hv, 0);
 *     a.state = gdn_dense(pool, GDN_F32, 4, P, Hv, V, K);
 *     a.out   = gdn_dense(out, GDN_F32, 4, B, 1, Hv, V);
 *     if (status == GDN_OK) status = gdn_decode(ctx, &a); // prompts: batch.cu_seqlens, gdn_prefill
 *     if (status != GDN_OK) puts(ctx ? gdn_last_error(ctx) : gdn_status_name(status));
 *
 *
 * THE RULE
 *
 * Each sequence and head has a state S of K x V. For its tokens in order, with alpha = exp(g):
 *
 *     S <- alpha S;    u = beta (v - S^T k);    S <- S + k u^T;    o = scale S^T q
 *
 * (Yang, Kautz, Hatamizadeh: Gated Delta Networks, 2024.) This is one case of a rule with vectors
 * a, b and w, which "The family" at gdn_prefill() describes: KDA is another. Shapes say which one a
 * call means. Letters, here and everywhere:
 *
 *     B  sequences            N  tokens in all       T  tokens of one sequence
 *     Hq Hk Hv  heads of q, k, v                     H  state heads, max(Hq, Hv)
 *     K V  head sizes         P  slots of a pool     D  channels    W  taps
 *     A  the dtype of the activations: f32, bf16 or f16
 *
 *
 * WHICH OP
 *
 * An op gdn_X takes a struct gdn_X_args; gdn_prefill and gdn_decode take gdn_rule_args. Every op
 * runs on a CPU and on a GPU. Blobs need a context of a CPU.
 *
 *     here                use it when
 *     gdn_prefill         a sequence has many new tokens: a prompt
 *     gdn_decode          each sequence has one or a few new tokens, drafts included
 *     gdn_step            the same, with convolution, gates and norms in one call
 *     gdn_block           you want the whole layer from Hugging Face weights
 *     gdn_conv1d          you need the short convolution before the rule
 *     gdn_gates           you need gates as numbers; the rule also takes raw ones
 *     gdn_l2norm          you need normalised rows; the rule can normalise q and k itself
 *     gdn_rmsnorm_gated   you need the norm after the rule
 *     gdn_state_copy      slots are copied, forked, zeroed or converted
 *
 *     in other headers    use it when
 *     gdn_record.h        tokens are recorded: drafts, or lazy states
 *     gdn_train.h         you train: gdn_<op>_backward, the gradients of each op
 *     gdn_blob.h          states go to a file or to another machine, whole or by rank
 *     gdn_parallel.h      the tokens of a prompt lie on several GPUs
 *     gdn_research.h      ranges of tokens are computed apart and joined, or you need u, w, T or
 *                         the states inside the chunked form
 *
 *
 * WHICH LAYOUT IS MINE
 *
 * docs/start/embedding.md has a table of engines: state layout, head map and gates of each.
 *
 * States of the convolution are [P][D][S] with any strides. If an engine keeps them as [P][S][D],
 * exchange the two strides of the view.
 *
 * Fused projections: Qwen3-Next groups the rows of in_proj_qkvz by key head. With r = Hv / Hk, the
 * rows of one key head are K of q, K of k, r V of v, r V of z. The rows of in_proj_ba are r of b,
 * r of a. Qwen3.5 has all q, then all k, then all v.
 *
 *
 * CONVENTIONS
 *
 *   Calls       return GDN_OK or an error. gdn_last_error() then names the argument, what was
 *               found and what was wanted.
 *   Structs     begin with struct_size and are made by their gdn_..._init(): all zero, and
 *               zero is the default of every field. They grow at the end only, so a program
 *               compiled with an older header runs with a newer library. A newer struct is taken
 *               if the bytes that the library does not know are zero.
 *   Tensors     are views (data, dtype, sizes, strides in elements). data NULL means absent. A
 *               tensor may be absent if its line in the op's table says so. Strides are free: they
 *               may be negative and, for inputs, zero. Those of a tensor without elements mean
 *               nothing. "Dense": the last dimension has stride 1. The alignment of one element
 *               is enough; 64 bytes is faster.
 *   Indices     (cu_seqlens, slots, counts) are GDN_I32 or GDN_I64.
 *   Threads     A context serves one call at a time. A second call while one runs in it, also from
 *               the caller's parallel_for, returns GDN_E_ARG ("busy") at once and changes nothing.
 *               Make a context for each thread that calls.
 *   Streams     On a GPU a call enqueues on `stream` (a CUstream; NULL: the default one) and
 *               returns without waiting. The caller may then free args and batch.
 *   Policies    g > 0 and beta outside [0, 2] are computed as given. A NaN or an infinity in q,
 *               k, v, g or beta reaches only later tokens of the same sequence and head.
 *   Precision   Every stored value is rounded once, to nearest even. Arithmetic is float32 whatever
 *               the dtypes, with two exceptions: GDN_BF16_PRODUCTS on a CPU, and tensor cores on a
 *               GPU. On tensor cores, gdn_prefill and gdn_block round factors of 16-bit inputs to
 *               that dtype. Other products take float32 factors as two TF32 terms, 22 bits.
 *               docs/design/numerics.md derives the error bounds.
 *
 *
 * GLOSSARY (more in docs/design/architecture.md)
 *
 *     slot        one entry of a pool of states: all heads of one sequence
 *     packed      tensors [N]...: sequences follow each other, cu_seqlens says where
 *     padded      tensors [B][T]... of B sequences. One token of each is [B][1]...
 *     bits        "the same bits": equal, bit for bit. "To rounding": equal within the error bounds
 *
 *
 * GUARANTEES
 *
 * Each one is held by the test of that name (tools/guarantees.py lists them). In G2, G3 and G17
 * all NaNs count as equal. G15 and G16 are in gdn_blob.h, G23 in gdn_record.h.
 *
 *   G1   A refused call leaves every output and every state untouched.
 *   G2   A sequence's result has the same bits whatever else is in the batch, in whatever
 *        order, and however many threads run.
 *   G3   The same call on the same inputs gives the same bits, run after run, with the same
 *        instruction set or device.
 *   G4   With float32 states, a sequence may be cut into calls without changing a bit: in
 *        gdn_decode after any token, in gdn_prefill at multiples of 16 tokens (GPU: 64), into
 *        parts of more than 8.
 *   G5   gdn_prefill of some tokens, then gdn_decode of the rest, equals one gdn_prefill of all
 *        tokens to rounding.
 *   G6   Nothing outside the described elements is read or written.
 *   G7   alpha = 0 (g = -inf) forgets by selection: a NaN or 1e30 in the old state is gone.
 *   G8   beta = 0 writes nothing by selection: v may then be NaN.
 *   G9   If all tokens of a call have g = 0 and beta = 0, every state bit stays.
 *   G10  An empty sequence, or a sequence whose slot is padding, reads and writes no state.
 *   G11  A token before token_start or past token_count neither decays nor writes, whatever it
 *        holds, and its output is zero. The other tokens have the bits that they have without it.
 *   G12  The caller's rounding, flush-to-zero and exception modes change no result. When the call
 *        returns they are as before.
 *   G13  With the caller's workspace (gdn_workspace_bytes()) a call allocates nothing.
 *   G14  gdn_state_copy between pools of one dtype moves every bit, NaN and scales included,
 *        whatever the layouts. Into float32 every value is exact (8 bits: the value that the rule
 *        reads there).
 *   G17  With GDN_EXACT a sequence gets the same bits from gdn_prefill and from gdn_decode, for any
 *        split of its tokens over calls of either, GDN_WRITE_EACH included. Batch, threads and
 *        the layout of the state change nothing. States may have any dtype, if all these calls
 *        write one dtype. "avx2", "avx512" and "neon" give the same bits, "scalar" has its own.
 *   G18  Checkpoints change no other bit of a call. A checkpoint after n tokens has, in its own
 *        dtype, the bits of the final state of that call on the first n tokens alone. In
 *        gdn_prefill and the rule of gdn_block, both calls or neither then have more than 8 tokens.
 *   G19  gdn_decode of a tree: a token has the bits, of its output and of the state after it,
 *        that it has at the end of the chain of its ancestors in one call.
 *   G20  Accepting drafted tokens by slots, and with float32 states by records of float32, gives
 *        the bits that one gdn_decode of the accepted tokens gives, whatever was drafted beside
 *        them. (Several calls round 16-bit states between them.)
 *   G21  States of 8 bits: the value stored for a given float32 state, random rounding included,
 *        has the same bits with every instruction set, layout, number of threads and batch.
 *   G22  The caller's parallel_for gives the bits that the context's own threads give.
 *
 * On a CPU all of them hold as stated. On a GPU:
 *
 *              gdn_decode, others        gdn_prefill              gdn_block
 *     G1       descriptors only          descriptors only         descriptors only
 *     G2 G11   if the kernel is the      with (a), else           with (b), else
 *              same                      to rounding              to rounding
 *     G4       to rounding               with (a), else           not promised
 *                                        to rounding
 *     G18      yes                       with (a), else           with (b), else
 *                                        to rounding              to rounding
 *     G20      q, k of f32, else         -                        -
 *              to rounding
 *
 *   (a) GDN_BATCH_INVARIANT.
 *   (b) GDN_EXACT; or GDN_BATCH_INVARIANT if cuBLAS computes no projection. See gdn_block().
 *
 * docs/design/guarantees.md says what selects a kernel, and has the exceptions to G18 on Hopper.
 *
 *
 * WHAT ONE STUMBLES OVER
 *
 *   - Zero means the default of the op, and ops may have different defaults: see gdn_beta_kind,
 *     gdn_norm and gdn_activation. Every other enumerator means the same in every op. With
 *     GDN_ZERO_AS_GIVEN a scale or an eps may be 0.
 *   - [N] without cu_seqlens is one sequence of N tokens, in gdn_decode and gdn_step too. The next
 *     tokens of B sequences are [B][1]... (as fast), or [B]... with cu_seqlens 0, 1, ..., B.
 *   - An empty sequence writes no slot. A sequence whose token_count is 0 does.
 */
#ifndef GDN_H
#define GDN_H

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#ifdef __cplusplus
extern "C" {
#endif

/* ---- Version ------------------------------------------------------------------------- */

#define GDN_VERSION_MAJOR 0
#define GDN_VERSION_MINOR 1
#define GDN_VERSION_PATCH 0
#define GDN_VERSION ((GDN_VERSION_MAJOR << 16) | (GDN_VERSION_MINOR << 8) | GDN_VERSION_PATCH)

#if defined(_WIN32)
#define GDN_API
#else
#define GDN_API __attribute__((visibility("default")))
#endif

/* Returns GDN_VERSION of the library that runs, which may be newer than this header. */
GDN_API uint32_t gdn_version(void);

/* ---- Status -------------------------------------------------------------------------- */

/*
 * gdn_status - the result of a call. gdn_last_error() has the text. After an error the context
 * stays usable.
 */
typedef enum gdn_status {
    GDN_OK = 0,
    GDN_E_ARG = 1,         /* a bad value, pointer, overlap, flag, slot; or "busy" */
    GDN_E_SHAPE = 2,       /* a bad rank, size or stride: see the op's table */
    GDN_E_DTYPE = 3,       /* a dtype that the op does not take */
    GDN_E_UNSUPPORTED = 4, /* well formed, but no kernel here computes it: ask gdn_supported() */
    GDN_E_MEMORY = 5,      /* an allocation failed, or the workspace is too small */
    GDN_E_CUDA = 6,        /* the driver's error; those of earlier kernels appear in later calls */
    GDN_E_SELF_TEST = 7    /* gdn_self_test(): do not use this machine, or lower GDN_CPU */
} gdn_status;

/* Returns "GDN_OK", "GDN_E_ARG", ...; "GDN_E_?" for a value that is no status. */
GDN_API const char *gdn_status_name(gdn_status status);

/* ---- Tensor views -------------------------------------------------------------------- */

/* Numbers below 16 are kept for values, from 16 on for indices. */
typedef enum gdn_dtype {
    GDN_F32 = 0,
    GDN_BF16 = 1,
    GDN_F16 = 2,
    GDN_I8 = 3,   /* for states only, with scales: see "States of 8 bits" */
    GDN_E4M3 = 4, /* for states only: 4 exponent and 3 mantissa bits, no infinity */
    GDN_E5M2 = 5, /* for states only: 5 exponent and 2 mantissa bits */
    GDN_I32 = 16,
    GDN_I64 = 17,
    GDN_U8 = 18
} gdn_dtype;

/* Returns the bytes of one element; 0 for a value that is no dtype. */
GDN_API size_t gdn_dtype_bytes(int32_t dtype);

#define GDN_MAX_DIMS 6

typedef struct gdn_tensor {
    void *data;    /* NULL: absent, where the op allows it */
    int32_t dtype; /* gdn_dtype */
    int32_t ndim;
    int64_t size[GDN_MAX_DIMS];
    int64_t stride[GDN_MAX_DIMS]; /* in elements */
} gdn_tensor;

/* Returns a dense row-major view of ndim (1 to 4) dimensions; unused sizes are ignored. */
static inline gdn_tensor gdn_dense(void *data, int32_t dtype, int32_t ndim, int64_t s0, int64_t s1,
                                   int64_t s2, int64_t s3)
{
    gdn_tensor t;
    int64_t stride = 1;
    int32_t i;
    memset(&t, 0, sizeof t);
    t.data = data;
    t.dtype = dtype;
    t.ndim = ndim;
    t.size[0] = s0;
    t.size[1] = s1;
    t.size[2] = s2;
    t.size[3] = s3;
    for (i = ndim - 1; i >= 0; i--) {
        t.stride[i] = stride;
        stride *= t.size[i];
    }
    for (i = ndim; i < 4; i++) t.size[i] = 0;
    return t;
}

/* Returns a view of ndim (1 to GDN_MAX_DIMS) sizes and strides, in elements. */
static inline gdn_tensor gdn_strided(void *data, int32_t dtype, int32_t ndim, const int64_t *size,
                                     const int64_t *stride)
{
    gdn_tensor t;
    int32_t i;
    memset(&t, 0, sizeof t);
    t.data = data;
    t.dtype = dtype;
    t.ndim = ndim;
    for (i = 0; i < ndim && i < GDN_MAX_DIMS; i++) {
        t.size[i] = size[i];
        t.stride[i] = stride[i];
    }
    return t;
}

/* Defines init(), which returns a struct of that type whose fields are zero but struct_size. */
#define GDN_DEFINE_INIT(type, init)         \
    static inline type init(void)           \
    {                                       \
        type a;                             \
        memset(&a, 0, sizeof a);            \
        a.struct_size = (uint32_t)sizeof a; \
        return a;                           \
    }

/* ---- Context ------------------------------------------------------------------------- */

typedef struct gdn_ctx gdn_ctx;

typedef enum gdn_backend { GDN_BACKEND_CPU = 0, GDN_BACKEND_CUDA = 1 } gdn_backend;

/* One item of a piece of parallel work, see gdn_options. */
typedef void (*gdn_work)(void *arg, int64_t item, int32_t thread);

typedef enum gdn_ctx_flag {
    GDN_CTX_CHECK_CONTENTS = 1 /* for debugging, on a GPU: see gdn_ctx_create() */
} gdn_ctx_flag;

/* gdn_options - how a context computes. n_threads, isa and parallel_for have no effect on a GPU. */
typedef struct gdn_options {
    uint32_t struct_size;
    int32_t backend;   /* gdn_backend */
    int32_t n_threads; /* threads that compute, the caller's included; 0: one per
                                processor this process may use */
    const char *isa;   /* upper limit: "scalar", "avx2", "avx512", "neon"; NULL: the best of
                                this machine. GDN_CPU in the environment lowers both */
    /* Allocation of host memory; NULL: the C library's. align is a power of two. */
    void *(*alloc)(void *user, size_t bytes, size_t align);
    void (*release)(void *user, void *memory);
    void *alloc_user;
    /* Takes one line without newline per event; NULL: silence. Events: a kernel is chosen
     * (on a GPU: and why no faster one), a sequence is cut into segments, a buffer grows. */
    void (*log)(void *user, const char *line);
    void *log_user;
    char *error_text; /* where gdn_ctx_create() explains a failure; may be NULL */
    size_t error_text_bytes;
    /* The caller's threads; NULL: the context makes n_threads - 1 threads. parallel_for calls
     * work(arg, item, thread) once for every item from 0 to n - 1, on any threads in any order, and
     * returns when all calls are done. thread is from 0 to n_threads - 1, and no two calls of work
     * have the same thread at one time. Work for one thread is done without parallel_for. A bad
     * item or thread, or an item left out, ends the call with GDN_E_ARG and undefined outputs. */
    void (*parallel_for)(void *user, int64_t n, gdn_work work, void *arg);
    void *parallel_user;
    int32_t device; /* GDN_BACKEND_CUDA: which device, as the driver counts them */
    uint32_t flags; /* gdn_ctx_flag */
} gdn_options;

GDN_DEFINE_INIT(gdn_options, gdn_options_init)

/*
 * gdn_ctx_create - makes a context: device, instruction set, threads, memory.
 *
 * options may be NULL for the defaults. *ctx is NULL after an error. Errors: GDN_E_ARG (an isa or
 * GDN_CPU that is unknown, or that this machine lacks), GDN_E_UNSUPPORTED (backend), GDN_E_MEMORY
 * (an allocation or a thread).
 *
 * Threads. The context's threads wait 30 microseconds for the next call, then sleep. They block
 * every signal. A signal handler may not call this library. If the CPU has AMX, the library
 * requests it from Linux for the process.
 *
 * fork(). A child makes contexts of its own. The child may destroy the contexts of its parent, and
 * may use those that have no threads (n_threads 1, or parallel_for).
 *
 * CUDA. A context of GDN_BACKEND_CUDA computes on one device, in its primary context. Guarantees
 * about bits hold between calls on devices of one kind. For each call:
 *
 *   memory    Tensors, index arrays and the caller's workspace are memory that the device can
 *             address. Structs are in host memory.
 *   stream    The call checks descriptors and enqueues kernels. It does not wait or copy. With
 *             the caller's workspace it does not allocate. If two streams run calls at the same
 *             time, give each call its own workspace.
 *   contents  Kernels read index arrays and do not check them, so G1 covers descriptors only.
 *             Lengths are cut to the tensors. A sequence whose slot does not exist is skipped like
 *             padding. If two sequences write one slot, its content is undefined. Nothing outside
 *             the tensors is touched.
 *   loading   The first call that needs a kernel loads it, in milliseconds, in a capture too. If
 *             this build has no code for the GPU, the driver first compiles it, in seconds.
 *   graphs    A call may be captured. Launches depend on descriptors alone, so a replay may find
 *             other lengths and slots in the same arrays. A captured graph keeps a pointer to its
 *             workspace. A larger call and gdn_ctx_destroy() free the context's own, so pass
 *             yours to a graph that is to live longer.
 *   checking  With GDN_CTX_CHECK_CONTENTS each call copies its index arrays to the host and checks
 *             them as a call on a CPU always does. A wrong entry is GDN_E_ARG or GDN_E_SHAPE, the
 *             text names the array and the row, and nothing is enqueued. Such a call waits for its
 *             stream and allocates memory. In a capture it checks nothing and says so in the log.
 */
GDN_API gdn_status gdn_ctx_create(const gdn_options *options, gdn_ctx **ctx);
GDN_API void gdn_ctx_destroy(gdn_ctx *ctx); /* NULL is allowed */

/* Returns the text of the last error of this context; "" if there was none; never NULL. If a busy
 * context refused a call, the thread of that call gets the text of that refusal. */
GDN_API const char *gdn_last_error(const gdn_ctx *ctx);
/* Returns what the last successful call ran, as "op: loop.isa loop.isa"; on a GPU its kernels, as
 * "op: kernel kernel". */
GDN_API const char *gdn_last_kernel(const gdn_ctx *ctx);
/* Returns "scalar", "avx2", "avx512" or "neon"; on a GPU for instance "sm_90". */
GDN_API const char *gdn_isa(const gdn_ctx *ctx);
/* Returns how many threads compute, the caller included. */
GDN_API int32_t gdn_n_threads(const gdn_ctx *ctx);

/*
 * gdn_self_test - checks that this machine, with this context and its threads, computes correctly.
 *
 * It compares small cases of the ops with plain C in float64, in some milliseconds. It allocates
 * 271 KB, and 230 KB for each thread that stay as the context's workspace.
 */
GDN_API gdn_status gdn_self_test(gdn_ctx *ctx);

/* ---- Asking before a call -------------------------------------------------------------- */

/* Calls by number. Each takes the struct of its name; gdn_prefill and gdn_decode gdn_rule_args. */
typedef enum gdn_op {
    GDN_OP_PREFILL = 0,
    GDN_OP_DECODE = 1,
    GDN_OP_CONV1D = 2,
    GDN_OP_GATES = 3,
    GDN_OP_L2NORM = 4,
    GDN_OP_RMSNORM_GATED = 5,
    GDN_OP_BLOCK = 6,
    GDN_OP_STATE_COPY = 7,
    GDN_OP_SUMMARY = 8,
    GDN_OP_SUMMARY_COMPOSE = 9,
    GDN_OP_SUMMARY_APPLY = 10,
    GDN_OP_CHUNK_CUMSUM = 11,
    GDN_OP_CHUNK_UW = 12,
    GDN_OP_CHUNK_STATES = 13,
    GDN_OP_CHUNK_OUTPUT = 14,
    GDN_OP_RECORD_COMMIT = 15,
    GDN_OP_RECORD_FOLD = 16,
    GDN_OP_STEP = 17,
    GDN_OP_L2NORM_BACKWARD = 18,
    GDN_OP_PREFILL_BACKWARD = 19,
    GDN_OP_GATES_BACKWARD = 20,
    GDN_OP_CONV1D_BACKWARD = 21,
    GDN_OP_RMSNORM_GATED_BACKWARD = 22,
    GDN_OP_BLOCK_BACKWARD = 23,
    GDN_OP_SUMMARY_FOLD = 24
} gdn_op;

/*
 * gdn_supported - returns what the op would return, without computing. It checks the struct:
 * descriptors, flags, alignment, overlaps. It does not read what data points to, so it does not
 * check cu_seqlens, slots and counts, nor the workspace.
 */
GDN_API gdn_status gdn_supported(gdn_ctx *ctx, gdn_op op, const void *args);

/*
 * gdn_workspace_bytes - sets *bytes to the memory that the call needs beside its tensors.
 *
 * Every args struct has workspace and workspace_bytes. If workspace is NULL, the context keeps a
 * buffer that grows on demand and is freed with it. A caller's workspace is aligned to 64 bytes and
 * is scratch: nothing lives in it between calls. Contents are not read. The bytes depend on sizes
 * and on the context; on a GPU also on alignment and strides, which select kernels. So ask with the
 * tensors of the call.
 *
 * On a CPU the bytes grow with B, heads, head sizes and threads. With the number of tokens they
 * grow in gdn_step, in gradients, and where a batch has GDN_WRITE_EACH, checkpoints or, for
 * gdn_decode, parents; in gdn_block up to 256 tokens. A thread of the rule takes at most 640 KiB,
 * V / 256 times as much for V above 256. gdn_gates, gdn_l2norm and gdn_rmsnorm_gated take none.
 *
 * On a GPU these ops take none: gdn_decode without parents, gdn_prefill with GDN_EXACT, gdn_conv1d
 * if out is not x, gdn_gates, gdn_l2norm, gdn_rmsnorm_gated, gdn_state_copy, gdn_record_commit and
 * gdn_record_fold. Segments of gdn_prefill take at most 83 MiB on an H100 with K = V = 128. GPUs
 * other than Hopper take 12 KiB more for 64 tokens of 16 bits and a head. States of 8 bits, or
 * without a stride of 1 in V or K, add 4 H K V bytes for each sequence and checkpoint, as float32.
 * Chunks of the family then add 8 bytes for each sequence.
 * gdn_step, gdn_block, gradients and summaries grow with the number of tokens.
 */
GDN_API gdn_status gdn_workspace_bytes(gdn_ctx *ctx, gdn_op op, const void *args, size_t *bytes);

/* ---- Batches --------------------------------------------------------------------------- */

typedef enum gdn_pad_policy {
    GDN_PAD_ZERO = 0, /* a negative slot: the sequence is skipped, its output is zero */
    GDN_PAD_KEEP = 1, /* the sequence is skipped, its output stays as it was */
    GDN_PAD_SINK = 2  /* the first such sequence with tokens reads and writes slot sink_slot, which
                         may be below first_slot; later ones are skipped as with GDN_PAD_ZERO */
} gdn_pad_policy;

typedef enum gdn_write {
    GDN_WRITE_FINAL = 0, /* the state after the last token */
    GDN_WRITE_EACH = 1,  /* the state after every token, to write_slots[b][t]; decode and conv1d */
    GDN_WRITE_NONE = 2   /* frozen: states are read only */
} gdn_write;

/*
 * gdn_batch - which tokens form which sequence, and where its states are. One batch serves
 * every op and every layer of a step. If args.batch is NULL, sequence b has slot b.
 *
 *   cu_seqlens           [B+1]   for packed tensors [N]...: sequence b has the tokens from
 *                                cu_seqlens[b] to cu_seqlens[b+1]. Starts at 0 or above, does not
 *                                decrease, ends at N or below. Output past its end, and gradients
 *                                outside of it, are zero. Output before the first sequence stays
 *                                (gdn_step: undefined; gdn_block on a GPU: zero). Absent: one
 *                                sequence. Padded tensors [B][T]... take none.
 *   max_seqlen                   upper bound on the longest sequence, in tokens. 0: unknown. A
 *                                hint for gdn_prefill on a GPU, where lengths are in device
 *                                memory: it saves up to 20 us. A wrong value affects speed only.
 *   read_slots           [B]     the slot that sequence b starts from, below P. Many
 *                                sequences may read one slot if none writes it. Negative:
 *                                padding, see pad_policy. With num_accepted_tokens: [B][T'].
 *   write_slots          [B]     the slot for its final state. Absent: the slot it started from.
 *                                No slot is written twice, and no slot is written by one
 *                                sequence and read by another. Negative: the state is dropped,
 *                                the outputs are computed. The slots of empty sequences and of
 *                                padding are not looked at. GDN_WRITE_EACH: [B][T''], T'' at
 *                                least the longest sequence: the slot for the state after
 *                                token t. A negative slot there drops that state.
 *   has_initial_state    [B]     0: start from zero, read nothing. GDN_U8, I32 or I64.
 *   first_slot                   0: slots start at 0. Else a slot below first_slot, in read_slots,
 *                                write_slots and checkpoint_slots, is as a negative one. (vLLM
 *                                pads with slot 0: first_slot is 1 there.) Needs read_slots.
 *   num_accepted_tokens  [B]     n from 1 to T': start from read_slots[b][n - 1]. If read_slots
 *                                holds the write_slots of the last call, then n is the number of
 *                                accepted tokens; after a tree, 1 + the last accepted token. To
 *                                allow 0 accepted tokens, put the slot where the last call
 *                                started first, and add 1 to n.
 *   token_start          [B]     n from 0 to T: the first n tokens of sequence b do not count
 *                                (left padding). token_count, parents, path and checkpoints
 *                                count tokens from there.
 *   token_count          [B]     n from 0 to the rest of T: only n tokens of sequence b count.
 *                                With out absent this is "commit n drafted tokens".
 *
 * Trees of drafted tokens (gdn_decode, gdn_conv1d):
 *
 *   parents              [B][T'] token t of sequence b follows token parents[b][t], which is
 *                                below t; -1: it follows the initial state. The final state is
 *                                that after the last token.
 *   path                 [B][T'] gdn_conv1d with out absent: commit the tokens path[b][0],
 *                                path[b][1], ..., token_count[b] of them; they ascend. The
 *                                result is as if only these inputs were there. parents have no
 *                                effect.
 *
 * Checkpoints: copies of the state inside a call, written to slots of the tensor `checkpoints` of
 * its arguments. They are numbered through the sequences. Checkpoint c of sequence b is the state
 * after its first n tokens:
 *
 *   checkpoint_every             n = every, 2 every, ..., up to its length; or
 *   checkpoint_positions [C]     n = checkpoint_positions[c], from 1 to its length, not
 *                                decreasing, c from checkpoint_starts[b] to ..[b+1] - 1
 *   checkpoint_starts    [B+1]   starts at 0, does not decrease, ends at C or below
 *   checkpoint_slots     [C]     the slot for checkpoint c. Negative: not wanted. Absent: slot c.
 *                                No slot is named twice, and none is one that a sequence starts
 *                                from or ends in.
 *
 * Padding rows write no checkpoints, but keep their numbers. In a tree the state after n tokens is
 * the state after token n - 1 and its ancestors. Ops without a checkpoints field ignore these
 * lists. Other ops return GDN_E_ARG for a checkpoints tensor without one of the two lists, or a
 * list without a checkpoints tensor (gdn_block: one of its two tensors). On a CPU a position that
 * is no multiple of 16 costs gdn_prefill about a third of the work of 16 tokens.
 */
typedef struct gdn_batch {
    uint32_t struct_size;
    int32_t pad_policy; /* gdn_pad_policy */
    int32_t write;      /* gdn_write */
    int32_t max_seqlen; /* 0: unknown */
    int64_t sink_slot;  /* for GDN_PAD_SINK */
    int64_t checkpoint_every;
    gdn_tensor cu_seqlens, read_slots, write_slots, has_initial_state, num_accepted_tokens,
        token_start, token_count, parents, path, checkpoint_starts, checkpoint_positions,
        checkpoint_slots;
    int64_t first_slot; /* slots below it are as negative ones; 0 or more */
} gdn_batch;

GDN_DEFINE_INIT(gdn_batch, gdn_batch_init)

/* ---- The rule: prefill and decode ------------------------------------------------------- */

typedef enum gdn_gate_kind {
    GDN_GATE_LOG = 0,    /* g is the natural logarithm of alpha */
    GDN_GATE_LINEAR = 1, /* g is alpha itself, >= 0 */
    GDN_GATE_RAW = 2     /* g is a: log alpha = -exp(A_log) softplus(a + dt_bias), or with
                            gate_lower_bound < 0: bound sigmoid(exp(A_log) (a + dt_bias)) */
} gdn_gate_kind;

typedef enum gdn_beta_kind {
    GDN_BETA_DEFAULT = 0,       /* GIVEN in the rule, SIGMOID in gdn_gates and gdn_step */
    GDN_BETA_SIGMOID = 1,       /* beta holds b: sigmoid(b) */
    GDN_BETA_TWICE_SIGMOID = 2, /* 2 sigmoid(b): negative eigenvalues allowed */
    GDN_BETA_GIVEN = 3          /* beta itself; in the rule alone */
} gdn_beta_kind;

typedef enum gdn_head_map {
    GDN_HEADS_GROUPED = 0,    /* state head h reads head h / (H / n) of a tensor with n heads */
    GDN_HEADS_INTERLEAVED = 1 /* state head h reads head h mod n (ggml) */
} gdn_head_map;

typedef enum gdn_state_layout {
    GDN_STATE_VK = 0, /* [P][H][V][K], "k-last" */
    GDN_STATE_KV = 1  /* [P][H][K][V], "k-first" */
} gdn_state_layout;

typedef enum gdn_norm {
    GDN_NORM_DEFAULT = 0, /* NONE in the rule and gdn_summary, L2 in gdn_l2norm and gdn_step */
    GDN_NORM_L2 = 1,      /* x / sqrt(sum x^2 + eps) */
    GDN_NORM_L2_ADD = 2,  /* x / (sqrt(sum x^2) + eps) */
    GDN_NORM_L2_MAX = 3,  /* x / max(sqrt(sum x^2), eps) */
    GDN_NORM_NONE = 4     /* x itself; not in gdn_l2norm */
} gdn_norm;

typedef enum gdn_flag {
    GDN_EXACT = 1,           /* the same bits for any split of the tokens over calls */
    GDN_BF16_PRODUCTS = 2,   /* products with the state in bfloat16; not together with GDN_EXACT */
    GDN_BATCH_INVARIANT = 4, /* the same bits for any batch, on a GPU too */
    GDN_NO_EARLY_STOP = 8,   /* every token of a segment counts: see gdn_prefill() */
    GDN_ACCUMULATE = 16,     /* backward ops: gradients are added to what the tensors hold */
    GDN_ZERO_AS_GIVEN = 32,  /* 0 in scale, norm_eps, rms_eps and eps is that number, no default. An
                                eps is then 2^-126, so that a row of zeros stays zero */
    GDN_SPLIT_INVARIANT = 64 /* G23: gdn_record.h */
} gdn_flag;

/* Roundings of 8-bit states. */
typedef enum gdn_rounding {
    GDN_ROUND_NEAREST = 0,
    GDN_ROUND_STOCHASTIC = 1 /* up or down at random, from seed, token, head and element */
} gdn_rounding;

/*
 * gdn_prefill - computes whole sequences, in chunks (the WY form, docs/design/math.md).
 * gdn_decode  - computes the next tokens of each sequence, one after the other.
 *
 * Both compute the rule at the head of this file. gdn_prefill is faster from about 9 tokens per
 * sequence on; on a CPU it computes shorter sequences as gdn_decode does.
 *
 *     q             [N][Hq][K]     f32, bf16 or f16; dense
 *     k             [N][Hk][K]     as q, with its own dtype
 *     v             [N][Hv][V]     as q, with its own dtype
 *     g             [N][H]         f32, bf16 or f16; any strides; absent: alpha = 1. Or [N][H][K]
 *     beta          [N][H]         f32, bf16 or f16; any strides; absent: 1. Or [N][H][K]
 *     A_log dt_bias [H]            f32, bf16 or f16; for GDN_GATE_RAW alone; dt_bias absent: 0.
 *                                  dt_bias of a g [N][H][K] is [H][K]. A_log absent, with
 *                                  gate_lower_bound: 0
 *     state         [P][H][V][K]   f32, bf16, f16, i8, e4m3, e5m2; any strides, but slower if none
 *                                  of its last two is 1. Absent: sequences start from zero.
 *     state_out     [P][H][V][K]   as state; where states are written. Absent: in state, in place.
 *                                  Both absent: final states are dropped.
 *     out           [N][H][V]      as q, with its own dtype; absent: no output
 *     checkpoints   [P][H][V][K]   as state, with its own dtype and strides; see gdn_batch. May be
 *                                  the very view that final states are written to.
 *                                  Absent: none are written.
 *     write_gate    [N][H][V]      f32, bf16 or f16; dense; see "The family"
 *     record_...                   see gdn_record.h
 *
 * Instead of [N] all of q k v g beta out may begin with [B][T], a padded batch. K is 1 to 256 and V
 * 1 to 1024. H = max(Hq, Hv), and Hq, Hk and Hv divide H. head_map says which head of q, k and v a
 * state head reads (GVA: Hv > Hq = Hk; GQA: Hq > Hk = Hv).
 *
 * The family. A token has n = updates pairs of k and v. With a, b and w of each token and head:
 *
 *     S <- diag(a) S                                          once
 *     u = w * v - S^T (b * k);    S <- S + k u^T              n times, in the order of the rows
 *     o = scale S^T q                                         after the last update
 *
 *     rule                  g           beta          write_gate    updates
 *     Gated DeltaNet        [N][H]      [N][H]        -             1
 *     KDA                   [N][H][K]   [N][H]        -             1
 *     GDN-2                 [N][H][K]   [N][H][K]     [N][H][V]     1
 *     Gated DeltaProduct    [N][H]      [n N][H]      -             n
 *
 * Any combination is a call. a is exp(g), for each key channel or the same for all of them. beta
 * [N][H] is b and w. beta [N][H][K], the erase gate, is b, and w is then 1. A write_gate is w. Its
 * last two sizes and those of beta follow k. With updates n, these tensors, k and v have n N rows
 * ([B][n T] in padded batches), and token t has rows n t to n t + n - 1. All else counts tokens:
 * cu_seqlens, q, g, out, checkpoints. A last size of 1 of g and beta is no size.
 *
 *   gates     Raw gates are per channel: -exp(A_log[h]) softplus(a + dt_bias[h][k]), or with a
 *             bound bound sigmoid(exp(A_log[h]) (a + dt_bias[h][k])). beta_kind SIGMOID holds for
 *             beta and write_gate; TWICE_SIGMOID doubles the sigmoid of beta alone.
 *   G7        A channel with a = 0 forgets its row of S alone.
 *   G8        v is not read where w is 0. Nothing is written if b and w of a row are all 0.
 *   G9        All g, b and w of the call are 0.
 *   where     Records and trees take one update.
 *             GDN_BF16_PRODUCTS has no effect.
 *
 * An empty sequence leaves its states alone, state_out too. The final state of a sequence whose
 * token_count is 0 is the state that it started from.
 *
 * Aliasing. out may be the very view v (if Hv = H). state_out may be the very view state. No other
 * written tensor may overlap another.
 *
 * Flags:
 *
 *   GDN_EXACT            G17. Every token is computed alone, in one order of summation. A state of
 *                        less than float32 is rounded after each token, to the dtype of the pool
 *                        for final states (without one: of the pool where states start). Cost on a
 *                        CPU: gdn_prefill 1/3, gdn_decode up to 1/5. On a GPU gdn_prefill runs the
 *                        kernels of gdn_decode.
 *   GDN_BF16_PRODUCTS    gdn_prefill with bf16 q (gdn_block: hidden; else GDN_E_DTYPE), on a CPU
 *                        with AMX or AVX512-BF16: factors of the products k . S and q . S are
 *                        rounded to bfloat16. Each product is off by up to 2^-8 of its absolute
 *                        value. Elsewhere, in gdn_decode and in gdn_step it changes nothing.
 *   GDN_BATCH_INVARIANT  gdn_prefill on a GPU does not split sequences: few long ones take up to
 *                        4 times as long. No effect on a CPU, where bits never depend on the batch.
 *   GDN_NO_EARLY_STOP    gdn_prefill on a GPU: see "Splitting". No effect on a CPU.
 *   GDN_ZERO_AS_GIVEN    see gdn_flag
 *
 * gdn_prefill on a GPU:
 *
 *   chunks      have 64 tokens (32 if K is above 128, 16 for float32). bfloat16 and float16 are
 *               multiplied on tensor cores: keys, queries, the state and intermediate values are
 *               rounded to that dtype as factors, and summed in float32. If q, k, v and out do not
 *               have one dtype, the call goes token by token, which is slow for prompts.
 *   single      On Hopper kernels of gdn_decode may compute sequences of one token among prompts.
 *   tokens      Their bits are those of gdn_decode.
 *   Splitting   Few long sequences of 16 bits are cut into segments at multiples of 64 tokens. Each
 *               cut rounds once more, and depends on the batch. On Hopper, without
 *               GDN_NO_EARLY_STOP, if `norm` normalises keys, first tokens of a segment are skipped
 *               if they change its last state by at most 2^-24 of the state's length.
 *
 * docs/design/guarantees.md has the conditions and the limit.
 *
 * Precision: in gdn_prefill without GDN_EXACT, GDN_GATE_LINEAR is computed through its logarithm.
 * Guarantees: G1 to G13, G17 to G20, G23.
 *
 * Errors: GDN_E_ARG (flags, slots, cu_seqlens, overlaps), GDN_E_SHAPE, GDN_E_DTYPE,
 * GDN_E_UNSUPPORTED (K above 256, V above 1024; GDN_WRITE_EACH in gdn_prefill), GDN_E_MEMORY.
 */
typedef struct gdn_rule_args {
    uint32_t struct_size;
    uint32_t flags; /* gdn_flag */
    gdn_tensor q, k, v, g, beta, A_log, dt_bias, state, state_out, out, checkpoints;
    gdn_tensor state_scales, state_out_scales, checkpoint_scales;
    gdn_tensor record_k, record_u, record_g, record_count;
    const gdn_batch *batch; /* NULL: see gdn_batch */
    int32_t gate;           /* gdn_gate_kind */
    int32_t beta_kind;      /* gdn_beta_kind; 0: GIVEN */
    int32_t head_map;       /* gdn_head_map */
    int32_t state_layout;   /* gdn_state_layout, of state and state_out */
    int32_t norm;           /* gdn_norm, of q and k, inside the call; 0: NONE */
    float norm_eps;         /* 0: 1e-6 */
    float scale;            /* 0: 1 / sqrt(K) */
    float gate_lower_bound; /* 0: none; else below 0, for GDN_GATE_RAW */
    int32_t rounding;       /* gdn_rounding, of 8-bit states */
    int32_t updates;        /* of each token, up to 8; 0: 1 */
    uint64_t seed;          /* for GDN_ROUND_STOCHASTIC */
    void *workspace;        /* see gdn_workspace_bytes() */
    size_t workspace_bytes;
    void *stream; /* CUDA; NULL on a CPU */
    gdn_tensor write_gate;
} gdn_rule_args;

GDN_DEFINE_INIT(gdn_rule_args, gdn_rule_args_init)

GDN_API gdn_status gdn_prefill(gdn_ctx *ctx, const gdn_rule_args *args);
GDN_API gdn_status gdn_decode(gdn_ctx *ctx, const gdn_rule_args *args);

/*
 * States of 8 bits. state, state_out or checkpoints are GDN_I8, GDN_E4M3 or GDN_E5M2. Each may have
 * a tensor of scales, and with GDN_I8 it must. The K elements of a value column share one scale, in
 * both layouts:
 *
 *     .._scales     [P][H][V]      f32, dense: element = stored value x scale
 *
 * An element is read as float32. Its scale is m / 127 (GDN_I8), m / 448 (GDN_E4M3) or m / 57344
 * (GDN_E5M2), where m is the largest magnitude of the column. A column with a NaN or an infinity
 * becomes NaN as a whole, until a gate of -inf. Without scales (FlashInfer) an element beyond 448
 * or 57344 becomes that value, and a NaN stays alone. On a GPU, GDN_E5M2 and states without scales
 * take a slower kernel. Errors: docs/design/state-dtypes.md.
 *
 * GDN_ROUND_STOCHASTIC rounds an element up or down, and keeps its mean. The random number depends
 * on seed + n, the state head, and the element's v and k. n is the number of tokens of the sequence
 * in this call when the state is stored. GDN_EXACT with such a state takes no parents
 * (GDN_E_UNSUPPORTED). Other dtypes ignore `rounding`.
 *
 * docs/design/numerics.md, section 13, has all formulas.
 */

/* ---- Short convolution -------------------------------------------------------------------- */

typedef enum gdn_activation {
    GDN_ACT_DEFAULT = 0, /* NONE in gdn_conv1d, SILU in gdn_rmsnorm_gated */
    GDN_ACT_SILU = 1,    /* x sigmoid(x) */
    GDN_ACT_SIGMOID = 2, /* in gdn_rmsnorm_gated alone */
    GDN_ACT_NONE = 3     /* x itself; in gdn_conv1d alone */
} gdn_activation;

/*
 * gdn_conv1d - computes a causal depthwise convolution over the tokens of each sequence:
 *
 *     out[t][d] = act(bias[d] + sum_w weight[d][w] x[t - W + 1 + w][d])
 *
 * where x at t < 0 comes from the state, or is zero.
 *
 *     x         [N][D]       A        any strides; or [B][T][D]. Fastest if that of D is 1; then
 *                            (channels first) if that of the tokens is
 *     weight    [D][W]       f32, bf16 or f16; W from 2 to 16; or [D][1][W]
 *     bias      [D]          f32, bf16 or f16; absent: 0
 *     state     [P][D][S]    f32, bf16 or f16; S >= W - 1; any strides (channels first or
 *                            last). The newest input comes last; the last W - 1 enter the sums.
 *                            Afterwards it holds the last S of its old content followed by x.
 *                            Absent: zero.
 *     state_out [P][D][S]    as state, with the same S; absent: in place in state
 *     checkpoints [P][D][S]  as state, with its own dtype and strides and the same S (without a
 *                            state: S at least W - 1); as for gdn_prefill()
 *     out       [N][D]       A        any strides; may be the very view x; absent: only states
 *                            move
 *
 * Activations: none, SiLU. Batch: as for the rule, GDN_WRITE_EACH included. In a tree, the inputs
 * before a token are the inputs of its ancestors, then the state's. The result has the bits that
 * this chain of tokens has as a sequence of its own. Guarantees: G1, G2, G3, G6, G10 to G13, G18,
 * and: T tokens in one call and in T calls give the same bits if the state's dtype holds x exactly.
 * Errors: as for gdn_prefill().
 */
typedef struct gdn_conv1d_args {
    uint32_t struct_size;
    uint32_t flags; /* 0 */
    gdn_tensor x, weight, bias, state, state_out, out, checkpoints;
    const gdn_batch *batch;
    int32_t activation; /* gdn_activation: NONE or SILU; 0: NONE */
    int32_t reserved;   /* 0 */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} gdn_conv1d_args;

GDN_DEFINE_INIT(gdn_conv1d_args, gdn_conv1d_args_init)

GDN_API gdn_status gdn_conv1d(gdn_ctx *ctx, const gdn_conv1d_args *args);

/* ---- Gates --------------------------------------------------------------------------------- */

/*
 * gdn_gates - computes the gates of the rule from their raw inputs, per token and head:
 *
 *     g    = -exp(A_log) softplus(a + dt_bias)      softplus(x) = log(1 + exp(x)), x above 20
 *     beta = sigmoid(b) or 2 sigmoid(b)
 *
 * With gate_lower_bound < 0: g = bound sigmoid(exp(A_log) (a + dt_bias)) (Kimi Linear).
 *
 *     a b           [...][H]    f32, bf16 or f16, any strides; 1 to 5 leading dimensions. a and g
 *                               may be absent together, and so may b and beta. Fastest if heads
 *                               are dense
 *     A_log dt_bias [H]         f32, bf16 or f16; dt_bias absent: 0. With a bound A_log may be
 *                               absent: 0
 *     g beta        as a, b     f32, bf16 or f16, any strides; may be the very view a, b
 *
 * If dt_bias is [H][K], a gate is per key channel: a and g are [...][H][K], and b and beta that or
 * [...][H].
 *
 * gate: GDN_GATE_LOG writes g, GDN_GATE_LINEAR exp(g). Guarantees: G1, G2, G3, G6, G12, G13.
 */
typedef struct gdn_gates_args {
    uint32_t struct_size;
    uint32_t flags; /* 0 */
    gdn_tensor a, b, A_log, dt_bias, g, beta;
    int32_t gate;           /* gdn_gate_kind of the output */
    int32_t beta_kind;      /* gdn_beta_kind: SIGMOID or TWICE_SIGMOID; 0: SIGMOID */
    float gate_lower_bound; /* 0: none; else below 0 */
    int32_t reserved;       /* 0 */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} gdn_gates_args;

GDN_DEFINE_INIT(gdn_gates_args, gdn_gates_args_init)

GDN_API gdn_status gdn_gates(gdn_ctx *ctx, const gdn_gates_args *args);

/* ---- Norms --------------------------------------------------------------------------------- */

/*
 * gdn_l2norm - scales rows to length 1, by the formula that norm names. A zero row stays zero.
 *
 *     x out   [...][D]   f32, bf16 or f16 each, dense, D from 1 to 65536; out may be the very
 *                        view x
 *
 * Guarantees: G1, G2, G3, G6, G12, G13.
 */
typedef struct gdn_l2norm_args {
    uint32_t struct_size;
    uint32_t flags; /* gdn_flag: GDN_ZERO_AS_GIVEN */
    gdn_tensor x, out;
    int32_t norm; /* gdn_norm, not NONE; 0: L2 */
    float eps;    /* 0: 1e-6 */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} gdn_l2norm_args;

GDN_DEFINE_INIT(gdn_l2norm_args, gdn_l2norm_args_init)

GDN_API gdn_status gdn_l2norm(gdn_ctx *ctx, const gdn_l2norm_args *args);

/*
 * gdn_rmsnorm_gated - computes out = x / sqrt(mean x^2 + eps) weight act(z)
 *
 *     x z out   [...][D]   f32, bf16 or f16 each, dense, D from 1 to 65536; out may be the
 *                          very view x or z; z absent: no gate
 *     weight    [D]        f32, bf16 or f16; absent: 1
 *
 * Arithmetic is float32, with one rounding (Hugging Face rounds x to its dtype before the weight;
 * FLA does not). Guarantees: G1, G2, G3, G6, G12, G13.
 */
typedef struct gdn_rmsnorm_gated_args {
    uint32_t struct_size;
    uint32_t flags; /* gdn_flag: GDN_ZERO_AS_GIVEN */
    gdn_tensor x, z, weight, out;
    int32_t activation; /* gdn_activation: SILU or SIGMOID; 0: SILU */
    float eps;          /* 0: 1e-6 */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} gdn_rmsnorm_gated_args;

GDN_DEFINE_INIT(gdn_rmsnorm_gated_args, gdn_rmsnorm_gated_args_init)

GDN_API gdn_status gdn_rmsnorm_gated(gdn_ctx *ctx, const gdn_rmsnorm_gated_args *args);

/* ---- A step of an engine --------------------------------------------------------------------- */

/*
 * gdn_step - computes the next tokens of each sequence: all of a layer between its projections.
 *
 *     gdn_conv1d() with SiLU -> gdn_gates() and gdn_l2norm() of q and k -> gdn_decode()
 *                            -> gdn_rmsnorm_gated(), if there is a z or a norm_weight
 *
 *     x             [N][D]                   A      dense; or [B][T][..]. D = 2 Hk K + Hv V
 *                                            channels: of q, then of k, then of v, head by head
 *     a b           [N][Hv]                  f32, bf16 or f16; any strides. a may be [N][Hv][K]
 *                                            and dt_bias then [Hv][K]: KDA
 *     z             [N][Hv][V]               A      dense; absent: no gate of the norm
 *     conv_weight   [D][W]                   f32, bf16 or f16; or [..][1][W]. Absent: x is what the
 *                                            convolution gave; conv_bias and conv_state are then
 *                                            absent too
 *     conv_bias     [D]                      f32, bf16 or f16; absent: 0
 *     A_log dt_bias [Hv]                     f32, bf16 or f16; dt_bias absent: 0
 *     norm_weight   [V]                      f32, bf16 or f16; absent: 1
 *     conv_state    [P][D][S]                as in gdn_conv1d()
 *     state         [P][Hv][V][K]            as in gdn_decode(), state_layout as there
 *     state_scales  [P][Hv][V]               for a state of 8 bits, as in gdn_decode()
 *     out           [N][Hv][V]               A      dense; absent: only states change
 *     write_gate    [N][Hv][V]               f32, bf16 or f16; dense; its sigmoid is w. GDN-2: b is
 *                                            then [N][Hv][K]. See "The family"
 *     record_...    see gdn_record.h
 *
 * With updates n (Gated DeltaProduct), b and write_gate have n N rows. D is Hk K + n (Hk K + Hv V):
 * channels of q, then of n keys, then of n values.
 *
 * States are updated in place. If a state is absent, it starts from zero and is dropped. Batch: as
 * for gdn_decode(), with the same slots in both pools. No tensor that is written may overlap
 * another one.
 *
 * On a CPU the result has the bits that the separate calls give. q, k and v are rounded to A after
 * the convolution, and o before its norm. The gates and the normalised q and k stay float32. On a
 * GPU sums may have another order.
 *
 * Guarantees: G1, G2, G3, G4 (if conv_state holds x exactly), G6 to G8, G10 to G13, G17, G19.
 * Errors: as for gdn_decode().
 */
typedef struct gdn_step_args {
    uint32_t struct_size;
    uint32_t flags; /* gdn_flag */
    gdn_tensor x, a, b, z, conv_weight, conv_bias, A_log, dt_bias, norm_weight, conv_state, state,
        state_scales, out;
    const gdn_batch *batch;
    int32_t n_key_heads, n_value_heads;   /* Hk, Hv */
    int32_t key_head_dim, value_head_dim; /* K, V */
    int32_t beta_kind;                    /* gdn_beta_kind, not GIVEN; 0: SIGMOID */
    int32_t head_map;                     /* gdn_head_map */
    int32_t state_layout;                 /* gdn_state_layout */
    int32_t norm;                         /* gdn_norm, of q and k; 0: L2 */
    float norm_eps, rms_eps;              /* of q and k; of o; 0: 1e-6 */
    float scale;                          /* 0: 1 / sqrt(K) */
    float gate_lower_bound;               /* 0: none; else below 0 */
    int32_t rounding;                     /* gdn_rounding, of 8-bit states */
    int32_t activation;                   /* of z: SILU or SIGMOID; 0: SILU */
    uint64_t seed;                        /* for GDN_ROUND_STOCHASTIC */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
    gdn_tensor record_k, record_u, record_g, record_count;
    gdn_tensor write_gate;
    int32_t updates;  /* of each token, up to 8; 0: 1 */
    int32_t reserved; /* 0 */
} gdn_step_args;

GDN_DEFINE_INIT(gdn_step_args, gdn_step_args_init)

GDN_API gdn_status gdn_step(gdn_ctx *ctx, const gdn_step_args *args);

/* ---- The whole layer ------------------------------------------------------------------------ */

/*
 * gdn_block - computes one layer of Gated DeltaNet or KDA as Hugging Face saves it: projections,
 * convolution with SiLU, q/k L2 norm (eps 1e-6), gates, rule (scale 1 / sqrt(K)), gated RMSNorm,
 * output projection. Prefill and decode are one call, with states in pools.
 *
 *     hidden        [N][hidden]              A      dense; or [B][T][hidden]
 *     out           [N][hidden]              A      dense
 *
 * either (Qwen3-Next: rows grouped by key head, see "Which layout is mine")
 *     in_proj_qkvz  [2 Hk K + 2 Hv V][hidden]
 *     in_proj_ba    [2 Hv][hidden]
 *
 * or
 *     in_proj_qkv   [2 Hk K + Hv V][hidden]  Qwen3.5; or in_proj_q, in_proj_k and in_proj_v apart
 *     in_proj_z     [Hv V][hidden]           or low rank: [..][R] after in_proj_z_down [R][hidden]
 *     in_proj_b     [Hv][hidden]
 *     in_proj_a     [Hv][hidden]             KDA: [Hv K]; low rank, with its own R: in_proj_a_down
 *
 * and
 *     conv_weight   [2 Hk K + Hv V][W]       or [..][1][W]; of q, then k, then v
 *     conv_bias     [2 Hk K + Hv V]          absent: 0
 *     A_log dt_bias [Hv]                     KDA: dt_bias [Hv][K]
 *     norm_weight   [V]
 *     out_proj      [hidden][Hv V]
 *     conv_state    [P][2 Hk K + Hv V][S]    as in gdn_conv1d()
 *     state         [P][Hv][V][K]            as in gdn_prefill(), state_layout as there
 *     checkpoints   [P'][Hv][V][K]           as there
 *     conv_checkpoints [P'][2 Hk K + Hv V][S]  as in gdn_conv1d(); the slots of checkpoints.
 *                                            Each may be the very view state or conv_state
 *     state_scales  [P][Hv][V]               for state and checkpoints of 8 bits, as in
 *     checkpoint_scales [P'][Hv][V]          gdn_prefill()
 *     record_...    see gdn_record.h
 *
 * Weights are f32, bf16 or f16, and dense. States are updated in place. If a state is absent, it
 * starts from zero and is dropped. GDN_WRITE_EACH is not supported. Guarantees: G1, G2, G3, G5, G6,
 * G10 to G13, G18.
 *
 * On a CPU values between the steps stay float32. The order of a projection's sums depends on
 * hidden alone. With GDN_EXACT and a float32 conv_state, any split of the tokens over calls gives
 * the same bits, per instruction set.
 *
 * On a GPU values between the steps are rounded to A, except b and a of the gates.
 *
 *   projections   cuBLAS computes them, with sums in float32 whose order may depend on N. The
 *                 library opens cuBLAS when a call or gdn_workspace_bytes() first needs it; if it
 *                 is missing, GDN_E_UNSUPPORTED. With GDN_EXACT, for weights whose dtype is not A,
 *                 and for rows 2^31 elements apart, the library's own kernels compute them, slower,
 *                 in the order of hidden. If they compute all, GDN_EXACT or GDN_BATCH_INVARIANT
 *                 gives G2, G11 and G18 to the bit. GDN_EXACT also gives G17.
 *   the rule      runs token by token if T <= 8 or N <= B, otherwise in chunks.
 *                 GDN_BATCH_INVARIANT always uses chunks.
 *   graphs        A call may be captured if a call of these sizes has run before.
 */
typedef struct gdn_block_args {
    uint32_t struct_size;
    uint32_t flags; /* gdn_flag */
    gdn_tensor hidden, in_proj_qkvz, in_proj_ba, in_proj_qkv, in_proj_z, in_proj_b, in_proj_a,
        conv_weight, conv_bias, A_log, dt_bias, norm_weight, out_proj, conv_state, state, out,
        checkpoints, conv_checkpoints, state_scales, checkpoint_scales;
    const gdn_batch *batch;
    int32_t n_key_heads, n_value_heads;   /* Hk, Hv */
    int32_t key_head_dim, value_head_dim; /* K, V */
    int32_t state_layout;
    float rms_eps;      /* of the gated RMSNorm; 0: 1e-6 */
    int32_t rounding;   /* gdn_rounding, of 8-bit states */
    int32_t activation; /* as in gdn_step() */
    uint64_t seed;      /* for GDN_ROUND_STOCHASTIC */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
    int32_t beta_kind;      /* as in gdn_step() */
    float gate_lower_bound; /* as in gdn_step() */
    gdn_tensor in_proj_q, in_proj_k, in_proj_v, in_proj_z_down, in_proj_a_down;
    gdn_tensor record_k, record_u, record_g, record_count;
} gdn_block_args;

GDN_DEFINE_INIT(gdn_block_args, gdn_block_args_init)

GDN_API gdn_status gdn_block(gdn_ctx *ctx, const gdn_block_args *args);

/* ---- States: copy and convert --------------------------------------------------------------- */

/*
 * gdn_state_copy - copies slots of a pool to slots of a pool. It also forks, zeroes, gathers and
 * converts states: each pool has its own dtype, layout and strides.
 *
 *     from_pool   [P][H][V][K]    f32, bf16, f16, i8, e4m3 or e5m2; from_layout says which of V and
 *                                 K is last. Absent: every target becomes zero.
 *     to_pool     [P'][H][V][K]   one of these dtypes, with to_layout
 * or, for states of gdn_conv1d, which have three dimensions (layouts are 0),
 *     from_pool   [P][D][S]       f32, bf16 or f16
 *     to_pool     [P'][D][S']     the newest inputs are kept; if S' > S, the oldest are zero
 *     from_slots  [M]             pair m reads this slot; many pairs may read one slot (fork).
 *                                 Negative: its target becomes zero. Absent: slot m.
 *     to_slots    [M]             pair m writes this slot. Negative: the pair is skipped, and its
 *                                 from-slot is not read. Absent: slot m.
 *     from_scales [P][H][V]       f32, dense; for a pool of 8 bits (e4m3 and e5m2 may have none),
 *     to_scales   [P'][H][V]      otherwise absent. Copied with the values; K is at most 256
 *
 * If both slots are absent, all slots are copied, and both pools have the same number of slots. No
 * slot is written twice.
 *
 * Aliasing. to_pool may be the very view from_pool, with the same layout and scales; then no slot
 * is written by one pair and read by another. No other overlap.
 *
 * Precision: if the dtype changes, a value is rounded once, to nearest even (8 bits: as `rounding`
 * says, for n = 0). Guarantees: G1, G2, G3, G6, G12 to G14, G21. Errors: GDN_E_ARG (fields, slots,
 * overlaps), GDN_E_SHAPE, GDN_E_DTYPE, GDN_E_UNSUPPORTED (above 2^31 pairs; K above 256 with 8
 * bits), GDN_E_MEMORY.
 */
typedef struct gdn_state_copy_args {
    uint32_t struct_size;
    uint32_t flags; /* 0 */
    gdn_tensor from_pool, to_pool, from_slots, to_slots;
    gdn_tensor from_scales, to_scales;
    int32_t from_layout, to_layout; /* gdn_state_layout */
    int32_t rounding;               /* gdn_rounding */
    int32_t reserved;               /* 0 */
    uint64_t seed;                  /* for GDN_ROUND_STOCHASTIC */
    void *workspace;
    size_t workspace_bytes;
    void *stream;
} gdn_state_copy_args;

GDN_DEFINE_INIT(gdn_state_copy_args, gdn_state_copy_args_init)

GDN_API gdn_status gdn_state_copy(gdn_ctx *ctx, const gdn_state_copy_args *args);

#ifdef __cplusplus
}
#endif

#endif
