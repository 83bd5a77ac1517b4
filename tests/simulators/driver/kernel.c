/* Requests to the simulated kernel driver, and the allocations of this process. */
#define _GNU_SOURCE
#include "kernel.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MAX_ALLOCATIONS 64
#define FIRST_ADDRESS 0x7f0000000000u

static int kernel = -1;

static struct allocation {
    char kind[16];
    uint64_t size, resident;
} allocations[MAX_ALLOCATIONS];

static int connected(void) {
    const char *path = getenv("GPU_SIM_SOCKET");
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if (kernel >= 0 || !path || strlen(path) >= sizeof address.sun_path)
        return kernel >= 0;
    strcpy(address.sun_path, path);
    kernel = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (kernel >= 0 && connect(kernel, (struct sockaddr *)&address, sizeof address) != 0) {
        close(kernel);
        kernel = -1;
    }
    return kernel >= 0;
}

static long answer(char *text, size_t room) {
    char line[256];
    size_t length = 0;
    while (length < sizeof line - 1 && read(kernel, line + length, 1) == 1 && line[length] != '\n')
        length++;
    line[length] = '\0';
    char *rest;
    long code = strtol(line, &rest, 10);
    if (text && room)
        snprintf(text, room, "%s", *rest == ' ' ? rest + 1 : rest);
    return length ? code : NO_KERNEL;
}

long kernel_ask(char *text, size_t room, const char *format, ...) {
    char line[256];
    va_list arguments;
    va_start(arguments, format);
    int length = vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    line[length++] = '\n';
    if (!connected() || write(kernel, line, (size_t)length) != length)
        return NO_KERNEL;
    return answer(text, room);
}

static struct allocation *allocation_at(uint64_t address) {
    uint64_t slot = (address - FIRST_ADDRESS) >> 40;
    return address >= FIRST_ADDRESS && slot < MAX_ALLOCATIONS && allocations[slot].size ? &allocations[slot] : NULL;
}

static long resize(struct allocation *allocation, uint64_t size) {
    long long change = (long long)size - (long long)allocation->resident;
    long code = kernel_ask(NULL, 0, "change %s %lld", allocation->kind, change);
    if (code == 0)
        allocation->resident = size;
    return code;
}

/* Managed memory has no pages until it is touched. */
long kernel_allocate(const char *kind, uint64_t size, uint64_t *address) {
    size_t slot = 0;
    while (slot < MAX_ALLOCATIONS && allocations[slot].size)
        slot++;
    if (slot == MAX_ALLOCATIONS)
        return OUT_OF_MEMORY;
    struct allocation *allocation = &allocations[slot];
    *allocation = (struct allocation){.size = size};
    snprintf(allocation->kind, sizeof allocation->kind, "%s", kind);
    long code = strcmp(kind, "managed") == 0 ? 0 : resize(allocation, size);
    if (code != 0)
        allocation->size = 0;
    *address = FIRST_ADDRESS + ((uint64_t)slot << 40);
    return code;
}

long kernel_touch(uint64_t address) {
    struct allocation *allocation = allocation_at(address);
    return allocation ? resize(allocation, allocation->size) : NOT_ALLOCATED;
}

long kernel_free(uint64_t address) {
    struct allocation *allocation = allocation_at(address);
    long code = allocation ? resize(allocation, 0) : NOT_ALLOCATED;
    if (code == 0)
        allocation->size = 0;
    return code;
}
