------------------------------- MODULE Grants --------------------------------
(* Consumers of a subscription: leases, grants and their handover. The lowest that is connected *)
(* is active. A grant is a message at an attempt. Spark logs an offset after it was reported.   *)
EXTENDS Naturals, Sequences, FiniteSets
CONSTANTS Consumers, Messages, Runs, Attempts, Seeks, Refuses, Buries,  \* how often, or whether
  \* The guards. A mutant has one of them off.
  WaitsForLastReport, SaysAgain, ReportsFirst, AcknowledgesCommitted, ClosesEverywhere,
  LeavesOutAcknowledged, KeepsForReplay, RowsCarryEpoch, CountsReported
VARIABLES
  topic, sub,         \* what the broker knows of the messages, and of each consumer
  run, disk,          \* what each consumer's run knows, and what its checkpoint has
  said, rows, ghost   \* reports, and a sink's acknowledgements, on their way; what nobody sees
way == <<said, rows>>  acked == topic.acked  msg == topic.msg
Held(c) == {<<m, msg[m].attempt>> : m \in {x \in Messages : msg[x].holder = c}}
Of(grants) == {g[1] : g \in grants}
Connected == {c \in Consumers : sub[c].connected}
Elected == IF Connected = {} THEN 0 ELSE CHOOSE c \in Connected : \A d \in Connected : c <= d
Mine(c) == sub[c].connected /\ sub[c].incarnation = run[c].number
UnderWay(c) == disk[c].batch \ disk[c].done # {}
AtRest(c) == run[c].up /\ run[c].planned = {} /\ ~UnderWay(c)
Now(c) == disk[c].epoch = topic.epoch
NoRun(number) == [up |-> FALSE, number |-> number, fresh |-> FALSE, known |-> {}, planned |-> {},
                  obeys |-> FALSE, floor |-> {}]
Absent(number) == [connected |-> FALSE, incarnation |-> number, told |-> {}, asked |-> FALSE,
                   reported |-> {}, passed |-> {}, lease |-> FALSE]
Tells(c) == run' = [run EXCEPT ![c].fresh = FALSE]
Freed(those) == [m \in Messages |-> IF m \in those THEN [msg[m] EXCEPT !.holder = 0] ELSE msg[m]]
ActiveNoMore(c) == IF topic.active = c THEN 0 ELSE topic.active
Init ==
  /\ topic = [acked |-> {}, trimmed |-> {}, buried |-> {}, epoch |-> 1, active |-> 0,
              msg |-> [m \in Messages |-> [holder |-> 0, attempt |-> 0]]]
  /\ sub = [c \in Consumers |-> Absent(0)] /\ run = [c \in Consumers |-> NoRun(0)]
  /\ said = [c \in Consumers |-> <<>>] /\ rows = {} /\ disk = [c \in Consumers |->
       [batch |-> {}, done |-> {}, epoch |-> 1, did |-> FALSE, late |-> FALSE]]
  /\ ghost = [given |-> [m \in Messages |-> {}], since |-> {}, planned |-> {}, lost |-> FALSE,
              other |-> FALSE, missed |-> FALSE]
subscribe(c) ==  \* A run begins; one that comes back within its lease is told all that it holds.
  /\ ~run[c].up /\ run[c].number < Runs /\ said[c] = <<>> /\ UNCHANGED <<topic, disk, way, ghost>>
  /\ run' = [run EXCEPT ![c] = [NoRun(@.number + 1) EXCEPT !.up = TRUE]]
  /\ sub' = [sub EXCEPT ![c].connected = TRUE, ![c].incarnation = run[c].number + 1,
       ![c].lease = TRUE, ![c].told = IF sub[c].asked THEN {} ELSE Held(c),
       ![c].passed = IF sub[c].connected THEN @ ELSE IF disk[c].batch = {} THEN acked ELSE {}]
_open(c) == /\ topic.active = 0 /\ c = Elected /\ topic' = [topic EXCEPT !.active = c]
            /\ UNCHANGED <<sub, run, disk, way, ghost>>
grant(c, m) ==
  /\ topic.active = c /\ ~sub[c].asked /\ msg[m].holder = 0 /\ msg[m].attempt < Attempts
  /\ m \notin acked \cup topic.buried /\ Tells(c) /\ UNCHANGED <<disk, way, ghost>>
  /\ topic' = [topic EXCEPT !.msg[m] = [holder |-> c, attempt |-> @.attempt + 1]]
  /\ sub' = [sub EXCEPT ![c].told = @ \cup {<<m, msg[m].attempt + 1>>}]
_revoke(c) ==  \* Another was elected; the holder is to say what it has delivered, and to stop.
  /\ topic.active = c /\ Elected # c /\ ~sub[c].asked /\ Tells(c) /\ UNCHANGED <<disk, way, ghost>>
  /\ sub' = [sub EXCEPT ![c].told = {}, ![c].asked = WaitsForLastReport]
  /\ topic' = IF WaitsForLastReport THEN topic ELSE
       [topic EXCEPT !.msg = Freed(Of(Held(c) \ sub[c].reported)), !.active = 0]
report(c) ==
  LET r == Head(said[c])
      done == IF r.epoch = topic.epoch THEN r.acked ELSE {}
      counts == sub[c].connected /\ r.run = sub[c].incarnation /\ r.epoch = topic.epoch
      kept == sub[c].reported \cup r.delivered
      obeyed == counts /\ r.obeyed /\ sub[c].asked
      heard == IF ~counts THEN sub ELSE [sub EXCEPT ![c].reported = kept, ![c].passed = r.floor]
      again == IF SaysAgain THEN {g \in Held(c) \cap kept : g[1] \notin done} ELSE {}
  IN /\ said[c] # <<>> /\ said' = [said EXCEPT ![c] = Tail(@)] /\ UNCHANGED <<disk, rows, ghost>>
     /\ sub' = IF obeyed THEN [heard EXCEPT ![c].asked = FALSE, ![c].told = again] ELSE heard
     /\ topic' = [topic EXCEPT !.acked = @ \cup done,
          !.active = IF obeyed THEN ActiveNoMore(c) ELSE @,
          !.msg = Freed(done \cup (IF obeyed THEN Of(Held(c) \ kept) ELSE {}))]
     /\ IF obeyed THEN Tells(c) ELSE UNCHANGED run
Leaves(c, lapsed) ==
  LET seen == {g \in Held(c) : CountsReported => g \in sub[c].reported}
  IN /\ said[c] = <<>> /\ sub' = [sub EXCEPT ![c] = Absent(@.incarnation)] /\ UNCHANGED way
     /\ topic' = [topic EXCEPT !.msg = Freed(Of(Held(c))), !.active = ActiveNoMore(c),
                               !.buried = @ \cup (IF lapsed /\ Buries THEN Of(seen) ELSE {})]
     /\ ghost' = [ghost EXCEPT !.given = [m \in Messages |-> @[m] \ {c}],
                       !.missed = @ \/ \E g \in Held(c) \ seen : c \in ghost.given[g[1]]]
     /\ disk' = [disk EXCEPT ![c].late = UnderWay(c)]
close(c) ==  \* Its lease lapsed; a run that only slept notices later.
  c \in Connected /\ sub[c].lease /\ Leaves(c, TRUE) /\ Tells(c)
seek ==
  /\ topic.epoch <= Seeks /\ ghost' = [ghost EXCEPT !.since = {}, !.given = [m \in Messages |-> {}]]
  /\ run' = [c \in Consumers |-> [run[c] EXCEPT !.fresh = FALSE]] /\ UNCHANGED <<disk, way>>
  /\ topic' = [topic EXCEPT !.epoch = @ + 1, !.acked = {}, !.active = 0, !.msg = Freed(Messages)]
  /\ sub' = [c \in Consumers |->
               [sub[c] EXCEPT !.told = {}, !.asked = FALSE, !.reported = {}, !.passed = {}]]
acknowledge(row) ==  \* By a sink that wrote down what it had read; it may come late.
  LET done == IF row[2] = topic.epoch \/ ~RowsCarryEpoch THEN {row[1]} ELSE {}
  IN /\ rows' = rows \ {row} /\ UNCHANGED <<sub, run, disk, said, ghost>>
     /\ topic' = [topic EXCEPT !.acked = @ \cup done, !.msg = Freed(done)]
trim(m) == /\ m \in acked \ topic.trimmed /\ topic' = [topic EXCEPT !.trimmed = @ \cup {m}]
           /\ KeepsForReplay => \A c \in Connected : m \in sub[c].passed
           /\ UNCHANGED <<sub, run, disk, way, ghost>>
observe(c) ==
  /\ AtRest(c) /\ Mine(c) /\ (~run[c].fresh \/ run[c].floor # acked)
  /\ disk' = [disk EXCEPT ![c] = IF Now(c) THEN @ ELSE
                                 [@ EXCEPT !.epoch = topic.epoch, !.done = {}, !.batch = {}]]
  /\ run' = [run EXCEPT ![c].fresh = TRUE, ![c].obeys = sub[c].asked, ![c].floor = acked,
       ![c].known = {g \in sub[c].told \ disk'[c].done : g[1] \notin acked}]
  /\ UNCHANGED <<topic, sub, way, ghost>>
latestOffset(c) ==  \* It reports what is done, how far it heard, whether it obeyed, and its plan.
  /\ AtRest(c) /\ Len(said[c]) < 2 /\ UNCHANGED <<topic, sub, disk, rows>>
  /\ \E plan \in SUBSET run[c].known :
       /\ \/ plan # {} \/ run[c].obeys \/ run[c].floor # sub[c].passed
          \/ ~(Of(disk[c].done) \subseteq acked)
       /\ run' = [run EXCEPT ![c].planned = plan, ![c].known = @ \ plan, ![c].obeys = FALSE]
       /\ ghost' = [ghost EXCEPT !.planned = @ \cup Of(plan)]
       /\ said' = [said EXCEPT ![c] = Append(@, [run |-> run[c].number, epoch |-> disk[c].epoch,
            acked |-> Of(disk[c].done) \cup (IF AcknowledgesCommitted THEN {} ELSE Of(plan)),
            delivered |-> disk[c].done \cup (IF ReportsFirst THEN plan ELSE {}),
            floor |-> run[c].floor, obeyed |-> run[c].obeys])]
partitions(c) ==  \* The planned offset is in Spark's log: from now on that batch is repeated.
  /\ run[c].planned # {} /\ run' = [run EXCEPT ![c].planned = {}]
  /\ disk' = [disk EXCEPT ![c].batch = run[c].planned, ![c].did = FALSE, ![c].late = ~Mine(c)]
  /\ UNCHANGED <<topic, sub, way, ghost>>
read(c) ==
  LET there == Of(disk[c].batch) \ topic.trimmed
      short == there # Of(disk[c].batch)
      counts == Mine(c) /\ Now(c) /\ ~disk[c].late
  IN /\ run[c].up /\ UnderWay(c) /\ ~disk[c].did /\ disk' = [disk EXCEPT ![c].did = TRUE]
     /\ rows' = rows \cup (IF Seeks > 0 THEN there \X {disk[c].epoch} ELSE {})
     /\ ghost' = [ghost EXCEPT !.since = @ \cup (IF Now(c) THEN there ELSE {}),
          !.given = [m \in Messages |-> @[m] \cup (IF counts /\ m \in there THEN {c} ELSE {})],
          !.lost = @ \/ (short /\ ~LeavesOutAcknowledged), !.other = @ \/ (short /\ counts)]
     /\ UNCHANGED <<topic, sub, run, said>>
commit(c) == /\ run[c].up /\ UnderWay(c) /\ disk[c].did /\ UNCHANGED <<topic, sub, run, way, ghost>>
             /\ disk' = [disk EXCEPT ![c].done = @ \cup disk[c].batch]
stop(c) == /\ run[c].up /\ run' = [run EXCEPT ![c] = NoRun(@.number)]  \* Or it is killed.
           /\ disk' = [disk EXCEPT ![c].did = FALSE] /\ UNCHANGED <<topic, sub, way, ghost>>
_check_refusals(c) ==  \* Another topic refused it: the run ends, and leaves this one too.
  /\ Refuses /\ run[c].up /\ Mine(c) /\ run' = [run EXCEPT ![c] = NoRun(@.number)]
  /\ IF ClosesEverywhere THEN Leaves(c, FALSE) ELSE
       sub' = [sub EXCEPT ![c].lease = FALSE] /\ UNCHANGED <<topic, disk, way, ghost>>
Next ==
  \/ seek \/ (\E m \in Messages : trim(m)) \/ (\E row \in rows : acknowledge(row))
  \/ \E c \in Consumers : _check_refusals(c) \/ (\E m \in Messages : grant(c, m))
       \/ subscribe(c) \/ _open(c) \/ _revoke(c) \/ report(c) \/ close(c) \/ observe(c) \/ commit(c)
       \/ latestOffset(c) \/ partitions(c) \/ read(c) \/ stop(c)
Spec == Init /\ [][Next]_<<topic, sub, run, disk, said, rows, ghost>>
(* -- what holds ----------------------------------------------------------------------------- *)
DeliveredOnce == \A m \in Messages : Cardinality(ghost.given[m]) <= 1
NothingStuck == \A c \in Consumers :
  AtRest(c) /\ Mine(c) /\ run[c].fresh /\ ~run[c].obeys /\ said[c] = <<>>
    => ~sub[c].asked /\ Held(c) \subseteq run[c].known \cup disk[c].done
AcknowledgedWasDelivered == acked \subseteq ghost.since
TheGoneAreNoticed == \A c \in Connected : sub[c].lease
NoLossIsCried == ~ghost.lost
RepeatsTheSame == ~ghost.other
RedeliveryIsCounted == ~ghost.missed
BuriedWasPlanned == topic.buried \subseteq ghost.planned
=============================================================================
