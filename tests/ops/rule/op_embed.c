/* SPDX-License-Identifier: Apache-2.0 */
/* runs: cpu */
/*
 * Inside an engine: threads of the caller's, good and bad ones, for every op; fork(); signals.
 */
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "ring2_replay.h"
#include "ring2_rule.h"
#include "sanitized.h"

/* ---- Lenders of threads -------------------------------------------------------------------- */

enum { N_THREADS = 4 };

struct job {
    gdn_work work;
    void *arg;
    int64_t n;
    _Atomic int64_t next;
};

struct helper {
    struct job *job;
    int32_t number;
};

static void *help(void *arg)
{
    const struct helper *h = arg;
    for (int64_t i; (i = h->job->next++) < h->job->n;) h->job->work(h->job->arg, i, h->number);
    return NULL;
}

static void help_in_mode(void *arg) { help(arg); }

static int n_lent; /* pieces of work that a good lender was given */

/* New threads for every piece of work, some in an unusual float environment. */
static void *help_oddly(void *arg)
{
    const struct helper *h = arg;
    if (!ring2_float_mode(h->number - 1, help_in_mode, arg)) help(arg);
    return NULL;
}

static void by_threads(void *user, int64_t n, gdn_work work, void *arg)
{
    struct job job = { work, arg, n, 0 };
    struct helper helpers[N_THREADS];
    pthread_t threads[N_THREADS];
    (void)user;
    n_lent++;
    for (int i = 1; i < N_THREADS; i++) {
        helpers[i] = (struct helper){ &job, i };
        CHECK(!pthread_create(&threads[i], NULL, help_oddly, &helpers[i]), "no thread");
    }
    for (int i = 1; i < N_THREADS; i++) pthread_join(threads[i], NULL);
}

static void backwards(void *user, int64_t n, gdn_work work, void *arg)
{
    (void)user;
    n_lent++;
    for (int64_t i = n; i-- > 0;) work(arg, i, (int32_t)(i % N_THREADS));
}

static void thread_too_high(void *user, int64_t n, gdn_work work, void *arg)
{
    (void)user;
    for (int64_t i = 0; i < n; i++) work(arg, i, i == 1 ? N_THREADS : 0);
}

static void thread_negative(void *user, int64_t n, gdn_work work, void *arg)
{
    (void)user;
    for (int64_t i = 0; i < n; i++) work(arg, i, i == 0 ? -1 : 0);
}

static void item_too_high(void *user, int64_t n, gdn_work work, void *arg)
{
    (void)user;
    for (int64_t i = 0; i <= n; i++) work(arg, i, 0);
}

static void item_left_out(void *user, int64_t n, gdn_work work, void *arg)
{
    (void)user;
    for (int64_t i = 0; i < n - 1; i++) work(arg, i, 0);
}

static void item_twice(void *user, int64_t n, gdn_work work, void *arg)
{
    (void)user;
    for (int64_t i = 0; i <= n; i++) work(arg, i % n, 0);
}

typedef void lender(void *user, int64_t n, gdn_work work, void *arg);

static gdn_ctx *lent_ctx(lender *f)
{
    gdn_ctx *ctx = NULL;
    gdn_options o = gdn_options_init();
    o.n_threads = N_THREADS;
    o.parallel_for = f;
    ring2_status(NULL, "a context of lent threads", gdn_ctx_create(&o, &ctx), GDN_OK);
    CHECK(gdn_n_threads(ctx) == N_THREADS, "%d threads", (int)gdn_n_threads(ctx));
    return ctx;
}

/* ---- The same bits, for every op ----------------------------------------------------------- */

enum { CALLS = 40 };

static void G22_same_bits(void)
{
    struct ring2_replay r;
    gdn_ctx *lent[2] = { lent_ctx(by_threads), lent_ctx(backwards) };
    ring2_replay_init(&r, false);
    for (int i = 0; i < RING2_N_OPS * CALLS && !ring2_failed(); i++) {
        const gdn_op op = (gdn_op)(i / CALLS);
        if (!ring2_has_op(lent[0], op)) continue;
        ring2_replay_draw(&r, ring2_ctx(1), op);
        for (int j = 0; j < 2; j++) ring2_replay_run(&r, lent[j], "lent threads");
    }
    for (int j = 0; j < 2; j++) gdn_ctx_destroy(lent[j]);
}

static gdn_tensor large_rows(int64_t D)
{
    const gdn_tensor t = ring2_new(GDN_F32, 0, 2, 3000, D, 0, 0);
    ring2_fill(&t, -1, 1);
    return t;
}

/* Ops that make a call of several items. */
static const gdn_op large_ops[] = { GDN_OP_DECODE, GDN_OP_GATES, GDN_OP_L2NORM,
                                    GDN_OP_RMSNORM_GATED };
enum { N_LARGE_OPS = sizeof large_ops / sizeof *large_ops };

static void large_call(gdn_op op, union ring2_call *c)
{
    static const int heads[3] = { 2, 2, 4 };
    if (op == GDN_OP_DECODE) {
        c->rule = ring2_rule_args(GDN_F32, GDN_F32, 40, 40, heads, 64, 64);
    } else if (op == GDN_OP_GATES) {
        c->gates = gdn_gates_args_init();
        c->gates.a = large_rows(64), c->gates.g = large_rows(64);
        c->gates.b = large_rows(64), c->gates.beta = large_rows(64);
        c->gates.A_log = ring2_new(GDN_F32, 0, 1, 64, 0, 0, 0);
        ring2_fill(&c->gates.A_log, -1, 1);
    } else if (op == GDN_OP_L2NORM) {
        c->l2norm = gdn_l2norm_args_init();
        c->l2norm.x = large_rows(64), c->l2norm.out = large_rows(64);
    } else {
        c->rmsnorm_gated = gdn_rmsnorm_gated_args_init();
        c->rmsnorm_gated.x = large_rows(64), c->rmsnorm_gated.z = large_rows(64);
        c->rmsnorm_gated.out = large_rows(64);
    }
}

/* Compares the bits of one thread and of lent threads. Most of the random calls above are too
 * small for lent threads. */
static void large_call_on(gdn_ctx *const ctxs[3], gdn_op op)
{
    const gdn_tensor *list[RING2_MAX_WRITTEN];
    gdn_tensor before[RING2_MAX_WRITTEN], want[RING2_MAX_WRITTEN];
    union ring2_call c;
    large_call(op, &c);
    const int n = ring2_written(op, &c, list);
    for (int i = 0; i < n; i++) before[i] = ring2_clone(list[i]);
    for (int j = 0; j < 3; j++) {
        n_lent = 0;
        for (int i = 0; i < n && j; i++)
            if (list[i]->data) ring2_copy(list[i], &before[i]);
        ring2_status(ctxs[j], "the call", gdn_run_op(ctxs[j], op, &c), GDN_OK);
        CHECK(!n_lent == !j, "op %d: %d pieces of work were lent", (int)op, n_lent);
        for (int i = 0; i < n; i++) {
            if (!j)
                want[i] = ring2_clone(list[i]);
            else if (list[i]->data)
                ring2_expect_bits("on lent threads", list[i], &want[i]);
        }
    }
}

static void G22_large_calls(void)
{
    gdn_ctx *ctxs[3] = { ring2_ctx(1), lent_ctx(by_threads), lent_ctx(backwards) };
    for (int i = 0; i < N_LARGE_OPS; i++) large_call_on(ctxs, large_ops[i]);
    for (int j = 1; j < 3; j++) gdn_ctx_destroy(ctxs[j]);
}

static lender *switched; /* what the context's parallel_for does at the moment */

static void switch_(void *user, int64_t n, gdn_work work, void *arg)
{
    switched(user, n, work, arg);
}

/* Noticed, nothing outside touched, and forgotten by the next call. */
static void wrong_lenders(void)
{
    static const struct {
        lender *f;
        const char *text;
    } wrong[] = { { thread_too_high, "thread number" },
                  { thread_negative, "thread number" },
                  { item_too_high, "item" },
                  { item_left_out, "every item" },
                  { item_twice, "every item" } };
    gdn_ctx *ctx = lent_ctx(switch_);
    for (size_t i = 0; i < N_LARGE_OPS * sizeof wrong / sizeof *wrong; i++) {
        const gdn_op op = large_ops[i % N_LARGE_OPS];
        union ring2_call c;
        large_call(op, &c);
        switched = wrong[i / N_LARGE_OPS].f;
        ring2_call_begin();
        ring2_status(ctx, "a wrong lender", gdn_run_op(ctx, op, &c), GDN_E_ARG);
        CHECK(strstr(gdn_last_error(ctx), "parallel_for") &&
                  strstr(gdn_last_error(ctx), wrong[i / N_LARGE_OPS].text),
              "text \"%s\"", gdn_last_error(ctx));
        const gdn_tensor *list[RING2_MAX_WRITTEN];
        const int n = ring2_written(op, &c, list);
        for (int j = 0; j < n; j++) ring2_may_write(list[j]);
        ring2_call_end();
        switched = backwards;
        ring2_status(ctx, "a good one", gdn_run_op(ctx, op, &c), GDN_OK);
    }
    gdn_ctx_destroy(ctx);
}

/* ---- fork() -------------------------------------------------------------------------------- */

/* TSan bears no new threads in a child. */
enum { CHILD_THREADS = WITH_TSAN ? 1 : 3 };

/* In the child: a context of its own, the parent's given up. Returns its exit status. */
static int child(gdn_ctx *parents, const gdn_rule_args *args, const gdn_rule_args *want)
{
    gdn_options o = gdn_options_init();
    gdn_ctx *ctx = NULL;
    o.n_threads = CHILD_THREADS;
    alarm(60); /* a child that hangs is a failure */
    gdn_ctx_destroy(parents);
    if (gdn_ctx_create(&o, &ctx) != GDN_OK) return 1;
    if (gdn_prefill(ctx, args) != GDN_OK) return 2;
    gdn_ctx_destroy(ctx);
    return ring2_same_bits(&args->out, &want->out) ? 0 : 3;
}

static void forked_child(void)
{
    static const int heads[3] = { 2, 2, 4 };
    gdn_options o = gdn_options_init();
    gdn_ctx *ctx = NULL;
    o.n_threads = 3;
    ring2_status(NULL, "create", gdn_ctx_create(&o, &ctx), GDN_OK);
    const gdn_rule_args a = ring2_rule_args(GDN_F32, GDN_F32, 100, 1, heads, 64, 64);
    const gdn_rule_args b = ring2_rule_clone(&a), d = ring2_rule_clone(&a);
    ring2_status(ctx, "parent", gdn_prefill(ctx, &a), GDN_OK);
    fflush(stdout);
    const pid_t pid = fork();
    if (pid == 0) _exit(child(ctx, &b, &a));
    int status = -1;
    CHECK(pid > 0 && waitpid(pid, &status, 0) == pid, "no child");
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %#x", status);
    ring2_status(ctx, "parent again", gdn_prefill(ctx, &d), GDN_OK);
    ring2_expect_bits("after fork", &d.out, &a.out);
    gdn_ctx_destroy(ctx);
}

/* A context without threads goes on in the child. */
static void forked_context(void)
{
    static const int heads[3] = { 2, 2, 4 };
    gdn_ctx *ctxs[2] = { ring2_ctx(1), lent_ctx(backwards) };
    const gdn_rule_args a = ring2_rule_args(GDN_F32, GDN_F32, 100, 1, heads, 64, 64);
    for (int i = 0; i < 2; i++) {
        const gdn_rule_args b = ring2_rule_clone(&a), want = ring2_rule_clone(&a);
        ring2_status(ctxs[i], "parent", gdn_prefill(ctxs[i], &want), GDN_OK);
        fflush(stdout);
        const pid_t pid = fork();
        if (pid == 0) {
            alarm(60);
            _exit(gdn_prefill(ctxs[i], &b) != GDN_OK || !ring2_same_bits(&b.out, &want.out));
        }
        int status = -1;
        CHECK(pid > 0 && waitpid(pid, &status, 0) == pid, "no child");
        CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0, "the child ended with %#x", status);
    }
    gdn_ctx_destroy(ctxs[1]);
}

/* ---- Signals ------------------------------------------------------------------------------- */

static pthread_t main_thread;
static atomic_int n_signals, n_elsewhere;

static void on_signal(int number)
{
    (void)number;
    n_signals++;
    if (!pthread_equal(pthread_self(), main_thread)) n_elsewhere++;
}

/* Signals that come while calls run are handled by this thread, and change no bit. */
static void signals(void)
{
    static const int heads[3] = { 2, 2, 4 };
    const gdn_rule_args a = ring2_rule_args(GDN_F32, GDN_F32, 60, 1, heads, 64, 64);
    const gdn_rule_args want = ring2_rule_clone(&a), b = ring2_rule_clone(&a);
    struct sigaction action = { .sa_handler = on_signal }, before;
    main_thread = pthread_self();
    sigaction(SIGALRM, &action, &before);
    ring2_status(ring2_ctx(1), "call", gdn_prefill(ring2_ctx(1), &want), GDN_OK);
    for (int i = 0; i < 10000 && n_signals < 20; i++) {
        ring2_copy(&b.state, &a.state);
        if (i % 8 == 0) ualarm(50, 0);
        ring2_status(ring2_ctx(3), "call", gdn_prefill(ring2_ctx(3), &b), GDN_OK);
        ring2_expect_bits("state", &b.state, &want.state);
    }
    ualarm(0, 0);
    sigaction(SIGALRM, &before, NULL);
    CHECK(n_signals >= 20, "%d signals came", (int)n_signals);
    CHECK(n_elsewhere == 0, "%d of %d signals on a thread of the context", (int)n_elsewhere,
          (int)n_signals);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "G22 lent threads give the same bits", G22_same_bits },
        { "G22 lent threads: large calls", G22_large_calls },
        { "lent threads: wrong lenders", wrong_lenders },
        { "fork: a child has its own context", forked_child },
        { "fork: a context without threads goes on", forked_context },
        { "signals go to the program's threads", signals },
    };
    return ring2_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
