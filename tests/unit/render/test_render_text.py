"""The text output of `memwatchd --once`."""

from __future__ import annotations

from msgspec.structs import replace

from memwatch.model import Absent, PoolKind, Vitals
from memwatch.render.text import render_text
from memwatch_web.pages.pattern_samples import pools
from support.sample_snapshots import calm_workstation, critical_gb10, many_owners, unknown_figures


def test_unified_machine_shows_shares_and_headroom() -> None:
    """The share with its pool, the headroom of the GPU, the largest footprint first."""
    text = render_text(critical_gb10())

    assert "CUDA Pool ⊂ System RAM: 96.4 GiB" in text
    assert "NVIDIA GB10 (unified memory): can allocate 2.0 GiB at once, up to 4.3 GiB after reclaim" in text
    assert text.index("vllm") < text.index("python3")
    assert "System RAM is critical: 96.4% used" in text


def test_device_is_followed_by_its_known_sensors() -> None:
    """Unknown values are left out; a device without any has no second line."""
    gpu = critical_gb10().devices[0]
    vitals = Vitals(67.0, 41.2, {"sm": 2_405_000_000}, ("power_cap",))
    text = render_text(replace(critical_gb10(), devices=(gpu.with_vitals(vitals),)))
    cool = render_text(replace(critical_gb10(), devices=(gpu.with_vitals(replace(vitals, throttled=())),)))

    assert "up to 4.3 GiB after reclaim\n  67 °C, 41 W, SM clock 2,405 MHz, throttled: power cap\n" in text
    assert "\n  67 °C, 41 W, SM clock 2,405 MHz\n" in cool
    assert " °C" not in render_text(critical_gb10())


def test_low_pressure_is_shown_as_ok() -> None:
    """Swap is not counted as memory."""
    text = render_text(calm_workstation())

    assert "System RAM is OK" in text
    assert "(not counted as memory)" in text


def test_absent_values_show_a_dash_and_the_reason() -> None:
    """Absent values are never shown as zero."""
    snapshot = unknown_figures()
    text = render_text(snapshot)
    lost = render_text(
        replace(
            critical_gb10(),
            devices=tuple(
                replace(device, headroom_bytes=Absent.STALE, state="stalled") for device in critical_gb10().devices
            ),
        )
    )

    assert "—" in text
    assert "headroom — stale" in lost
    assert "stalled" in lost


def test_footprints_with_bounds_stay_in_their_column() -> None:
    """Ranges of footprints are aligned with single values."""
    lines = render_text(many_owners()).splitlines()
    head = next(line for line in lines if line.startswith("largest processes"))
    server = next(line for line in lines if line.startswith("llama-server"))

    assert " 3.0 – 5.0 GiB " in server
    assert "Processes outside this container are not seen." in lines
    assert head.index("footprint") + len("footprint") == server.index(" GiB") + len(" GiB")


def test_carve_out_without_a_level_is_not_shown_as_missing_data() -> None:
    """Its GPU has more memory elsewhere. A stale carve-out does show missing data."""
    (silent,) = (one.snapshot for one in pools() if one.state == "no pressure level")
    (pool,) = (pool for pool in silent.pools if pool.kind is PoolKind.CARVEOUT)
    unknown = replace(pool, used_bytes=Absent.STALE, available_bytes=Absent.STALE)

    text = render_text(silent)
    dark = render_text(replace(silent, pools=tuple(unknown if one is pool else one for one in silent.pools)))

    assert "GPU carve-out: no pressure level (the GPU also uses system RAM)." in text
    assert "no data for GPU carve-out." in dark
