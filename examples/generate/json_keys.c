/* SPDX-License-Identifier: Apache-2.0 */
#include "json_keys.h"

#include <stdbool.h>
#include <string.h>

#include "program/command_line.h"

static const struct json_key *find(const struct json_key *known, const char *key)
{
    for (; known->key; known++)
        if (!strcmp(known->key, key)) return known;
    return NULL;
}

/* Returns true if the text is one of the words of the list. */
static bool is_one_of(const char *text, const char *list)
{
    const size_t n = strlen(text);
    for (const char *word = list; word; word = strchr(word, '|')) {
        word += *word == '|';
        if (!strncmp(word, text, n) && (!word[n] || word[n] == '|')) return true;
    }
    return false;
}

static int check_value(const cJSON *item, const char *wanted, const char *name)
{
    char *found = cJSON_PrintUnformatted(item);
    const bool good = is_one_of(found, wanted);
    if (!good)
        cli_bad("%s: %s is %.40s, which is not supported; wanted %s", name, item->string, found,
                wanted);
    cJSON_free(found);
    return good ? CLI_OK : CLI_BAD;
}

int json_check_keys(const cJSON *json, const struct json_key *known, const char *name)
{
    const cJSON *item;
    if (!cJSON_IsObject(json)) return cli_bad("%s: not an object of JSON", name);
    cJSON_ArrayForEach(item, json)
    {
        const struct json_key *at = find(known, item->string);
        if (!at && (cJSON_IsNull(item) || item->string[0] == '_')) continue;
        if (!at)
            return cli_bad("%s: %.60s is an unknown key; it may change the text", name,
                           item->string);
        if (cJSON_GetObjectItemCaseSensitive(json, item->string) != item)
            return cli_bad("%s: %s is given twice", name, item->string);
        if (at->wanted && !cJSON_IsNull(item) && check_value(item, at->wanted, name))
            return CLI_BAD;
    }
    return CLI_OK;
}
