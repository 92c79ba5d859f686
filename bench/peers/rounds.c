/* SPDX-License-Identifier: Apache-2.0 */
#include "rounds.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { MIN_ROUNDS = 5, MAX_CONTENDERS = 8 };

static const double batch_seconds = 0.03;

static double wall(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double seconds_of(struct timeval t) { return (double)t.tv_sec + 1e-6 * (double)t.tv_usec; }

/* CPU time of this process. */
static double own_time(void)
{
    struct rusage r;
    getrusage(RUSAGE_SELF, &r);
    return seconds_of(r.ru_utime) + seconds_of(r.ru_stime);
}

/* CPU time of the whole machine: user, nice, system, interrupts, and what its host took. */
static double machine_time(void)
{
    double t[8] = { 0 };
    FILE *f = fopen("/proc/stat", "r");
    if (!f) return 0;
    if (fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &t[0], &t[1], &t[2], &t[3], &t[4], &t[5],
               &t[6], &t[7]) != 8)
        t[0] = 0;
    fclose(f);
    return (t[0] + t[1] + t[2] + t[5] + t[6] + t[7]) / (double)sysconf(_SC_CLK_TCK);
}

bool rounds_cpu_time = false;

static double now(void)
{
    struct timespec t;
    if (!rounds_cpu_time) return wall();
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + 1e-9 * (double)t.tv_nsec;
}

static double time_runs(const struct contender *c, int n)
{
    const double start = now();
    for (int i = 0; i < n; i++) c->run(c->arg);
    return (now() - start) / n;
}

struct rounds rounds_run(struct contender *contenders, int n, double seconds)
{
    struct rounds r = { 0, 0 };
    int runs[MAX_CONTENDERS];
    for (int i = 0; i < n; i++) {
        time_runs(&contenders[i], 1);
        runs[i] = 1 + (int)(batch_seconds / (time_runs(&contenders[i], 1) + 1e-9));
    }
    const double start = wall();
    while (r.kept < ROUNDS_MAX) {
        const double passed = wall() - start;
        if (passed > (r.kept < MIN_ROUNDS ? 3 * seconds + 20 : seconds)) break;
        const double machine = machine_time(), own = own_time(), begin = wall();
        for (int i = 0; i < n; i++)
            contenders[i].seconds[r.kept] = time_runs(&contenders[i], runs[i]);
        const double foreign = machine_time() - machine - (own_time() - own);
        if (!rounds_cpu_time && foreign > 0.1 * (wall() - begin) + 0.02) {
            r.dropped++;
            usleep(300000);
        } else {
            r.kept++;
        }
    }
    return r;
}

static int ascending(const void *a, const void *b)
{
    const double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

double rounds_median(struct contender *c, const struct rounds *r)
{
    if (!r->kept) return 0;
    qsort(c->seconds, (size_t)r->kept, sizeof *c->seconds, ascending);
    return c->seconds[r->kept / 2];
}
