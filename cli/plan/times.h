/* SPDX-License-Identifier: Apache-2.0 */
/* Kept measurements (bench/results), and estimates from them for calls that were not measured. */
#ifndef PLAN_TIMES_H
#define PLAN_TIMES_H

#include "plan/calls.h"

/* The time of a call by the nearest measurement. Work is sequences x tokens x heads x K x V. */
struct plan_time {
    double us;      /* the measured time, times `factor`; 0: nothing like the call was measured */
    double factor;  /* the call's work, as a multiple of the measured call's */
    bool rule_only; /* gdn_decode was measured, in place of gdn_step */
    const char *machine; /* where: "NVIDIA H200" */
    bool elsewhere;      /* that is another GPU than the plan's */
    char what[160];      /* "NVIDIA H200: 16/32 heads, K 128, V 128, 32 x 1 tokens, bf16, f32" */
};

/* device: what the plan is for, such as "H100" or a CPU's name. threads: of a CPU. */
struct plan_time plan_time_of(const char *device, bool cuda, int threads,
                              const struct plan_model *m, const struct plan_sizes *sizes,
                              enum plan_call_kind kind, const struct plan_answer *answer);

#endif
