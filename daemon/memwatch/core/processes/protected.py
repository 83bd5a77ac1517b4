"""Processes that are never proposed to be stopped: without them a machine cannot be used or reached.

By name and unit, since a list of processes has neither sessions nor parents. A program that takes such a name is
spared as well; none is stopped for its name.
"""

from __future__ import annotations

import re

from memwatch.core.model import Process
from memwatch.core.owners import plain_name

INIT = 1
# Names as the kernel has them: at most 15 characters. `sshd` names a session of a user `sshd-session` since 9.8.
NAMES = frozenset(
    {
        # Service managers, logins and their buses.
        *("systemd", "init", "upstart", "runit", "runsvdir", "s6-svscan", "openrc-init", "dinit", "launchd"),
        *("(sd-pam)", "dbus-daemon", "dbus-broker", "dbus-broker-lau", "polkitd", "udevd", "elogind"),
        *("login", "loginwindow", "agetty", "getty", "su", "sudo", "sudo-rs"),
        # Ways in from elsewhere.
        *("sshd", "sshd-session", "sshd-auth", "dropbear", "mosh-server", "NetworkManager", "wpa_supplicant"),
        *("tailscaled", "sssd", "tmux: server", "screen", "xrdp", "xrdp-sesman", "Xvnc"),
        # Desktops and display managers: a session ends with them.
        *("gdm", "gdm3", "gdm-session-wor", "sddm", "lightdm", "Xorg", "X", "Xwayland", "WindowServer"),
        *("gnome-shell", "gnome-session-b", "gnome-session-s", "kwin_wayland", "kwin_x11", "plasmashell"),
        *("ksmserver", "startplasma-way", "mutter", "sway", "Hyprland", "weston", "labwc", "cosmic-comp"),
        *("cosmic-session", "gamescope", "gamescope-wl", "xfce4-session", "cinnamon", "mate-session", "lxsession"),
        # Managers of containers and jobs: their containers and jobs end with them, or are lost.
        *("dockerd", "containerd", "containerd-shim", "conmon", "podman", "crio", "kubelet", "lxc-start", "lxd"),
        *("incusd", "slurmd", "slurmstepd", "slurmctld", "pbs_mom", "condor_master"),
        # This project.
        *("memwatchd", "memwatch", "memwatch-guardi"),
    }
)  # fmt: skip
UNITS = re.compile(
    r"(systemd-.*|user@.*|dbus.*|polkit|sshd?(@.*)?|getty@.*|serial-getty@.*|display-manager|gdm3?|sddm|lightdm|"
    r"NetworkManager|docker|containerd|podman|crio|kubelet|slurmd|memwatchd.*)\.service"
)


def is_protected(process: Process) -> bool:
    """Return True for a process that must not be stopped, and for one whose name is not known."""
    if process.pid == INIT or not process.visible or not isinstance(process.name, str):
        return True
    name = process.name.removesuffix(".exe")
    unit = process.unit
    return (
        name in NAMES
        or name.startswith(("systemd-", "containerd-shim", "xrdp-", "memwatchd"))
        or (isinstance(unit, str) and UNITS.fullmatch(plain_name(unit)) is not None)
    )
