/* SPDX-License-Identifier: Apache-2.0 */
/* fakes: cuda, cublas */
/*
 * The host part of every op on CUDA, for calls drawn at random and of any size, on the driver of
 * fake_cuda.c: of Hopper, of an older device and of a newer one, and without the fastest portable
 * kernels. A build with AddressSanitizer checks what the host part does with its arrays. Every
 * build checks the list of kernels that ran.
 */
#include "fake_ctx.h"

#include "cuda/driver/switches.h"
#include "ring2_calls.h"

enum { N_CALLS = 40000, N_CHIPS = 4, LAST_CHIP = N_CHIPS - 1 };

static const struct fake_cuda chips[N_CHIPS] = {
    { .n_devices = 1, .major = 9, .shared_bytes = 232448 },
    { .n_devices = 1, .major = 8, .shared_bytes = 166912 },
    { .n_devices = 1, .major = 10, .shared_bytes = 232448 },
    { .n_devices = 1, .major = 8, .shared_bytes = 166912 },
};

/* The image of each kernel; of cuBLAS one more. */
static const int image_of[GDN_N_KERNELS + 1] = {
#define GDN_KERNEL(image, threads, shared, ...) GDN_IMAGE_##image,
#include "cuda/driver/kernels.def"
    [GDN_CU_cublas] = GDN_N_IMAGES
};

/* All calls: the images of the kernels that ran, and how many calls of each op were accepted. */
static struct {
    bool image[GDN_N_IMAGES + 1];
    int64_t n[GDN_N_OPS];
} ran;

static void log_nothing(void *user, const char *line) { (void)user, (void)line; }

static gdn_ctx *chip_ctx(int chip)
{
    gdn_ctx *ctx = hopper_ctx();
    gdn_ctx_destroy(ctx);
    *fake = chips[chip];
    char text[512] = "";
    ring2_status(NULL, "create", create(0, &ctx, text, sizeof text), GDN_OK);
    if (ctx)
        ctx->options.log = log_nothing;
    else
        ring2_fail("%s", text);
    if (ctx && chip == LAST_CHIP) ctx->cuda->without |= 1u << GDN_CUDA_PORTABLE_PREFILL;
    return ctx;
}

static int id_of(const char *name, size_t n)
{
    for (int id = 0; id <= GDN_N_KERNELS; id++) {
        const char *other = gdn_cuda_kernel_name((enum gdn_kernel_id)id);
        if (!strncmp(other, name, n) && !other[n]) return id;
    }
    return -1;
}

/* Checks a line "op: kernel kernel": each kernel is in kernels.def, and is named once; and the
 * list has room for more. */
static void check_ran(const char *line)
{
    bool here[GDN_N_KERNELS + 1] = { 0 };
    int n = 0;
    const char *at = strchr(line, ':');
    if (!at || !strcmp(at, ": none")) return;
    for (at += 1 + strspn(at + 1, " "); *at; n++) {
        const size_t length = strcspn(at, " ");
        const int id = id_of(at, length);
        CHECK(id >= 0 && !here[id], "%s: kernel %d is unknown or there twice", line, n);
        if (id < 0) return;
        here[id] = ran.image[image_of[id]] = true;
        at += length + strspn(at + length, " ");
    }
    CHECK(n < GDN_CUDA_MAX_RAN, "%s: %d kernels", line, n);
}

static void run_drawn(gdn_ctx *ctx, struct ring2_draw *d, gdn_op op)
{
    union ring2_call c;
    gdn_batch batch;
    ring2_draw_call(d, op, &c, &batch);
    const gdn_status status = gdn_run_op(ctx, op, &c);
    CHECK(status == GDN_OK || gdn_last_error(ctx)[0], "op %d: no error text", (int)op);
    if (status != GDN_OK) return;
    ran.n[op]++;
    check_ran(gdn_last_kernel(ctx));
}

/* Returns the op of call i: every second one has many forms. */
static gdn_op op_of(int i)
{
    static const gdn_op many[] = { GDN_OP_PREFILL, GDN_OP_DECODE, GDN_OP_STEP, GDN_OP_CONV1D };
    return i % 2 ? many[i / 2 % 4] : (gdn_op)(i / 2 % GDN_N_OPS);
}

/* The yardstick is no op's. Rules beyond Gated DeltaNet are drawn seldom: unit_cuda_family.c and
 * unit_cuda_channels.c run them. Records with GDN_SPLIT_INVARIANT are not drawn: op_split.c. */
static bool is_apart(int image)
{
    const char *const name = image < GDN_N_IMAGES ? gdn_images[image].name : "";
    return image == GDN_IMAGE_yardstick || image == GDN_IMAGE_split ||
           image == GDN_IMAGE_prefill_sm90_each || strstr(name, "channels");
}

static void test_draws(void)
{
    struct ring2_draw d;
    ring2_draw_init_vast(&d);
    memset(&ran, 0, sizeof ran);
    for (int chip = 0; chip < N_CHIPS; chip++) {
        gdn_ctx *ctx = chip_ctx(chip);
        if (!ctx) return;
        for (int i = 0; i < N_CALLS && !ring2_failed(); i++) run_drawn(ctx, &d, op_of(i));
        gdn_ctx_destroy(ctx);
    }
    for (int op = 0; op < GDN_N_OPS; op++)
        CHECK(ran.n[op] > 200, "%s: %d calls were accepted", gdn_op_shapes[op].name,
              (int)ran.n[op]);
    for (int i = 0; i <= GDN_N_IMAGES; i++)
        CHECK(ran.image[i] || is_apart(i), "%s: no call takes it",
              i < GDN_N_IMAGES ? gdn_images[i].name : "cublas");
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "drawn calls of every op", test_draws },
    };
    return fake_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
