"""Mutants of the points: each brings the fault of its point back, and the point's rule notices it.

They are mutants of `tests/mutants`, so a test of one call notices each of them too.
"""

from __future__ import annotations

from typing import Final

from tests.mutants import acknowledging, handing_out
from tests.mutants.mutant import Patch

MUTANTS: Final[dict[str, Patch]] = {
    "failover_acknowledges_what_was_only_queued": (
        handing_out.takes_all_before_a_cumulative_acknowledgement
    ),
    "what_lay_beside_poison_becomes_a_dead_letter": (
        handing_out.counts_the_queue_of_a_lapsed_consumer
    ),
    "a_queue_outlives_its_lease": handing_out.never_doubts_a_lease,
    "a_busy_program_hands_nothing_over": handing_out.polls_only_within_a_call,
    "the_ack_timeout_runs_in_the_queue": handing_out.counts_what_is_queued,
    "a_restart_counts_what_was_only_queued": handing_out.counts_what_is_queued,
    "what_the_gone_had_rejected_waits_out_its_delay": (
        handing_out.forgets_what_a_closed_consumer_rejected
    ),
    "a_seek_moves_other_topics": handing_out.seeks_every_topic_s_partition_of_that_number,
    "a_cancelled_batch_is_lost": handing_out.strands_a_batch_that_fails,
    "a_batch_that_failed_is_stranded": handing_out.strands_a_batch_that_fails,
    "an_acknowledgement_undoes_a_seek": acknowledging.takes_every_attempt_for_the_epoch_s,
    "two_transactions_acknowledge_one_message": (
        acknowledging.commits_what_another_has_acknowledged
    ),
    "an_embedded_broker_that_slept_never_works_again": handing_out.ends_when_taken_over,
    "who_was_killed_is_locked_out": handing_out.takes_every_process_for_alive,
    "a_topic_that_was_made_again_is_not_read": handing_out.reads_no_topic_that_was_made_again,
    "a_store_that_ignores_conditions_loses": handing_out.tries_no_conditional_write,
    "the_command_ends_with_the_store_away": handing_out.ends_the_command_with_the_store,
}
"""The mutant of each point."""
