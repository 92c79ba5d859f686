/* SPDX-License-Identifier: Apache-2.0 */
#include "program/json_values.h"

const cJSON *json_get(const cJSON *json, const char *key)
{
    const cJSON *item = cJSON_GetObjectItemCaseSensitive(json, key);
    return cJSON_IsNull(item) ? NULL : item;
}

bool json_whole_number(const cJSON *item, double min, double max, int64_t *value)
{
    if (!cJSON_IsNumber(item) || !(item->valuedouble >= min && item->valuedouble <= max))
        return false;
    *value = (int64_t)item->valuedouble;
    return (double)*value == item->valuedouble;
}
