/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/times.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum machine { H200, H100, EMERALD_RAPIDS, ZEN4, N_MACHINES };
static const struct {
    const char *name;
    bool cuda;
} machines[N_MACHINES] = { { "NVIDIA H200", true },
                           { "NVIDIA H100", true },
                           { "Intel Xeon, Emerald Rapids, AVX-512", false },
                           { "AMD EPYC, Zen 4, AVX-512", false } };

/* A measured call. A convolution has one head of all channels. */
enum call { CONV, PREFILL, STEP, BACKWARD, DECODE };
static const struct row {
    enum machine machine;
    enum call call;
    bool hopper;   /* by kernels for Hopper alone */
    bool channels; /* a decay per channel */
    int Hk, Hv, K, V, B, T, threads;
    int32_t dtype, state;
    double us;
} rows[] = {
#define TIME(...) { __VA_ARGS__ },
#include "plan/times.inc"
};

static enum machine machine_of(const char *device, bool cuda)
{
    if (cuda) return !strcmp(device, "H100") ? H100 : H200;
    return strstr(device, "AMD") ? ZEN4 : EMERALD_RAPIDS;
}

/* The call as rows have it. */
static struct row row_of(const struct plan_model *m, const struct plan_sizes *s,
                         enum plan_call_kind kind, int threads)
{
    static const enum call of[PLAN_N_CALLS] = { CONV, PREFILL, STEP, BACKWARD };
    struct row r = { .call = of[kind],
                     .channels = m->per_channel && kind != PLAN_CONV,
                     .Hk = (int)s->Hk,
                     .Hv = (int)s->Hv,
                     .K = (int)s->K,
                     .V = (int)s->V,
                     .B = (int)s->B,
                     .T = kind == PLAN_STEP ? 1 : (int)s->T,
                     .threads = threads,
                     .dtype = s->dtype,
                     .state = s->state_dtype };
    if (kind != PLAN_CONV) return r;
    r.V = (int)plan_channels(m, s);
    r.Hk = r.Hv = r.K = 1;
    return r;
}

static double work_of(const struct row *r)
{
    return (double)r->B * r->T * r->Hv * ((double)r->K * r->V);
}

static double apart(int a, int b) { return fabs(log2((double)a / b)); }

/* Returns how unlike two calls are. Another machine counts more than all sizes together, and a
 * dtype more than one size. */
static double distance(const struct row *a, const struct row *b, enum machine wanted)
{
    return (b->machine != wanted ? 1000 : 0) + (b->call != a->call ? 200 : 0) +
           (a->dtype != b->dtype ? 40 : 0) + (a->state != b->state && a->call != CONV ? 20 : 0) +
           4 * apart(a->K, b->K) + 4 * apart(a->V, b->V) + 2 * apart(a->Hv, b->Hv) +
           apart(a->Hk, b->Hk) + apart(a->B, b->B) + apart(a->T, b->T) +
           4 * apart(a->threads, b->threads);
}

/* Returns true if the row measures what the call does. On a GPU float32 has kernels of its own. */
static bool is_like(const struct row *r, const struct row *call, bool cuda, bool hopper)
{
    if (cuda && (r->dtype == GDN_F32) != (call->dtype == GDN_F32)) return false;
    const bool same = r->call == call->call || (call->call == STEP && r->call == DECODE);
    return machines[r->machine].cuda == cuda && same && r->hopper == hopper &&
           r->channels == call->channels;
}

static const char *dtype_name(int32_t dtype)
{
    static const char *const names[] = { "f32", "bf16", "f16" };
    return names[dtype];
}

static void describe(struct plan_time *t, const struct row *r)
{
    char heads[80], threads[24] = "";
    snprintf(heads, sizeof heads, "%d/%d heads, K %d, V %d", r->Hk, r->Hv, r->K, r->V);
    if (r->call == CONV) snprintf(heads, sizeof heads, "%d channels", r->V);
    if (!machines[r->machine].cuda) snprintf(threads, sizeof threads, ", threads %d", r->threads);
    snprintf(t->what, sizeof t->what, "%s: %s, %d x %d tokens, %s, states %s%s",
             machines[r->machine].name, heads, r->B, r->T, dtype_name(r->dtype),
             dtype_name(r->state), threads);
}

/* Returns true if there are times of the rule. */
static bool is_measured(const struct plan_model *m) { return !m->erases && m->updates == 1; }

struct plan_time plan_time_of(const char *device, bool cuda, int threads,
                              const struct plan_model *m, const struct plan_sizes *sizes,
                              enum plan_call_kind kind, const struct plan_answer *answer)
{
    const struct row call = row_of(m, sizes, kind, cuda ? 1 : threads), *best = NULL;
    const enum machine wanted = machine_of(device, cuda);
    const bool hopper = strstr(answer->kernels, "sm90") != NULL;
    struct plan_time t = { 0 };
    if (answer->status || (kind != PLAN_CONV && !is_measured(m))) return t;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++)
        if (is_like(&rows[i], &call, cuda, hopper) &&
            (!best || distance(&call, &rows[i], wanted) < distance(&call, best, wanted)))
            best = &rows[i];
    if (!best) return t;
    t.factor = work_of(&call) / work_of(best);
    t.us = best->us * t.factor;
    t.rule_only = best->call != call.call;
    t.machine = machines[best->machine].name;
    t.elsewhere = cuda && strcmp(t.machine + strlen("NVIDIA "), device) != 0;
    describe(&t, best);
    return t;
}
