#!/bin/bash
# Prolog of Slurm (slurm.conf: Prolog=/etc/slurm/prolog.d/memory.sh): a job starts on a node whose memory is back.
# What an ended job leaves behind, such as an orphaned process, would make the next one fail. A prolog that fails drains
# the node and requeues the job, so this one fails for missing memory only, not if it cannot be measured.
MEMWATCH=${MEMWATCH:-/usr/bin/memwatch}
# Memory that a job may expect, of System RAM and of each of its GPUs. A GPU's driver keeps some of it.
FREE_RAM=${MEMWATCH_FREE_RAM:-32GiB}
FREE_GPU=${MEMWATCH_FREE_GPU:-70GiB}
TIMEOUT=${MEMWATCH_TIMEOUT:-60s}

wait_for() {
    local size=$1 place=$2 output status
    shift 2
    output=$("$MEMWATCH" wait --free "$size" --timeout "$TIMEOUT" "$@" 2>&1)
    status=$?
    [ "$status" -eq 0 ] && return 0
    echo "job ${SLURM_JOB_ID:-?}: $place: $output" >&2
    case $output in *"did not become available"*) return 1 ;; esac
    return 0
}

wait_for "$FREE_RAM" "System RAM" || exit 1
# SLURM_JOB_GPUS has the indexes of the job's GPUs on this node: 0,1.
for gpu in ${SLURM_JOB_GPUS//,/ }; do
    wait_for "$FREE_GPU" "GPU $gpu" --device "gpu$gpu" || exit 1
done
exit 0
