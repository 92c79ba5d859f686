/* SPDX-License-Identifier: Apache-2.0 */
/* Programs share this: exit codes, the one line of an error, options, contexts. Names begin with
 * cli_, which is the command line. */
#ifndef COMMAND_LINE_H
#define COMMAND_LINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "gdn.h"

enum {
    CLI_OK = 0,
    CLI_OUTSIDE = 1, /* it ran, and a result is outside its limit */
    CLI_BAD = 2      /* a bad file or bad arguments */
};

/* One line "gdn: ..." on stderr, whatever bytes the arguments hold. Returns CLI_BAD. */
int cli_bad(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The same with the status and the context's last error. */
int cli_failed(gdn_ctx *ctx, gdn_status status);

/* Ends the program with such a line where a small block of memory, of text or JSON, is refused. */
_Noreturn void cli_no_memory(void);

/* Sends out what was printed. CLI_OK, or CLI_BAD after one line: not all of it could be written. */
int cli_flush(void);

/* From now on no call of cJSON fails for want of memory: cli_no_memory() ends the program. */
void cli_json_start(void);

enum cli_kind {
    CLI_FLAG, /* bool */
    CLI_INT,  /* int64_t from min to max */
    CLI_REAL, /* double from min to max */
    CLI_TEXT  /* const char * */
};

struct cli_option {
    const char *name; /* "--threads"; NULL ends a list */
    enum cli_kind kind;
    void *to;
    double min, max;
};

/*
 * Reads argv[1..]: "--name value" and "--name=value" into the options, all else into others
 * (room for argc; NULL: nothing else is allowed). What follows "--" is no option. CLI_BAD after
 * its line.
 */
int cli_parse(int argc, char **argv, const struct cli_option *options, const char **others,
              int *n_others);

/* Whole decimal numbers and nothing else; false if not, or outside min..max. */
bool cli_integer(const char *text, int64_t min, int64_t max, int64_t *value);
bool cli_real(const char *text, double *value); /* finite */

/* The options of every command that computes. */
struct cli_device {
    const char *backend; /* NULL: cpu */
    const char *isa;
    int64_t threads;
};

/* Makes the context; GDN_LOG=1 in the environment sends its log to stderr. */
int cli_open(const struct cli_device *device, gdn_ctx **ctx);
/* The same, with what else these options say. */
int cli_open_with(const struct cli_device *device, gdn_options options, gdn_ctx **ctx);

#endif
