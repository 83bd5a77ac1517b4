/* The state file: lines `key = value`, comments with `#` at the start of a line. The last of equal keys counts. */
#define _GNU_SOURCE
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "sim.h"

struct entry {
    const char *key;
    char *value;
    uint64_t taken; /* uses of a countdown */
};

static struct {
    char *content;
    struct entry *table;
    size_t mask;
    struct event *events;
    size_t event_count;
    int slots[SLOTS];
    size_t slot_count;
    bool injects;
    /* Kept open, so that no new file can reuse its inode number and look unchanged. */
    int file;
    struct stat stamp;
} state = {.file = -1};

/* An invalid state is a mistake in the test and must not look like a failing GPU. */
_Noreturn void refuse(const char *what, const char *text) {
    fprintf(stderr, "nvml_sim: %s: %s: \"%s\"\n", getenv("NVML_SIM_STATE"), what, text);
    abort();
}

static uint64_t hash_of(uint64_t hash, const char *text) {
    for (; *text; text++)
        hash = (hash ^ (unsigned char)*text) * 0x100000001b3u;
    return hash;
}

static uint64_t hash_of_key(const char *scope, const char *name) {
    uint64_t hash = hash_of(hash_of(0xcbf29ce484222325u, scope), name);
    return hash ^ (hash >> 32);
}

static bool is_key(const char *key, const char *scope, const char *name) {
    size_t length = strlen(scope);
    return strncmp(key, scope, length) == 0 && strcmp(key + length, name) == 0;
}

static struct entry *entry_of(const char *scope, const char *name) {
    size_t place = hash_of_key(scope, name) & state.mask;
    while (state.table[place].key && !is_key(state.table[place].key, scope, name))
        place = (place + 1) & state.mask;
    return &state.table[place];
}

static char *trimmed(char *text) {
    text += strspn(text, " \t\r");
    size_t length = strlen(text);
    while (length && strchr(" \t\r", text[length - 1]))
        text[--length] = '\0';
    return text;
}

static void add_event(const char *key, const char *record) {
    char *end;
    struct event event = {number_in(key + strlen("event."), &end, "number of an event"), record};
    state.events = realloc(state.events, (state.event_count + 1) * sizeof event);
    state.events[state.event_count++] = event;
}

static void add_line(char *line) {
    char *equals = strchr(line, '=');
    if (!equals)
        refuse("a line without `=`", line);
    *equals = '\0';
    char *key = trimmed(line), *value = trimmed(equals + 1);
    if (!*key || key[strspn(key, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.")])
        refuse("not a key", key);
    if (strncmp(key, "event.", 6) == 0)
        add_event(key, value);
    state.injects |= strncmp(key, "call.", 5) == 0 || strstr(key, ".call.") || strstr(key, "down");
    *entry_of("", key) = (struct entry){.key = key, .value = value};
}

static int by_sequence(const void *left, const void *right) {
    const struct event *a = left, *b = right;
    return (a->sequence > b->sequence) - (a->sequence < b->sequence);
}

static void list_devices(void) {
    char *text = entry_of("", "devices")->value;
    while (text && *text) {
        uint64_t slot = number_in(text, &text, "slot of a device");
        if (slot >= SLOTS || state.slot_count == SLOTS)
            refuse("too many devices", entry_of("", "devices")->value);
        state.slots[state.slot_count++] = (int)slot;
        text += strspn(text, " ");
    }
}

static void forget(void) {
    free(state.content);
    free(state.table);
    free(state.events);
    if (state.file >= 0)
        close(state.file);
    memset(&state, 0, sizeof state);
    state.file = -1;
}

static void parse(void) {
    size_t lines = 1;
    for (char *at = state.content; (at = strchr(at, '\n')); at++)
        lines++;
    for (state.mask = 16; state.mask < 2 * lines; state.mask *= 2)
        ;
    state.table = calloc(state.mask--, sizeof *state.table);
    char *rest = state.content, *line;
    while ((line = strsep(&rest, "\n"))) {
        line = trimmed(line);
        if (*line && *line != '#')
            add_line(line);
    }
    if (state.event_count)
        qsort(state.events, state.event_count, sizeof *state.events, by_sequence);
    list_devices();
}

/* A file of the kernel has no size. */
#define KERNEL_FILE_BYTES 65536

static char *content_of(int file, size_t size) {
    size = size ? size : KERNEL_FILE_BYTES;
    char *content = malloc(size + 1);
    size_t length = 0;
    ssize_t got;
    while (length < size && (got = pread(file, content + length, size - length, (off_t)length)) > 0)
        length += (size_t)got;
    content[length] = '\0';
    return content;
}

/* A file of the kernel changes without a trace. */
static bool is_loaded(const struct stat *now) {
    const struct stat *then = &state.stamp;
    return state.file >= 0 && now->st_size && now->st_ino == then->st_ino && now->st_dev == then->st_dev &&
           now->st_size == then->st_size && now->st_mtim.tv_sec == then->st_mtim.tv_sec &&
           now->st_mtim.tv_nsec == then->st_mtim.tv_nsec;
}

/* False without a state file, which means that no driver is loaded. */
bool state_refresh(void) {
    const char *path = getenv("NVML_SIM_STATE");
    struct stat now;
    if (!path || stat(path, &now) != 0) {
        forget();
        return false;
    }
    if (is_loaded(&now))
        return true;
    int file = open(path, O_RDONLY | O_CLOEXEC);
    forget();
    if (file < 0 || fstat(file, &now) != 0)
        return false;
    state.file = file;
    state.stamp = now;
    state.content = content_of(file, (size_t)now.st_size);
    parse();
    return true;
}

/* NULL if the state has no such key. */
const char *state_text(const char *scope, const char *name) {
    return entry_of(scope, name)->value;
}

bool state_number(const char *scope, const char *name, uint64_t *number) {
    const struct entry *entry = entry_of(scope, name);
    if (!entry->key)
        return false;
    char *end;
    *number = number_in(entry->value, &end, entry->key);
    if (*end)
        refuse(entry->key, entry->value);
    return true;
}

/* True if a limited event may still happen, and counts it. Always true if no limit is given. */
bool state_countdown(const char *scope, const char *name) {
    uint64_t times;
    return !state_number(scope, name, &times) || entry_of(scope, name)->taken++ < times;
}

bool state_injects(void) {
    return state.injects;
}

size_t state_devices(const int **slots) {
    *slots = state.slots;
    return state.slot_count;
}

size_t state_events(const struct event **events) {
    *events = state.events;
    return state.event_count;
}

/* Decimal or 0x…, or `na` for NVML_VALUE_NOT_AVAILABLE. */
uint64_t number_in(const char *text, char **end, const char *what) {
    if (strncmp(text, "na", 2) == 0) {
        *end = (char *)text + 2;
        return NOT_AVAILABLE;
    }
    if (!isdigit((unsigned char)*text) && *text != '-')
        refuse(what, text);
    errno = 0;
    uint64_t number = strtoull(text, end, 0);
    if (errno)
        refuse(what, text);
    return number;
}
