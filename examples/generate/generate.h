/* SPDX-License-Identifier: Apache-2.0 */
/* `gdn generate`: a language model continues a text. */
#ifndef GENERATE_H
#define GENERATE_H

/* argv[0] is "generate". Returns the exit status: 0, or 2 after one line on stderr. */
int generate_main(int argc, char **argv);

#endif
