/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The yardsticks: what this machine reaches right now, with the same instruction set and
 * number of threads as the op beside it. All threads run at once, each counting its own time.
 */
#ifndef MEASURE_H
#define MEASURE_H

#include <stddef.h>

double measure_clock(void); /* seconds */

struct measure {
    const char *isa;
    int n_threads;
    float *buffer; /* of the bandwidth's footprint */
    size_t bytes;
};

/* footprint: bytes that the bandwidth is measured on (0: it will not be), at most 256 MiB, far
 * beyond any cache. isa must live as long. CLI_OK, or CLI_BAD after its line: an instruction set
 * without a yardstick, no memory. */
int measure_open(struct measure *m, const char *isa, int n_threads, size_t footprint);
void measure_close(struct measure *m);

/* Returns float32 multiplications and additions per second, fused where the instruction set can. */
double measure_flops(const struct measure *m, double seconds);
/* Returns bytes per second, read plus written, of x[i] = c x[i] in place. */
double measure_in_place(const struct measure *m, double seconds);

/* The median, and the median absolute deviation from it. Sorts the samples. */
struct summary {
    double median, mad;
};
struct summary measure_summary(double *samples, int n);

/* Returns the name the CPU gives itself. */
const char *measure_cpu(char *text, size_t bytes);

#endif
