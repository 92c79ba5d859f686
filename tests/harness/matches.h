/* SPDX-License-Identifier: Apache-2.0 */
/* The patterns of --function. */
#ifndef MATCHES_H
#define MATCHES_H

#include <stdbool.h>

/* Returns true if the pattern describes the name: * stands for any text, ? for one character. */
static bool matches(const char *pattern, const char *name)
{
    for (; *pattern != '*'; pattern++, name++) {
        if (!*pattern || !*name) return *pattern == *name;
        if (*pattern != '?' && *pattern != *name) return false;
    }
    do
        if (matches(pattern + 1, name)) return true;
    while (*name++);
    return false;
}

#endif
