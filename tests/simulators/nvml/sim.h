/* Inside the simulated libnvidia-ml.so.1: what is true (state), and how a call gets at it (call). */
#ifndef NVML_SIM_H
#define NVML_SIM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "abi.h"

#define SLOTS 64 /* GPUs a state file can name */

/* A call under way. It holds the lock from `enter` to `leave`; `scope` is where its facts stand in the state:
 * "" for the machine, "gpu.0." for a GPU, "gpu.0.mig.1." for a MIG device. */
struct call {
    const char *function;
    int gpu, mig; /* slots, -1 where there is none */
    char scope[40];
};

/* state.c: the state file, re-read whenever another one has taken its place. */
struct event {
    uint64_t sequence;
    const char *record;
};

bool state_refresh(void);
const char *state_text(const char *scope, const char *name);
bool state_number(const char *scope, const char *name, uint64_t *number);
bool state_countdown(const char *scope, const char *name);
bool state_injects(void);
size_t state_devices(const int **slots);
size_t state_events(const struct event **events);
uint64_t number_in(const char *text, char **end, const char *what);
_Noreturn void refuse(const char *what, const char *text);

/* calls.c: lock, log, injected failures, handles. */
int enter(struct call *call, const char *function, handle device);
int enter_machine(struct call *call, const char *function);
int enter_unready(struct call *call, const char *function);
int leave(int answer);
void pause_call(void);
int resume_call(void);
bool initialized(void);
void set_initialized(int change);
int narrow(struct call *call, int gpu, int mig);
void scope_to(struct call *call, int gpu, int mig);
handle handle_of(int gpu, int mig);
uint64_t mig_generation(int gpu);

#define ON_DEVICE(device, answered)                       \
    struct call call;                                     \
    int answer = enter(&call, __func__, device);          \
    if (answer == SUCCESS)                                \
        answer = (answered);                              \
    return leave(answer);

#define ON_MACHINE(answered)                              \
    struct call call;                                     \
    int answer = enter_machine(&call, __func__);          \
    if (answer == SUCCESS)                                \
        answer = (answered);                              \
    return leave(answer);

/* power.c */
void power_attach(int gpu);
void power_attach_all(void);
void power_detach_all(void);

/* limits.c */
bool limits_of(const struct call *call, const char *folder, struct memory_limits_v1 *limits);

/* answers.c: a fact of the state into an argument of the caller. What the state lacks is not supported. */
int put_unsigned(const struct call *call, const char *name, uint32_t *out);
int put_u64(const struct call *call, const char *name, uint64_t *out);
int put_text(const struct call *call, const char *name, char *out, unsigned length);
size_t decoded(const char *text, char *out, size_t room);

#endif
