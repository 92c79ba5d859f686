/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli.h"
#include "program/os.h"

void table_start(struct table *t, const char *const *titles)
{
    memset(t, 0, sizeof *t);
    t->titles = titles;
}

void table_cell(struct table *t, const char *format, ...)
{
    char text[256];
    va_list list;
    va_start(list, format);
    vsnprintf(text, sizeof text, format, list);
    va_end(list);
    char **cells = realloc(t->cells, (t->n_cells + 1) * sizeof *cells);
    if (!cells) cli_no_memory();
    t->cells = cells;
    cells[t->n_cells] = strdup(text);
    if (!cells[t->n_cells++]) cli_no_memory();
}

static const char *cell(const struct table *t, size_t i)
{
    return i < t->n_cells ? t->cells[i] : "";
}

static void print_row(const struct table *t, const char *const *row, const int *width, int n)
{
    for (int c = 0; c < n; c++) {
        const bool left = t->titles[c][0] == '<';
        if (left && c == n - 1)
            printf(*row[c] ? "  %s" : "%s", row[c]); /* no trailing blanks */
        else
            printf(left ? "  %-*s" : "  %*s", width[c], row[c]);
    }
    printf("\n");
}

void table_print(struct table *t)
{
    const char *row[TABLE_MAX_COLUMNS];
    int width[TABLE_MAX_COLUMNS], n = 0;
    while (n < TABLE_MAX_COLUMNS && t->titles[n]) n++;
    for (int c = 0; c < n; c++) {
        row[c] = t->titles[c] + (t->titles[c][0] == '<');
        width[c] = (int)strlen(row[c]);
        for (size_t i = (size_t)c; i < t->n_cells; i += (size_t)n)
            if ((int)strlen(cell(t, i)) > width[c]) width[c] = (int)strlen(cell(t, i));
    }
    print_row(t, row, width, n);
    for (size_t i = 0; i < t->n_cells; i += (size_t)n) {
        for (int c = 0; c < n; c++) row[c] = cell(t, i + (size_t)c);
        print_row(t, row, width, n);
    }
    for (size_t i = 0; i < t->n_cells; i++) free(t->cells[i]);
    free(t->cells);
    memset(t, 0, sizeof *t);
}

/* Returns true if stderr is a terminal that takes escape codes, and the user wants them. */
static bool has_escapes(void)
{
    const char *term = getenv("TERM"), *no_color = getenv("NO_COLOR");
    return os_is_terminal(stderr) && term && *term && strcmp(term, "dumb") &&
           !(no_color && *no_color);
}

void progress(const char *what, double part)
{
    enum { WIDTH = 30 };
    static const char bar[] = "##############################";
    if (!has_escapes()) return;
    const int done = (int)(WIDTH * fmin(fmax(part, 0), 1));
    fprintf(stderr, "\r\033[K  [%-*.*s] %3d %%  %s", WIDTH, done, bar, (int)(100 * part), what);
    fflush(stderr);
}

void progress_done(void)
{
    if (has_escapes()) fprintf(stderr, "\r\033[K");
}

const char *table_number(char text[24], double x)
{
    const double size = fabs(x);
    if (!isfinite(x) || size == 0)
        snprintf(text, 24, "%g", x);
    else if (size >= 99.95 && size < 1e9)
        snprintf(text, 24, "%.0f", x);
    else if (size >= 9.995 && size < 1e9)
        snprintf(text, 24, "%.1f", x);
    else if (size >= 0.9995 && size < 1e9)
        snprintf(text, 24, "%.2f", x);
    else if (size >= 1e-4 && size < 1)
        snprintf(text, 24, "%.3g", x);
    else
        snprintf(text, 24, "%.2e", x);
    return text;
}
