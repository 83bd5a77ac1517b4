"""From settings to what each part takes: one function a part."""

from __future__ import annotations

import socket
from collections.abc import Sequence
from typing import TYPE_CHECKING

from memwatch.collector import Roots, read_once
from memwatch.collectors import CollectorOptions
from memwatch.monitor import Identity, Rules
from memwatch.snapshot import Snapshot
from memwatch_web.options import FaceOptions
from memwatch_web.webhook_delivery import Receiver
from memwatchd.settings.certificates import load_certificate, tls_context
from memwatchd.settings.model import Settings

if TYPE_CHECKING:
    import ssl


def roots_of(settings: Settings) -> Roots:
    sampling = settings.sampling
    return Roots(sampling.procfs, sampling.sysfs, sampling.rootfs)


def collector_options_of(settings: Settings) -> CollectorOptions:
    return CollectorOptions(
        top=settings.processes.top,
        processes_period_seconds=settings.processes.interval.total_seconds(),
        cgroup_scope=settings.collectors.cgroup.scope,
        helper_pause_seconds=settings.collectors.nvml.restart_after.total_seconds(),
        tegra_board=settings.collectors.tegra.board,
        tegrastats_path=settings.collectors.tegrastats.path,
        tegrastats_interval_seconds=settings.collectors.tegrastats.interval.total_seconds(),
        amdsmi_pause_seconds=settings.collectors.amdsmi.restart_after.total_seconds(),
        disabled=disabled_of(settings),
    )


def disabled_of(settings: Settings) -> frozenset[str]:
    collectors = settings.collectors
    return frozenset(name for name in type(collectors).model_fields if not getattr(collectors, name).enabled)


def rules_of(settings: Settings) -> Rules:
    return Rules(
        interval_seconds=settings.sampling.interval.total_seconds(),
        history_seconds=settings.history.length.total_seconds(),
        pressure=settings.pressure.rules,
        alerts=settings.alerts.rules,
    )


def face_options_of(settings: Settings) -> FaceOptions:
    web = settings.web
    return FaceOptions(hosts=web.hosts, process_metrics=settings.processes.metrics, login=web.login)


def tls_of(settings: Settings) -> ssl.SSLContext | None:
    """What listeners speak; None for plain HTTP."""
    tls = settings.web.tls
    return None if tls.cert_file is None else tls_context(tls.cert_file, tls.key_file, tls.client_ca_file)


def renew_certificate(context: ssl.SSLContext, settings: Settings) -> None:
    """Show new clients what the files hold now."""
    tls = settings.web.tls
    if tls.cert_file is not None:
        load_certificate(context, tls.cert_file, tls.key_file)


def receivers_of(settings: Settings) -> list[Receiver]:
    return [
        Receiver(
            webhook.name,
            webhook.url,
            webhook.secret,
            timeout_seconds=webhook.timeout.total_seconds(),
            allow_link_local=webhook.allow_link_local,
        )
        for webhook in settings.alerts.webhooks
    ]


def identity_of(roots: Roots) -> Identity:
    """Which machine the figures are of: the one that procfs shows, else the one this runs on."""
    host = _word(roots, "sys/kernel/hostname") or socket.gethostname()
    return Identity(host, _word(roots, "sys/kernel/random/boot_id") or "unknown")


def _word(roots: Roots, path: str) -> str:
    return (read_once(roots.procfs / path) or b"").decode("utf-8", "replace").strip()


def status_of(snapshot: Snapshot) -> str:
    """One line for `systemctl status`."""
    levels = ", ".join(
        f"{snapshot.labels[one.target]} {one.level.word} ({one.ratio:.0%})" for one in snapshot.pressure
    )
    return levels or "no figures"


def exposure_of(settings: Settings) -> str | None:
    """What an administrator should know about addresses that others can reach; None when all is well."""
    web = settings.web
    if not web.exposed:
        return None
    where = ", ".join(web.exposed)
    if not web.login.is_required and not web.login.by_certificate:
        return f"anybody who reaches {where} can read all figures: there is no login"
    if web.tls.cert_file is None:
        return f"passwords and tokens cross the network in the clear to {where}: set cert_file under [web.tls]"
    return None


def addresses_of(sockets: Sequence[socket.socket], scheme: str = "http") -> list[str]:
    """Where the daemon answers, as one would type it."""
    return [_address_of(one, scheme) for one in sockets]


def _address_of(listener: socket.socket, scheme: str) -> str:
    name = listener.getsockname()
    if listener.family == socket.AF_UNIX:
        return f"unix:{name}"
    host, port = name[0], name[1]
    return f"{scheme}://[{host}]:{port}" if listener.family == socket.AF_INET6 else f"{scheme}://{host}:{port}"
