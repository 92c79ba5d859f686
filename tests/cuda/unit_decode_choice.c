/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the kernel that gdn_decode() launches with a list, for calls drawn at random, and what
 * the log has of the choice with lines, on the driver of fake_cuda.c.
 */
#include "fake_ctx.h"

/* ---- Random calls: the same on every machine ---- */

static uint64_t drawn;

static int64_t below(int64_t n)
{
    drawn = drawn * 6364136223846793005u + 1442695040888963407u;
    return (int64_t)((drawn >> 33) % (uint64_t)n);
}

static bool one_in(int64_t n) { return below(n) == 0; }

/* Shapes and dtypes of a call: B sequences of T tokens, N tokens in all, P slots. */
struct sizes {
    int64_t Hq, Hk, Hv, H, K, V, B, T, N, P;
    int32_t io, state;
    bool    kv;
    enum { PADDED, PACKED, SINGLE } form;
};

static struct sizes draw_sizes(void)
{
    static const int     heads[][3] = { { 2, 2, 2 }, { 16, 16, 32 }, { 1, 1, 4 }, { 4, 2, 2 } };
    static const int64_t Ks[] = { 128, 128, 128, 64, 256, 128, 64, 256, 96, 98 };
    static const int64_t Vs[] = { 128, 64, 256, 128, 64, 16, 48, 100 };
    static const int64_t Ts[] = { 1, 1, 1, 2, 4, 5, 8 };
    static const int64_t Bs[] = { 1, 2, 8, 40, 128, 512, 65535, 65536 };
    const int           *h    = heads[below(4)];
    struct sizes s = { .Hq = h[0], .Hk = h[1], .Hv = h[2], .H = h[0] > h[2] ? h[0] : h[2] };
    s.K = Ks[below(one_in(3) ? 10 : 5)], s.V = Vs[below(one_in(3) ? 8 : 3)];
    s.T = Ts[below(7)], s.B = Bs[below(one_in(8) ? 8 : 6)];
    s.form  = one_in(2) ? PADDED : one_in(3) ? SINGLE : PACKED;
    s.N     = s.B * (s.form == SINGLE ? 1 : s.T);
    s.P     = 1 + s.B * (1 + below(2) * s.T);
    s.io    = one_in(10) ? GDN_F32 : one_in(3) ? GDN_F16 : GDN_BF16;
    s.state = one_in(2) ? GDN_F32 : one_in(12) ? GDN_F16 : s.io;
    s.kv    = one_in(3);
    return s;
}

/* Returns a tensor at a new address. No memory is behind it. */
static gdn_tensor tensor(int32_t dtype, int ndim, int64_t s0, int64_t s1, int64_t s2, int64_t s3)
{
    static uintptr_t n;
    n = n % 60 + 1;
    return gdn_dense((void *)(n << 40), dtype, ndim, s0, s1, s2, s3);
}

/* Returns [B][T][heads][columns] or [N][heads][columns]; if columns is 0, without the last. */
static gdn_tensor tokens(const struct sizes *s, int32_t dtype, int64_t heads, int64_t columns)
{
    const int ndim = columns ? 3 : 2;
    return s->form == PADDED ? tensor(dtype, ndim + 1, s->B, s->T, heads, columns)
                             : tensor(dtype, ndim, s->N, heads, columns, 0);
}

static gdn_tensor pool(const struct sizes *s, int32_t dtype, int64_t n, bool kv)
{
    return tensor(dtype, 4, n, s->H, kv ? s->K : s->V, kv ? s->V : s->K);
}

static gdn_tensor slots(int64_t n, int64_t columns)
{
    return tensor(one_in(10) ? GDN_I64 : GDN_I32, columns ? 2 : 1, n, columns, 0, 0);
}

static void draw_slots(const struct sizes *s, gdn_batch *b)
{
    if (one_in(2)) b->read_slots = slots(s->B, 0);
    if (one_in(5)) b->write_slots = slots(s->B, 0);
    if (one_in(5)) {
        b->write       = GDN_WRITE_EACH;
        b->write_slots = slots(s->B, s->T);
    } else if (one_in(8)) {
        b->write = GDN_WRITE_NONE;
    }
    if (one_in(8)) {
        b->num_accepted_tokens = tensor(GDN_I32, 1, s->B, 0, 0, 0);
        b->read_slots          = slots(s->B, 4);
    }
    if (one_in(8))
        b->has_initial_state = tensor(one_in(4) ? GDN_I64 : one_in(2) ? GDN_I32 : GDN_U8, 1, s->B,
                                      0, 0, 0);
}

/* Changes one thing that engines rarely do. */
static void draw_rare(const struct sizes *s, gdn_rule_args *a, gdn_batch *b)
{
    gdn_tensor *const any[] = { &a->q, &a->k, &a->v, &a->out, &a->state, &a->state_out, &a->g };
    gdn_tensor       *t     = any[below(7)];
    switch (below(14)) {
    case 0: b->token_start = tensor(GDN_I32, 1, s->B, 0, 0, 0); break;
    case 1: b->token_count = tensor(GDN_I32, 1, s->B, 0, 0, 0); break;
    case 2: b->pad_policy = (int32_t)below(3); break;
    case 3: a->head_map = GDN_HEADS_INTERLEAVED; break;
    case 4: a->flags = GDN_EXACT; break;
    case 5: b->parents = tensor(GDN_I32, 2, s->B, s->T, 0, 0); break;
    case 6: a->state.data = NULL; break;
    case 7: a->out.data = NULL; break;
    case 8: t->data = (char *)t->data + 8 * (t->data && one_in(2)); break;
    case 9: if (t->data) t->data = (char *)t->data + gdn_dtype_bytes(t->dtype); break;
    case 10: t->stride[0] *= 1 + below(3), t->stride[1] *= one_in(3) ? 1 << 28 : 1; break;
    case 11: t->stride[t->ndim > 1 ? t->ndim - 2 : 0] += 4 + 4 * below(2); break;
    case 12: t->dtype = (int32_t)below(3); break;
    default: a->gate = GDN_GATE_RAW; break;
    }
}

static void draw_pools(const struct sizes *s, gdn_rule_args *a, gdn_batch *b)
{
    if (one_in(8)) a->state_out = pool(s, a->state.dtype, s->P, s->kv);
    if (one_in(16)) {
        a->state        = pool(s, GDN_I8, s->P, s->kv);
        a->state_scales = tensor(GDN_F32, 3, s->P, s->H, s->V, 0);
    }
    if (one_in(12)) {
        b->checkpoint_every = one_in(2) ? 2 : 0;
        a->checkpoints      = pool(s, one_in(3) ? GDN_E4M3 : s->state, 2 * s->N, s->kv);
        if (a->checkpoints.dtype == GDN_E4M3)
            a->checkpoint_scales = tensor(GDN_F32, 3, 2 * s->N, s->H, s->V, 0);
        if (!b->checkpoint_every) /* a tensor without positions is refused */
            a->checkpoints = a->checkpoint_scales = (gdn_tensor){ 0 };
    }
}

static void draw_record(const struct sizes *s, gdn_rule_args *a, gdn_batch *b)
{
    const int64_t R = 8;
    a->record_k     = tensor(s->io, 4, s->P, R, s->Hk, s->K);
    a->record_u     = tensor(s->io, 4, s->P, R, s->H, s->V);
    a->record_g     = tensor(GDN_F32, 3, s->P, R, s->H, 0);
    a->record_count = tensor(GDN_I32, 1, s->P, 0, 0, 0);
    b->write        = GDN_WRITE_NONE;
    b->write_slots.data = NULL;
}

/* Draws a call whose batch is b. */
static gdn_rule_args draw_call(gdn_batch *b)
{
    const struct sizes s = draw_sizes();
    gdn_rule_args      a = gdn_rule_args_init();
    *b          = gdn_batch_init();
    a.q         = tokens(&s, s.io, s.Hq, s.K), a.k = tokens(&s, s.io, s.Hk, s.K);
    a.v         = tokens(&s, s.io, s.Hv, s.V), a.out = tokens(&s, s.io, s.H, s.V);
    if (!one_in(8)) a.g = tokens(&s, one_in(2) ? GDN_F32 : s.io, s.H, 0);
    if (!one_in(8)) a.beta = tokens(&s, one_in(2) ? GDN_F32 : s.io, s.H, 0);
    a.A_log        = tensor(one_in(8) ? GDN_F16 : GDN_F32, 1, s.H, 0, 0, 0);
    a.state        = pool(&s, s.state, s.P, s.kv);
    a.state_layout = s.kv ? GDN_STATE_KV : GDN_STATE_VK;
    if (s.form == PACKED)
        b->cu_seqlens = tensor(one_in(3) ? GDN_I64 : GDN_I32, 1, s.B + 1, 0, 0, 0);
    draw_slots(&s, b);
    draw_pools(&s, &a, b);
    if (one_in(30)) draw_record(&s, &a, b);
    if (one_in(3)) draw_rare(&s, &a, b);
    if (one_in(3)) draw_rare(&s, &a, b);
    if (a.gate != GDN_GATE_RAW) a.A_log.data = NULL;
    a.batch = b;
    return a;
}

/* ---- The choice ---- */

enum { N_CALLS = 3060, WIDTH = 90 };

/* One letter_of() for each call. `unit_decode_choice --print` prints the list. A commit that
 * changes the list says which calls take another kernel, and why. */
static const char *const chosen =
    "OlvVsQmTSZNtmTT.JNtVOQ5lRWvre]m*NZuJW0mU^tmWMNmNm:OpN `omO: NM@m[rOWmMrmmQN#mpanOmrKTQPQsw"
    "PQTImVTo7R nmO M_RsW_sN vUGs mtO_qi#mWngl4kRNdNmShJrmNmVANOTnsMpQdU@<qXVmv QNMObmWNnp#psqZ"
    " bTopZNm<rrWSRv-SmORsmN6ON]sOnpmPXkm^rlXmY9ja.NsoONmOOfpmN!WnlsJvpHWNrZg XGm!iXUrta&Tjsvbs"
    "opNmWM`]E5TaW5MOvrwMROmkMOW^XF+NQ^muOVN.W)XFSVnbfmNVsO`^mWN,vp&vQWrhk/mQmOv QNvNN WptmkNmp"
    "msphSTOmO)_XOris TfjuuNmgNNvfOEgrsNl2W@vm2NVs,TnvnerU>msrFR  m]WN^WgkSsGOgWiTNhNmpF.sI@MOq"
    "WnjtvsFN=GNX)mRPWjoOnNlmQWmssnmNJcVlpmmSpvM :IN;tQOpN#!msnDOl>O pmZENXWQSXbm&o,tlrbn>mZgpn"
    "_WoFmfNWv&4 mburVvUmM=ZkpoWm!5r]>om/&>>O MUpmpTT uNNmGXWG8WNOXBvqOXm^gNmNptWNmSWmXW Omspmd"
    "spgWiaUp##MNmWpMqmmmNsQo!slp.MgNmM_MjW pQE QWZ='v;!N op=VoPQOPmETvvt>m&sN@Nmm ENT-mosm`[ss"
    "Wmvn#mwbGMim4 s#OM O^6mNmppPPHNpQ M[cN>X:OW &/mvuWNlsWPQpNlTcMmXONXmmorMptEN6N$vpnUO4V^asg"
    "ioPWmM    WGnTUbfBWgI^bTmNpOBv #X NpZlMYvWNvXXpuYmYY N5pNv_mmNtmQmWpjs#WpMUNagmm^wNSrQ:Ms "
    "m NO)SNTQlsMNMMmMhSNQZmSgWssNmU^psGT/nPATNslvsss^VhpfmQdMsURmjkO_NNpagmVZO);aPXQmbsYmQlnR "
    "UN<mOr4RoOn5rRNqpZ^mWppNXmRrV'nmNTr^SBiVr#hl&I(G MVNt5mrTVMmoONFsQ/sv p l@hM_Tss/sOsnsCNsq"
    "oVNm)lmr!!MQmQ==SmvMN_Eg]MptQZpmap[/wprtpmNsNsNd# nWg#M-NuwE]WTvpsM Fa& 5N(R TOsMmnZjQmsm<"
    "vvNnMrWsmmwr^ TUtd2m^ksm UmpsQmhNMn&mNQ^iZs(iXsFNsMOukmkONAWNvINESX  mTNmbNqo Q&/pQXOssOA "
    "TNENktNZ&WNVW`r[,MMsmmpWbm M]mNnMSmpQsWNS hNsVNTI NEMNj$6oZ#M&r>tnX/$TTqN[ll>MgNSv[dRN-mlN"
    "NmNo]UmlN)fsWsvsMmn!(IWopls m5kWsmvmpNQtYsfqlN O7%QsOtNOpwmlsPWNVUVYNqf_<_Ni/NlkWQMfCpmNNO"
    "Xmmsh#sSZQqU!NjPv#TGXQPvq!VMneMUNfNMNmX/NpO]utCp-WVm Zmpmo_NlM gNtNWOM)KOplmVtQm:Wm^pol Tm"
    "sRQmU[P hiQYuNWNsX^uUsNOOrnWNMQuENJfGQW#X5lpmn#vIq#wQW#Vr OTmROpm;hDQXs>p&nNm $MXlnTWdVk[Q"
    "eR NNNMWmq)3YZqTVQeXhp NlVT,mVN WosVptXNtsWZN;NmNTEpsmdn5MXMfN^WO NtvNNsmMRNmXGNtNML)2 NQr"
    "hVOT/XsMGNMvtrnNjhNMNX/lrWmUqvFjOcupspWEQ`VgOT,usRewmpaP2lmWTWXEWimpNpsh#mepUMN;S]wtvsUmTv"
    "5mW_TW<NXdRXuX!HNQ NZuWnpSgrmhZNqpN/miXQs!NW!_NuOlOrpnmNsTsNOZFNRjmQO lOQYvVONUnlnZNW/m `o"
    "lUoMshMmtKQlmTNt)gm TVs_W Mi UM/2rV:MlOvmmmesQMNg-XwkE mWrrEinTspsNmOjrt!bpau*lNMAUsOZmLwp"
    "mO/pNNs]uOEhMENnU,VaNpE mtWsQY#QT SmSm VMnN>mPsWuNiWrAQmgMM* dl/mmUl]Om[2^(mvwMvsa^ml#pNMm"
    "NRWp^s5lS^#>mQVOEPN>WM:'mW'pWQliucMN_tNm=FhNlmn&g  QWdmhQssNOGTN*rUsQO4vROt]NjTSqWgm]UR PQ"
    "QtVTvmWnqR^`Wm=qSUsamo s NmUFm<mCMmSOrZslNsm]OZpbvpNL2pgUvN_s@NhTenqNSmt&p s&qU3ZlZsvnpWpj"
    "*pPOsrNlMsW^flhMvQaPoCNTEEZQkTuUmTMWZm#N6pYZsNsPsXEsNsEm[O#OdmsNVv#usStMO OgNpss:O*uWU8mm1"
    ",X^tv2Wts)MENTrmk Q-OpUST#PgW`jmn sNs <sr4ONvtXTi`A/T m!^Wev jOlsNueQZGspVKlWNVW)nR;TXfTR_"
    "WQvsPrNgN#[QNM^QjWO]TvVMnMvHN ^lW'MJiXNqNv^#:XMnNNmtNOstlT bX3`s^Tf_:stFMbWlwmsN$GMlnmrZnB"
    "8OurmNmXvSG2,MWGrPv&ojmsYN=k OTmqr+sTX FQYRhvW@e>PWF>m#EmssgfEW*p] &pnEjsWZDummvr Wnn:Pvf$"
    "m`^oX^ gmqZkmwZNmspMQ_sTMmmMf4rZomZNGNN^ZnjNZWfROrGNN Xn*WNvBOn#N vpNo`mnQHWnk O_NQGaj:mNp"
    "SvUQXOmWtYmmGvUQfsm;NW<mWm`<j mwhgqVNpZpXFNIEMlN)*OhmjSQNsmhNrPSX:mjsrmHmRTmpgROrUevm5mlm["
    "Ms(0&UjjQOjtv^$qPtVoljbWp .qmqmSmX$WDM `[(RN gWW(MNm mqs VlmQsN%FwNvWfWm Aj sW)Jp mW:tVPg'"
    "/5N&jmZCMNOvWOmr&OfTuHO8 mN^TjWm[MoF(OQd ZtSNMO@N:TmUumpSnpvV*Eg^sEM@$ NvOUoCU2FmppaN=srQR"
    ".SNsOUmFrUT]k_smqmGvYrNvZXsgs foRMUNsTh W!OgmW@%vpk /^TmWovmVaasUlsNP^Mqpm vw^MQs^m *QiqXY";

static bool is_escaped(char c) { return c == '"' || c == '?' || c == '\\'; }

/* Returns character i of printable ASCII, without the ones that a C string escapes. */
static char letter(int i)
{
    char c = '!';
    for (; i > 0 || is_escaped(c); c++) i -= !is_escaped(c);
    return c;
}

static bool is_decode(int id)
{
    return !strncmp(gdn_cuda_kernel_name((enum gdn_kernel_id)id), "gdn_decode_", 11);
}

/* Returns the letter of a kernel: its number among the decode kernels of kernels.def. */
static char letter_of(const char *name)
{
    int n = 0;
    for (int id = 0; id < GDN_N_KERNELS; id++) {
        if (!strcmp(gdn_cuda_kernel_name((enum gdn_kernel_id)id), name)) break;
        n += is_decode(id);
    }
    return letter(n);
}

static const char *name_of(char c)
{
    for (int id = 0; id < GDN_N_KERNELS; id++) {
        const char *name = gdn_cuda_kernel_name((enum gdn_kernel_id)id);
        if (is_decode(id) && letter_of(name) == c) return name;
    }
    return "a refusal";
}

/* Makes the next call and returns its kernel's letter; a space if the call is refused. */
static char choose(gdn_ctx *ctx)
{
    gdn_batch           b;
    const gdn_rule_args a = draw_call(&b);
    fake->kernel          = NULL;
    return gdn_decode(ctx, &a) == GDN_OK && fake->kernel ? letter_of(fake->kernel) : ' ';
}

static void test_choice(void)
{
    gdn_ctx *ctx = hopper_ctx();
    if (!ctx) return;
    drawn = 0;
    for (int i = 0; i < N_CALLS; i++) {
        const char got = choose(ctx);
        CHECK(got == chosen[i], "call %d: %s, wanted %s", i, name_of(got), name_of(chosen[i]));
    }
    gdn_ctx_destroy(ctx);
}

/* Checks that the list names every kernel of decode. */
static void test_coverage(void)
{
    for (int id = 0; id < GDN_N_KERNELS; id++) {
        const char *name = gdn_cuda_kernel_name((enum gdn_kernel_id)id);
        CHECK(!is_decode(id) || strchr(chosen, letter_of(name)), "%s: no call takes it", name);
    }
}

/* ---- The log ---- */

struct told {
    int  n;
    char last[512];
};

/* Keeps the lines that are not the kernel's. */
static void tell(void *user, const char *line)
{
    struct told *t = user;
    if (strstr(line, ": gdn_") || !strncmp(line, "workspace", 9)) return;
    snprintf(t->last, sizeof t->last, "%s", line);
    t->n++;
}

/* A call, and its line in the log. */
struct logged {
    int32_t     head_map, index, dtype;
    int64_t     Hv, T, K;
    bool        has_slots;
    const char *line;
};

static gdn_rule_args logged_call(const struct logged *l, gdn_batch *b)
{
    const struct sizes s = { .Hq = 2, .Hk = 2, .Hv = l->Hv, .H = l->Hv, .K = l->K, .V = 128,
                             .B = 8, .T = l->T, .P = 8, .io = l->dtype, .form = PADDED };
    gdn_rule_args a = gdn_rule_args_init();
    a.q = tokens(&s, s.io, s.Hq, s.K), a.k = tokens(&s, s.io, s.Hk, s.K);
    a.v = tokens(&s, s.io, s.Hv, s.V), a.out = tokens(&s, s.io, s.H, s.V);
    a.state    = pool(&s, GDN_BF16, s.P, false);
    a.head_map = l->head_map;
    *b         = gdn_batch_init();
    if (l->has_slots) b->read_slots = tensor(l->index, 1, s.B, 0, 0, 0);
    a.batch = b;
    return a;
}

/* The log has one line for equal calls: the form, and why each faster one was passed over. */
static void test_log(void)
{
    static const struct logged calls[] = {
        { 0, GDN_I32, GDN_BF16, 4, 1, 128, true, "decode: token slots" },
        { 0, GDN_I32, GDN_BF16, 4, 1, 128, false, "decode: token (token slots: no read_slots)" },
        { 1, GDN_I32, GDN_BF16, 2, 1, 128, true, "decode: token slots" }, /* as if grouped */
        { 1, GDN_I32, GDN_BF16, 4, 1, 128, true, "decode: general (head_map is interleaved)" },
        { 0, GDN_I64, GDN_BF16, 4, 1, 128, true,
          "decode: warp (token slots, token, token packed, window k128: slots are int64; "
          "window: T is at most 4)" },
        { 0, GDN_I32, GDN_BF16, 4, 8, 64, true,
          "decode: window (token slots, token: T is not 1; token packed, window k128: "
          "K is not 128)" },
        { 0, GDN_I32, GDN_F32, 4, 1, 128, true,
          "decode: warp (token slots, token, token packed, window k128: q, k and v are float32; "
          "window: q, k and v are not bfloat16)" },
    };
    struct told told = { 0 };
    gdn_batch   b;
    gdn_ctx    *ctx = hopper_ctx();
    if (!ctx) return;
    ctx->options.log = tell, ctx->options.log_user = &told;
    for (int i = 0; i < (int)(sizeof calls / sizeof *calls); i++) {
        const gdn_rule_args a = logged_call(&calls[i], &b);
        for (int k = 0; k < 2; k++) ring2_status(ctx, "call", gdn_decode(ctx, &a), GDN_OK);
        CHECK(told.n == i + 1, "call %d: %d lines in all", i, told.n);
        CHECK(!strcmp(told.last, calls[i].line), "\"%s\", wanted \"%s\"", told.last,
              calls[i].line);
    }
    gdn_ctx_destroy(ctx);
}

/* The same for gdn_prefill. A call of gdn_decode between equal calls adds no line. */
static void test_prefill_log(void)
{
    static const struct logged calls[] = {
        { 0, GDN_I32, GDN_BF16, 4, 70, 128, true, "prefill: sm90" },
        { 0, GDN_I32, GDN_F32, 4, 70, 128, true,
          "prefill: general (sm90: q, k and v are float32)" },
        { 0, GDN_I32, GDN_BF16, 4, 70, 100, true,
          "prefill: general (sm90: K or V is not a multiple of 8)" },
    };
    static const struct logged other = { 0, GDN_I32, GDN_BF16, 4, 1, 128, true, NULL };
    struct told told = { 0 };
    gdn_batch   b, b_other;
    gdn_ctx    *ctx = hopper_ctx();
    if (!ctx) return;
    const gdn_rule_args step = logged_call(&other, &b_other);
    ctx->options.log = tell, ctx->options.log_user = &told;
    ring2_status(ctx, "decode", gdn_decode(ctx, &step), GDN_OK);
    for (int i = 0; i < (int)(sizeof calls / sizeof *calls); i++) {
        const gdn_rule_args a = logged_call(&calls[i], &b);
        for (int k = 0; k < 2; k++) {
            ring2_status(ctx, "prefill", gdn_prefill(ctx, &a), GDN_OK);
            ring2_status(ctx, "decode", gdn_decode(ctx, &step), GDN_OK);
        }
        CHECK(told.n == i + 2, "call %d: %d lines in all", i, told.n);
        CHECK(!strcmp(told.last, calls[i].line), "\"%s\", wanted \"%s\"", told.last,
              calls[i].line);
    }
    gdn_ctx_destroy(ctx);
}

/* ---- The list ---- */

static void print_choice(void)
{
    gdn_ctx *ctx = hopper_ctx();
    if (!ctx) return;
    drawn = 0;
    for (int i = 0; i < N_CALLS; i++) {
        if (i % WIDTH == 0) printf("%s", i ? "\"\n    \"" : "    \"");
        putchar(choose(ctx));
    }
    printf("\"\n");
    gdn_ctx_destroy(ctx);
}

int main(int argc, char **argv)
{
    static const struct ring2_test tests[] = {
        { "decode: the kernels of drawn calls", test_choice },
        { "decode: every kernel is drawn", test_coverage },
        { "decode: the log of a choice", test_log },
        { "prefill: the log of a choice", test_prefill_log },
    };
    static const struct ring2_test printer[] = { { "the list", print_choice } };
    const bool prints = argc == 2 && !strcmp(argv[1], "--print");
    return prints ? fake_main(1, argv, printer, 1)
                  : fake_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
