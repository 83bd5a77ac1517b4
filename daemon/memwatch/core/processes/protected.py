"""Processes that must not be stopped: without them a machine cannot be used or reached.

By name and unit, as glob patterns: a list of processes has neither sessions nor parents. A program that takes such
a name is spared as well.
"""

from __future__ import annotations

import re
from fnmatch import translate

from memwatch.core.model import Process
from memwatch.core.owners import plain_name

INIT = 1
# This project.
OWN_NAMES, OWN_UNITS = ("memwatchd*", "memwatch", "memwatch-guard*"), ("memwatchd*.service",)
# Names as the kernel has them, at most 15 characters.
NAMES = (
    # Service managers, logins and their buses.
    *(
        "systemd",
        "systemd-*",
        "(sd-*",
        "init",
        "upstart",
        "runit",
        "runsvdir",
        "s6-*",
        "openrc*",
        "dinit",
        "launchd",
    ),
    # The first process of a container: the others of the container end with it.
    *("dumb-init", "tini", "docker-init"),
    *("dbus-daemon", "dbus-broker", "dbus-broker-*", "polkitd", "elogind*", "*udevd"),
    *("login", "loginwindow", "getty", "agetty", "mingetty", "su", "sudo", "sudo-rs"),
    # Ways in from elsewhere. `sshd` names the process of a session `sshd-session` since 9.8.
    *("sshd", "sshd-*", "sshd:*", "dropbear", "mosh-server", "tailscaled", "NetworkManager", "wpa_supplicant"),
    *("sssd", "tmux: server", "screen", "xrdp*", "Xvnc"),
    # Desktops and display managers: a session ends with them.
    *("gdm*", "sddm*", "lightdm*", "lxdm*", "xdm", "ly", "greetd", "display-manager"),
    *("Xorg", "X", "Xwayland", "WindowServer"),
    *("gnome-shell", "gnome-session*", "kwin_*", "plasmashell", "ksmserver", "startplasma-*", "mutter", "sway"),
    *("Hyprland", "weston", "labwc", "gamescope*", "cosmic-comp", "cosmic-session", "xfce4-session", "cinnamon"),
    *("mate-session", "lxsession"),
    # Managers of containers and jobs: these end with them, or are lost.
    *("dockerd", "docker-proxy", "containerd", "containerd-shim*", "conmon", "runc", "crun", "podman", "crio"),
    *("kubelet", "lxc-start", "lxd", "incusd", "slurmd", "slurmstepd", "slurmctld", "pbs_mom", "condor_master"),
    *OWN_NAMES,
)
UNITS = (
    *("init.scope", "systemd-*.service", "user@*.service", "dbus*.service", "polkit.service", "elogind.service"),
    *("ssh.service", "sshd.service", "ssh@*.service", "sshd@*.service", "NetworkManager.service"),
    *("getty@*.service", "serial-getty@*.service", "console-getty.service", "display-manager.service"),
    *("gdm*.service", "sddm.service", "lightdm.service", "docker.service", "containerd.service", "podman.service"),
    *("crio.service", "kubelet.service", "slurmd.service"),
    *OWN_UNITS,
)
_NAME, _OWN_NAME, _UNIT, _OWN_UNIT = (
    re.compile("|".join(map(translate, one))) for one in (NAMES, OWN_NAMES, UNITS, OWN_UNITS)
)


def is_protected(process: Process) -> bool:
    """Return True for a process that must not be stopped, and for one whose name is not known."""
    if process.pid == INIT or not process.visible or not isinstance(process.name, str):
        return True
    return is_protected_name(process.name) or (isinstance(process.unit, str) and is_protected_unit(process.unit))


def is_protected_name(name: str) -> bool:
    return _NAME.fullmatch(name) is not None


def is_own_name(name: str) -> bool:
    return _OWN_NAME.fullmatch(name) is not None


def is_own_unit(unit: str) -> bool:
    return _OWN_UNIT.fullmatch(plain_name(unit)) is not None


def is_protected_unit(unit: str) -> bool:
    """Check a unit, also one of a container or of a user manager."""
    return _UNIT.fullmatch(plain_name(unit)) is not None
