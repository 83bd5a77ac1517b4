/* The simulated kernel driver behind libcuda.so.1 and libamdhip64.so: a test that serves the socket GPU_SIM_SOCKET.
 *
 * A process keeps one connection. When it ends, however it ends, the kernel closes the connection and the test takes
 * back what the process held, as a driver does when its device file is closed. */
#ifndef DRIVER_SIM_KERNEL_H
#define DRIVER_SIM_KERNEL_H

#include <stddef.h>
#include <stdint.h>

#define EXPORT __attribute__((visibility("default")))

enum { NO_KERNEL = -1, OUT_OF_MEMORY = -2, NOT_ALLOCATED = -3 };

/* Sends a request and copies the text of the answer. Returns its number, or NO_KERNEL. */
long kernel_ask(char *text, size_t room, const char *format, ...) __attribute__((format(printf, 3, 4)));
long kernel_allocate(const char *kind, uint64_t size, uint64_t *address);
long kernel_touch(uint64_t address);
long kernel_free(uint64_t address);

#endif
