/* SPDX-License-Identifier: Apache-2.0 */
/* The choice of inner loops: tables, detection, selection, GDN_CPU; and the float environment. */
#ifndef _GNU_SOURCE
#define _GNU_SOURCE
#endif
#include <fenv.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/ctx.h"
#include "cpu/loops/fpenv.h"
#include "cpu/loops/kernels.h"
#include "ring2.h"

#if defined(__SSE__)
#include <xmmintrin.h>
#endif

/* ---- Tables -------------------------------------------------------------------------------- */

static int n_tables(void)
{
    int n = 0;
    while (gdn_cpu_tables[n]) n++;
    return n;
}

/* The build lists instruction sets in the order of the tables: the last name is the set that the
 * op tests use by default. */
static void test_order(void)
{
    char names[256] = "";
    CHECK(gdn_cpu_tables[0]->needs == 0, "the weakest table needs %#x",
          (unsigned)gdn_cpu_tables[0]->needs);
    for (int i = 0; i < n_tables(); i++) {
        const struct gdn_kernels *kr = gdn_cpu_tables[i];
        const size_t used = strlen(names);
        const bool another = i == 0 || strcmp(kr->name, gdn_cpu_tables[i - 1]->name) != 0;
        if (another) snprintf(names + used, sizeof names - used, "%s%s", i ? " " : "", kr->name);
        CHECK(kr->strip >= 8 && kr->strip <= GDN_MAX_STRIP && kr->strip % 8 == 0, "%s: strip %d",
              kr->name, kr->strip);
        if (i == 0) continue;
        CHECK(kr->needs & ~gdn_cpu_tables[i - 1]->needs, "%s needs no more than the one before",
              kr->name);
    }
    CHECK(!strcmp(names, GDN_ISAS), "tables \"%s\", but CMake has \"%s\"", names, GDN_ISAS);
}

/* Behind its head a table is function pointers and nothing else: none of them may be NULL. */
static void test_complete(void)
{
    typedef void function(void);
    for (int i = 0; i < n_tables(); i++) {
        const char *at = (const char *)gdn_cpu_tables[i];
        size_t from = offsetof(struct gdn_kernels, load_row);
        function *f;
        CHECK((sizeof(struct gdn_kernels) - from) / sizeof f > 20, "too few loops");
        for (; from < sizeof(struct gdn_kernels); from += sizeof f) {
            memcpy(&f, at + from, sizeof f);
            CHECK(f, "%s: the loop at byte %zu is missing", gdn_cpu_tables[i]->name, from);
        }
    }
}

/* ---- Selection ----------------------------------------------------------------------------- */

/* By the sentence in kernels.h, the slow way. */
static const struct gdn_kernels *expect(uint32_t flags, const char *at_most)
{
    int limit = n_tables() - 1;
    if (at_most) {
        for (; limit >= 0; limit--)
            if (!strcmp(gdn_cpu_tables[limit]->name, at_most) &&
                !(gdn_cpu_tables[limit]->needs & ~flags))
                break;
        if (limit < 0) return NULL;
    }
    while (gdn_cpu_tables[limit]->needs & ~flags) limit--;
    return gdn_cpu_tables[limit];
}

static void test_select(void)
{
    static const char *const names[] = { NULL,   "scalar", "avx2", "avx512", "avx",
                                         "AVX2", "",       "neon", "avx5120" };
    uint32_t all = 0;
    for (int i = 0; i < n_tables(); i++) all |= gdn_cpu_tables[i]->needs;
    for (uint32_t flags = 0; flags <= all; flags++)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++)
            CHECK(gdn_cpu_select(flags, names[i]) == expect(flags, names[i]),
                  "flags %u, at most %s", (unsigned)flags, names[i] ? names[i] : "anything");
    CHECK(gdn_cpu_select(0, NULL) == gdn_cpu_tables[0], "no flags: not the weakest");
    CHECK(gdn_cpu_select(all, NULL) == gdn_cpu_tables[n_tables() - 1], "all flags: not the best");
    CHECK(!gdn_cpu_select(all, "sve9"), "a table for an unknown name");
}

/* The compiler's run-time library reads CPUID and XCR0 by code of its own. */
static void test_detect(void)
{
#if defined(__x86_64__)
    __builtin_cpu_init();
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    const bool avx512 = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                        __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    const bool bf16 = avx512 && __builtin_cpu_supports("avx512bf16");
    const uint32_t want = (avx2 ? (uint32_t)GDN_CPU_AVX2 : 0) |
                          (avx2 && avx512 ? (uint32_t)GDN_CPU_AVX512 : 0) |
                          (avx2 && bf16 ? (uint32_t)GDN_CPU_AVX512_BF16 : 0);
    const uint32_t found = gdn_cpu_detect(), tiles = GDN_CPU_AMX; /* these gcc 12 cannot tell */
    CHECK((found & ~tiles) == want, "found %#x, the compiler's library finds %#x", (unsigned)found,
          (unsigned)want);
    CHECK(!(found & tiles) || bf16, "tiles without AVX512-BF16");
#elif defined(__aarch64__)
    CHECK(gdn_cpu_detect() == GDN_CPU_NEON, "flags %#x", (unsigned)gdn_cpu_detect());
#else
    CHECK(gdn_cpu_detect() == 0, "flags %#x where there is only one table",
          (unsigned)gdn_cpu_detect());
#endif
}

/* ---- Options and environment --------------------------------------------------------------- */

static char text[512];

/* The table of a context with this option and this environment; NULL and text: refused. */
static const char *chosen(const char *isa, const char *environment)
{
    gdn_ctx *ctx = NULL;
    gdn_options o = gdn_options_init();
    char *before = getenv("GDN_CPU") ? strdup(getenv("GDN_CPU")) : NULL;
    const char *name = NULL;

    o.isa = isa;
    o.n_threads = 1;
    o.error_text = text;
    o.error_text_bytes = sizeof text;
    text[0] = 0;
    if (environment)
        setenv("GDN_CPU", environment, 1);
    else
        unsetenv("GDN_CPU");
    const gdn_status status = gdn_ctx_create(&o, &ctx);
    if (before)
        setenv("GDN_CPU", before, 1);
    else
        unsetenv("GDN_CPU");
    free(before);

    if (status == GDN_OK) {
        for (int i = 0; i < n_tables(); i++)
            if (!strcmp(gdn_cpu_tables[i]->name, gdn_isa(ctx))) name = gdn_cpu_tables[i]->name;
        CHECK(name, "gdn_isa() names no table");
    } else {
        CHECK(status == GDN_E_ARG, "%s, expected GDN_E_ARG", gdn_status_name(status));
        CHECK(!ctx, "a context after an error");
    }
    gdn_ctx_destroy(ctx);
    return name;
}

/* Returns true for the first table of its name. A name chooses the best of its tables that runs. */
static bool is_first_of_name(int i)
{
    return i == 0 || strcmp(gdn_cpu_tables[i - 1]->name, gdn_cpu_tables[i]->name) != 0;
}

static void test_choice(void)
{
    const uint32_t flags = gdn_cpu_detect();
    const char *best = gdn_cpu_select(flags, NULL)->name;
    CHECK(chosen(NULL, NULL) == best, "not the best without a limit");
    CHECK(chosen(NULL, "") == best, "an empty GDN_CPU is none");
    for (int i = 0; i < n_tables(); i++) {
        const struct gdn_kernels *a = gdn_cpu_tables[i];
        const bool a_runs = !(a->needs & ~flags);
        if (!is_first_of_name(i)) continue;
        CHECK(chosen(a->name, NULL) == (a_runs ? a->name : NULL), "isa %s", a->name);
        CHECK(chosen(NULL, a->name) == (a_runs ? a->name : NULL), "GDN_CPU=%s", a->name);
        for (int j = 0; j < n_tables(); j++) { /* together: the lower one */
            const struct gdn_kernels *b = gdn_cpu_tables[j];
            const bool b_runs = !(b->needs & ~flags);
            if (!is_first_of_name(j)) continue;
            const char *want = !a_runs || !b_runs ? NULL : i < j ? a->name : b->name;
            CHECK(chosen(a->name, b->name) == want, "isa %s, GDN_CPU=%s", a->name, b->name);
        }
    }
}

static void test_unknown(void)
{
    CHECK(!chosen("sse9", NULL), "isa sse9");
    CHECK(strstr(text, "isa") && strstr(text, "sse9") && strstr(text, "scalar"), "text: %s", text);
    CHECK(!chosen(NULL, "sse9"), "GDN_CPU=sse9");
    CHECK(strstr(text, "GDN_CPU") && strstr(text, "sse9") && strstr(text, "scalar"), "text: %s",
          text);
    CHECK(!chosen("scalar", "sse9"), "isa scalar, GDN_CPU=sse9");
    CHECK(strstr(text, "GDN_CPU"), "text: %s", text);
    CHECK(!chosen("", NULL), "an empty isa");
}

/* ---- The float environment ----------------------------------------------------------------- */

static void test_float_environment(void)
{
#if defined(__SSE__)
    static const unsigned modes[] = { 0x1f80, 0x9fc0, 0x5f80, 0x1f3f, 0x7fbf };
    const unsigned before = _mm_getcsr();
    for (int i = 0; i < 5; i++) {
        _mm_setcsr(modes[i]);
        const uint32_t saved = gdn_fp_enter();
        const unsigned inside = _mm_getcsr();
        gdn_fp_leave(saved);
        const unsigned after = _mm_getcsr();
        _mm_setcsr(before);
        CHECK(inside == 0x1f80, "mode %#x: %#x inside, wanted 0x1f80", modes[i], inside);
        CHECK(after == modes[i], "mode %#x: %#x afterwards", modes[i], after);
    }
#elif defined(__aarch64__)
    /* flush to zero; default NaN; alternative half precision; round down; all of them */
    static const uint64_t modes[] = { 1 << 24, 1 << 25, 1 << 26, 2 << 22, 0x7800000 };
    for (int i = 0; i < 5; i++) {
        ring2_set_fpcr(modes[i]);
        const uint32_t saved = gdn_fp_enter();
        const uint64_t inside = ring2_fpcr();
        gdn_fp_leave(saved);
        const uint64_t after = ring2_fpcr();
        ring2_set_fpcr(0);
        CHECK(inside == 0, "mode %#x: %#x inside", (unsigned)modes[i], (unsigned)inside);
        CHECK(after == modes[i], "mode %#x: %#x after", (unsigned)modes[i], (unsigned)after);
    }
#endif
    static const int rounding[] = { FE_TONEAREST, FE_UPWARD, FE_DOWNWARD, FE_TOWARDZERO };
    for (int i = 0; i < 4; i++) {
        volatile float one = 1, tiny = 0x1p-30f, sum, below;
        fesetround(rounding[i]);
        const uint32_t saved = gdn_fp_enter();
        sum = one + tiny;
        below = one - tiny;
        gdn_fp_leave(saved);
        const int after = fegetround();
        fesetround(FE_TONEAREST);
        CHECK(sum == 1 && below == 1, "rounding %d: not to nearest inside", rounding[i]);
        CHECK(after == rounding[i], "rounding %d: %d afterwards", rounding[i], after);
    }
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "detect: tables from weak to strong", test_order },
        { "detect: tables are complete", test_complete },
        { "detect: select", test_select },
        { "detect: this machine", test_detect },
        { "detect: isa and GDN_CPU only lower the choice", test_choice },
        { "detect: unknown names are refused", test_unknown },
        { "detect: float environment entered and left", test_float_environment },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
