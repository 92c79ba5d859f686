/* SPDX-License-Identifier: Apache-2.0 */
#include "text/split.h"

#include <stdint.h>
#include <string.h>

const char split_qwen35[] =
    "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?[\\p{L}\\p{M}]+|\\p{N}|"
    " ?[^\\s\\p{L}\\p{M}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";
const char split_qwen2[] = "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}|"
                           " ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+";

/* ---- Characters ------------------------------------------------------------------------------ */

enum kind { LETTER, MARK, NUMBER, NEWLINE, SPACE, OTHER, NOTHING };

static const struct range {
    uint32_t first, last;
    enum kind kind;
} ranges[] = {
#include "text/unicode_classes.inc"
};

static bool is_space(uint32_t c)
{
    return (c >= 9 && c <= 13) || c == ' ' || c == 0x85 || c == 0xa0 || c == 0x1680 ||
           (c >= 0x2000 && c <= 0x200a) || c == 0x2028 || c == 0x2029 || c == 0x202f ||
           c == 0x205f || c == 0x3000;
}

static enum kind kind_of(uint32_t c)
{
    size_t low = 0, high = sizeof ranges / sizeof *ranges;
    if (c == '\r' || c == '\n') return NEWLINE;
    if (is_space(c)) return SPACE;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (c > ranges[middle].last)
            low = middle + 1;
        else
            high = middle;
    }
    return low < sizeof ranges / sizeof *ranges && c >= ranges[low].first ? ranges[low].kind
                                                                          : OTHER;
}

/* Text from `at` to `end`. */
struct cursor {
    const unsigned char *at, *end;
    bool marks; /* are letters */
};

/* Decodes the bytes of the next character, and its code. */
static int decode(const struct cursor *c, uint32_t *code)
{
    const unsigned char *s = c->at;
    const int n = *s < 0x80 ? 1 : *s >> 5 == 6 ? 2 : *s >> 4 == 14 ? 3 : *s >> 3 == 30 ? 4 : 0;
    *code = n > 1 ? *s & (0x7fu >> n) : *s;
    if (n > c->end - s) return 1;
    for (int i = 1; i < n; i++) {
        if (s[i] >> 6 != 2) return 1;
        *code = *code << 6 | (s[i] & 0x3f);
    }
    return n ? n : 1;
}

/* Returns the next character's kind; where marks are no letters they are punctuation. */
static enum kind peek(const struct cursor *c, int *bytes)
{
    uint32_t code;
    if (c->at == c->end) return NOTHING;
    *bytes = decode(c, &code);
    const enum kind kind = *bytes == 1 && code >= 0x80 ? OTHER : kind_of(code);
    return kind != MARK ? kind : c->marks ? LETTER : OTHER;
}

/* Skips characters of one kind. */
static void skip(struct cursor *c, enum kind kind)
{
    int bytes;
    while (peek(c, &bytes) == kind) c->at += bytes;
}

/* ---- The alternatives, in order: true if one matched, c behind it ---------------------------- */

static bool contraction(struct cursor *c)
{
    static const char *const endings[] = { "s", "t", "re", "ve", "m", "ll", "d" };
    for (size_t i = 0; i < sizeof endings / sizeof *endings; i++) {
        const size_t n = strlen(endings[i]);
        if (*c->at != '\'' || (size_t)(c->end - c->at) <= n) continue;
        bool same = true;
        for (size_t j = 0; j < n; j++) same = same && (c->at[1 + j] | 32) == endings[i][j];
        if (!same) continue;
        c->at += 1 + n;
        return true;
    }
    return false;
}

static bool word(struct cursor *c)
{
    struct cursor next = *c;
    int bytes;
    const enum kind first = peek(c, &bytes);
    if (first == SPACE || first == OTHER) next.at += bytes; /* the optional one */
    if (peek(&next, &bytes) != LETTER) {
        if (first != LETTER) return false;
        next = *c;
    }
    skip(&next, LETTER);
    *c = next;
    return true;
}

static bool number(struct cursor *c)
{
    int bytes;
    const bool is = peek(c, &bytes) == NUMBER;
    if (is) c->at += bytes;
    return is;
}

static bool punctuation(struct cursor *c)
{
    struct cursor next = *c;
    int bytes;
    if (*next.at == ' ') next.at++;
    if (peek(&next, &bytes) != OTHER) return false;
    skip(&next, OTHER);
    skip(&next, NEWLINE);
    *c = next;
    return true;
}

/* To the last newline; else all but the last character, unless that ends the text or is alone. */
static void spaces(struct cursor *c)
{
    const unsigned char *newline = NULL, *last = c->at, *first = c->at;
    int bytes;
    for (enum kind k; (k = peek(c, &bytes)) == SPACE || k == NEWLINE;) {
        last = c->at;
        c->at += bytes;
        if (k == NEWLINE) newline = c->at;
    }
    if (newline)
        c->at = newline;
    else if (c->at < c->end && last > first)
        c->at = last;
}

size_t split_piece(const char *text, size_t n, bool marks_are_letters)
{
    const unsigned char *first = (const unsigned char *)text;
    struct cursor c = { first, first + n, marks_are_letters };
    if (!contraction(&c) && !word(&c) && !number(&c) && !punctuation(&c)) spaces(&c);
    return (size_t)(c.at - first);
}
