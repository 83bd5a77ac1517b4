/* Steps of every call: lock, log, injected failures and handles. */
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "sim.h"

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static int references;
static pid_t owner; /* a forked child is uninitialized, like with the real library */

/* Handles are numbers, not addresses, so that a stale or invalid one is detected. */
#define HANDLE_MARK 0x4E56u

handle handle_of(int gpu, int mig) {
    uint64_t generation = mig < 0 ? 0 : mig_generation(gpu) & 0xFFFF;
    uint64_t bits = (uint64_t)HANDLE_MARK << 48 | generation << 32 | (uint64_t)gpu << 16 | (uint64_t)(mig + 1);
    return (handle)(uintptr_t)bits;
}

uint64_t mig_generation(int gpu) {
    char scope[24];
    uint64_t generation = 0;
    snprintf(scope, sizeof scope, "gpu.%d.", gpu);
    state_number(scope, "mig.generation", &generation);
    return generation;
}

void scope_to(struct call *call, int gpu, int mig) {
    call->gpu = gpu;
    call->mig = mig;
    if (gpu < 0)
        call->scope[0] = '\0';
    else if (mig < 0)
        snprintf(call->scope, sizeof call->scope, "gpu.%d.", gpu);
    else
        snprintf(call->scope, sizeof call->scope, "gpu.%d.mig.%d.", gpu, mig);
}

static bool resolve(struct call *call, handle device) {
    uint64_t bits = (uintptr_t)device;
    int gpu = (int)(bits >> 16 & 0xFFFF), mig = (int)(bits & 0xFFFF) - 1;
    bool ours = bits >> 48 == HANDLE_MARK && gpu < SLOTS;
    scope_to(call, ours ? gpu : -1, ours ? mig : -1);
    return ours;
}

/* True if a handle is still valid: the GPU is listed, and MIG was not reconfigured. */
static bool is_there(const struct call *call, handle device) {
    const int *slots;
    size_t count = state_devices(&slots);
    uint64_t ignored;
    while (count && slots[count - 1] != call->gpu)
        count--;
    if (!count)
        return false;
    return call->mig < 0 || (handle_of(call->gpu, call->mig) == device && state_number(call->scope, "gi", &ignored));
}

/* Writes one line per call before the call can hang: function, device, process. */
static void log_call(const struct call *call) {
    static int file = -1;
    const char *path = getenv("NVML_SIM_LOG");
    if (!path)
        return;
    if (file < 0)
        file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    char line[160];
    int scope = (int)strlen(call->scope);
    int length = snprintf(line, sizeof line, "%s %.*s %d\n", call->function, scope ? scope - 1 : 1,
                          scope ? call->scope : "-", (int)getpid());
    if (write(file, line, (size_t)length) != length)
        refuse("cannot write the log", path);
}

struct injection {
    bool segfault, fails;
    uint64_t latency_ms, error;
};

/* False if no failure is injected or its count is used up. */
static bool injected(const char *scope, const char *function, struct injection *injection) {
    char prefix[128];
    *injection = (struct injection){0};
    snprintf(prefix, sizeof prefix, "%scall.%s.", scope, function);
    uint64_t segfault = 0;
    bool slow = state_number(prefix, "latency_ms", &injection->latency_ms);
    injection->segfault = state_number(prefix, "segfault", &segfault) && segfault;
    injection->fails = state_number(prefix, "error", &injection->error);
    return (slow || injection->segfault || injection->fails) && state_countdown(prefix, "times");
}

/* Ignores signals, like a driver that is stuck in the kernel. */
static void sleep_ms(uint64_t ms) {
    struct timespec left = {(time_t)(ms / 1000), (long)(ms % 1000) * 1000000};
    while (nanosleep(&left, &left) != 0 && errno == EINTR)
        ;
}

static int suffer(const struct injection *injection) {
    if (injection->latency_ms) {
        pause_call();
        sleep_ms(injection->latency_ms);
        if (resume_call() != SUCCESS)
            return UNKNOWN;
    }
    if (injection->segfault) {
        volatile int *volatile nowhere = NULL;
        *nowhere = 1;
    }
    return injection->fails ? (int)injection->error : SUCCESS;
}

static int down(int gpu) {
    uint64_t answer;
    char scope[24];
    snprintf(scope, sizeof scope, "gpu.%d.", gpu);
    bool is_down = state_number("", "down", &answer) || (gpu >= 0 && state_number(scope, "down", &answer));
    return is_down ? (int)answer : SUCCESS;
}

/* The failure closest to the device takes precedence. A failure of a GPU does not apply to its MIG devices,
 * unless the whole GPU is `down`. */
static int inject(const struct call *call, const char *wider_scope) {
    struct injection injection;
    if (!state_injects())
        return SUCCESS;
    if (injected(call->scope, call->function, &injection) ||
        (wider_scope && injected(wider_scope, call->function, &injection)))
        return suffer(&injection);
    return down(call->gpu);
}

bool initialized(void) {
    return references > 0 && owner == getpid();
}

void set_initialized(int change) {
    references = initialized() ? references + change : change;
    owner = getpid();
}

void pause_call(void) {
    pthread_mutex_unlock(&lock);
}

int resume_call(void) {
    pthread_mutex_lock(&lock);
    return state_refresh() ? SUCCESS : UNKNOWN;
}

int leave(int answer) {
    pthread_mutex_unlock(&lock);
    return answer;
}

int enter(struct call *call, const char *function, handle device) {
    call->function = function;
    bool ours = resolve(call, device);
    int there = resume_call();
    log_call(call);
    if (!initialized())
        return UNINITIALIZED;
    if (!ours)
        return INVALID_ARGUMENT;
    if (there != SUCCESS)
        return there;
    if (!is_there(call, device))
        return NOT_FOUND;
    power_attach(call->gpu);
    return inject(call, "");
}

int enter_machine(struct call *call, const char *function) {
    call->function = function;
    scope_to(call, -1, -1);
    int there = resume_call();
    log_call(call);
    if (!initialized())
        return UNINITIALIZED;
    return there == SUCCESS ? inject(call, NULL) : there;
}

/* For initialization and shutdown: without a state file no driver is loaded, and `down` is ignored. */
int enter_unready(struct call *call, const char *function) {
    struct injection injection;
    call->function = function;
    scope_to(call, -1, -1);
    int there = resume_call();
    log_call(call);
    if (there != SUCCESS)
        return DRIVER_NOT_LOADED;
    return injected("", function, &injection) ? suffer(&injection) : SUCCESS;
}

/* For a call that began with the machine scope and then found its device. */
int narrow(struct call *call, int gpu, int mig) {
    scope_to(call, gpu, mig);
    power_attach(gpu);
    return inject(call, NULL);
}
