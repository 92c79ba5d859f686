/* SPDX-License-Identifier: Apache-2.0 */
#include "text/nfc.h"

#include <stdlib.h>

/* ---- Tables ---------------------------------------------------------------------------------- */

/* A character that is the same as one or two others. */
static const struct pair {
    uint32_t code, first, second; /* second 0: none */
    bool composes;
} pairs[] = {
#define DECOMPOSES(code, first, second, composes) { code, first, second, composes },
#include "text/unicode_nfc.inc"
#undef DECOMPOSES
};

/* Marks of one class keep their order. */
static const struct range {
    uint32_t first, last;
    int kind;
} ranges[] = {
#define COMBINES(first, last, kind) { first, last, kind },
#include "text/unicode_nfc.inc"
#undef COMBINES
};

enum { N_PAIRS = sizeof pairs / sizeof *pairs, N_RANGES = sizeof ranges / sizeof *ranges };

/* Syllables of Hangul follow from their letters: 19 leading, 21 vowels, 28 or no trailing ones. */
enum { LEADING = 0x1100, VOWEL = 0x1161, TRAILING = 0x11a7, SYLLABLE = 0xac00 };
enum { N_LEADING = 19, N_VOWELS = 21, N_TRAILING = 28 };
enum { N_SYLLABLES = N_LEADING * N_VOWELS * N_TRAILING };

enum { BYTE = 0x110000 }; /* a byte that is not UTF-8, as a code above all characters */

static const struct pair *find_pair(uint32_t code)
{
    int low = 0, high = N_PAIRS;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (code > pairs[middle].code)
            low = middle + 1;
        else
            high = middle;
    }
    return low < N_PAIRS && pairs[low].code == code ? &pairs[low] : NULL;
}

/* Returns the class of a mark; 0: none. */
static int class_of(uint32_t code)
{
    int low = 0, high = N_RANGES;
    while (low < high) {
        const int middle = (low + high) / 2;
        if (code > ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < N_RANGES && code >= ranges[low].first ? ranges[low].kind : 0;
}

/* ---- Taking apart ---------------------------------------------------------------------------- */

static uint32_t *add_parts(uint32_t *to, uint32_t code)
{
    const struct pair *p = find_pair(code);
    if (code >= SYLLABLE && code < SYLLABLE + N_SYLLABLES) {
        const uint32_t i = code - SYLLABLE, last = i % N_TRAILING;
        *to++ = LEADING + i / (N_VOWELS * N_TRAILING);
        *to++ = VOWEL + i / N_TRAILING % N_VOWELS;
        if (last) *to++ = TRAILING + last;
        return to;
    }
    if (!p) {
        *to++ = code;
        return to;
    }
    to = add_parts(to, p->first);
    if (p->second) *to++ = p->second; /* no second part has parts */
    return to;
}

static int by_value(const void *a, const void *b)
{
    const uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

/* Puts marks behind a letter in the order of their classes; those of one class keep their order.
 * keys has room for all. */
static void sort_marks(uint32_t *codes, size_t n, uint64_t *keys)
{
    for (size_t first = 0, some; first < n; first += some + 1) {
        for (some = 0; first + some < n; some++) {
            const uint64_t kind = (uint64_t)class_of(codes[first + some]);
            if (!kind) break;
            keys[some] = kind << 56 | (uint64_t)some << 24 | codes[first + some];
        }
        qsort(keys, some, sizeof *keys, by_value);
        for (size_t i = 0; i < some; i++) codes[first + i] = keys[i] & 0xffffff;
    }
}

/* ---- Joining --------------------------------------------------------------------------------- */

/* Returns the character that is both; 0: there is none. */
static uint32_t join(uint32_t first, uint32_t second)
{
    if (first >= LEADING && first < LEADING + N_LEADING && second >= VOWEL &&
        second < VOWEL + N_VOWELS)
        return SYLLABLE + ((first - LEADING) * N_VOWELS + second - VOWEL) * N_TRAILING;
    if (first >= SYLLABLE && first < SYLLABLE + N_SYLLABLES &&
        (first - SYLLABLE) % N_TRAILING == 0 && second > TRAILING && second < TRAILING + N_TRAILING)
        return first + second - TRAILING;
    for (int i = 0; second >= 0x300 && i < N_PAIRS; i++)
        if (pairs[i].composes && pairs[i].second == second && pairs[i].first == first)
            return pairs[i].code;
    return 0;
}

/* Joins each letter with the marks behind it that no other mark of their class keeps from it. */
static size_t join_all(uint32_t *codes, size_t n)
{
    size_t kept = 0, letter = n; /* n: none yet */
    for (size_t i = 0; i < n; i++) {
        const int kind = class_of(codes[i]);
        const int before = letter + 1 < kept ? class_of(codes[kept - 1]) : -1;
        const uint32_t both = letter < n && before < kind ? join(codes[letter], codes[i]) : 0;
        if (both) {
            codes[letter] = both;
            continue;
        }
        if (!kind) letter = kept;
        codes[kept++] = codes[i];
    }
    return kept;
}

/* ---- UTF-8 ----------------------------------------------------------------------------------- */

static size_t read_code(const unsigned char *s, size_t left, uint32_t *code)
{
    const size_t n = *s < 0x80 ? 1 : *s >> 5 == 6 ? 2 : *s >> 4 == 14 ? 3 : *s >> 3 == 30 ? 4 : 0;
    *code = n > 1 ? *s & (0x7fu >> n) : *s;
    bool good = n > 0 && n <= left;
    for (size_t i = 1; good && i < n; i++) {
        good = s[i] >> 6 == 2;
        *code = *code << 6 | (s[i] & 0x3f);
    }
    if (good && *code < BYTE) return n;
    *code = BYTE + *s;
    return 1;
}

static size_t write_code(char *to, uint32_t code)
{
    if (code < 0x80 || code >= BYTE) {
        *to = (char)(code & 0xff);
        return 1;
    }
    const size_t n = code < 0x800 ? 2 : code < 0x10000 ? 3 : 4;
    for (size_t i = n; i-- > 1; code >>= 6) to[i] = (char)(0x80 | (code & 0x3f));
    to[0] = (char)((0xf00u >> n & 0xf0) | code);
    return n;
}

char *nfc(const char *text, size_t bytes, struct memory *memory, size_t *n)
{
    uint32_t *codes = memory_get(memory, NFC_LONGER * bytes * sizeof *codes), *end = codes, code;
    uint64_t *keys = memory_get(memory, NFC_LONGER * bytes * sizeof *keys);
    char *out = memory_get(memory, NFC_LONGER * bytes);
    if (!codes || !keys || !out) return NULL;
    for (size_t at = 0; at < bytes;) {
        at += read_code((const unsigned char *)text + at, bytes - at, &code);
        end = add_parts(end, code);
    }
    sort_marks(codes, (size_t)(end - codes), keys);
    const size_t n_codes = join_all(codes, (size_t)(end - codes));
    *n = 0;
    for (size_t i = 0; i < n_codes; i++) *n += write_code(out + *n, codes[i]);
    return out;
}
