/* SPDX-License-Identifier: Apache-2.0 */
#include "generate/bpe.h"

#include <cjson/cJSON.h>
#include <string.h>

#include "cli.h"
#include "files/whole_file.h"
#include "generate/split.h"

/* Bytes of a token; NULL: there is none of this number. */
struct piece {
    const char *bytes;
    size_t      n;
};

struct merge {
    int32_t left, right, merged, rank;
    bool    used; /* this place of the table */
};

struct bpe {
    const char    *path;
    struct piece  *pieces; /* [vocab] */
    int64_t        vocab;
    int32_t       *by_bytes; /* hash table of tokens, -1: free */
    struct merge  *merges;   /* hash table */
    size_t         n_by_bytes, n_merges; /* powers of two */
    struct piece  *added;    /* tokens that are found in a text before it is cut */
    int32_t       *added_tokens;
    int            n_added;
    char          *text; /* bytes of all tokens; the next free one */
    bool           marks;
    int32_t        byte_tokens[256];
};

/* ---- Hash tables ----------------------------------------------------------------------------- */

static size_t hash_bytes(const char *bytes, size_t n)
{
    uint64_t h = 0xcbf29ce484222325;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)bytes[i]) * 0x100000001b3;
    return (size_t)(h ^ h >> 29);
}

static size_t hash_pair(int32_t left, int32_t right)
{
    const uint64_t h = ((uint64_t)(uint32_t)left << 32 | (uint32_t)right) * 0x9e3779b97f4a7c15;
    return (size_t)(h >> 20);
}

/* Returns the place of these bytes, or the free one where they belong. */
static int32_t *find_bytes(const struct bpe *b, const char *bytes, size_t n)
{
    size_t i = hash_bytes(bytes, n) & (b->n_by_bytes - 1);
    for (; b->by_bytes[i] >= 0; i = (i + 1) & (b->n_by_bytes - 1)) {
        const struct piece *p = &b->pieces[b->by_bytes[i]];
        if (p->n == n && !memcmp(p->bytes, bytes, n)) break;
    }
    return &b->by_bytes[i];
}

static struct merge *find_merge(const struct bpe *b, int32_t left, int32_t right)
{
    size_t i = hash_pair(left, right) & (b->n_merges - 1);
    while (b->merges[i].used && (b->merges[i].left != left || b->merges[i].right != right))
        i = (i + 1) & (b->n_merges - 1);
    return &b->merges[i];
}

/* At most half full with n entries. */
static size_t table_size(size_t n)
{
    size_t size = 16;
    while (size < 2 * n + 2) size *= 2;
    return size;
}

/* ---- Letters that stand for bytes ------------------------------------------------------------ */

/* The byte of a character: those that print are themselves, the others follow from U+0100. */
static int byte_of(uint32_t code)
{
    uint32_t next = 256;
    for (uint32_t byte = 0; byte < 256; byte++) {
        const bool prints = (byte >= 33 && byte <= 126) || (byte >= 161 && byte != 173);
        if ((prints ? byte : next++) == code) return (int)byte;
    }
    return -1;
}

/* Returns the bytes that a word of these characters stands for, in b->text. *good false: it has
 * others. */
static struct piece bytes_of(struct bpe *b, const char *word, size_t n, bool *good)
{
    struct piece piece = { b->text, 0 };
    *good              = n > 0;
    for (size_t i = 0; i < n && *good;) {
        const unsigned char c    = (unsigned char)word[i];
        const bool          two  = c >> 5 == 6 && i + 1 < n;
        const int byte = byte_of(two ? (c & 31u) << 6 | (word[i + 1] & 63u) : c);
        *good          = byte >= 0 && (two || c < 128);
        b->text[piece.n++] = (char)byte;
        i += two ? 2 : 1;
    }
    return piece;
}

/* ---- Reading tokenizer.json ------------------------------------------------------------------ */

static const cJSON *get(const cJSON *json, const char *key)
{
    return cJSON_GetObjectItemCaseSensitive(json, key);
}

static const char *text_of(const cJSON *json, const char *key)
{
    const char *text = cJSON_GetStringValue(get(json, key));
    return text ? text : "";
}

static int add_token(struct bpe *b, struct piece piece, double number, const char *name)
{
    const int32_t token = (int32_t)number;
    if (!(number >= 0 && number < (double)b->vocab) || token != number)
        return cli_bad("%s: token '%.40s': its number is not from 0 to %lld, as the model's",
                       b->path, name, (long long)b->vocab - 1);
    if (b->pieces[token].bytes)
        return cli_bad("%s: token '%.40s': another one has its number, %d", b->path, name, token);
    b->pieces[token] = piece;
    b->text += piece.n;
    return CLI_OK;
}

static int read_vocab(struct bpe *b, const cJSON *vocab)
{
    const cJSON *item;
    if (!cJSON_IsObject(vocab)) return cli_bad("%s: no object model.vocab", b->path);
    cJSON_ArrayForEach(item, vocab)
    {
        bool               good;
        const struct piece piece = bytes_of(b, item->string, strlen(item->string), &good);
        if (!good || !cJSON_IsNumber(item))
            return cli_bad("%s: token '%.40s': not bytes and a number", b->path, item->string);
        if (add_token(b, piece, item->valuedouble, item->string)) return CLI_BAD;
        *find_bytes(b, piece.bytes, piece.n) = (int32_t)item->valuedouble;
    }
    return CLI_OK;
}

/* "left right", or a list of the two. */
static bool pair_of(const cJSON *item, const char *words[2], size_t n[2])
{
    const char *text  = cJSON_GetStringValue(item);
    const char *space = text ? strchr(text, ' ') : NULL;
    if (cJSON_IsArray(item) && cJSON_GetArraySize(item) == 2) {
        for (int i = 0; i < 2; i++) {
            words[i] = cJSON_GetStringValue(cJSON_GetArrayItem(item, i));
            if (!words[i]) return false;
            n[i] = strlen(words[i]);
        }
        return true;
    }
    if (!space) return false;
    words[0] = text;
    words[1] = space + 1;
    n[0]     = (size_t)(space - text);
    n[1]     = strlen(space + 1);
    return true;
}

/* Reads the tokens of both halves and of the whole; false where one is not in the vocabulary. */
static bool read_pair(struct bpe *b, const cJSON *item, struct merge *m)
{
    const char *words[2];
    size_t      n[2];
    bool        good[2];
    char *const first = b->text;
    if (!pair_of(item, words, n)) return false;
    const struct piece left = bytes_of(b, words[0], n[0], &good[0]);
    b->text += left.n;
    const struct piece right = bytes_of(b, words[1], n[1], &good[1]);
    b->text                  = first;
    if (!good[0] || !good[1]) return false;
    m->left   = *find_bytes(b, left.bytes, left.n);
    m->right  = *find_bytes(b, right.bytes, right.n);
    m->merged = *find_bytes(b, left.bytes, left.n + right.n);
    return m->left >= 0 && m->right >= 0 && m->merged >= 0;
}

static int read_merges(struct bpe *b, const cJSON *merges)
{
    const cJSON *item;
    int32_t      rank = 0;
    if (!cJSON_IsArray(merges)) return cli_bad("%s: no list model.merges", b->path);
    cJSON_ArrayForEach(item, merges)
    {
        struct merge m = { .rank = rank, .used = true };
        if (!read_pair(b, item, &m))
            return cli_bad("%s: merge %d is not two tokens whose sum is a token", b->path, rank);
        struct merge *to = find_merge(b, m.left, m.right);
        if (!to->used) *to = m;
        rank++;
    }
    return CLI_OK;
}

/* They may be in the vocabulary too. */
static int read_added(struct bpe *b, const cJSON *added)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, added)
    {
        const char  *content = text_of(item, "content");
        const cJSON *id      = get(item, "id");
        struct piece piece   = { b->text, strlen(content) };
        if (!piece.n || !cJSON_IsNumber(id))
            return cli_bad("%s: added_tokens: token %d has no content or no id", b->path,
                           b->n_added);
        memcpy(b->text, content, piece.n);
        if (id->valuedouble >= 0 && id->valuedouble < (double)b->vocab)
            b->pieces[(int32_t)id->valuedouble].bytes = NULL;
        if (add_token(b, piece, id->valuedouble, content)) return CLI_BAD;
        b->added[b->n_added]          = piece;
        b->added_tokens[b->n_added++] = (int32_t)id->valuedouble;
    }
    return CLI_OK;
}

/* Returns the expression of the one Split, alone or in a Sequence. */
static const char *pattern_of(const cJSON *pre)
{
    const cJSON *item;
    if (!strcmp(text_of(pre, "type"), "Split")) return text_of(get(pre, "pattern"), "Regex");
    cJSON_ArrayForEach(item, get(pre, "pretokenizers"))
        if (!strcmp(text_of(item, "type"), "Split"))
            return text_of(get(item, "pattern"), "Regex");
    return "";
}

static int check_kind(struct bpe *b, const cJSON *json)
{
    const char *pattern = pattern_of(get(json, "pre_tokenizer"));
    const char *type    = text_of(get(json, "model"), "type");
    const char *normal  = text_of(get(json, "normalizer"), "type");
    if (strcmp(type, "BPE"))
        return cli_bad("%s: model.type is '%.20s', wanted BPE", b->path, type);
    if (*normal && strcmp(normal, "NFC"))
        return cli_bad("%s: normalizer is '%.20s', wanted NFC or none", b->path, normal);
    b->marks = !strcmp(pattern, split_qwen35);
    if (!b->marks && strcmp(pattern, split_qwen2))
        return cli_bad("%s: pre_tokenizer: wanted the Split of Qwen2 or Qwen3.5, found '%.60s'",
                       b->path, pattern);
    return CLI_OK;
}

static int make_tables(struct bpe *b, const cJSON *json, size_t text, struct memory *memory)
{
    const cJSON *model   = get(json, "model");
    const size_t n_added = (size_t)cJSON_GetArraySize(get(json, "added_tokens"));
    b->n_by_bytes        = table_size((size_t)cJSON_GetArraySize(get(model, "vocab")));
    b->n_merges          = table_size((size_t)cJSON_GetArraySize(get(model, "merges")));
    b->pieces            = memory_get(memory, (size_t)b->vocab * sizeof *b->pieces);
    b->by_bytes          = memory_get(memory, b->n_by_bytes * sizeof *b->by_bytes);
    b->merges            = memory_get(memory, b->n_merges * sizeof *b->merges);
    b->added             = memory_get(memory, n_added * sizeof *b->added);
    b->added_tokens      = memory_get(memory, n_added * sizeof *b->added_tokens);
    b->text              = memory_get(memory, text); /* no token is longer than its JSON */
    if (!b->pieces || !b->by_bytes || !b->merges || !b->added || !b->added_tokens || !b->text)
        return cli_bad("%s: no memory for the tokenizer", b->path);
    memset(b->by_bytes, -1, b->n_by_bytes * sizeof *b->by_bytes);
    return CLI_OK;
}

static int read_json(struct bpe *b, const cJSON *json, size_t text, struct memory *memory)
{
    const cJSON *model = get(json, "model");
    if (check_kind(b, json) || make_tables(b, json, text, memory) ||
        read_vocab(b, get(model, "vocab")) || read_merges(b, get(model, "merges")))
        return CLI_BAD;
    for (int i = 0; i < 256; i++) {
        const char byte   = (char)i;
        b->byte_tokens[i] = *find_bytes(b, &byte, 1);
    }
    return read_added(b, get(json, "added_tokens"));
}

struct bpe *bpe_open(const char *path, int64_t vocab, struct memory *memory)
{
    struct bpe *b = memory_get(memory, sizeof *b);
    void       *text;
    size_t      bytes;
    if (!b) cli_bad("%s: no memory", path);
    if (!b || whole_file_read(path, memory, &text, &bytes)) return NULL;
    b->path    = path;
    b->vocab   = vocab;
    cJSON *json = cJSON_ParseWithLength(text, bytes);
    int    code = json ? read_json(b, json, bytes, memory) : cli_bad("%s: not JSON", path);
    cJSON_Delete(json);
    return code ? NULL : b;
}

/* ---- Text to tokens -------------------------------------------------------------------------- */

/* Merges n tokens in place, the pair of the lowest rank first; how many are left. */
static int64_t merge_all(const struct bpe *b, int32_t *tokens, int64_t n)
{
    for (;;) {
        const struct merge *best = NULL;
        int64_t             at   = 0;
        for (int64_t i = 0; i + 1 < n; i++) {
            const struct merge *m = find_merge(b, tokens[i], tokens[i + 1]);
            if (!m->used || (best && m->rank >= best->rank)) continue;
            best = m;
            at   = i;
        }
        if (!best) return n;
        tokens[at] = best->merged;
        memmove(tokens + at + 1, tokens + at + 2, (size_t)(n - at - 2) * sizeof *tokens);
        n--;
    }
}

/* Returns text without added tokens. */
static int64_t encode_plain(const struct bpe *b, const char *text, size_t bytes, int32_t *tokens)
{
    int64_t n = 0;
    for (size_t at = 0, some; at < bytes; at += some) {
        some = split_piece(text + at, bytes - at, b->marks);
        for (size_t i = 0; i < some; i++) {
            const unsigned char byte = (unsigned char)text[at + i];
            tokens[n + (int64_t)i]   = b->byte_tokens[byte];
            if (b->byte_tokens[byte] < 0) {
                cli_bad("%s: no token for byte %d of the prompt", b->path, byte);
                return -1;
            }
        }
        n += merge_all(b, tokens + n, (int64_t)some);
    }
    return n;
}

/* The longest added token at the start of the text; -1: none. */
static int added_at(const struct bpe *b, const char *text, size_t bytes)
{
    int best = -1;
    for (int i = 0; i < b->n_added; i++)
        if (b->added[i].n <= bytes && !memcmp(text, b->added[i].bytes, b->added[i].n) &&
            (best < 0 || b->added[i].n > b->added[best].n))
            best = i;
    return best;
}

int64_t bpe_encode(const struct bpe *b, const char *text, int32_t *tokens)
{
    const size_t bytes = strlen(text);
    int64_t      n     = 0;
    for (size_t from = 0, to = 0; from < bytes;) {
        int found = -1;
        for (; to < bytes && found < 0; to += found < 0)
            found = added_at(b, text + to, bytes - to);
        const int64_t some = encode_plain(b, text + from, to - from, tokens + n);
        if (some < 0) return -1;
        n += some;
        if (found >= 0) {
            tokens[n++] = b->added_tokens[found];
            to += b->added[found].n;
        }
        from = to;
    }
    return n;
}

void bpe_write(const struct bpe *b, int32_t token, FILE *out)
{
    if (b->pieces[token].bytes) fwrite(b->pieces[token].bytes, 1, b->pieces[token].n, out);
}
