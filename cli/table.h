/* SPDX-License-Identifier: Apache-2.0 */
/* Text for people: aligned columns on stdout, a bar on stderr while something takes long. */
#ifndef TABLE_H
#define TABLE_H

#include <stddef.h>

enum { TABLE_MAX_COLUMNS = 12 };

struct table {
    const char *const *titles; /* NULL at the end; "<" in front: left-aligned */
    char **cells;              /* row after row */
    size_t n_cells;
};

/* Cells are filled from left to right, row by row. */
void table_start(struct table *t, const char *const *titles);
void table_cell(struct table *t, const char *format, ...) __attribute__((format(printf, 2, 3)));
/* Prints and frees; the last row may be unfinished. */
void table_print(struct table *t);

/* The bar, 0 to 1; only where stderr is a terminal. */
void progress(const char *what, double part);
void progress_done(void);

/* "12.3", "1234", "0.00123": three significant digits, no exponent where it can be helped. */
const char *table_number(char text[24], double x);

#endif
