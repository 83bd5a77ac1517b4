"""Jobs of batch systems by their cgroup paths. Not a collector. Pure functions."""

from __future__ import annotations

import re
from typing import NamedTuple

# `81`, a job of an array `81[2]`, or with a second number for each run `81.2`; then the name of the server.
_PBS_ID = r"(?P<job>\d{1,20}(?:\[\d{1,20}\])?(?:\.\d{1,20}(?![^/]))?)(?:\.[^/]*)?"
# Form of the path up to the cgroup of the job. Of several jobs the outermost counts.
JOB_PATHS = {
    # cgroup.conf(5); other software may use the name `job_7` as well.
    "Slurm": r"slurm.*?/job_(?P<job>\d{1,20})",
    # Slurm 26.05 names it by the SLUID of the job, unless CgroupJobIdPaths is set.
    "Slurm by SLUID": r"slurmstepd\.scope/(?P<job>s[0-9A-Z]{13})",
    # The hook pbs_cgroups with version 1 (`jobid`) and 2 (`jobs`); its cgroup_prefix is `pbs_jobs` or `pbspro`.
    "PBS": rf"/pbs\w*\.service/(?:jobid|jobs)/{_PBS_ID}",
    "PBS before version 19": rf"/pbs\w*\.slice/pbs\w*-{_PBS_ID}\.slice",
    "Torque": rf"/torque/{_PBS_ID}",
    # /lsf/CLUSTER/job.ID.PID.TIME, for both versions.
    "LSF": r"/lsf/[^/]+/job\.(?P<job>\d{1,20}(?:\[\d{1,20}\])?)(?:\.[^/]*)?",
    # BASE_CGROUP, the folder EXECUTE with _ for /, and the slot: the number of the job is not in the path.
    "HTCondor": r"/condor_[^/]*?_(?P<job>slot\d{1,9}(?:_\d{1,9})?)(?:@[^/]*)?",
}
_FORMS = [re.compile(f"(?:{form})(?![^/])") for form in JOB_PATHS.values()]


class Job(NamedTuple):
    """Name of a job, and the number of parts of the path up to its own cgroup."""

    name: str
    end: int


def find_job(path: str) -> Job | None:
    """Return the job in a cgroup path: its number, with Slurm perhaps its SLUID, with HTCondor its slot."""
    for form in _FORMS:
        if found := form.search(path):
            return Job(found["job"], path.count("/", 0, found.end()) + 1)
    return None
