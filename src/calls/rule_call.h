/* SPDX-License-Identifier: Apache-2.0 */
/* gdn_prefill or gdn_decode as it is once checked. */
#ifndef GDN_RULE_CALL_H
#define GDN_RULE_CALL_H

#include "calls/record.h"
#include "calls/rule.h"
#include "core/backend.h"

struct gdn_rule_call {
    struct gdn_call base;
    gdn_rule_args args;
    struct gdn_tokens tokens;
    struct gdn_plan plan;
    struct gdn_plan_pools pools;
    struct gdn_rule rule;
    struct gdn_record record;
    size_t plan_bytes, gate_bytes, tree_bytes, record_bytes; /* of a CPU */
};

#endif
