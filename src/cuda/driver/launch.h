/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The device of a context: driver, images, kernels, memory; and launching. An op's host part
 * (cuda/<area>/) turns a checked call into one struct of args.h and calls gdn_cuda_launch().
 */
#ifndef GDN_CUDA_LAUNCH_H
#define GDN_CUDA_LAUNCH_H

#include "batch/plan.h"
#include "core/ctx.h"
#include "cuda/driver/api.h"
#include "cuda/driver/args.h"
#include "cuda/driver/switches.h"
#include "cuda/driver/images.h"

/* The parts of a kernel's name, joined. */
#define GDN_CU_JOIN(...)                                                                  \
    GDN_CU_SEVENTH(__VA_ARGS__, GDN_CU_JOIN6, GDN_CU_JOIN5, GDN_CU_JOIN4, GDN_CU_JOIN3, ) \
    (__VA_ARGS__)
#define GDN_CU_SEVENTH(a, b, c, d, e, f, join, ...) join
#define GDN_CU_JOIN3(a, b, c) a##_##b##_##c
#define GDN_CU_JOIN4(a, b, c, d) a##_##b##_##c##_##d
#define GDN_CU_JOIN5(a, b, c, d, e) a##_##b##_##c##_##d##_##e
#define GDN_CU_JOIN6(a, b, c, d, e, f) a##_##b##_##c##_##d##_##e##_##f

/* The kernels, in the order of kernels.def: GDN_CU_<stem>_<parameters>. */
enum gdn_kernel_id {
#define GDN_KERNEL(image, threads, shared, ...) GDN_CU_JOIN(GDN_CU, __VA_ARGS__),
#include "cuda/driver/kernels.def"
    GDN_N_KERNELS,
    GDN_CU_cublas = GDN_N_KERNELS /* cuBLAS, in lists of what ran */
};

/* The kernels of a call, each once. gdn_cuda_ran_add() adds to them. */
enum { GDN_CUDA_MAX_RAN = 32 };
struct gdn_cuda_ran {
    int n;
    enum gdn_kernel_id kernels[GDN_CUDA_MAX_RAN];
    struct gdn_cuda_ran *outer; /* see gdn_cuda_gather() */
};

enum { GDN_CUDA_CHOICE = 512 }; /* characters of a line about a choice of kernels */
enum gdn_cuda_choice {
    GDN_CUDA_DECODE_CHOICE,
    GDN_CUDA_RECORD_CHOICE,
    GDN_CUDA_PREFILL_CHOICE,
    GDN_CUDA_SUMMARY_CHOICE,
    GDN_CUDA_BACKWARD_CHOICE,
    GDN_CUDA_GRADIENTS_CHOICE,
    GDN_CUDA_CONV_CHOICE,
    GDN_CUDA_NORM_CHOICE,
    GDN_CUDA_NORM_GRADIENTS_CHOICE,
    GDN_CUDA_GATES_CHOICE,
    GDN_CUDA_COPY_CHOICE,
    GDN_CUDA_STEP_CHOICE,
    GDN_CUDA_BLOCK_CHOICE,
    GDN_CUDA_PROJECTION_CHOICE,
    GDN_CUDA_PRODUCT_CHOICE,
    GDN_CUDA_N_CHOICES
};

struct gdn_cuda {
    struct gdn_cu_api api;
    gdn_cu_device device;
    gdn_cu_context context;
    int capability;   /* 10 major + minor */
    int chips;        /* of the code that runs: GDN_CHIPS_sm_90a, or GDN_CHIPS_all (portable) */
    bool from_ptx;    /* the driver compiled that code */
    uint32_t without; /* a bit for each switch, see gdn_cuda_is_off() */
    char isa[16];     /* "sm_90" */
    char name[64];
    int sm_count, shared_most;              /* shared_most: the most bytes of shared memory of a
                                               block */
    gdn_cu_library libraries[GDN_N_IMAGES]; /* NULL: not for this device, or not used yet */
    gdn_cu_kernel kernels[GDN_N_KERNELS];   /* the same */
    struct gdn_blas *blas;                  /* cuBLAS; NULL: not opened yet */
    struct gdn_cuda_ran *gathered;          /* see gdn_cuda_gather(); NULL: nothing is gathered */
    gdn_cu_memory workspace;
    size_t workspace_bytes;
    struct gdn_cuda_sm90 *sm90; /* caches of prefill/sm90 (cache.h); backend.c allocates them */
    char choices[GDN_CUDA_N_CHOICES][GDN_CUDA_CHOICE]; /* last lines of gdn_cuda_log_choice() */
};

/* The least compute capability. */
enum { GDN_CUDA_LEAST = 80 };

/* Opens ctx->options.device and finds out which code it runs. */
gdn_status gdn_cuda_create(gdn_ctx *ctx);
void gdn_cuda_destroy(gdn_ctx *ctx);

/* Returns true if the code for sm_90a runs. That code alone has clusters, and kernels that begin
 * before the kernel ahead has ended: portable code lacks their barriers and waits. The capability
 * does not decide: a Hopper runs portable code if the driver compiles it from PTX. */
static inline bool gdn_cuda_runs_sm_90a(const struct gdn_cuda *c)
{
    return c->chips == GDN_CHIPS_sm_90a;
}

/* Returns true if the context does without these forms (switches.h). */
static inline bool gdn_cuda_is_off(const gdn_ctx *ctx, enum gdn_cuda_switch which)
{
    return ctx->cuda->without >> which & 1;
}

/* Returns a remark on devices of a compute capability: which code of this build they run, and
 * whether that ever ran. "" for Hopper. */
const char *gdn_cuda_code_text(int capability);

/* gdn_cuda_enter() makes the device's context the current one of the thread, if it is not.
 * gdn_cuda_leave() undoes that. */
gdn_status gdn_cuda_enter(gdn_ctx *ctx, bool *pushed);
void gdn_cuda_leave(gdn_ctx *ctx, bool pushed);

/* Fails with an error that has the driver's call, the result's name and its text. */
gdn_status gdn_cuda_fail(gdn_ctx *ctx, gdn_cu_result result, const char *call, const char *what);

#define GDN_CU(ctx, what, call, arguments)                        \
    do {                                                          \
        const gdn_cu_result r_ = (ctx)->cuda->api.call arguments; \
        if (r_ != 0) return gdn_cuda_fail(ctx, r_, #call, what);  \
    } while (0)

/* Sets *memory to device memory: the caller's workspace if there is one (checked), else the
 * context's, which grows. */
gdn_status gdn_cuda_get_workspace(gdn_ctx *ctx, void *given, size_t given_bytes, size_t needed,
                                  void **memory);

/* A plan takes the workspace to begin here. Its address is not known yet, its alignment is. */
#define GDN_CUDA_NOWHERE ((char *)64)

struct gdn_cuda_call {
    enum gdn_kernel_id kernel;
    int64_t grid[3]; /* nothing is launched if one is 0 */
    int n_threads;   /* 0: as many as kernels.def has, the most */
    int cluster;     /* blocks of a cluster, side by side in x (sm_90); 0: one */
    size_t shared_bytes;
    void *stream;
    const void *args; /* of the kernel's area */
    bool overlaps;    /* the kernel may begin before the kernel ahead of it in the stream ends,
                         and waits for that kernel by griddepcontrol.wait */
};
gdn_status gdn_cuda_launch(gdn_ctx *ctx, const struct gdn_cuda_call *call);

/* Return the name, "gdn_<stem>_<parameters>", and what kernels.def says: the image, the threads
 * of a block, the most bytes of dynamic shared memory. gdn_cuda_has_kernel() returns true if this
 * device runs the kernel, even if it is not loaded yet. */
const char *gdn_cuda_kernel_name(enum gdn_kernel_id kernel);
enum gdn_image_id gdn_cuda_kernel_image(enum gdn_kernel_id kernel);
int gdn_cuda_kernel_threads(enum gdn_kernel_id kernel);
int gdn_cuda_kernel_shared(enum gdn_kernel_id kernel);
bool gdn_cuda_has_kernel(const gdn_ctx *ctx, enum gdn_kernel_id kernel);

/* Adds a kernel to a list, unless the list has it or is full. */
void gdn_cuda_ran_add(struct gdn_cuda_ran *ran, enum gdn_kernel_id kernel);

/* Ends a call that launched: notes the kernels' names, as gdn_note_kernel() does the loops'. If
 * an outer call gathers kernels, it adds them to these instead. */
gdn_status gdn_cuda_note(gdn_ctx *ctx, const char *op, enum gdn_kernel_id kernel);
gdn_status gdn_cuda_note_all(gdn_ctx *ctx, const char *op, const enum gdn_kernel_id *kernels,
                             int n);

/* A call that consists of others gathers their kernels in `ran` from gdn_cuda_gather() on.
 * gdn_cuda_note_gathered() ends that, notes the kernels, and returns the status of the call. */
void gdn_cuda_gather(gdn_ctx *ctx, struct gdn_cuda_ran *ran);
gdn_status gdn_cuda_note_gathered(gdn_ctx *ctx, const char *op, gdn_status status);

/* Logs why a form of an op was chosen, "op: form (reasons)", unless the last line of that choice
 * was the same. */
void gdn_cuda_log_choice(gdn_ctx *ctx, enum gdn_cuda_choice choice, const char *line);

/* gdn_cuda_array() returns a vector [n] or a matrix as kernels read it; gdn_cuda_fill_batch() fills
 * in a batch. Large structs are filled in where they are needed, here and below: a copy costs as
 * much as a check. */
struct gdn_cu_array gdn_cuda_array(const gdn_tensor *t);
void gdn_cuda_fill_batch(struct gdn_cu_batch *to, const struct gdn_plan *plan,
                         const struct gdn_tokens *tokens, const struct gdn_plan_pools *pools);

#endif
