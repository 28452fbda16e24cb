"""Where we differ from Pulsar on purpose: the one table, and how a case earns its place.

`cursors` never skips a case that is listed here. In every step ours must be what a model of plain
Python sets says of the acknowledgements that were confirmed; Pulsar must hold no acknowledgement
that we lack; and a rule applies only where the record itself shows its cause. So a case of
another file, which can't be listed, passes by the same rules, and says so. A test holds the lists
against the file: a case that stops differing must leave.
"""

from __future__ import annotations

from dataclasses import dataclass

Message = tuple[int, int, int]
"""(ledger, entry, batch index)"""


@dataclass(frozen=True)
class Rule:
    """Why we differ. `point` is that of «better than Pulsar» in the design's section 9.

    Without a point nothing is lost or kept on either side: Pulsar's record merely shows what is
    of no effect, or writes the same place otherwise. `cases` are those of the files beside this
    module; a rule that has none there is held by `tests/core/test_cursor_cases.py`.
    """

    point: str | None
    reason: str
    cases: tuple[str, ...]


def _fuzz(seeds: str) -> tuple[str, ...]:
    return tuple(f"fuzz seed {seed}" for seed in seeds.split())


def _dedup(numbers: str) -> tuple[str, ...]:
    return tuple(f"dedup[{number}]" for number in numbers.split())


RULES: dict[str, Rule] = {
    "ranges_forgotten": Rule(
        "1",
        "Pulsar persists some of the ranges of acknowledged entries and forgets the "
        "others; here any number survives",
        (
            "maxUnackedRangesToPersist=3 crash",
            "maxUnackedRangesToPersist=3 clean close",
            "multi entry persistence crash",
        ),
    ),
    "batch_indexes_forgotten": Rule(
        "2 and 3",
        "Pulsar forgets at a restart which messages of a batch were acknowledged; here "
        "they stay acknowledged",
        (
            "clean reopen keeps acks",
            *_fuzz(
                "1003 1007 1014 1031 1063 1087 1102 1119 1130 1188 1195 1239 1274 1287 1312 "
                "1315 1317"
            ),
        ),
    ),
    "cumulative_in_batch": Rule(
        "4",
        "Pulsar replaces what was acknowledged in a batch by a cumulative "
        "acknowledgement in it; here both count",
        _fuzz("1040 1157"),
    ),
    "gathered_in_batch": Rule(
        None,
        "Pulsar leaves it to its client to gather what is acknowledged of a batch where it "
        "does not count by index; here the broker gathers it",
        (),
    ),
    "seek_undone": Rule(
        "3",
        "Pulsar recovers, after a crash, acknowledgements from before a seek, which the "
        "seek had taken back; here a seek stays done",
        _fuzz("1078"),
    ),
    "never_came": Rule(
        "docs/decisions/0029",
        "Pulsar drops a message below its producer's highest sequence id, though that id never "
        "came; here it is stored",
        _dedup(
            "0 3 4 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 "
            "33 34 35"
        ),
    ),
    "in_flight": Rule(
        None,
        "Pulsar refuses a message for now while one of that id or a higher is being stored; here "
        "nothing is reserved, and whoever commits first has the id",
        _dedup("0 1 2 3 4 5 6 7 8 9 10 15 16 17 18 19 20 21 22 25 26 27 28 29 32 34 35"),
    ),
    "stored_out_of_order": Rule(
        None,
        "Pulsar lowers a producer's highest sequence id when messages are stored in another order "
        "than they came in; here it stays the highest",
        _dedup("4 6 8 11 16 23 28 34 35"),
    ),
    "stale_ack_set": Rule(
        None,
        "Pulsar shows an ack set of an entry that is acknowledged already, left by a "
        "refused command or read back after a crash, to no effect; here a refused "
        "command changes nothing",
        _fuzz(
            "1000 1001 1004 1006 1007 1009 1024 1027 1031 1035 1043 1048 1049 1052 1053 "
            "1054 1057 1060 1062 1065 1077 1082 1084 1088 1091 1093 1100 1104 1109 1111 "
            "1117 1132 1135 1170 1172 1178 1190 1205 1212 1216 1229 1231 1233 1239 1245 "
            "1247 1251 1275 1280 1288 1291 1292 1302 1305 1309 1315 1318"
        ),
    ),
    "refused_in_part": Rule(
        None,
        "Pulsar keeps, of a command that it refuses, what stood before the position that "
        "does not exist; here a refused command changes nothing",
        (),
    ),
    "never_published": Rule(
        None,
        "Pulsar counts what is acknowledged behind the last entry of a closed ledger, and of a "
        "batch that does not exist yet; here nothing is acknowledged that was never published",
        (),
    ),
    "rollover": Rule(
        None,
        "BookKeeper's rollover: Pulsar then writes the end of a ledger as the place "
        "before the next one; here one place has one name",
        _fuzz("1045 1047 1092"),
    ),
}


def rule_of(
    op: str,
    lost: set[Message],
    before: set[Message],
    whole: set[tuple[int, int]],
    *,
    capped: bool,
    by_index: bool,
) -> str | None:
    """The rule by which Pulsar no longer has `lost` after an operation; None if there is none.

    `before` was acknowledged before it; of it, the entries `whole` were so wholly. `capped` is
    whether Pulsar was told to persist only so many ranges, `by_index` whether part of a batch
    counts by itself.
    """
    entries = {message[:2] for message in lost}
    if op in ("reopen_clean", "reopen_crash"):
        if entries & whole:
            return "ranges_forgotten" if capped else None
        return "batch_indexes_forgotten"
    if op in ("ack_batch", "cumulative_batch") and entries <= whole and not by_index:
        return "gathered_in_batch"
    if op == "cumulative_batch" and len(entries) == 1 and lost <= before:
        return "cumulative_in_batch"
    return None
