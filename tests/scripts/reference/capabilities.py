"""Tasks of training and inference code, the function for each, and the test that shows it."""

from __future__ import annotations

from typing import NamedTuple

STEPS, RELEASE = "integration/test_library_steps.py", "integration/test_library_release.py"
PRESSURE, AUTOPSY = "integration/test_library_pressure.py", "integration/test_library_autopsy.py"
DEVICES, MACHINE = "integration/test_library_devices.py", "integration/test_library_machine.py"
PEAKS, STATISTICS = "unit/library/test_peak_counters.py", "unit/library/test_pool_statistics.py"
ADVICE, PRESETS = "unit/library/test_library_advice.py", "unit/training/test_presets.py"
TREE, SWAP = "unit/library/test_memory_tree.py", "unit/training/test_block_swap.py"
PLANNING = "unit/planning/test_planning.py"


class Capability(NamedTuple):
    """A row. `names`: of `memwatch`. `test`: a file below `tests` and a function."""

    task: str
    names: tuple[str, ...]
    test: tuple[str, str]


CAPABILITIES = (
    Capability(
        "log machine, pools, visible GPUs, limits and advice at the start",
        ("log_start",),
        (TREE, "test_start_log_has_pools_shares_and_gpus"),
    ),
    Capability(
        "memory as one dictionary, shares inside their pools",
        ("memory_tree",),
        (TREE, "test_each_share_is_inside_the_place_that_contains_it"),
    ),
    Capability(
        "memory of a device", ("memory_info", "machine"), (MACHINE, "test_unified_gpu_has_the_memory_of_its_pool")
    ),
    Capability(
        "unified memory, size of a device",
        ("is_unified_memory_gpu", "get_device_memory_bytes"),
        (DEVICES, "test_reordered_gpus_are_those_that_cuda_means"),
    ),
    Capability(
        "memory at a stage",
        ("log_memory_usage",),
        (STEPS, "test_line_with_a_pool_has_allocated_and_reserved_memory"),
    ),
    Capability("exact peak of a block", ("track",), (PEAKS, "test_transient_of_a_process_is_told_exactly")),
    Capability(
        "allocations of a block: count, total bytes, frees",
        ("track",),
        (STATISTICS, "test_track_reports_totals_and_counts_of_the_block"),
    ),
    Capability(
        "peaks by stage, as HTML, JSON, CSV",
        ("MemoryProfiler",),
        (STEPS, "test_profile_has_peaks_by_stage_and_three_formats"),
    ),
    Capability(
        "own records of allocations",
        ("AllocationTracker",),
        (STEPS, "test_allocation_tracker_reports_tags_peaks_and_old_allocations"),
    ),
    Capability(
        "stages, peaks and autopsies of a framework's trainer",
        ("transformers_callback", "lightning_callback", "keras_callback", "accelerate_tracker"),
        ("unit/training/test_callbacks.py", "test_transformers_run_has_epochs_and_evaluations"),
    ),
    Capability(
        "allocators: hits, misses, hit rate, CPU fallbacks",
        ("pools", "PoolStats"),
        (STATISTICS, "test_hits_of_pytorch_are_allocations_without_a_call_of_the_driver"),
    ),
    Capability(
        "an allocator of yours",
        ("register_pool", "unregister_pool"),
        (STEPS, "test_stages_become_marks_and_pools_become_reports"),
    ),
    Capability(
        "a buffer that falls back to the CPU",
        ("allocate_with_fallback",),
        ("unit/training/test_fallback.py", "test_allocation_falls_back_to_the_cpu_and_says_so_once"),
    ),
    Capability(
        "release unused memory", ("clear", "shrink"), (RELEASE, "test_clear_reports_the_bytes_of_each_allocator")
    ),
    Capability(
        "trim pools of cudaMallocAsync, hipMallocAsync",
        ("clear",),
        (RELEASE, "test_pools_of_stream_ordered_allocators_are_trimmed"),
    ),
    Capability("a limit with callbacks", ("guard",), (STEPS, "test_guard_calls_back_once_until_use_falls")),
    Capability("clear near a limit (`clear_at`)", ("guard",), (RELEASE, "test_guard_clears_near_the_limit_once")),
    Capability(
        "react to pressure", ("on_pressure",), (PRESSURE, "test_pressure_of_the_daemon_reaches_the_program")
    ),
    Capability(
        "shrink allocators under pressure",
        ("shrink_on_pressure",),
        (PRESSURE, "test_pools_are_shrunk_under_pressure"),
    ),
    Capability(
        "halve the batch after an out-of-memory error",
        ("retry_on_oom",),
        ("unit/training/test_oom_retries.py", "test_oom_is_retried_with_half_the_batch_size"),
    ),
    Capability(
        "examine an out-of-memory error",
        ("autopsy", "autopsy_on_oom"),
        (AUTOPSY, "test_autopsy_of_a_gpu_has_the_allocator_and_what_would_have_fitted"),
    ),
    Capability(
        "recognize an out-of-memory error",
        ("is_out_of_memory",),
        ("unit/training/test_oom_errors.py", "test_out_of_memory_errors_of_frameworks_are_recognized"),
    ),
    Capability(
        "wait for free memory",
        ("wait_for",),
        (STEPS, "test_wait_for_returns_when_memory_is_available_or_at_timeout"),
    ),
    Capability(
        "settings for inference, training, little memory",
        ("preset",),
        (PRESETS, "test_each_setting_has_a_reason_and_a_source"),
    ),
    Capability(
        "allocator settings",
        ("advise", "recommended_env"),
        (ADVICE, "test_contested_settings_are_not_in_the_environment"),
    ),
    Capability(
        "MIOpen and HSA settings", ("advise",), (ADVICE, "test_settings_of_hsa_are_only_for_hardware_that_has_them")
    ),
    Capability("TF32", ("advise",), (ADVICE, "test_tf32_is_only_for_gpus_that_have_it")),
    Capability("DataLoader settings", ("advise",), (ADVICE, "test_loader_of_a_unified_gpu_leaves_memory_to_it")),
    Capability(
        "swap blocks of a model to System RAM", ("swap_blocks",), (SWAP, "test_next_block_is_loaded_while_one_runs")
    ),
    Capability(
        "one tensor of a safetensors file",
        ("open_safetensors",),
        ("unit/training/test_safetensors_file.py", "test_one_tensor_is_read_by_name"),
    ),
    Capability(
        "backends, and the best one for a size",
        ("discover_backends", "best_available_backend", "select_backend_for"),
        (MACHINE, "test_first_backend_with_headroom_is_selected_or_all_are_listed"),
    ),
    Capability(
        "where a model fits",
        ("fit", "read_checkpoint"),
        (DEVICES, "test_backends_advice_and_fit_are_of_visible_gpus"),
    ),
    Capability(
        "memory of inference and of a KV cache",
        ("estimate_inference_memory", "estimate_kv_cache"),
        (PLANNING, "test_estimates_are_exported_by_memwatch"),
    ),
    Capability(
        "memory of training",
        ("estimate_training_memory",),
        (PLANNING, "test_checkpointing_lora_offload_and_swapping_reduce_gpu_memory"),
    ),
)
