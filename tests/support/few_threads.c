/* A limit of threads, which root does not have: pthread_create fails after FEW_THREADS calls, as with `ulimit -u`.

   FEW_THREADS=2 LD_PRELOAD=few_threads.so program */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>

int pthread_create(pthread_t *thread, const pthread_attr_t *how, void *(*start)(void *), void *with) {
    static __typeof__(&pthread_create) real;
    static atomic_int started;
    const char *allowed = getenv("FEW_THREADS");
    if (!real) real = (__typeof__(&pthread_create))dlsym(RTLD_NEXT, "pthread_create");
    if (atomic_fetch_add(&started, 1) >= (allowed ? atoi(allowed) : 0)) return EAGAIN;
    return real(thread, how, start, with);
}
