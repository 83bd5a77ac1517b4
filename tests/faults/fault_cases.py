"""Faults that memwatchd must survive: injection, expectation, and the tests that show it."""

from __future__ import annotations

from msgspec import Struct

# `make test-system` and `make test-incidents` show faults of systemd and of a machine, `make faults` the rest.
SYSTEM = "tests/system/"


class Case(Struct, frozen=True):
    """`tests` are node ids without parameters; those of a virtual machine end in the word that it prints."""

    number: int
    injected: str
    expected: str
    tests: tuple[str, ...]

    @property
    def of_system(self) -> tuple[str, ...]:
        return tuple(test for test in self.tests if test.startswith(SYSTEM))

    @property
    def of_suite(self) -> tuple[str, ...]:
        return tuple(test for test in self.tests if not test.startswith(SYSTEM))


def case(number: int, injected: str, expected: str, *tests: str) -> Case:
    """A case with its tests as `module::name`, where modules are below tests/."""
    return Case(number, injected, expected, tuple(f"tests/{test.replace('::', '.py::test_')}" for test in tests))


CASES = (
    case(
        1,
        "kill -9 at random times while history and messages are written",
        "starts every time; at most one tick lost, no acknowledged message, no id with two bodies",
        "faults/test_fault_kills::random_kills_lose_no_alert",
        "integration/test_history_disk::200_kills_lose_one_tick_at_most",
        "integration/test_outbox_killed::hundred_kills_lose_no_message",
        "integration/test_history_disk_daemon::kill_under_critical_pressure_keeps_served_ticks",
        "integration/test_alerting::undelivered_alert_is_sent_once_after_a_restart",
    ),
    case(
        2,
        "a state directory limited to 64 KiB",
        "sampling and alerts continue; errors are counted; writing resumes within a minute of free space",
        "faults/test_fault_disks::failing_disk_stops_no_sample_and_no_alert_and_is_used_again",
        "integration/test_history_disk::full_disk_is_retried_and_history_stays_in_memory",
        "integration/test_outbox_disk::full_disk_stops_no_message_and_is_written_again_later",
    ),
    case(
        3,
        "ENOSPC and EIO from write and fsync (preloaded library)",
        "as 2; no partial block is read back as valid",
        "faults/test_fault_disks::failing_disk_stops_no_sample_and_no_alert_and_is_used_again",
        "unit/history/test_ring_file::torn_record_at_the_end_is_reported",
        "integration/test_outbox_disk::hanging_disk_delays_no_message",
    ),
    case(
        4,
        "state files halved, emptied, zeroed, replaced by a directory or by a link to a foreign file",
        "set aside or rejected, and counted; a fresh start; the linked file is untouched",
        "faults/test_fault_state::daemon_starts_with_every_state_file_damaged",
        "integration/test_history_disk::damaged_file_is_quarantined_and_the_rest_is_used",
        "unit/notify/test_outbox::damaged_file_is_quarantined",
    ),
    case(
        5,
        "one bit flipped at each of 1,000 places, read by daemon starts and by each reader",
        "that record is dropped; no wrong value is ever shown",
        "faults/test_fault_state::thousand_flipped_bits_show_no_wrong_value",
        "unit/history/test_ring_file::flipped_bit_loses_at_most_one_record",
        "unit/notify/test_outbox::flipped_bits_never_change_a_message",
    ),
    case(
        6,
        "state of a newer version",
        "kept whole under another name, not overwritten",
        "faults/test_fault_state::state_of_a_newer_version_is_kept_unchanged",
        "unit/notify/test_outbox::file_of_a_newer_version_is_not_touched",
    ),
    case(
        7,
        "a state directory that is read-only, missing, owned by another user, not a directory",
        "runs in memory and reports it; never refuses to start",
        "integration/test_state_dir::daemon_starts_with_an_unusable_state_folder",
        "integration/test_state_dir::unusable_state_folder_is_reported",
        "integration/test_history_disk::read_only_history_is_restored_and_the_error_reported",
        "unit/notify/test_outbox::unwritable_folder_leaves_an_outbox_in_memory",
    ),
    case(
        8,
        "wall clock set two days forward, an hour back, to 1970, while an alert fires",
        "no resolve, no forecast; history stays in order; messages have the clock's time; silences end on time",
        "faults/test_fault_clocks::clock_step_ends_no_alert_and_moves_no_history",
        "integration/test_history_disk::reboot_and_wrong_clock_keep_the_order",
        "unit/notify/test_http_post::clock_jumps_delay_no_attempt",
        "unit/alerts/test_alerts_persistence::wall_clock_is_ignored_and_suspend_counts_as_time",
        "faults/test_fault_clocks::wall_clock_that_is_set_neither_extends_nor_shortens_a_silence",
        "faults/test_fault_clocks::wall_clock_that_is_behind_after_a_reboot_extends_no_silence",
    ),
    case(
        9,
        "an hour of suspend: boot time continues, monotonic time does not",
        "a gap, no forecast across it, the watchdog is fed",
        "faults/test_fault_clocks::suspend_of_an_hour_is_a_gap_and_no_trend",
        "unit/monitor/test_loop_pressure::no_forecast_crosses_a_suspend",
    ),
    case(
        11,
        "a webhook receiver that accepts and never responds",
        "attempt ends after 15 s; another receiver is notified within 2 s; no tick is late",
        "integration/test_alerting::dead_receiver_delays_no_other",
        "unit/notify/test_receiver::silent_receiver_delays_no_other",
    ),
    case(
        12,
        "a receiver that responds 500, then 200",
        "retried by schedule with the same id and bytes and a new signature; delivered once; nothing pending",
        "unit/notify/test_receiver::retries_keep_id_and_body_and_change_the_timestamp",
        "unit/notify/test_receiver::schedule_lasts_a_day",
        "integration/test_alerting::critical_pressure_and_recovery_send_one_notification_each",
        "unit/notify/test_http_post::flapping_receiver_gets_every_message_once",
    ),
    case(
        13,
        "redirects to a metadata service and to a file",
        "not followed, counted as failed",
        "unit/notify/test_http_post::redirect_is_a_failure_and_not_followed",
        "unit/notify/test_http_post::forbidden_addresses_are_recognized_in_every_encoding",
    ),
    case(
        14,
        "a receiver's certificate that is expired, for another host, or self-signed; plain text behind https",
        "fails with the reason, no fallback to http, no secret in the log",
        "unit/notify/test_http_post::expired_certificate_is_rejected",
        "unit/notify/test_http_post::trusted_certificate_is_accepted_for_its_name_only",
        "unit/notify/test_http_post::self_signed_certificate_is_rejected",
        "unit/notify/test_http_post::plain_text_behind_https_is_rejected",
        "unit/notify/test_receiver::log_never_shows_secret_path_or_query",
    ),
    case(
        15,
        "a name that does not resolve; a name server that hangs",
        "delays only its own receiver; delivered afterwards; alerts that came and went meanwhile are dropped",
        "unit/notify/test_http_post::hanging_name_server_delays_its_own_receiver_only",
        "unit/notify/test_http_post::failed_connection_logs_its_cause",
        "unit/notify/test_receiver::undelivered_firing_is_dropped_with_its_resolve",
    ),
    case(
        16,
        "a restart with fifty messages queued",
        "all arrive, in order, once, with their ids",
        "unit/notify/test_outbox::queued_messages_arrive_in_order_after_a_restart",
    ),
    case(
        17,
        "410; 429 with Retry-After; a response of 2 GB",
        "disabled, and shown; not before the requested time; 64 KiB are read",
        "integration/test_alerting::receiver_that_answers_410_is_shown_as_disabled",
        "unit/notify/test_receiver::retry_after_is_honoured",
        "unit/notify/test_http_post::endless_answer_is_read_in_part",
    ),
    case(
        18,
        "use that swings between 78 and 82 % for ten minutes",
        "one change of level, two messages at most",
        "unit/monitor/test_loop_pressure::ten_minutes_of_sawtooth_are_one_level_change",
        "integration/test_alerting::flapping_use_sends_one_alert_at_most",
    ),
    case(
        19,
        "1,000 clients that open the stream",
        "those beyond the limit get 503; scrapes within 100 ms; below 128 MiB; descriptors released in 30 s",
        "integration/test_hostile_clients::1000_streams_leave_room_for_scrapes",
    ),
    case(
        20,
        "clients that never read",
        "bounded, disconnected, other clients unaffected",
        "integration/test_stream::client_that_never_reads_does_not_delay_others",
        "integration/test_hostile_clients::clients_that_never_read_use_bounded_memory",
        "unit/http_server/test_protocol::unread_answer_times_out",
    ),
    case(
        21,
        "200 connections that are silent, stop half-way, or send slowly",
        "closed within 10 s; health responds throughout",
        "integration/test_hostile_clients::slow_senders_are_closed_after_ten_seconds",
        "integration/test_hostile_clients::connection_flood_leaves_descriptors_for_others",
        "integration/test_hostile_clients::descriptor_shortage_is_logged_once_and_ends",
    ),
    case(
        22,
        "SIGTERM with fifty streams open",
        "exits within 5 s with code 0, each stream ends cleanly, the state is written",
        "integration/test_daemon::sigterm_ends_open_streams",
        "integration/test_history_disk_daemon::last_words_match_the_contract_and_end_with_a_clean_stop",
        "integration/test_hostile_clients::clients_that_never_read_do_not_delay_shutdown",
    ),
    case(
        23,
        "parameters that are negative, infinite, NaN, 70 kB, repeated, not text",
        "422 or 400 with a sentence, at once, never 500; responses bounded",
        "integration/test_api::invalid_parameter_is_named_in_the_error",
        "integration/test_api::arbitrary_query_never_causes_a_server_error",
        "integration/test_hostile_clients::hostile_request_takes_at_most_200_ms_of_cpu_time",
    ),
    case(
        24,
        "paths that climb, are escaped, contain NUL; ranges in 10,000 parts; random bytes",
        "404 or 400, at once",
        "integration/test_hostile_clients::hostile_request_takes_at_most_200_ms_of_cpu_time",
        "integration/test_hostile_clients::random_bytes_never_cause_a_server_error",
        "integration/test_api::unknown_path_is_404_and_serves_no_file",
    ),
    case(
        25,
        "another Host, none, two, an absolute URI; another site's Origin; over TCP, TLS and a socket file",
        "400; 403; no permission for another origin",
        "faults/test_fault_clients::every_listener_refuses_an_unknown_host",
        "integration/test_alerting::changes_from_other_origins_and_proxies_are_rejected",
    ),
    case(
        27,
        "a configuration that is missing, empty, garbled, has unknown keys, wrong types, a world-readable secret",
        "the last good one is used, with line and key; a first start ends with 78; a reload keeps the old one",
        "unit/settings/test_settings::problem_names_place_value_and_remedy",
        "unit/settings/test_settings::arbitrary_file_is_read_or_rejected",
        "unit/settings/test_settings_secrets::secret_file_readable_by_all_users_warns",
        "integration/test_daemon::sighup_reloads_the_settings",
        "integration/test_config_fallback_daemon::daemon_watches_and_says_what_is_not_in_force",
        "system/check_package::restart_with_a_bad_configuration_watches_with_the_one_of_before",
        "system/check_package::first_configuration_that_is_bad_is_named_and_not_retried",
    ),
    case(
        28,
        "an NVML call that never returns, or that ends its process",
        "GPU values absent within 5 s, RAM still sampled, the helper restarted, a new daemon can start",
        "integration/test_nvml_daemon::hanging_or_crashing_call_costs_only_the_gpu_figures",
        "integration/test_nvml_daemon::the_daemon_stops_while_the_driver_hangs",
        "faults/test_fault_helpers::hanging_driver_is_started_again_while_memory_is_sampled",
        "faults/test_fault_helpers::stuck_helper_does_not_block_a_new_daemon",
    ),
    case(
        29,
        "GPU_IS_LOST, LIB_RM_VERSION_MISMATCH, impossible values, other GPUs after a reload, SIGKILL",
        "marked lost, reopened after a pause, back without a restart; the driver stays usable",
        "integration/test_nvml_daemon::lost_gpu_is_listed_as_lost_and_the_others_are_still_read",
        "integration/test_nvml_daemon::an_upgraded_driver_gets_a_new_helper",
        "integration/test_nvml_daemon::scrambled_lists_are_left_out_and_counted",
        "integration/test_nvml_hotplug::reordered_gpus_are_identified_by_uuid",
        "faults/test_fault_helpers::killed_helper_leaves_the_driver_usable",
    ),
    case(
        30,
        "a tegrastats that exits, hangs, floods, stutters, prints garbage or other fields",
        "restarted after a pause; no partial line is read; no tick is late",
        "integration/test_tegra_daemon::failing_tegrastats_delays_no_tick",
        "integration/test_tegrastats::flooded_pipe_is_read_in_bounded_time",
        "integration/test_tegrastats::line_buffer_returns_only_complete_lines",
    ),
    case(
        32,
        "10,000 processes; 500 new ones a second; reused process ids",
        "no tick exceeds its time, no descriptor leaks, no wrong owner",
        "integration/test_collectors_processes::ten_thousand_processes_take_less_than_a_second",
        "integration/test_fork_storm::fork_storm_misses_no_tick_and_hits_no_limit",
        "integration/test_process_table::reused_pid_belongs_to_the_new_process",
    ),
    case(
        33,
        "a memory limit that memwatchd itself reaches",
        "back within 5 s; the kill is among the events",
        "faults/test_fault_kills::oom_kill_at_its_own_limit_is_reported_after_the_restart",
        "system/vm::own_oom",
    ),
    case(
        34,
        "all memory of a virtual machine is allocated",
        "another process is killed; critical was recorded before, the kill after",
        "integration/test_alerting::kill_while_memory_is_critical_is_sent_to_receivers_of_kills_alone",
        "integration/test_hog::hog_is_critical_before_the_oom_kill",
        "system/vm::critical_first",
        "system/vm::survivor",
    ),
    case(
        35,
        "30 s of thrashing with swap in a virtual machine",
        "no gap of a second between samples, fewer than 100 major faults, critical",
        "system/vm::thrash",
    ),
    case(
        36,
        "a cgroup throttled at its limit on an idle machine",
        "medium, named",
        "unit/pressure/test_benchmark::stalls_of_a_cgroup_limit_are_named_as_such",
        "unit/collectors/test_collectors_cgroup_pressure::innermost_waiting_cgroup_is_named",
    ),
    case(
        37,
        "no PSI, PSI that denies access, cgroup v1, hybrid, unlimited, no MemAvailable, unknown lines",
        "the documented fallback, and reported",
        "integration/test_pressure_faults::memory_that_only_looks_full_has_no_high_level",
        "integration/test_pressure_faults::missing_psi_is_reported_as_unavailable",
        "integration/test_pressure_faults::unknown_lines_do_not_change_the_pressure",
        "unit/collectors/test_collectors_folders::findings_equal_those_recorded",
    ),
    case(
        38,
        "huge pages, ZFS cache, a full zram, no swap, MemTotal that changes",
        "the documented levels",
        "integration/test_pressure_faults::memory_that_only_looks_full_has_no_high_level",
        "integration/test_pressure_faults::memory_balloon_causes_no_critical_level",
        "integration/test_pressure_faults::machine_without_swap_is_not_out_of_swap",
        "integration/test_golden::metrics_match_the_golden_file",
    ),
    case(
        39,
        "a daemon that hangs",
        "health reports it; systemd kills it and starts another",
        "integration/test_health::stopped_sampling_loop_is_reported_as_stalled",
        "integration/test_daemon::missed_ticks_are_reported_as_an_event",
        "system/check_package::hung_daemon_is_killed_and_restarted",
    ),
    case(
        41,
        "an upgrade while it runs; 100 reloads; a day and a half, 129,600 ticks",
        "memory, descriptors and threads stay constant; no alert is lost",
        "faults/test_fault_clients::hundred_reloads_leak_nothing",
        "faults/test_fault_day::simulated_day_leaks_nothing_and_loses_no_alert",
        "system/check_package::upgrade_keeps_settings_and_state_and_restarts",
    ),
    case(
        42,
        "stderr is a full pipe, a terminal stopped with Ctrl-S, or closed",
        "alerts, requests and SIGTERM work; dropped log lines are counted and reported",
        "integration/test_unread_log::full_pipe_stops_no_alert",
        "integration/test_unread_log::full_pipe_at_the_start_stops_no_alert",
        "integration/test_unread_log::terminal_stopped_with_ctrl_s_stops_no_alert",
        "integration/test_unread_log::closed_pipe_stops_no_alert_and_lost_lines_are_counted",
        "integration/test_unread_log::helper_does_not_wait_for_the_reader_of_the_log",
        "unit/memwatchd/test_log_writer::full_queue_drops_the_newest_lines_and_reports_their_number",
        "integration/test_standard_files::closed_descriptors_of_the_daemon_are_opened_on_dev_null",
    ),
    case(
        43,
        "a thread that is stopped, has ended or cannot be started",
        "logged once; the watchdog is not fed; without the sampling thread the daemon exits with code 1",
        "integration/test_liveness::watchdog_is_not_fed_while_a_thread_is_stopped",
        "integration/test_liveness::watchdog_is_not_fed_while_a_receiver_has_no_thread",
        "integration/test_liveness::event_loop_that_is_stuck_is_logged_once_and_on_recovery",
        "integration/test_liveness::sampling_that_is_stuck_is_logged_once_and_on_recovery",
        "faults/test_fault_threads::daemon_without_its_sampling_thread_exits_with_an_error",
    ),
    case(
        44,
        "in a virtual machine: the state's file system is frozen while all memory is taken; two power cuts",
        "no tick is 3 s late; the incidents name cause, victim and killer, and those before the cut are kept",
        "system/incident_truths::global_oom",
        "system/incident_truths::power",
        "system/incident_truths::freeze",
    ),
    case(
        45,
        "in a virtual machine: kills by a unit's limit, earlyoom, nohang, systemd-oomd and by hand",
        "each incident names cause, victim and killer, with the log line",
        "system/incident_truths::memory_max",
        "system/incident_truths::earlyoom",
        "system/incident_truths::nohang",
        "system/incident_truths::oomd_pressure",
        "system/incident_truths::oomd_swap",
        "system/incident_truths::kill_9",
    ),
)
