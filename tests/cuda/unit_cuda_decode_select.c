/* SPDX-License-Identifier: Apache-2.0 */
/* fakes: cuda */
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
    bool kv;
    enum { PADDED, PACKED, SINGLE } form;
};

static struct sizes draw_sizes(void)
{
    static const int heads[][3] = { { 2, 2, 2 }, { 16, 16, 32 }, { 1, 1, 4 }, { 4, 2, 2 } };
    static const int64_t Ks[] = { 128, 128, 128, 64, 256, 128, 64, 256, 96, 98 };
    static const int64_t Vs[] = { 128, 64, 256, 128, 64, 16, 48, 100 };
    static const int64_t Ts[] = { 1, 1, 1, 2, 4, 5, 8 };
    static const int64_t Bs[] = { 1, 2, 8, 40, 128, 512, 65535, 65536 };
    const int *h = heads[below(4)];
    struct sizes s = { .Hq = h[0], .Hk = h[1], .Hv = h[2], .H = h[0] > h[2] ? h[0] : h[2] };
    s.K = Ks[below(one_in(3) ? 10 : 5)], s.V = Vs[below(one_in(3) ? 8 : 3)];
    s.T = Ts[below(7)], s.B = Bs[below(one_in(8) ? 8 : 6)];
    s.form = one_in(2) ? PADDED : one_in(3) ? SINGLE : PACKED;
    s.N = s.B * (s.form == SINGLE ? 1 : s.T);
    s.P = 1 + s.B * (1 + below(2) * s.T);
    s.io = one_in(10) ? GDN_F32 : one_in(3) ? GDN_F16 : GDN_BF16;
    s.state = one_in(2) ? GDN_F32 : one_in(12) ? GDN_F16 : s.io;
    s.kv = one_in(3);
    return s;
}

/* Returns a tensor at a new address. No memory is behind it. */
static gdn_tensor tensor(int32_t dtype, int ndim, int64_t s0, int64_t s1, int64_t s2, int64_t s3)
{
    static uintptr_t n;
    n = n % 60 + 1;
    return gdn_dense((void *)(n << 40), dtype, ndim, s0, s1, s2, s3);
}

/* Returns [B][T][heads][columns] or [N][heads][columns]; if columns is 0, without the last. A
 * single token is T = 1. */
static gdn_tensor tokens(const struct sizes *s, int32_t dtype, int64_t heads, int64_t columns)
{
    const int ndim = columns ? 3 : 2;
    return s->form == PACKED
               ? tensor(dtype, ndim, s->N, heads, columns, 0)
               : tensor(dtype, ndim + 1, s->B, s->form == SINGLE ? 1 : s->T, heads, columns);
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
        b->write = GDN_WRITE_EACH;
        b->write_slots = slots(s->B, s->T);
    } else if (one_in(8)) {
        b->write = GDN_WRITE_NONE;
    }
    if (one_in(8)) {
        b->num_accepted_tokens = tensor(GDN_I32, 1, s->B, 0, 0, 0);
        b->read_slots = slots(s->B, 4);
    }
    if (one_in(8))
        b->has_initial_state = tensor(one_in(4)   ? GDN_I64
                                      : one_in(2) ? GDN_I32
                                                  : GDN_U8,
                                      1, s->B, 0, 0, 0);
}

/* Changes one field that engines rarely set. */
static void draw_rare(const struct sizes *s, gdn_rule_args *a, gdn_batch *b)
{
    gdn_tensor *const any[] = { &a->q, &a->k, &a->v, &a->out, &a->state, &a->state_out, &a->g };
    gdn_tensor *t = any[below(7)];
    switch (below(14)) {
    case 0: b->token_start = tensor(GDN_I32, 1, s->B, 0, 0, 0); break;
    case 1: b->token_count = tensor(GDN_I32, 1, s->B, 0, 0, 0); break;
    case 2: b->pad_policy = (int32_t)below(3); break;
    case 3: a->head_map = GDN_HEADS_INTERLEAVED; break;
    case 4: a->flags = GDN_EXACT; break;
    case 5: b->parents = tensor(GDN_I32, 2, s->B, s->T, 0, 0); break;
    case 6: a->state.data = NULL; break;
    case 7: a->out.data = NULL; break;
    case 8:
        if (t->data && one_in(2)) t->data = (char *)t->data + 8;
        break;
    case 9:
        if (t->data) t->data = (char *)t->data + gdn_dtype_bytes(t->dtype);
        break;
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
        a->state = pool(s, s->B < 40 ? GDN_E4M3 : GDN_I8, s->P, s->kv);
        a->state_scales = tensor(GDN_F32, 3, s->P, s->H, s->V, 0);
    }
    if (one_in(12)) {
        b->checkpoint_every = one_in(2) ? 2 : 0;
        a->checkpoints = pool(s, one_in(3) ? GDN_E4M3 : s->state, 2 * s->N, s->kv);
        if (a->checkpoints.dtype == GDN_E4M3)
            a->checkpoint_scales = tensor(GDN_F32, 3, 2 * s->N, s->H, s->V, 0);
        if (!b->checkpoint_every) /* a tensor without positions is refused */
            a->checkpoints = a->checkpoint_scales = (gdn_tensor){ 0 };
    }
}

static void draw_record(const struct sizes *s, gdn_rule_args *a, gdn_batch *b)
{
    const int64_t R = 8;
    a->record_k = tensor(s->io, 4, s->P, R, s->Hk, s->K);
    a->record_u = tensor(s->io, 4, s->P, R, s->H, s->V);
    a->record_g = tensor(GDN_F32, 3, s->P, R, s->H, 0);
    a->record_count = tensor(GDN_I32, 1, s->P, 0, 0, 0);
    b->write = GDN_WRITE_NONE;
    b->write_slots.data = NULL;
}

/* Draws a call whose batch is b. */
static gdn_rule_args draw_call(gdn_batch *b)
{
    const struct sizes s = draw_sizes();
    gdn_rule_args a = gdn_rule_args_init();
    *b = gdn_batch_init();
    a.q = tokens(&s, s.io, s.Hq, s.K), a.k = tokens(&s, s.io, s.Hk, s.K);
    a.v = tokens(&s, s.io, s.Hv, s.V), a.out = tokens(&s, s.io, s.H, s.V);
    if (!one_in(8)) a.g = tokens(&s, one_in(2) ? GDN_F32 : s.io, s.H, 0);
    if (!one_in(8)) a.beta = tokens(&s, one_in(2) ? GDN_F32 : s.io, s.H, 0);
    a.A_log = tensor(one_in(8) ? GDN_F16 : GDN_F32, 1, s.H, 0, 0, 0);
    a.state = pool(&s, s.state, s.P, s.kv);
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

enum { N_CALLS = 3960, WIDTH = 90 };

/* One letter_of() for each call. `unit_cuda_decode_select --print` prints the list. A commit that
 * changes the list says which calls take another kernel, and why. */
static const char *const chosen =
    "AKNDMBKCCEAMKCC&=AMDAB(KBDNMHFK$AEN=D&KCFMKDAAKAK*ALA GLKA* AA/KEMADKAMKKBA!KLGKABM>CBBBMN"
    "BBC<KDC0)B KKA AFBMDFMA NC:M BMAFLJ!KDKIK(JBAHAKCI=MBAKD0AACKMALBHC/,LDDKN BAAAGKDAKL!LMLE"
    " GCLLEAK,MMDC.N%CKABMKA(AAF6AKLKBDJKFMKDKE)JG&AMLAAKAAILKA!DKKM=NL;DAMEI D:K!JDCMMG#CJMNGM"
    "LLAKDAGF8(CGD(AANMNABAKJAADFD9%ABFKNADA&D$D9CDK0IKADMAGFKDA%NL#NBDMIJ&KBKAN BANAA DLMKJAKL"
    "KMLICCAKA$FDAMJM CIJNNAKIAANIA8IMMAK'D/NK'ADM%CKNKHMC.KMM9B  KFDAFDIJCM:AIDJCAIAKL9&M</AAL"
    "DKJMNM9A-:AD$KBBDJLAKAKKBDKMMKKA=HDKLKKCLNA *<A+MBALA!!KMJ3AK.A LKE8ADDBCDGK#L%MAMGK.KEILK"
    "FDL9KIADN#( KGNM0NCKA-EJLLDK!(MF.LK&#..A ACLKECC NAAK:DD:)DAAD1NLA1KFIAKALMDAKCDKDD AKMLKH"
    "MLIDJGCD!!AAKDLALKKKAMBL!MJL&AIAKAFAJD LB8 BDE-#N+!A HF-DLBBABK8CNNM.K#MA/AKK 8AC%KLMKGEMM"
    "DKNK!ING:AJK( M!AA AF(KAKLLB.;ALB AEHA.D*AD #&KNNDAKMDBBLAKCHAKDAADKKLMA'M8A(A!NLKCA(DFGMI"
    "JL.DKA    D:KCCGI1DI<F0CIALA1N !D ALEKAENDANDDLNEKEE A(LANFKKAMKBKDLJM!D'ACAGIKKFNACMB*A6 "
    "K AA$/ACBKMAAAAKAICABEKCIDMMAKCF'M:C&KB0CAMKN6MMF0ILIKBHAMCB,JJAFAALGIKDE,$+GBDBKGMEKBKKB "
    "CA,KAM(BLAK(MBALLEFKDLLADK.MD#KKACMFC1JDM!IK#<$: ADAM(KMCDAKLAA9MB&MN L K/IAFCMM&M,MKM2AML"
    "LDAK$BKM!!ABKB--CKNAAF8IFALMBELKGLE&NLMMLKAMAMAH! KDI!A%ANN8FDCNLMA 9G# (A$B CAMAKKEJBKMK,"
    "NNAKAMDMKKNMF CCMH'8FJMK CKLMBKIAAA#KABFJEM$JDM9AMAANJKJAA0DAN<A8CD  KCAKGALL B#&LBDAMMA0 "
    "CA8AJMAE#DADDGME%-AM:KLDGK AFKAAACKLBMDAC IAMDAC< A8AAJ!(LE!A#M.MKD&!CCLAEKK.AIACNEH.A%KKA"
    "AKALF/AKA$IMD7NMAKK!$<DLLKM K(JDMKNKLABMEMILCA -)#BMAMAALNKKMBDADCDEALIF,FAJ&AKJDBAI2LKAAA"
    "DKKMI!MCEBDC!AJ.N!C:DBBNL!DAKHACAIAAAKD&ALAFNM2L%DDK EKLKLFAKA IAMADAA$>AFKKDMBB*DKFLLK CK"
    "M.BKCEB IJBENADAMDFNC4AAAMKDAABN8A=I:BD!D(KLKK!N<L!NBD!0M ACKB,LK+I3BDM.L#AAK !ADKKCDHDJEB"
    "HB AAAADKL$'EELCDBHDIL AKDC%KDA DLMDLMDAMMDEA+AKAC8LMKHK(ADAIAFDA AMNAAMK-BAKD:AMAA@$' ABM"
    "IDAC&DMA:AANMMKAJIAAAD&KMDKCLN9JAHNLMLD8BGDIAC%NMBHNKLGB'KKDCDD8DJKLALMI!KH(CAA+CFNMNMCKCN"
    "(KDFCD,ADH.DND!;AB AENDALCIMKIEALLA&KJ0BM!AD!FANAK-MLKKAMCMAAE9ABJKBA KABEN0,ACKKAEAD&K GL"
    "KC&AMIAKM>BKKCAM$I, C0MFD AJKCA&'MD*AKANKKKHMBAAI%DNJ8 KDMM8JKCMLMAKAJMM!GLGN$KAA0CMAEK@NL"
    "KA&LAAMFNA8IA8AKC%DGAL8 KMDMBE!BC CKCK DAKA.KBMDNAJDM0BKIAA$ HK&KKCKFAKE'F$CNNANMGFKK!LA,K"
    "ABDLFM(KCF!.KBDA8BA.DA*#KD#LDBKJNHAAFMA8-9IAIKK#I  BDHKIBMMAA:CA$MCMBA(N.,MFAJCCLDIKFC. .B"
    "BMDCNKDKLBFGDK-LCCMGKL M AKC9K,K2AKCAMEMKAMKFAELGNLA@'LICNAFM/AICHJLACKM#L M#DC'EKEMNKLDLJ"
    "$EBAMMAKAMDFIKIANBGBL2AC88EBJCNCKCADEK!A(LEEMAM.MD8MAM8KEA!AHKMADN!NMCMAA AIALMM*A$NDC)KK'"
    "%DFMN'DMM$A8ACMKJ B%ALCCC!BIDGJAK MAM ,MM(AANMDCJG0&C K!FDHN JAKMANHBE:MLD>KDADD$KB+C0ICBF"
    "DBNMBMAIA!EBA,FBJDAFCNDAKAN;A FAD#A=JDALANF!*DAKAAAMAA4MKC GD'GMFCIF*MM9AGDCN:MA!:AKKKMEK1"
    ")ANMKAKDNC:'%AD:MBN#LJKMEA-J ACK&M%MCD 9BEBIND/H.BD9.K!8KMMII8D$LF #LK8JMDE3NKKNM DKK*BNI!"
    "KGFL0F IKLEJKNEAKML-BFMCAKKAI(MEDKEA:AAFEKJAEDIBAM:AA DK$DAN1,K!A NLALGKKB;DIJ AFAB:GJ*KAL"
    "/NCB1AKDMEKK:NCBIMK+AD,KDKG,J KNII1DALELD9A<8AKA$$AIKJCBAMKIAMBCD*BJ6MK;KBCKLIBAMCHNK(KKKE"
    "AM$&#CJJBAJMNF!LBMDLKJGDL &LKLKCKD!D3A GE$BA IDD$AAK KLM DKKBMA#9NANDIDK 0J MD$=L KD*MDBI#"
    "&(A#JKE2,AAND-KM#AICN;A) KAFCJDKEAL9$ABH EMCAAA/A*CKCNK&CKLND$8IFM8A/! ANACL2C'9CLFGA-MMB."
    "&CAM,C*9MCCFJFMKEK:NEMANEDMIM ILBACAMCI D!AIKD/#NDJ &FCKDLNKDGGM/KMABFALLK NNFABMFK $BJLDE"
    "NKJDKK1KAAMFAGBKB#DMELAABILC-IDEAIMDMFA ECLA.ADCIFBI;AKANIKMA JA&DAH(AKADCH*B*KAKKAAMAMLHM"
    "ML/DJ#DK/AM(MBCBD.+CKJKNM!IB,F-IMN$ADKA#KM:FBHAM8K:A MMAMB!JJAA/LJK H'LAAALM9KI AC0K ,CAK$"
    "/ M$KLAMH DI.MNC*KMBFNMBMLM'LDK#LLKBNCACACNMMG#MC0EN0ENMMKMAALDKKDN,FLK  FEEMAM*L9BAA!MC8K"
    "MC, 'CDF8M!C;D8KMA,BKJBAHKM=ANDIFDL+K;KKM,AMA!GK&5DJD&KLK MAD!D MA CM,KAA$MJENA(;MIAMCBAFK"
    " ACC!B.A BA:MKN<(A0LAAKDM#KKK EADFM&D-KHAJJHIMAMDAAB ADAAMGGK'I$MK% KA %MBALMMIABA #MHM(L%"
    "NLL2 LMAKMDK&AMMAAAD%CKFDNC DC-ABM ;BJKBNCEA,CL#%A0AFNKE DCKLKDGLJAMMDADBBA!BAFDABAK$BAKMK"
    "D-CNIFLALMKK#HH+BMAL AMGJ LAKAKCBME%MDL*LDDCAMI(M)LA:AALCKLKAMF; $ DLMMDKLDMMMADAI,#KCD,J;"
    "MLCLAM+DAKKEDAA$IC1B! MEGAKCFHAFIHN KMF3KLADJA%FFH,8NFNBNA=ALBDEBA.E&C! MAEKMMC$<MAM*IE!$K"
    "MEMA9,ABFIGCCADK 9DGDKC BNC!:ADBNADNA(AD!AGNACD.NKK*AMIEIIAKANKKEKBDDGLDDBEAAC KI0;DCAMIEA"
    "HDK.HAAMNKMFKKCD1AFA0CK.@KFAAKMGKAMAAI .!A$FBAKLADJ(/DBMKKDMBBCMLJKL!M&LNICDKNM,$KKDCEBAKE";

static bool is_escaped(char c) { return c == '"' || c == '?' || c == '\\'; }

/* Returns character i of printable ASCII, without the ones that a C string escapes. */
static char letter(int i)
{
    char c = '!';
    for (; i > 0 || is_escaped(c); c++) i -= !is_escaped(c);
    return c;
}

static bool begins_with(const char *name, const char *with)
{
    return !strncmp(name, with, strlen(with));
}

/* Returns true if the drawn calls may choose the kernel; gdn_decode_token_single_... are of
 * gdn_prefill(), gdn_decode_record_... of records, and gdn_decode_lazy_... have a test of their
 * own. */
static bool is_decode(int id)
{
    const char *name = gdn_cuda_kernel_name((enum gdn_kernel_id)id);
    return begins_with(name, "gdn_decode_") && !begins_with(name, "gdn_decode_token_single_") &&
           !begins_with(name, "gdn_decode_record_") && !begins_with(name, "gdn_decode_lazy_") &&
           !begins_with(name, "gdn_decode_channels_");
}

/* Compares the names of two kernels up to their K, which the call has. */
static bool are_alike(const char *a, const char *b)
{
    const size_t n = (size_t)(strrchr(a, '_') - a);
    return n == (size_t)(strrchr(b, '_') - b) && !strncmp(a, b, n);
}

/* Returns the letter of a kernel: its stem's number among the decode kernels of kernels.def. */
static char letter_of(const char *name)
{
    const char *last = NULL;
    int n = -1;
    for (int id = 0; id < GDN_N_KERNELS; id++) {
        const char *other = gdn_cuda_kernel_name((enum gdn_kernel_id)id);
        if (!is_decode(id)) continue;
        n += !last || !are_alike(last, other);
        last = other;
        if (are_alike(other, name)) break;
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
    gdn_batch b;
    const gdn_rule_args a = draw_call(&b);
    fake->kernel = NULL;
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

static int id_of(const char *name)
{
    int id = 0;
    while (strcmp(gdn_cuda_kernel_name((enum gdn_kernel_id)id), name)) id++;
    return id;
}

/* Checks that the drawn calls take every kernel of decode. */
static void test_coverage(void)
{
    bool seen[GDN_N_KERNELS] = { 0 };
    gdn_ctx *ctx = hopper_ctx();
    if (!ctx) return;
    drawn = 0;
    for (int i = 0; i < N_CALLS; i++)
        if (choose(ctx) != ' ') seen[id_of(fake->kernel)] = true;
    for (int id = 0; id < GDN_N_KERNELS; id++)
        CHECK(!is_decode(id) || seen[id], "%s: no call takes it",
              gdn_cuda_kernel_name((enum gdn_kernel_id)id));
    gdn_ctx_destroy(ctx);
}

/* ---- The log ---- */

struct told {
    int n;
    char last[512], record[512]; /* record: the last one of a call with a record */
};

/* Keeps the lines that are not the kernel's. */
static void tell(void *user, const char *line)
{
    struct told *t = user;
    if (strstr(line, ": gdn_") || !strncmp(line, "workspace", 9)) return;
    snprintf(t->last, sizeof t->last, "%s", line);
    if (strstr(line, "has a record")) snprintf(t->record, sizeof t->record, "%s", line);
    t->n++;
}

/* A call, and its line in the log. */
struct logged {
    int32_t head_map, index, dtype;
    int64_t Hv, T, K;
    bool has_slots;
    const char *line;
};

static gdn_rule_args logged_call(const struct logged *l, gdn_batch *b)
{
    const struct sizes s = { .Hq = 2,
                             .Hk = 2,
                             .Hv = l->Hv,
                             .H = l->Hv,
                             .K = l->K,
                             .V = 128,
                             .B = 8,
                             .T = l->T,
                             .P = 8,
                             .io = l->dtype,
                             .form = PADDED };
    gdn_rule_args a = gdn_rule_args_init();
    a.q = tokens(&s, s.io, s.Hq, s.K), a.k = tokens(&s, s.io, s.Hk, s.K);
    a.v = tokens(&s, s.io, s.Hv, s.V), a.out = tokens(&s, s.io, s.H, s.V);
    a.state = pool(&s, GDN_BF16, s.P, false);
    a.head_map = l->head_map;
    *b = gdn_batch_init();
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
        { 1, GDN_I32, GDN_BF16, 4, 1, 128, true, "decode: 2 runs of heads: token slots" },
        { 1, GDN_I32, GDN_BF16, 18, 1, 128, true, "decode: general (head_map is interleaved)" },
        { 0, GDN_I64, GDN_BF16, 4, 1, 128, true,
          "decode: warp (token slots, token, token packed, window k128: slots are int64; "
          "window: T is at most 4)" },
        { 0, GDN_I32, GDN_BF16, 4, 8, 64, true,
          "decode: window (token slots, token, token packed: T is not 1; window k128: K is not "
          "128)" },
        { 0, GDN_I32, GDN_F32, 4, 1, 128, true,
          "decode: warp (token slots, token, token packed, window k128: q, k and v are float32; "
          "window: q, k and v are not bfloat16)" },
    };
    struct told told = { 0 };
    gdn_batch b;
    gdn_ctx *ctx = hopper_ctx();
    if (!ctx) return;
    ctx->options.log = tell, ctx->options.log_user = &told;
    for (int i = 0; i < (int)(sizeof calls / sizeof *calls); i++) {
        const gdn_rule_args a = logged_call(&calls[i], &b);
        for (int k = 0; k < 2; k++) ring2_status(ctx, "call", gdn_decode(ctx, &a), GDN_OK);
        CHECK(told.n == i + 1, "call %d: %d lines in all", i, told.n);
        CHECK(!strcmp(told.last, calls[i].line), "\"%s\", wanted \"%s\"", told.last, calls[i].line);
    }
    gdn_ctx_destroy(ctx);
}

/* A call with a record, and the kernel that runs last. */
struct lazy {
    int32_t io, state, rows, write, layout;
    int64_t T, R, K, heads;
    const char *kernel, *line;
};

static gdn_rule_args lazy_call(const struct lazy *l, gdn_batch *b)
{
    const struct logged plain = { 0, GDN_I32, l->io, l->heads, l->T, l->K, true, NULL };
    gdn_rule_args a = logged_call(&plain, b);
    const int64_t H = a.state.size[1], P = a.state.size[0];
    const bool kv = l->layout == GDN_STATE_KV;
    a.state = tensor(l->state, 4, P, H, kv ? l->K : 128, kv ? 128 : l->K);
    a.state_layout = l->layout;
    a.record_k = tensor(l->rows, 4, P, l->R, 2, l->K);
    a.record_u = tensor(l->rows, 4, P, l->R, H, 128);
    a.record_g = tensor(GDN_F32, 3, P, l->R, H, 0);
    a.record_count = tensor(GDN_I32, 1, P, 0, 0, 0);
    b->write = l->write;
    return a;
}

/* Records that accept a token have forms. Others are folded first, and the log says why. */
static void test_lazy(void)
{
#define FOLDS(kernel, why)                                                                  \
    "gdn_decode_" kernel,                                                                   \
        "decode: fold (token slots, token, token packed, window k128, window, warp, token " \
        "eight, general: the call has a record; lazy few, lazy: " why ")"
#define FOLDS_LAZY(kernel, why)                                                             \
    "gdn_decode_" kernel,                                                                   \
        "decode: fold (token slots, token, token packed, window k128, window, warp, token " \
        "eight, general: the call has a record; lazy few: T is not 1; lazy: " why ")"
#define FOLDS_FEW(kernel) FOLDS_LAZY(kernel, "it saves at most 325 KiB for each multiprocessor")
#define SEVERAL                                                                         \
    "decode: lazy (token slots, token, token packed, window k128, window, warp, token " \
    "eight, general: the call has a record; lazy few: T is not 1)"
#define FEW "decode: lazy few (the call has a record)"
#define MANY                                                                             \
    "decode: lazy (token slots, token, token packed, window k128, window, warp, token "  \
    "eight, general: the call has a record; lazy few: lazy saves more than 325 KiB for " \
    "each multiprocessor)"
    static const struct lazy calls[] = {
        { GDN_BF16, GDN_F32, GDN_BF16, GDN_WRITE_FINAL, GDN_STATE_VK, 1, 16, 128, 92,
          "gdn_decode_lazy_few_F32_BF16_128", FEW },
        { GDN_BF16, GDN_F32, GDN_BF16, GDN_WRITE_FINAL, GDN_STATE_VK, 1, 16, 128, 94,
          "gdn_decode_lazy_F32_BF16_128", MANY },
        { GDN_F16, GDN_F32, GDN_F32, GDN_WRITE_FINAL, GDN_STATE_VK, 1, 4, 128, 114,
          "gdn_decode_lazy_few_F32_F16_128", FEW },
        { GDN_F16, GDN_F32, GDN_F32, GDN_WRITE_FINAL, GDN_STATE_VK, 1, 4, 128, 116,
          "gdn_decode_lazy_F32_F16_128", MANY },
        { GDN_BF16, GDN_BF16, GDN_F32, GDN_WRITE_FINAL, GDN_STATE_VK, 1, 64, 128, 348,
          "gdn_decode_lazy_few_BF16_BF16_128", FEW },
        { GDN_BF16, GDN_BF16, GDN_F32, GDN_WRITE_FINAL, GDN_STATE_VK, 1, 64, 128, 350,
          "gdn_decode_lazy_BF16_BF16_128", MANY },
        { GDN_F16, GDN_F16, GDN_F16, GDN_WRITE_FINAL, GDN_STATE_VK, 1, 2, 128, 340,
          "gdn_decode_lazy_few_F16_F16_128", FEW },
        { GDN_F16, GDN_F16, GDN_F16, GDN_WRITE_FINAL, GDN_STATE_VK, 1, 2, 128, 342,
          "gdn_decode_lazy_F16_F16_128", MANY },
        { GDN_BF16, GDN_F32, GDN_BF16, GDN_WRITE_FINAL, GDN_STATE_VK, 2, 16, 128, 40,
          FOLDS_FEW("window_k128_vk_F32_BF16_128") },
        { GDN_BF16, GDN_F32, GDN_BF16, GDN_WRITE_FINAL, GDN_STATE_VK, 4, 16, 128, 120,
          FOLDS_LAZY("window_k128_vk_F32_BF16_128", "to fold first takes less time") },
        { GDN_BF16, GDN_F32, GDN_BF16, GDN_WRITE_FINAL, GDN_STATE_VK, 2, 16, 128, 120,
          "gdn_decode_lazy_tokens_F32_BF16_128", SEVERAL },
        { GDN_F16, GDN_F32, GDN_F16, GDN_WRITE_FINAL, GDN_STATE_VK, 2, 64, 128, 240,
          "gdn_decode_lazy_tokens_F32_F16_128", SEVERAL },
        { GDN_BF16, GDN_BF16, GDN_BF16, GDN_WRITE_FINAL, GDN_STATE_VK, 2, 16, 128, 240,
          "gdn_decode_lazy_tokens_BF16_BF16_128", SEVERAL },
        { GDN_F16, GDN_F16, GDN_F32, GDN_WRITE_FINAL, GDN_STATE_VK, 2, 16, 128, 300,
          "gdn_decode_lazy_tokens_F16_F16_128", SEVERAL },
        { GDN_BF16, GDN_F32, GDN_BF16, GDN_WRITE_FINAL, GDN_STATE_VK, 9, 64, 128, 400,
          FOLDS_LAZY("window_vk_F32_128", "T is 0, or more than the form takes") },
        { GDN_BF16, GDN_F32, GDN_BF16, GDN_WRITE_FINAL, GDN_STATE_KV, 2, 16, 128, 400,
          FOLDS_LAZY("window_kv_F32_128", "states are k-first") },
        { GDN_BF16, GDN_F32, GDN_BF16, GDN_WRITE_FINAL, GDN_STATE_VK, 1, 65, 128, 4,
          FOLDS("token_vk_F32_BF16_128", "a record has more than 64 rows") },
        { GDN_BF16, GDN_F32, GDN_F16, GDN_WRITE_FINAL, GDN_STATE_VK, 1, 16, 128, 4,
          FOLDS("token_vk_F32_BF16_128",
                "rows of the record are neither float32 nor of the dtype of k") },
        { GDN_BF16, GDN_F32, GDN_BF16, GDN_WRITE_FINAL, GDN_STATE_KV, 1, 16, 128, 68,
          "gdn_decode_lazy_few_kv_F32_BF16_128", FEW },
        { GDN_F16, GDN_F16, GDN_F32, GDN_WRITE_FINAL, GDN_STATE_KV, 1, 16, 128, 4,
          "gdn_decode_lazy_few_kv_F16_F16_128", FEW },
        { GDN_BF16, GDN_F32, GDN_BF16, GDN_WRITE_FINAL, GDN_STATE_VK, 1, 16, 64, 4,
          FOLDS("token_vk_F32_BF16_64", "K is not 128") },
    };
    struct told told = { 0 };
    gdn_batch b;
    gdn_ctx *ctx = hopper_ctx();
    if (!ctx) return;
    ctx->options.log = tell, ctx->options.log_user = &told;
    for (int i = 0; i < (int)(sizeof calls / sizeof *calls); i++) {
        const gdn_rule_args a = lazy_call(&calls[i], &b);
        ring2_status(ctx, "call", gdn_decode(ctx, &a), GDN_OK);
        CHECK(!strcmp(fake->kernel, calls[i].kernel), "call %d: %s, wanted %s", i, fake->kernel,
              calls[i].kernel);
        CHECK(!strcmp(told.record, calls[i].line), "\"%s\", wanted \"%s\"", told.record,
              calls[i].line);
    }
    gdn_rule_args far = lazy_call(&calls[0], &b);
    far.record_count.dtype = GDN_I64, far.record_count.stride[0] = INT32_MAX / 8 + 1;
    ring2_status(ctx, "far", gdn_decode(ctx, &far), GDN_OK);
    CHECK(strstr(told.record, "lazy few, lazy: counts are too far apart"), "\"%s\"", told.record);
    gdn_ctx_destroy(ctx);
}

/* The same for gdn_prefill. A call of gdn_decode between equal calls adds no line. */
static void test_prefill_log(void)
{
    static const struct logged calls[] = {
        { 0, GDN_I32, GDN_BF16, 4, 70, 128, true, "prefill: sm90" },
        { 0, GDN_I32, GDN_F32, 4, 70, 128, true, "prefill: general (q, k and v are float32)" },
        { 0, GDN_I32, GDN_BF16, 4, 70, 100, true,
          "prefill: portable (sm90: K or V is not a multiple of 8)" },
    };
    static const struct logged other = { 0, GDN_I32, GDN_BF16, 4, 1, 128, true, NULL };
    struct told told = { 0 };
    gdn_batch b, b_other;
    gdn_ctx *ctx = hopper_ctx();
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
        CHECK(!strcmp(told.last, calls[i].line), "\"%s\", wanted \"%s\"", told.last, calls[i].line);
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
        { "decode: records that accept tokens", test_lazy },
        { "prefill: the log of a choice", test_prefill_log },
    };
    static const struct ring2_test printer[] = { { "the list", print_choice } };
    const bool prints = argc == 2 && !strcmp(argv[1], "--print");
    return prints ? fake_main(1, argv, printer, 1)
                  : fake_main(argc, argv, tests, sizeof tests / sizeof *tests);
}
