/* SPDX-License-Identifier: Apache-2.0 */
#include "text/bpe.h"

#include <cjson/cJSON.h>
#include <math.h>
#include <string.h>

#include "program/command_line.h"
#include "program/whole_file.h"
#include "text/bpe_kind.h"
#include "text/bpe_merge.h"
#include "text/nfc.h"
#include "text/split.h"

/* Bytes of a token; NULL: there is none of this number. */
struct piece {
    const char *bytes;
    size_t n;
};

struct added {
    struct piece piece;
    int32_t token;
    bool normalized; /* is looked for in the normalised text */
};

struct bpe {
    const char *path;
    struct piece *pieces; /* [vocab] */
    int64_t vocab;
    int32_t *by_bytes; /* hash table of tokens, -1: free */
    size_t n_by_bytes; /* a power of two */
    struct merges merges;
    struct added *added; /* tokens that are found in a text before it is cut */
    int n_added;
    int32_t next_added; /* the number of the next one */
    char *text;         /* bytes of all tokens; the next free one */
    struct bpe_kind kind;
    int32_t byte_tokens[256];
};

/* ---- Hash tables ----------------------------------------------------------------------------- */

static size_t hash_bytes(const char *bytes, size_t n)
{
    uint64_t h = 0xcbf29ce484222325;
    for (size_t i = 0; i < n; i++) h = (h ^ (unsigned char)bytes[i]) * 0x100000001b3;
    return (size_t)(h ^ h >> 29);
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
    *good = n > 0;
    for (size_t i = 0; i < n && *good;) {
        const unsigned char c = (unsigned char)word[i];
        const bool two = c >> 5 == 6 && i + 1 < n;
        const int byte = byte_of(two ? (c & 31u) << 6 | (word[i + 1] & 63u) : c);
        *good = byte >= 0 && (two || c < 128);
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
    if (!(number >= 0 && number < (double)b->vocab) || number != floor(number))
        return cli_bad("%s: token '%.40s': its number is not from 0 to %lld, as the model's",
                       b->path, name, (long long)b->vocab - 1);
    const int32_t token = (int32_t)number;
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
        bool good;
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
    const char *text = cJSON_GetStringValue(item);
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
    n[0] = (size_t)(space - text);
    n[1] = strlen(space + 1);
    return true;
}

/* Reads the tokens of both halves and of the whole; false where one is not in the vocabulary. */
static bool read_pair(struct bpe *b, const cJSON *item, struct merge *m)
{
    const char *words[2];
    size_t n[2];
    bool good[2];
    char *const first = b->text;
    if (!pair_of(item, words, n)) return false;
    const struct piece left = bytes_of(b, words[0], n[0], &good[0]);
    b->text += left.n;
    const struct piece right = bytes_of(b, words[1], n[1], &good[1]);
    b->text = first;
    if (!good[0] || !good[1]) return false;
    m->left = *find_bytes(b, left.bytes, left.n);
    m->right = *find_bytes(b, right.bytes, right.n);
    m->merged = *find_bytes(b, left.bytes, left.n + right.n);
    return m->left >= 0 && m->right >= 0 && m->merged >= 0;
}

static int read_merges(struct bpe *b, const cJSON *merges)
{
    const cJSON *item;
    int32_t rank = 0;
    if (!cJSON_IsArray(merges)) return cli_bad("%s: no list model.merges", b->path);
    cJSON_ArrayForEach(item, merges)
    {
        struct merge m = { .rank = rank, .used = true };
        if (!read_pair(b, item, &m))
            return cli_bad("%s: merge %d is not two tokens whose sum is a token", b->path, rank);
        merges_add(&b->merges, &m);
        rank++;
    }
    return CLI_OK;
}

/* Returns the number that an added token has: its own in the vocabulary, or the next one. */
static int32_t number_of_added(struct bpe *b, const char *content, size_t n)
{
    bool good;
    const struct piece word = bytes_of(b, content, n, &good);
    const int32_t known = good ? *find_bytes(b, word.bytes, word.n) : -1;
    return known >= 0 ? known : b->next_added;
}

/* They may be in the vocabulary too. */
static int read_added_token(struct bpe *b, const cJSON *item)
{
    const char *content = text_of(item, "content");
    const cJSON *id = get(item, "id");
    const size_t n = strlen(content);
    if (!n || !cJSON_IsNumber(id))
        return cli_bad("%s: added_tokens: token %d has no content or no id", b->path, b->n_added);
    if (bpe_kind_check_added(item, b->path)) return CLI_BAD;
    const int32_t number = number_of_added(b, content, n);
    if (id->valuedouble != number)
        return cli_bad("%s: added_tokens: token '%.40s': id is %.17g, wanted %d, its number in the "
                       "vocabulary or the next one",
                       b->path, content, id->valuedouble, number);
    const struct piece piece = { b->text, n };
    memcpy(b->text, content, n);
    if (number != b->next_added)
        b->pieces[number].bytes = NULL;
    else
        b->next_added++;
    if (add_token(b, piece, number, content)) return CLI_BAD;
    b->added[b->n_added++] = (struct added){ .piece = piece,
                                             .token = number,
                                             .normalized = cJSON_IsTrue(get(item, "normalized")) };
    return CLI_OK;
}

static int read_added(struct bpe *b, const cJSON *added)
{
    const cJSON *item;
    cJSON_ArrayForEach(item, added) if (read_added_token(b, item)) return CLI_BAD;
    return CLI_OK;
}

static int make_tables(struct bpe *b, const cJSON *json, size_t text, struct memory *memory)
{
    const cJSON *model = get(json, "model");
    const size_t n_added = (size_t)cJSON_GetArraySize(get(json, "added_tokens"));
    b->next_added = cJSON_GetArraySize(get(model, "vocab"));
    b->n_by_bytes = table_size((size_t)cJSON_GetArraySize(get(model, "vocab")));
    const size_t n_merges = (size_t)cJSON_GetArraySize(get(model, "merges"));
    b->pieces = memory_get(memory, (size_t)b->vocab * sizeof *b->pieces);
    b->by_bytes = memory_get(memory, b->n_by_bytes * sizeof *b->by_bytes);
    b->added = memory_get(memory, n_added * sizeof *b->added);
    b->text = memory_get(memory, text); /* no token is longer than its JSON */
    if (!b->pieces || !b->by_bytes || !b->added || !b->text ||
        !merges_make(&b->merges, n_merges, memory))
        return cli_bad("%s: no memory for the tokenizer", b->path);
    memset(b->by_bytes, -1, b->n_by_bytes * sizeof *b->by_bytes);
    return CLI_OK;
}

static int read_json(struct bpe *b, const cJSON *json, size_t text, struct memory *memory)
{
    const cJSON *model = get(json, "model");
    if (bpe_kind_read(&b->kind, json, b->path) || make_tables(b, json, text, memory) ||
        read_vocab(b, get(model, "vocab")) || read_merges(b, get(model, "merges")))
        return CLI_BAD;
    for (int i = 0; i < 256; i++) {
        const char byte = (char)i;
        b->byte_tokens[i] = *find_bytes(b, &byte, 1);
    }
    return read_added(b, get(json, "added_tokens"));
}

struct bpe *bpe_open(const char *path, int64_t vocab, struct memory *memory)
{
    struct bpe *b = memory_get(memory, sizeof *b);
    void *text;
    size_t bytes;
    if (!b) cli_bad("%s: no memory", path);
    if (!b || whole_file_read(path, memory, &text, &bytes)) return NULL;
    b->path = path;
    b->vocab = vocab;
    cJSON *json = cJSON_ParseWithLength(text, bytes);
    int code = json ? read_json(b, json, bytes, memory) : cli_bad("%s: not JSON", path);
    cJSON_Delete(json);
    return code ? NULL : b;
}

/* ---- Text to tokens -------------------------------------------------------------------------- */

/* The prompt on its way to tokens. */
struct encoding {
    const struct bpe *b;
    struct memory *memory;
    struct merge_room room;
};

/* Encodes one piece of the text; returns how many tokens it is, -1 after one line. */
static int64_t encode_piece(struct encoding *e, const char *text, size_t bytes, int32_t *tokens)
{
    const struct bpe *b = e->b;
    const int32_t whole = b->kind.ignore_merges ? *find_bytes(b, text, bytes) : -1;
    if (whole >= 0) {
        *tokens = whole;
        return 1;
    }
    for (size_t i = 0; i < bytes; i++) {
        const unsigned char byte = (unsigned char)text[i];
        tokens[i] = b->byte_tokens[byte];
        if (tokens[i] < 0) {
            cli_bad("%s: no token for byte %d of the prompt", b->path, byte);
            return -1;
        }
    }
    return merge_all(&b->merges, &e->room, tokens, (int64_t)bytes);
}

/* Encodes text without added tokens. */
static int64_t encode_plain(struct encoding *e, const char *text, size_t bytes, int32_t *tokens)
{
    int64_t n = 0;
    for (size_t at = 0, some; at < bytes; at += some) {
        some = split_piece(text + at, bytes - at, e->b->kind.marks);
        const int64_t more = encode_piece(e, text + at, some, tokens + n);
        if (more < 0) return -1;
        n += more;
    }
    return n;
}

/* The longest added token at the start of the text; NULL: none. */
static const struct added *added_at(const struct bpe *b, const char *text, size_t bytes,
                                    bool normalized)
{
    const struct added *best = NULL;
    for (int i = 0; i < b->n_added; i++) {
        const struct added *a = &b->added[i];
        if (a->normalized == normalized && a->piece.n <= bytes &&
            !memcmp(text, a->piece.bytes, a->piece.n) && (!best || a->piece.n > best->piece.n))
            best = a;
    }
    return best;
}

static int64_t encode_between(struct encoding *e, const char *text, size_t bytes, bool normalized,
                              int32_t *tokens);

/* Encodes text that has none of the tokens which are found before the text is normalized. */
static int64_t encode_normalized(struct encoding *e, const char *text, size_t bytes,
                                 int32_t *tokens)
{
    if (e->b->kind.nfc) text = nfc(text, bytes, e->memory, &bytes);
    if (text) return encode_between(e, text, bytes, true, tokens);
    cli_bad("no memory for the prompt");
    return -1;
}

/* Encodes text and the added tokens in it: first those that are looked for in the text as it is,
 * then, between them, those that are looked for in the normalised text. */
static int64_t encode_between(struct encoding *e, const char *text, size_t bytes, bool normalized,
                              int32_t *tokens)
{
    int64_t n = 0;
    for (size_t from = 0, to = 0; from < bytes;) {
        const struct added *found = NULL;
        for (; to < bytes && !found; to += !found)
            found = added_at(e->b, text + to, bytes - to, normalized);
        const int64_t some = normalized ? encode_plain(e, text + from, to - from, tokens + n)
                                        : encode_normalized(e, text + from, to - from, tokens + n);
        if (some < 0) return -1;
        n += some;
        if (found) {
            tokens[n++] = found->token;
            to += found->piece.n;
        }
        from = to;
    }
    return n;
}

int64_t bpe_encode(const struct bpe *b, const char *text, struct memory *memory, int32_t **tokens)
{
    const size_t bytes = strlen(text), most = NFC_LONGER * bytes;
    struct encoding e = { .b = b, .memory = memory };
    *tokens = memory_get(memory, most * sizeof **tokens);
    if (!*tokens || !merge_make_room(&e.room, (int64_t)most, memory)) {
        cli_bad("no memory for the prompt");
        return -1;
    }
    const int64_t n = encode_between(&e, text, bytes, false, *tokens);
    if (n < 0 || b->kind.most_tokens < 0 || n <= b->kind.most_tokens) return n;
    cli_bad("%s: truncation: the prompt has %lld tokens, more than max_length, %lld", b->path,
            (long long)n, (long long)b->kind.most_tokens);
    return -1;
}

bool bpe_has(const struct bpe *b, int64_t token, const char *text)
{
    const struct piece *p = token >= 0 && token < b->vocab ? &b->pieces[token] : NULL;
    return p && p->bytes && p->n == strlen(text) && !memcmp(p->bytes, text, p->n);
}

void bpe_write(const struct bpe *b, int32_t token, FILE *out)
{
    if (b->pieces[token].bytes) fwrite(b->pieces[token].bytes, 1, b->pieces[token].n, out);
}
