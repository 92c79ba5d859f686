/* SPDX-License-Identifier: Apache-2.0 */
/* Unicode's normal form C: marks are put in order, and joined with their letters where there is one
 * character for both. */
#ifndef NFC_H
#define NFC_H

#include "program/memory.h"

enum { NFC_LONGER = 4 }; /* a text becomes at most so many times as long */

/* Returns the normalised text in `memory`, and its length; NULL: there is no memory. Bytes that are
 * not UTF-8 stay as they are. */
char *nfc(const char *text, size_t bytes, struct memory *memory, size_t *n);

#endif
