/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The yardsticks: the speed that this machine reaches now, with the instruction set and the number
 * of threads of the op beside it. All threads run at once, and each counts its own time.
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

/* footprint: the bytes for measuring the bandwidth (0: it is not measured), at most 256 MiB, far
 * beyond any cache. isa must live as long as *m. Returns CLI_OK; or CLI_BAD after a line about
 * an instruction set without a yardstick, or about memory. */
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
