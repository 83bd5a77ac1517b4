#!/bin/sh
# Print the machine and its load in one line, so that a failed run says whether the machine was busy.
set -eu
some() { sed -n 's/^some avg10=\([0-9.]*\) avg60=\([0-9.]*\).*/\1 %, \2 %/p' "/proc/pressure/$1" 2>/dev/null || true; }
free=$(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo)
echo "machine at the $1: $(date -u +%FT%TZ), $(nproc) cores, load $(cut -d' ' -f1-3 /proc/loadavg)," \
    "$((free / 1024)) MiB available, stalled for a CPU (10 s, 60 s): $(some cpu), for memory: $(some memory)," \
    "kernel $(uname -r)"
