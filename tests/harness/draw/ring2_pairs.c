/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pairwise cases: few rows in which every allowed pair of levels of two factors meets. Greedy:
 * a row starts with a pair not met yet, and every further factor takes the level that meets
 * most new pairs with what the row has.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ring2.h"

enum { TRIES = 40, AGAIN = 5 };

static void give_up(const char *why)
{
    printf("pairs: %s\n", why);
    exit(1);
}

struct search {
    const struct ring2_factors *f;
    bool met[RING2_MAX_FACTORS][RING2_MAX_LEVELS][RING2_MAX_FACTORS][RING2_MAX_LEVELS];
};

static bool fits(const struct search *s, const int *row, int factor, int level)
{
    for (int i = 0; i < s->f->n; i++)
        if (row[i] >= 0 && i != factor && !s->f->allowed(i, row[i], factor, level)) return false;
    return true;
}

static int gain(const struct search *s, const int *row, int factor, int level)
{
    int n = 0;
    for (int i = 0; i < s->f->n; i++)
        if (row[i] >= 0 && i != factor) n += !s->met[i][row[i]][factor][level];
    return n;
}

/* Gives every open factor a level, from factor `first` on round; false: a dead end. */
static bool complete(const struct search *s, int *row, int first)
{
    for (int step = 0; step < s->f->n; step++) {
        const int factor = (first + step) % s->f->n;
        const int turn = (int)ring2_below(s->f->levels[factor]);
        int best = -1, most = -1;
        if (row[factor] >= 0) continue;
        for (int i = 0; i < s->f->levels[factor]; i++) {
            const int level = (i + turn) % s->f->levels[factor];
            if (!fits(s, row, factor, level) || gain(s, row, factor, level) <= most) continue;
            most = gain(s, row, factor, level);
            best = level;
        }
        if (best < 0) return false;
        row[factor] = best;
    }
    return true;
}

/* The row that begins with the pair (i, a, j, b); false: there is none. */
static bool make_row(const struct search *s, int i, int a, int j, int b, int *row)
{
    for (int try = 0; try < TRIES; try++) {
        for (int f = 0; f < s->f->n; f++) row[f] = -1;
        row[i] = a;
        row[j] = b;
        if (complete(s, row, (int)ring2_below(s->f->n))) return true;
    }
    return false;
}

int ring2_pairs(const struct ring2_factors *f, int (*rows)[RING2_MAX_FACTORS], int max_rows)
{
    static struct search s; /* too large for a stack */
    int n = 0;
    memset(&s, 0, sizeof s);
    s.f = f;
    for (int i = 0; i < f->n; i++)
        for (int j = i + 1; j < f->n; j++)
            for (int a = 0; a < f->levels[i]; a++)
                for (int b = 0; b < f->levels[j]; b++) {
                    int *row = rows[n];
                    if (s.met[i][a][j][b] || !f->allowed(i, a, j, b)) continue;
                    if (n == max_rows) give_up("there are more cases than rows");
                    if (!make_row(&s, i, a, j, b, row)) give_up("a pair of levels fits no case");
                    for (int x = 0; x < f->n; x++)
                        for (int y = 0; y < f->n; y++) s.met[x][row[x]][y][row[y]] = true;
                    n++;
                }
    return n;
}

static bool is_allowed(const struct ring2_factors *f, const int *row, int factor)
{
    for (int i = 0; i < f->n; i++)
        if (i != factor && !f->allowed(i, row[i], factor, row[factor])) return false;
    return true;
}

int ring2_pairs_again(const struct ring2_factors *f, int (*rows)[RING2_MAX_FACTORS], int n,
                      int max_rows, int factor, int first, int end)
{
    int all = n, level = first;
    for (int i = 0; i < n; i += AGAIN) {
        if (all == max_rows) give_up("there are more cases than rows");
        memcpy(rows[all], rows[i], sizeof rows[i]);
        rows[all][factor] = level;
        if (!is_allowed(f, rows[all], factor)) continue;
        level = level + 1 < end ? level + 1 : first;
        all++;
    }
    return all;
}
