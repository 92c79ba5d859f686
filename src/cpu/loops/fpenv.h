/* SPDX-License-Identifier: Apache-2.0 */
#ifndef GDN_FPENV_H
#define GDN_FPENV_H

#include <stdint.h>

/* Saves the float environment, sets the default one; and back. Workers set theirs once. */
uint32_t gdn_fp_enter(void);
void gdn_fp_leave(uint32_t saved);

#endif
