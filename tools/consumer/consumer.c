/* SPDX-License-Identifier: Apache-2.0 */
/* Normalises one row through an installed libgdn. */
#include <gdn.h>
#include <gdn_blob.h>
#include <gdn_parallel.h>
#include <gdn_record.h>
#include <gdn_research.h>
#include <gdn_train.h>
#include <math.h>
#include <stdio.h>

int main(void)
{
    float x[2] = { 3, 4 }, y[2] = { 0, 0 };
    gdn_ctx *ctx;
    if (gdn_version() < GDN_VERSION || gdn_ctx_create(NULL, &ctx) != GDN_OK) return 1;

    gdn_l2norm_args args = gdn_l2norm_args_init();
    args.x = gdn_dense(x, GDN_F32, 2, 1, 2, 0, 0);
    args.out = gdn_dense(y, GDN_F32, 2, 1, 2, 0, 0);
    gdn_status status = gdn_l2norm(ctx, &args);
    printf("%s: %g %g\n", gdn_status_name(status), y[0], y[1]);
    gdn_ctx_destroy(ctx);
    return status != GDN_OK || fabsf(y[0] - 0.6f) > 1e-5f || fabsf(y[1] - 0.8f) > 1e-5f;
}
