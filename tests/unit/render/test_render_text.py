"""What --once prints, read aloud: sentences and figures, and a word for what is not known."""

from __future__ import annotations

from msgspec.structs import replace

from memwatch.model import Absent, PoolKind
from memwatch.render.text import text_of
from memwatch_web.pages.pattern_samples import pools
from support.sample_snapshots import calm_workstation, critical_gb10, many_owners, unknown_figures


def test_a_spark_says_what_is_inside_what_and_what_is_left() -> None:
    """The relation as promised, the headroom of the GPU, the largest footprint first."""
    text = text_of(critical_gb10())

    assert "CUDA Pool ⊂ System RAM: 96.4 GiB" in text
    assert "NVIDIA GB10 (unified memory): can allocate 4.3 GiB now" in text
    assert text.index("vllm") < text.index("python3")
    assert "System RAM is critical: 96.4 % used" in text


def test_a_calm_machine_is_called_calm() -> None:
    """No alarm where there is none, and swap is named for what it is."""
    text = text_of(calm_workstation())

    assert "System RAM is calm" in text
    assert "(never capacity)" in text


def test_unknown_is_said_in_words() -> None:
    """A dash and a reason, never a zero."""
    snapshot = unknown_figures()
    text = text_of(snapshot)
    lost = text_of(
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
    """The least and the most of a footprint, one below the other with what is one figure."""
    lines = text_of(many_owners()).splitlines()
    head = next(line for line in lines if line.startswith("largest processes"))
    server = next(line for line in lines if line.startswith("llama-server"))

    assert " 3.0 – 5.0 GiB " in server
    assert "Processes outside this container are not seen." in lines
    assert head.index("footprint") + len("footprint") == server.index(" GiB") + len(" GiB")


def test_a_carve_out_with_figures_is_not_said_to_have_none() -> None:
    """Not judged: its GPU has more memory elsewhere. One whose collector is silent has nothing to judge."""
    (silent,) = (one.snapshot for one in pools() if one.state == "not judged by itself")
    (pool,) = (pool for pool in silent.pools if pool.kind is PoolKind.CARVEOUT)
    unknown = replace(pool, used_bytes=Absent.STALE, available_bytes=Absent.STALE)

    text = text_of(silent)
    dark = text_of(replace(silent, pools=tuple(unknown if one is pool else one for one in silent.pools)))

    assert "GPU carve-out is not judged by itself: its GPU has more memory elsewhere." in text
    assert "GPU carve-out has no figure to judge." in dark
