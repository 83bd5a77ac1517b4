/* A name service that does not answer: names that begin with "slow" take a minute to resolve.

   LD_PRELOAD=slow_names.so program */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <netdb.h>
#include <string.h>
#include <unistd.h>

int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints, struct addrinfo **found) {
    static __typeof__(&getaddrinfo) real;
    if (!real) real = (__typeof__(&getaddrinfo))dlsym(RTLD_NEXT, "getaddrinfo");
    if (name && !strncmp(name, "slow", 4)) sleep(60);
    return real(name, service, hints, found);
}
