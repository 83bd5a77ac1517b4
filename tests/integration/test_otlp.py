"""Test the push over OTLP: a daemon, and a receiver that decodes the protocol."""

from __future__ import annotations

import os
import resource
import socket
import ssl
import subprocess
import sys
import threading
import time
from pathlib import Path

from opentelemetry.exporter.otlp.proto.http.metric_exporter import OTLPMetricExporter
from opentelemetry.sdk.metrics.export import MetricExportResult, MetricsData
from prometheus_client.parser import text_string_to_metric_families

from memwatchd.otlp import DeadlineAdapter, create_session
from support.certificates import authority, signed_by
from support.daemon_process import MEMWATCHD, clean_environment, run_program, running_daemon
from support.otlp_receiver import Push, attributes_of, read_push
from support.waiting import MAX_WAIT_SECONDS, wait_until
from support.webhook_receiver import Endless, Site, dripping, raw_receiver, receiving

EACH_SECOND = '[otlp]\ninterval = "1s"\nendpoint = "{endpoint}"\n'


def config_for(site: Site, more: str = "") -> str:
    return EACH_SECOND.format(endpoint=site.url.replace("/hook/token?key=value", "/otlp")) + more


def first_push(site: Site) -> Push:
    wait_until(lambda: bool(site.deliveries))
    return read_push(site.deliveries[0])


def test_push_has_the_metrics_of_a_scrape_and_the_conventional_ones(tmp_path: Path) -> None:
    """A discrete GPU has memory under the names of OpenTelemetry, with its vendor's name for it."""
    with receiving() as site, running_daemon(tmp_path, "--demo", "rtx4090", config=config_for(site)) as daemon:
        push = first_push(site)
        scraped = {family.name for family in text_string_to_metric_families(daemon.get("/metrics").text)}
        (device,) = daemon.snapshot()["devices"]

    assert site.deliveries[0].path == "/otlp/v1/metrics"
    pushed = [name for name in push.metrics if name.startswith("memwatch_")]
    own = {name.removesuffix("_total").removesuffix("_info") for name in pushed}
    expected = {name.removesuffix("_info") for name in scraped if name.startswith("memwatch_")}
    assert own == expected
    (limit,) = push.points("hw.gpu.memory.limit")
    assert attributes_of(limit) == {
        "hw.id": "gpu0",
        "hw.type": "gpu",
        "hw.name": device["name"],
        "hw.vendor": device["vendor"],
        "hw.driver_version": device["driver"],
    }
    assert not push.metrics["hw.gpu.memory.limit"].sum.is_monotonic
    states = {attributes_of(point)["system.memory.state"] for point in push.points("system.memory.usage")}
    assert states == {"used", "cached", "free"}


def test_push_of_a_gpu_with_unified_memory_has_no_memory_of_the_gpu_alone(tmp_path: Path) -> None:
    with receiving() as site, running_daemon(tmp_path, "--demo", "dgx-spark", config=config_for(site)):
        push = first_push(site)

    assert "hw.gpu.memory.limit" not in push.metrics
    assert push.points("memwatch_device_headroom_after_reclaim_bytes")
    assert push.points("system.memory.limit")


def test_push_has_headers_and_the_identity_of_the_machine(tmp_path: Path) -> None:
    """A header's value comes from a file; the log does not contain it."""
    secret = tmp_path / "authorization"
    secret.write_text("Bearer a-token-of-tests\n")
    secret.chmod(0o600)
    more = f"[otlp.headers]\nauthorization = 'file:{secret}'\nx-scope-orgid = 'team'\n[labels]\ncluster = 'west'\n"
    with receiving() as site, running_daemon(tmp_path, config=config_for(site, more)) as daemon:
        push = first_push(site)
        host = daemon.snapshot()["host"]
        log = daemon.read_log()

    headers = site.deliveries[0].headers
    assert (headers["authorization"], headers["x-scope-orgid"]) == ("Bearer a-token-of-tests", "team")
    named = {"cluster": "west", "host.name": host, "service.name": "memwatchd"}
    assert named.items() <= push.resource.items()
    assert "a-token" not in log


def test_push_over_tls_accepts_only_the_named_authority(tmp_path: Path) -> None:
    ca = authority(tmp_path)
    server = signed_by(ca, "localhost")
    both = tmp_path / "both.pem"
    both.write_bytes(server.cert.read_bytes() + server.key.read_bytes())
    with receiving(certificate=both) as site:
        config = config_for(site, f"ca_file = '{ca.cert}'\n")
        with running_daemon(tmp_path, config=config):
            assert first_push(site).metrics
        (tmp_path / "other").mkdir()
        with running_daemon(tmp_path / "other", config=config_for(site)) as daemon:
            daemon.wait_for_log("does not accept metrics (TLS certificate verification failed: ")


def test_redirect_is_not_followed(tmp_path: Path) -> None:
    """A header with a token goes to no other address."""
    with (
        receiving() as other,
        receiving((307, {"Location": other.url})) as site,
        running_daemon(tmp_path, config=config_for(site)) as daemon,
    ):
        daemon.wait_for_log("does not accept metrics (answered 307, a redirect, which is not followed)")

    assert not other.deliveries


def test_receiver_that_refuses_is_logged_once_and_its_recovery_too(tmp_path: Path) -> None:
    """The daemon goes on meanwhile. The line has neither the path nor a traceback."""
    with receiving(401, 401, 401, 200) as site, running_daemon(tmp_path, config=config_for(site)) as daemon:
        daemon.wait_for_log("accepts metrics again")
        ready = daemon.get("/readyz").status
        log = daemon.read_log()

    assert ready == 200
    assert log.count("does not accept metrics (answered 401); check endpoint under [otlp]") == 1
    assert "/otlp" not in log
    assert "Traceback" not in log


def test_daemon_stops_at_once_while_a_push_waits(tmp_path: Path) -> None:
    """The receiver has the request and does not answer."""
    with receiving() as site, running_daemon(tmp_path, config=config_for(site)) as daemon:
        site.may_answer.clear()
        wait_until(lambda: bool(site.deliveries))
        assert daemon.terminate() == 0
        site.may_answer.set()


def test_endless_response_is_not_read(tmp_path: Path) -> None:
    """A push ends with the head of the response; the daemon pushes again, and its memory does not grow."""
    endless = Endless()
    with raw_receiver(endless) as url:
        config = EACH_SECOND.format(endpoint=url)
        with running_daemon(tmp_path, config=config) as daemon:
            wait_until(lambda: endless.sent_bytes > 0)
            before = resident_bytes(daemon.pid)
            sent = endless.sent_bytes
            wait_until(lambda: endless.sent_bytes > sent)
            grown = resident_bytes(daemon.pid) - before

    assert grown < 16 << 20
    assert endless.sent_bytes < 64 << 20


def test_dripping_answer_ends_at_the_deadline() -> None:
    """A head that comes byte by byte does not extend an attempt, and no attempt follows it."""
    with raw_receiver(dripping) as url:
        adapter = DeadlineAdapter(ssl.create_default_context)
        exporter = OTLPMetricExporter(url, timeout=0.5, session=create_session(adapter))
        began = time.monotonic()
        result = exporter.export(MetricsData([]))
        seconds = time.monotonic() - began

    assert (result, adapter.failure) == (MetricExportResult.FAILURE, "no response within 0.5 s")
    assert seconds >= 0.5


def test_daemon_stops_at_once_while_an_answer_drips(tmp_path: Path) -> None:
    begun = threading.Event()

    def talk(connection: socket.socket) -> None:
        begun.set()
        dripping(connection)

    with raw_receiver(talk) as url, running_daemon(tmp_path, config=EACH_SECOND.format(endpoint=url)) as daemon:
        wait_until(begun.is_set)
        assert daemon.terminate() == 0


def test_fifo_as_authority_is_refused(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "ca.pem")
    config = tmp_path / "memwatchd.toml"
    config.write_text(f'[otlp]\nendpoint = "https://127.0.0.1:4318"\nca_file = "{tmp_path}/ca.pem"\n')
    done = run_program(MEMWATCHD, "--config", config, "--check-config")

    assert done.returncode == 78
    assert "ca_file" in done.stderr
    assert "cannot be used: is not a regular file" in done.stderr


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize()


def test_missing_receiver_is_named_with_the_reason(tmp_path: Path) -> None:
    config = EACH_SECOND.format(endpoint="http://127.0.0.1:1")
    with running_daemon(tmp_path, config=config) as daemon:
        daemon.wait_for_log("http://127.0.0.1:1 does not accept metrics (connection refused)")


def test_sdk_is_not_imported_without_an_endpoint() -> None:
    code = (
        "import sys; from memwatchd.daemon import Daemon; from memwatchd.settings.schema import Settings\n"
        "Daemon(Settings(), lambda _: Settings()).stop()\n"
        "print([name for name in sys.modules if name.startswith(('opentelemetry.sdk', 'opentelemetry.exporter'))])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=MAX_WAIT_SECONDS, check=True
    )

    assert done.stdout == "[]\n"


def test_missing_sdk_is_reported_with_the_command_that_installs_it(tmp_path: Path) -> None:
    """A package without the SDK, found first on the path, hides the installed one."""
    (tmp_path / "opentelemetry").mkdir()
    (tmp_path / "opentelemetry/__init__.py").touch()
    config = tmp_path / "memwatchd.toml"
    config.write_text('[otlp]\nendpoint = "http://127.0.0.1:4318"\n')
    path = ":".join(filter(None, [str(tmp_path), clean_environment().get("PYTHONPATH")]))
    done = run_program(MEMWATCHD, "--config", config, "--check-config", PYTHONPATH=path)

    assert done.returncode == 78
    assert "pip install 'memwatchd[otel]'" in done.stderr
    assert "Traceback" not in done.stderr


def test_endpoint_with_a_query_is_rejected(tmp_path: Path) -> None:
    config = tmp_path / "memwatchd.toml"
    config.write_text('[otlp]\nendpoint = "http://127.0.0.1:4318/?token=secret-of-tests"\n')
    done = run_program(MEMWATCHD, "--config", config, "--check-config")

    assert done.returncode == 78
    assert "use headers under [otlp]" in done.stderr
    assert "secret-of-tests" not in done.stderr
