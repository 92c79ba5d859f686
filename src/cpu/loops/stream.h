/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Stores rows that are not read soon, past the caches: a plain store fetches the lines that it then
 * overwrites, which doubles the time of a checkpoint.
 */
#ifndef GDN_STREAM_H
#define GDN_STREAM_H

#include "cpu/loops/kernels.h"

/* n floats, at most GDN_MAX_HEAD, to a row of the dtype, with the bits of kr->store_row. */
void gdn_stream_row(const struct gdn_kernels *kr, int32_t dtype, void *to, const float *from,
                    int n);
/* Makes streamed stores visible to other threads. Call it at the end of an item of work. */
void gdn_stream_end(void);

#endif
