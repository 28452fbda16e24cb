------------------------------ MODULE HandedOut -------------------------------
(* Consumers that prefetch: a message is queued, then handed out, then reported as delivered.  *)
(* A run that stood still, or was killed by a message, is given up: what it may have been      *)
(* handed without a report are suspects.                                                       *)
EXTENDS Naturals, FiniteSets
CONSTANTS Consumers, Messages, Killers, MaxRedeliverCount, Sleeps,  \* whether a run stands still
  \* The guards. A mutant has one of them off.
  TakesHanded, AsksFirst, CountsDelivered, ReportsSuspects
VARIABLES
  topic, msg,  \* what the broker knows of the messages
  con,         \* each consumer: its lease and its reports at the broker, its run in a process
  ghost        \* what nobody sees
Held(c) == {m \in Messages : msg[m].holder = c}
Freed(those) == [m \in Messages |-> IF m \in those THEN [msg[m] EXCEPT !.holder = 0] ELSE msg[m]]
NoRun == [up |-> FALSE, late |-> FALSE, connected |-> FALSE, queue |-> {}, handed |-> {},
          delivered |-> {}]
Next1(c) == CHOOSE m \in con[c].queue : \A n \in con[c].queue : m <= n
Init ==
  /\ topic = [acked |-> {}, dead |-> {}, suspects |-> {}]
  /\ msg = [m \in Messages |-> [holder |-> 0, count |-> 0]]
  /\ con = [c \in Consumers |-> NoRun]
  /\ ghost = [handed |-> {}, alone |-> {}, kills |-> [m \in Messages |-> 0], stale |-> FALSE,
              took |-> FALSE]
subscribe(c) ==
  /\ ~con[c].up /\ ~con[c].connected /\ UNCHANGED <<topic, msg, ghost>>
  /\ con' = [con EXCEPT ![c] = [NoRun EXCEPT !.up = TRUE, !.connected = TRUE]]
grant(c, m) ==
  /\ con[c].connected /\ con[c].up /\ ~con[c].late /\ UNCHANGED <<topic, ghost>>
  /\ msg[m].holder = 0 /\ m \notin topic.acked \cup topic.dead
  /\ msg' = [msg EXCEPT ![m].holder = c] /\ con' = [con EXCEPT ![c].queue = @ \cup {m}]
is_overdue(c) ==  \* It stood still for longer than its lease.
  /\ Sleeps /\ con[c].up /\ con[c].connected /\ ~con[c].late /\ UNCHANGED <<topic, msg, ghost>>
  /\ con' = [con EXCEPT ![c].late = TRUE]
_is_confirmed(c) ==  \* The broker answers whether it gave the consumer up.
  /\ con[c].up /\ con[c].late /\ UNCHANGED <<topic, msg, ghost>>
  /\ con' = [con EXCEPT ![c] = IF @.connected THEN [@ EXCEPT !.late = FALSE]
                               ELSE [NoRun EXCEPT !.up = TRUE, !.connected = TRUE]]
_release(c) ==  \* A suspect is reported as delivered before it can be handed out.
  /\ con[c].up /\ con[c].connected /\ ~con[c].late /\ con[c].queue # {}
  /\ Next1(c) \in topic.suspects \ con[c].delivered /\ UNCHANGED <<topic, msg>>
  /\ con' = [con EXCEPT ![c].delivered = @ \cup {Next1(c)}]
  /\ ghost' = [ghost EXCEPT !.alone = @ \cup {Next1(c)}]
take(c) ==  \* The program is handed the next message, which may be the end of its process.
  LET m == Next1(c)
      dies == m \in Killers
  IN /\ con[c].up /\ con[c].queue # {} /\ (AsksFirst => ~con[c].late) /\ UNCHANGED <<topic, msg>>
     /\ ReportsSuspects /\ m \in topic.suspects => m \in con[c].delivered
     /\ con' = [con EXCEPT ![c].queue = IF dies THEN {} ELSE @ \ {m}, ![c].up = ~dies,
                           ![c].handed = IF dies THEN {} ELSE @ \cup {m}]
     /\ ghost' = [ghost EXCEPT !.handed = @ \cup {m}, !.kills[m] = @ + (IF dies THEN 1 ELSE 0),
                               !.stale = @ \/ msg[m].holder # c]
report(c) ==
  /\ con[c].up /\ con[c].connected /\ ~con[c].late /\ ~(con[c].handed \subseteq con[c].delivered)
  /\ con' = [con EXCEPT ![c].delivered = @ \cup con[c].handed] /\ UNCHANGED <<topic, msg, ghost>>
acknowledge_cumulative(c, m) ==  \* The report of what was handed out goes along with it.
  LET before == {n \in Messages : n <= m} \ (topic.acked \cup topic.dead)
      done == IF TakesHanded THEN before \cap con[c].handed \cap Held(c) ELSE before
  IN /\ con[c].up /\ con[c].connected /\ ~con[c].late /\ m \in con[c].handed \cap Held(c)
     /\ topic' = [topic EXCEPT !.acked = @ \cup done, !.suspects = @ \ done] /\ msg' = Freed(done)
     /\ con' = [d \in Consumers |-> [con[d] EXCEPT !.queue = @ \ done]]
     /\ ghost' = [ghost EXCEPT !.took = @ \/ ~(done \subseteq con[c].handed)]
close(c) ==  \* Its lease lapsed: what it was handed counts, what it may have been is suspect.
  LET seen == IF CountsDelivered THEN Held(c) \cap con[c].delivered ELSE Held(c)
      gone == {m \in seen : msg[m].count >= MaxRedeliverCount}
  IN /\ con[c].connected /\ (con[c].late \/ ~con[c].up) /\ UNCHANGED ghost
     /\ topic' = [topic EXCEPT !.dead = @ \cup gone,
                               !.suspects = (@ \cup (Held(c) \ con[c].delivered)) \ gone]
     /\ msg' = [m \in Messages |-> IF m \notin Held(c) THEN msg[m] ELSE
                  [holder |-> 0, count |-> msg[m].count + (IF m \in seen \ gone THEN 1 ELSE 0)]]
     /\ con' = [con EXCEPT ![c].connected = FALSE, ![c].delivered = {}]
Next ==
  \E c \in Consumers :
    \/ subscribe(c) \/ is_overdue(c) \/ _is_confirmed(c) \/ _release(c) \/ take(c) \/ report(c)
    \/ close(c) \/ \E m \in Messages : grant(c, m) \/ acknowledge_cumulative(c, m)
Spec == Init /\ [][Next]_<<topic, msg, con, ghost>>
(* -- what holds ----------------------------------------------------------------------------- *)
CumulativeTakesTheHanded == ~ghost.took
QueuesEndWithTheirLease == ~ghost.stale
DeadWasHanded == topic.dead \subseteq ghost.handed \cup ghost.alone
KillsAreCounted == \A m \in Messages : ghost.kills[m] <= MaxRedeliverCount + 2
=============================================================================
