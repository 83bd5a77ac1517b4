/* Print a line for each notification of $MEMORY_PRESSURE_WATCH. cc pressure_client.c -lsystemd (254 or later) */
#include <stdio.h>
#include <systemd/sd-event.h>

static int on_pressure(sd_event_source *source, void *data) { return puts("pressure") < 0 ? -1 : fflush(stdout); }

int main(void) {
    sd_event *event = NULL;
    int failed = sd_event_default(&event) < 0 || sd_event_add_memory_pressure(event, NULL, on_pressure, NULL) < 0;
    return failed || puts("ready") < 0 || fflush(stdout) || sd_event_loop(event) < 0;
}
