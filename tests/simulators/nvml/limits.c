/* Memory limits of cgroups: records `path:soft:hard:used` separated by blanks, paths below the cgroup mount point. */
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "sim.h"

static struct memory_limits_v1 record_in(const char *text, char **end) {
    struct memory_limits_v1 found = {0};
    found.soft = number_in(text, end, "soft limit");
    if (**end == ':')
        found.hard = number_in(*end + 1, end, "hard limit");
    if (**end == ':')
        found.used = number_in(*end + 1, end, "memory in use");
    if (**end && **end != ' ')
        refuse("not a limit", text);
    return found;
}

/* True if `folder` is the cgroup `path`, or one inside it. The mount point differs between machines. */
static bool covers(const char *path, size_t length, const char *folder) {
    const char *mount = strstr(folder, "/fs/cgroup");
    const char *below = mount ? mount + strlen("/fs/cgroup") : folder;
    if (length == 1)
        return true;
    return strncmp(below, path, length) == 0 && (below[length] == '/' || !below[length]);
}

/* The limits of the innermost limited cgroup around `folder`: limits of the driver do not nest. */
bool limits_of(const struct call *call, const char *folder, struct memory_limits_v1 *limits) {
    const char *text = state_text(call->scope, "limits.groups");
    size_t longest = 0;
    for (text = text ? text : ""; *text;) {
        size_t length = strcspn(text, ":");
        char *end;
        struct memory_limits_v1 found = record_in(text + length + (text[length] == ':'), &end);
        if (length > longest && covers(text, length, folder)) {
            longest = length;
            *limits = (struct memory_limits_v1){limits->name_space, found.soft, found.hard, found.used};
        }
        text = end + strspn(end, " ");
    }
    return longest > 0;
}

static int get_limits(const struct call *call, struct memory_limits_v1 *limits) {
    uint64_t has_mig = 0;
    if (!limits)
        return INVALID_ARGUMENT;
    if (call->mig >= 0 || (state_number(call->scope, "mig.current", &has_mig) && has_mig))
        return NOT_SUPPORTED;
    if (!state_text(call->scope, "limits.groups"))
        return NOT_SUPPORTED;
    if (!limits->name_space)
        return INVALID_ARGUMENT;
    if (access(limits->name_space, F_OK) != 0)
        return NOT_FOUND;
    if (!limits_of(call, limits->name_space, limits)) {
        limits->soft = limits->used = 0;
        limits->hard = UINT64_MAX;
    }
    return SUCCESS;
}

EXPORT int nvmlDeviceGetMemoryLimits_v1(handle device, struct memory_limits_v1 *limits) {
    ON_DEVICE(device, get_limits(&call, limits))
}
