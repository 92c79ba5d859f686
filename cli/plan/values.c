/* SPDX-License-Identifier: Apache-2.0 */
#include "plan/values.h"

#include <string.h>

#include "gdn.h"
#include "program/command_line.h"
#include "program/json_values.h"

int plan_read_size(const cJSON *json, const char *const *keys, int64_t max, int32_t *to,
                   const char *name)
{
    int64_t n;
    for (int i = 0; i < 3 && keys[i]; i++) {
        const cJSON *item = json_get(json, keys[i]);
        if (!item) continue;
        if (!json_whole_number(item, 1, (double)max, &n))
            return cli_bad("%s: %s is not a whole number from 1 to %lld", name, keys[i],
                           (long long)max);
        *to = (int32_t)n;
        return CLI_OK;
    }
    return *to ? CLI_OK : cli_bad("%s: %s is absent", name, keys[0]);
}

int plan_read_flag(const cJSON *json, const char *key, bool *value, const char *name)
{
    const cJSON *item = json_get(json, key);
    if (!item) return CLI_OK;
    if (!cJSON_IsBool(item)) return cli_bad("%s: %s is not true or false", name, key);
    *value = cJSON_IsTrue(item);
    return CLI_OK;
}

int plan_read_dtype(const cJSON *json, const char *key, int32_t *dtype, const char *name)
{
    static const char *const names[] = { "float32", "bfloat16", "float16" };
    const cJSON *item = json_get(json, key);
    const char *text = cJSON_GetStringValue(item);
    if (!item) return CLI_OK;
    for (int32_t i = 0; i < 3 && text; i++)
        if (!strcmp(text, names[i])) {
            *dtype = i;
            return CLI_OK;
        }
    return cli_bad("%s: %s is '%.30s', wanted float32, bfloat16 or float16", name, key,
                   text ? text : "no text");
}
