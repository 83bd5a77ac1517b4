/* Failing disk and jumping clocks, between a program and its libc.

   LD_PRELOAD=libc_faults.so FAULTS_STATE=FILE program

   FILE holds a struct faults and is read at every call, so that a test turns faults on and off. The monotonic
   clock is not changed: suspend stops it, and no process can set it. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct faults {
    int64_t wall_seconds, boot_seconds;
    int32_t write_error, sync_error, allocate_error, poll_error;
    char folder[4064];
};

static volatile const struct faults *faults;

#define REAL(name)                                                        \
    ({                                                                    \
        static __typeof__(&name) real;                                    \
        if (!real) real = (__typeof__(&name))dlsym(RTLD_NEXT, #name);     \
        real;                                                             \
    })

__attribute__((constructor)) static void find_faults(void) {
    const char *path = getenv("FAULTS_STATE");
    int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *pages = mmap(NULL, sizeof(struct faults), PROT_READ, MAP_SHARED, fd, 0);
    close(fd);
    if (pages != MAP_FAILED) faults = pages;
}

static int is_below(int fd) {
    char link[32], path[4096], folder[sizeof faults->folder];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, sizeof path - 1);
    memcpy(folder, (const char *)faults->folder, sizeof folder);
    return length > 0 && folder[0] && !strncmp(path, folder, strnlen(folder, sizeof folder));
}

static int refused(int fd, int error) {
    if (!error || !is_below(fd)) return 0;
    errno = error;
    return 1;
}

#define WRITE_ERROR (faults ? faults->write_error : 0)
#define SYNC_ERROR (faults ? faults->sync_error : 0)
#define ALLOCATE_ERROR (!faults ? 0 : faults->allocate_error ? faults->allocate_error : faults->write_error)

ssize_t write(int fd, const void *data, size_t count) {
    return refused(fd, WRITE_ERROR) ? -1 : REAL(write)(fd, data, count);
}

ssize_t pwrite(int fd, const void *data, size_t count, off_t at) {
    return refused(fd, WRITE_ERROR) ? -1 : REAL(pwrite)(fd, data, count, at);
}

ssize_t pwrite64(int fd, const void *data, size_t count, off64_t at) {
    return refused(fd, WRITE_ERROR) ? -1 : REAL(pwrite64)(fd, data, count, at);
}

int posix_fallocate(int fd, off_t at, off_t count) {
    return refused(fd, ALLOCATE_ERROR) ? ALLOCATE_ERROR : REAL(posix_fallocate)(fd, at, count);
}

int posix_fallocate64(int fd, off64_t at, off64_t count) {
    return refused(fd, ALLOCATE_ERROR) ? ALLOCATE_ERROR : REAL(posix_fallocate64)(fd, at, count);
}

int fsync(int fd) { return refused(fd, SYNC_ERROR) ? -1 : REAL(fsync)(fd); }

int fdatasync(int fd) { return refused(fd, SYNC_ERROR) ? -1 : REAL(fdatasync)(fd); }

int poll(struct pollfd *files, nfds_t count, int timeout) {
    if (!faults || !faults->poll_error) return REAL(poll)(files, count, timeout);
    errno = faults->poll_error;
    return -1;
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = REAL(clock_gettime)(clock, now);
    if (result || !faults) return result;
    if (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE) now->tv_sec += faults->wall_seconds;
    if (clock == CLOCK_BOOTTIME) now->tv_sec += faults->boot_seconds;
    return result;
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    int result = REAL(gettimeofday)(now, zone);
    if (!result && faults) now->tv_sec += faults->wall_seconds;
    return result;
}

time_t time(time_t *where) {
    time_t now = REAL(time)(NULL) + (faults ? faults->wall_seconds : 0);
    if (where) *where = now;
    return now;
}
