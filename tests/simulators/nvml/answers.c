/* Copies values of the state into the arguments of a caller. */
#include <stdio.h>
#include <string.h>

#include "sim.h"

int put_unsigned(const struct call *call, const char *name, uint32_t *out) {
    uint64_t number;
    int answer = put_u64(call, name, &number);
    if (!out)
        return INVALID_ARGUMENT;
    if (answer == SUCCESS)
        *out = (uint32_t)number;
    return answer;
}

int put_u64(const struct call *call, const char *name, uint64_t *out) {
    if (!out)
        return INVALID_ARGUMENT;
    return state_number(call->scope, name, out) ? SUCCESS : NOT_SUPPORTED;
}

static int digit(char character) {
    const char *digits = "0123456789abcdef", *found = strchr(digits, character);
    if (!found || !character)
        refuse("not a hexadecimal digit", (char[]){character, '\0'});
    return (int)(found - digits);
}

/* Decodes a text, plain or `hex:…`, and adds a NUL. Returns its full length even if it does not fit. */
size_t decoded(const char *text, char *out, size_t room) {
    bool is_hex = strncmp(text, "hex:", 4) == 0;
    const char *source = is_hex ? text + 4 : text;
    size_t length = is_hex ? strlen(source) / 2 : strlen(source);
    for (size_t at = 0; at < length && length < room; at++)
        out[at] = is_hex ? (char)(digit(source[2 * at]) << 4 | digit(source[2 * at + 1])) : source[at];
    if (length < room)
        out[length] = '\0';
    return length;
}

int put_text(const struct call *call, const char *name, char *out, unsigned length) {
    const char *text = state_text(call->scope, name);
    if (!out)
        return INVALID_ARGUMENT;
    if (!text)
        return NOT_SUPPORTED;
    return decoded(text, out, length) < length ? SUCCESS : INSUFFICIENT_SIZE;
}
