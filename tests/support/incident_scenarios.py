"""Incidents with known answers, rebuilt from public reports. Figures that the reports lack are assumed.

Each `source` names the report, or "measured" for a run of our own. Sizes between two figures are interpolated.
"""

from __future__ import annotations

from support.incident_player import Actor, Scenario, Truth

ID = "1f6b2c3d4e5f60718293a4b5c6d7e8f90112233445566778899aabbccddeeff0"
ID2 = "77aa2c3d4e5f60718293a4b5c6d7e8f90112233445566778899aabbccddeeff0"
DESKTOP = (
    Actor(2210, "gnome-shell", ((0, 0.3), (600, 0.3)), unit="user@1000.service"),
    Actor(2881, "chromium", ((0, 1.1), (600, 1.1)), unit="user@1000.service"),
    Actor(911, "postgres", ((0, 0.6), (600, 0.6)), unit="postgresql.service"),
)


def global_kill(pid: int, name: str, anon_kib: int, at: float) -> tuple[tuple[float, str], ...]:
    """Return the lines of a kill for the machine, as since Linux 5.0."""
    return (
        (
            at,
            "oom-kill:constraint=CONSTRAINT_NONE,nodemask=(null),cpuset=/,mems_allowed=0,global_oom,"
            f"task_memcg=/user.slice,task={name},pid={pid},uid=1000",
        ),
        (
            at,
            f"Out of memory: Killed process {pid} ({name}) total-vm:99999999kB, "
            f"anon-rss:{anon_kib}kB, file-rss:0kB, shmem-rss:0kB, UID:1000 pgtables:4200kB oom_score_adj:0",
        ),
    )


def group_kill(pid: int, name: str, anon_kib: int, group: str, at: float) -> tuple[tuple[float, str], ...]:
    """Return the lines of a kill at the limit of a cgroup."""
    return (
        (
            at,
            f"oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),cpuset=/,mems_allowed=0,oom_memcg={group},"
            f"task_memcg={group},task={name},pid={pid},uid=0",
        ),
        (
            at,
            f"Memory cgroup out of memory: Killed process {pid} ({name}) total-vm:9999999kB, "
            f"anon-rss:{anon_kib}kB, file-rss:0kB, shmem-rss:0kB, UID:0 pgtables:184kB oom_score_adj:0",
        ),
    )


def kib(gib: float) -> int:
    return int(gib * (1 << 20))


VLLM_RISE = ((0, 90.0), (20, 90.0), (29, 116.5), (600, 116.5))
SCENARIOS: tuple[Scenario, ...] = (
    Scenario(
        "GB10: available 29 to 2.5 GiB in 9 s, the kernel kills the desktop",
        "vllm#54200",
        121.7,
        (Actor(3921, "vllm", VLLM_RISE, container=ID[:12]), *DESKTOP),
        Truth("kill", 3921, "kernel_oom", 2210),
        kernel=global_kill(2210, "gnome-shell", kib(0.28), 29.5),
        oom_kills=(29.2,),
        stalls=((0, 0.0), (24, 0.0), (29, 0.3), (40, 0.1), (60, 0.0)),
        step=0.5,
    ),
    Scenario(
        "GB10: 34.0 to 12.7 GiB in 1.5 s during a start, then 1 GiB",
        "dgx-spark-playbooks#116",
        121.7,
        (
            Actor(
                5100, "python3", ((0, 80.0), (30, 80.0), (31.5, 101.3), (32.5, 113.0), (600, 113.0)), gpu="cuda0"
            ),
            *DESKTOP,
        ),
        Truth("critical", 5100),
        unified=True,
        step=0.5,
    ),
    Scenario(
        "18 GiB in 10 s after the weights were loaded: KV cache and graph capture",
        "GLM-5.3-Flash#118",
        121.7,
        (
            Actor(700, "VLLM::EngineCore", ((0, 95.0), (15, 95.0), (25, 113.0), (600, 113.0)), gpu="cuda0"),
            *DESKTOP,
        ),
        Truth("critical", 700),
        unified=True,
        marks=((14.0, "weights loaded (process 700)"),),
        step=0.5,
    ),
    Scenario(
        "61.5 GiB of locked shared memory, available 0",
        "GLM-5.3-Flash#193",
        121.7,
        (Actor(812, "sglang", ((0, 55.0), (20, 55.0), (50, 116.0), (600, 116.0)), unit="sglang.service"), *DESKTOP),
        Truth("critical", 812),
        seconds=70,
    ),
    Scenario(
        "1 GiB machine: hog at 300 MiB/s, killed 2.9 s later",
        "measured",
        1.0,
        (Actor(4242, "hog", ((20, 0.0), (22.9, 0.85))), Actor(1, "systemd", ((0, 0.02), (600, 0.02)))),
        Truth("kill", 4242, "kernel_oom", 4242),
        other=((0, 0.1), (600, 0.1)),
        cache=((0, 0.3),),
        kernel=global_kill(4242, "hog", kib(0.85), 22.9),
        oom_kills=(22.9,),
        step=0.25,
    ),
    Scenario(
        "collapse between two scans: only the kernel's table of tasks has the sizes",
        "dgx-spark-playbooks#116, Linux 6.8",
        121.7,
        (
            Actor(5200, "python3", ((0, 20.0), (12.0, 20.0), (13.5, 115.0), (600, 115.0)), container=ID[:12]),
            *DESKTOP,
        ),
        Truth("kill", 5200, "kernel_oom", 2881),
        seconds=13.5,
        kernel=(
            (13.4, "Tasks state (memory values in pages):"),
            (13.4, "[  pid  ]   uid  tgid total_vm      rss pgtables_bytes swapents oom_score_adj name"),
            (13.4, "[   2881]  1000  2881  9876543   288358  4200000        0             0 chromium"),
            (
                13.4,
                f"[   5200]     0  5200 99876543 {int(115.0 * (1 << 18))}  4200000        0             0 python3",
            ),
            (
                13.4,
                f"[   5201]     0  5200 99876543 {int(115.0 * (1 << 18))}  4200000        0             0 python3",
            ),
            *global_kill(2881, "chromium", kib(1.1), 13.4),
        ),
        oom_kills=(13.4,),
        step=0.5,
    ),
    Scenario(
        "limit of a container: the trainer is killed inside it",
        "measured",
        64.0,
        (
            Actor(880, "python", ((0, 1.0), (10, 1.0), (40, 7.9)), container=ID[:12]),
            Actor(881, "tensorboard", ((0, 0.2), (600, 0.2)), container=ID[:12]),
            Actor(7000, "qemu", ((0, 8.0), (10, 8.0), (40, 20.0), (600, 20.0)), unit="qemu.service"),
        ),
        Truth("kill", 880, "cgroup_oom", 880),
        kernel=group_kill(880, "python", kib(7.8), f"/system.slice/docker-{ID}.scope", 40.5),
        oom_kills=(40.5,),
    ),
    Scenario(
        "limit of a container: its small helper is killed, the server filled it",
        "moby: OOM kill of a child",
        64.0,
        (
            Actor(900, "ollama", ((0, 0.5), (20, 0.5), (40, 15.0), (600, 15.0)), container=ID[:12]),
            Actor(901, "sh", ((0, 0.1), (41, 0.1)), container=ID[:12]),
            *DESKTOP,
        ),
        Truth("kill", 900, "cgroup_oom", 901),
        kernel=group_kill(901, "sh", kib(0.1), f"/docker/{ID}", 41.0),
        oom_kills=(41.0,),
    ),
    Scenario(
        "unit at its limit, full since its start an hour ago",
        "home-ops#12497",
        64.0,
        (
            Actor(610, "immich", ((0, 3.9), (30, 3.95)), unit="immich.service"),
            Actor(611, "immich-db", ((0, 0.05), (600, 0.05)), unit="immich.service"),
            *DESKTOP,
        ),
        Truth("kill", 610, "cgroup_oom", 610),
        kernel=group_kill(610, "immich", kib(3.97), "/system.slice/immich.service", 31.0),
        oom_kills=(31.0,),
    ),
    Scenario(
        "systemd-oomd kills the terminal of a compile",
        "systemd#23606",
        32.0,
        (
            Actor(3001, "cargo", ((0, 0.2), (600, 0.2)), unit="vte-spawn-dbb4a75e.scope"),
            Actor(3002, "rustc", ((5, 0.1), (25, 24.0), (40, 24.0)), unit="vte-spawn-dbb4a75e.scope"),
            *DESKTOP,
        ),
        Truth("kill", 3002, "systemd_oomd", "vte-spawn-dbb4a75e.scope"),
        logs=(
            (
                40.0,
                "systemd-oomd.service",
                "Killed /user.slice/user-1000.slice/vte-spawn-dbb4a75e.scope due to memory pressure for "
                "/user.slice/user-1000.slice being 51.07% > 50.00% for > 20s with reclaim activity",
            ),
        ),
        stalls=((0, 0.0), (20, 0.2), (40, 0.5), (60, 0.0)),
    ),
    Scenario(
        "earlyoom ends the process with the highest score, which grew",
        "earlyoom#309",
        31.0,
        (Actor(29410, "cluster", ((0, 1.0), (10, 1.0), (30, 24.0), (31, 24.0))), *DESKTOP),
        Truth("kill", 29410, "earlyoom", 29410),
        logs=(
            (30.9, "earlyoom.service", "low memory! at or below SIGTERM limits: mem 10.00%, swap 10.00%"),
            (
                31.0,
                "earlyoom.service",
                'sending SIGTERM to process 29410 uid 1000 "cluster": badness 1264, VmRSS 23964 MiB',
            ),
        ),
        ends=((31.1, 29410, 15),),
    ),
    Scenario(
        "earlyoom ends the browser while a model load takes the memory",
        "earlyoom#261",
        31.0,
        (Actor(512, "llama-server", ((10, 0.1), (30, 24.0), (600, 24.0)), unit="llama.service"), *DESKTOP),
        Truth("kill", 512, "earlyoom", 2881),
        logs=(
            (
                30.0,
                "earlyoom.service",
                'sending SIGKILL to process 2881 uid 1000 "chromium": oom_score 866, VmRSS 1126 MiB, cmdline "…"',
            ),
        ),
        ends=((30.1, 2881, 9),),
    ),
    Scenario(
        "nohang ends a database that grew",
        "nohang#132",
        8.0,
        (Actor(903309, "mysqld", ((0, 2.0), (10, 2.0), (40, 6.2), (41, 6.2))), DESKTOP[2]),
        Truth("kill", 903309, "nohang", 903309),
        other=((0, 1.0), (600, 1.0)),
        logs=(
            (40.8, "nohang.service", "  PID: 903309, name: mysqld, badness: 849"),
            (41.0, "nohang.service", "  Sending SIGTERM to the victim"),
        ),
    ),
    Scenario(
        "kubelet evicts a pod that did not grow",
        "kubernetes: node-pressure eviction",
        64.0,
        (
            Actor(1500, "java", ((0, 20.0), (15, 20.0), (40, 55.0), (600, 55.0)), container=ID[:12], pod="batch"),
            Actor(1600, "nginx", ((0, 2.0), (45, 2.0)), container=ID2[:12], pod="nginx"),
        ),
        Truth("kill", 1500, "kubelet", "default/nginx"),
        logs=(
            (
                45.0,
                "kubelet.service",
                'I1012 19:34:45.445172    2480 eviction_manager.go:595] "Eviction manager: pod is evicted '
                'successfully" pod="default/nginx"',
            ),
        ),
    ),
    Scenario(
        "docker stop ends a container by force after its deadline",
        "moby#32938",
        64.0,
        (
            Actor(2500, "vllm", ((0, 3.0), (10, 3.0), (35, 58.0), (50, 58.0)), container=ID[:12]),
            DESKTOP[2],
        ),
        Truth("kill", 2500, "runtime", ID[:12]),
        logs=(
            (
                50.0,
                "docker.service",
                'time="2026-08-03T13:16:19+02:00" level=info msg="Container failed to exit within 10s of '
                f'signal 15 - using the force" container={ID}',
            ),
        ),
        ends=((50.1, 2500, 9),),
    ),
    Scenario(
        "containerd reports a container at its limit; the kernel log is not readable",
        "containerd#8893",
        64.0,
        (Actor(3300, "worker", ((0, 0.5), (20, 0.5), (40, 7.9)), container=ID[:12]), *DESKTOP),
        Truth("kill", 3300, "cgroup_oom", ID[:12]),
        logs=(
            (
                40.5,
                "containerd.service",
                f'time="2025-05-19T18:14:43Z" level=info msg="TaskOOM event container_id:\\"{ID}\\""',
            ),
        ),
        oom_kills=(40.5,),
        kernel_log_is_read=False,
    ),
    Scenario(
        "kill -9 by hand",
        "measured",
        64.0,
        (Actor(4100, "train.py", ((0, 5.0), (10, 5.0), (35, 59.0), (45, 59.0))), *DESKTOP),
        Truth("kill", 4100, "unknown", 4100),
        ends=((45.0, 4100, 9),),
    ),
    Scenario(
        "kernel log not readable: the counter alone, System RAM full",
        "measured",
        16.0,
        (Actor(4300, "blender", ((0, 1.0), (10, 1.0), (30, 13.5), (31, 13.5))), DESKTOP[2]),
        Truth("kill", 4300, "kernel_oom", None),
        other=((0, 1.4), (600, 1.4)),
        oom_kills=(31.0,),
        kernel_log_is_read=False,
        step=0.5,
    ),
    Scenario(
        "PyTorch cannot allocate on a full RTX 4090",
        "pytorch: CUDA out of memory",
        64.0,
        (
            Actor(4500, "train.py", ((0, 4.0), (10, 4.0), (30, 22.0), (600, 22.0)), gpu="gpu0.vram"),
            Actor(4501, "Xorg", ((0, 0.4), (600, 0.4)), gpu="gpu0.vram"),
        ),
        Truth("program", 4500, "program", 4500),
        vram=24.0,
        marks=((31.0, "out of memory for 2.0 GiB on cuda:0; would have fitted: 1.6 GiB (process 4500)"),),
    ),
    Scenario(
        "another process fills the GPU of a server that cannot allocate",
        "sparkring#173",
        64.0,
        (
            Actor(4600, "ollama", ((0, 6.0), (600, 6.0)), gpu="gpu0.vram"),
            Actor(4601, "comfyui", ((10, 1.0), (30, 17.5), (600, 17.5)), gpu="gpu0.vram"),
        ),
        Truth("program", 4601, "program", 4600),
        vram=24.0,
        marks=((31.0, "out of memory for 3.0 GiB on cuda:0; would have fitted: 0.5 GiB (process 4600)"),),
    ),
    Scenario(
        "GPU falls off the bus beside 60 % free RAM",
        "XID 79",
        64.0,
        (Actor(4700, "vllm", ((0, 20.0), (600, 20.0)), gpu="gpu0.vram"),),
        Truth("gpu_lost", None),
        vram=24.0,
        lost_gpu=20.0,
    ),
    Scenario(
        "livelock in reclaim: no sample for 25 s",
        "Containarium#1454",
        121.7,
        (
            Actor(5000, "vllm", ((0, 100.0), (15, 100.0), (27, 117.5), (600, 117.5)), unit="vllm.service"),
            *DESKTOP,
        ),
        Truth("wedge", 5000),
        gap=(27.5, 52.5),
        stalls=((0, 0.0), (20, 0.1), (27, 0.6), (53, 0.9), (60, 0.0)),
        step=0.5,
    ),
    Scenario(
        "sixteen workers of one container grow together",
        "compile jobs",
        64.0,
        (
            *(
                Actor(6000 + n, "cc1plus", ((10 + n * 0.3, 0.1), (40, 3.6), (600, 3.6)), container=ID[:12])
                for n in range(16)
            ),
            DESKTOP[2],
        ),
        Truth("kill", ID[:12], "kernel_oom", 6003),
        kernel=global_kill(6003, "cc1plus", kib(3.6), 41.0),
        oom_kills=(41.0,),
    ),
    Scenario(
        "leak of 1 GiB a minute for most of an hour",
        "trace wedge-leak-1-gib-a-minute",
        64.0,
        (Actor(6100, "node", ((0, 3.0), (3300, 58.5), (3400, 60.2), (4000, 60.5)), unit="api.service"), *DESKTOP),
        Truth("critical", 6100),
        seconds=3400,
    ),
    Scenario(
        "the first container grew, the kernel kills the second",
        "minefield#134",
        121.7,
        (
            Actor(6200, "vllm", ((0, 60.0), (20, 60.0), (35, 87.5), (600, 87.5)), container=ID[:12]),
            Actor(6201, "comfyui", ((0, 30.0), (36, 30.0)), container=ID2[:12]),
        ),
        Truth("kill", 6200, "kernel_oom", 6201),
        kernel=global_kill(6201, "comfyui", kib(30.0), 36.0),
        oom_kills=(36.0,),
        step=0.5,
    ),
    Scenario(
        "undecided: two unrelated processes grow by the same",
        "two starts at once",
        64.0,
        (
            Actor(6300, "job-a", ((10, 0.1), (40, 29.5), (600, 29.5)), unit="a.service"),
            Actor(6301, "job-b", ((10, 0.1), (40, 29.3), (600, 29.3)), unit="b.service"),
            DESKTOP[2],
        ),
        Truth("critical", None),
    ),
    Scenario(
        "undecided: the driver's memory grows, no process is listed with it",
        "open-gpu-kernel-modules#1358",
        121.7,
        (Actor(6400, "vllm", ((0, 20.0), (600, 20.3))), *DESKTOP),
        Truth("critical", None),
        other=((0, 20.0), (20, 20.0), (40, 97.0), (600, 97.0)),
        unattributed=((0, 18.0), (20, 18.0), (40, 95.0), (600, 95.0)),
    ),
    Scenario(
        "undecided: full by design since before the daemon started",
        "minefield#134, home-ops#12497",
        121.7,
        (Actor(6500, "vllm", ((0, 116.0), (600, 116.0)), container=ID[:12]), *DESKTOP),
        Truth("critical", None),
        seconds=120,
    ),
)
