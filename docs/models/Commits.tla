------------------------------- MODULE Commits -------------------------------
(* The commit protocol of a topic's log, with snapshots, the log's clean-up and  *)
(* that of data files. Actions are named after the functions that they stand     *)
(* for (README.md). Anybody may sleep between any two, for as long as he likes.  *)
EXTENDS Naturals, Sequences, FiniteSets
CONSTANTS
  Writers, Tidies, Readers,  \* who publishes, who keeps house, and who only follows
  Places, Runs,     \* how many commits there may be; how often each writer is started
  \* The guards. A mutant has one of them off.
  PutsIfAbsent, LooksWhetherEmptied, ReadsPointerAfter, KnowsApplication, RefusesGivenUp,
  ChecksFiles, ChecksMerged, SaysBeforeRemoving, SwapsPointer, LooksForSnapshot
VARIABLES
  log, snaps, pointer, files,      \* what lies in the store
  truth,                           \* every commit that took effect, in order; nobody sees this
  confirmed,                       \* the writers who were told that they published
  run, at, seen, mine, ptr, heard  \* of each process: its run, where it is, and what it knows
store == <<log, snaps, pointer, files>>
All == Writers \cup Tidies \cup Readers
None == <<>>
Range(s) == {s[i] : i \in DOMAIN s}
Has(s, kind) == {c.file : c \in {x \in Range(s) : x.kind = kind}}
Gone(s) == Has(s, "trim") \cup {c.old : c \in Range(s)}
Live(s) == (Has(s, "publish") \cup Has(s, "move")) \ Gone(s)
GivenUp(s) == (Gone(s) \cup Has(s, "reclaim")) \ (Has(s, "forget") \cup {None})
FileOf(p) == <<p, run[p]>>
Commit(p, kind, file, old) == [by |-> p, run |-> run[p], kind |-> kind, file |-> file, old |-> old]
Number(p) == Len(seen[p]) + 1
Is(p, place) == at[p] = place
Goes(p, place) == at' = [at EXCEPT ![p] = place]
Learns(p, what) == seen' = [seen EXCEPT ![p] = what]
NoPointer == [snapshot |-> 0, removed |-> 0]
Init ==
  /\ log = [n \in 1..Places |-> None] /\ snaps = [n \in 1..Places |-> None]
  /\ pointer = NoPointer /\ ptr = [p \in All |-> NoPointer]
  /\ run = [p \in All |-> 1] /\ files = {<<w, 1>> : w \in Writers}
  /\ truth = <<>> /\ confirmed = {} /\ at = [p \in All |-> "ready"]
  /\ seen = [p \in All |-> <<>>] /\ mine = [p \in All |-> None] /\ heard = [p \in All |-> None]
(* -- proposing ------------------------------------------------------------------------------ *)
open(w) ==  \* A killed writer is started again: it writes a new file, and repeats its batch.
  /\ run[w] < Runs /\ run' = [run EXCEPT ![w] = @ + 1] /\ Goes(w, "load")
  /\ files' = files \cup {<<w, run[w] + 1>>} /\ Learns(w, <<>>)
  /\ mine' = [mine EXCEPT ![w] = None] /\ heard' = [heard EXCEPT ![w] = None]
  /\ UNCHANGED <<log, snaps, pointer, truth, confirmed, ptr>>
Proposes(p, from, c) ==
  /\ Is(p, from) /\ Number(p) <= Places /\ Goes(p, "put") /\ mine' = [mine EXCEPT ![p] = c]
  /\ UNCHANGED <<store, truth, confirmed, run, seen, ptr, heard>>
append(w) ==
  IF KnowsApplication /\ \E c \in Range(seen[w]) : c.by = w
  THEN /\ Is(w, "ready") /\ Goes(w, "done") /\ confirmed' = confirmed \cup {w}
       /\ UNCHANGED <<store, truth, run, seen, mine, ptr, heard>>
  ELSE /\ RefusesGivenUp => FileOf(w) \notin GivenUp(seen[w])
       /\ ChecksFiles => FileOf(w) \in files
       /\ Proposes(w, "ready", Commit(w, "publish", FileOf(w), None))
_copy(t) ==  \* A live file's rows are in a new one; the commit comes later.
  /\ Is(t, "ready") /\ run[t] = 1 /\ run' = [run EXCEPT ![t] = 2] /\ Goes(t, "copied")
  /\ \E old \in Live(seen[t]) : mine' = [mine EXCEPT ![t] = old]
  /\ files' = files \cup {<<t, 2>>}
  /\ UNCHANGED <<log, snaps, pointer, truth, confirmed, seen, ptr, heard>>
merge_small_files(t) ==
  /\ Is(t, "copied") /\ mine[t] \in Live(seen[t])
  /\ RefusesGivenUp => FileOf(t) \notin GivenUp(seen[t])
  /\ ChecksMerged => FileOf(t) \in files
  /\ Proposes(t, "copied", Commit(t, "move", FileOf(t), mine[t]))
trim(t) == \E f \in Live(seen[t]) : Proposes(t, "ready", Commit(t, "trim", f, None))
reclaim_orphans(t) == \E f \in files \ (Live(seen[t]) \cup GivenUp(seen[t])) :
                         Proposes(t, "ready", Commit(t, "reclaim", f, None))
sweep(t) == \E f \in GivenUp(seen[t]) :  \* Deletes what was given up, and then says so.
  \/ /\ Is(t, "ready") /\ f \in files /\ files' = files \ {f}
     /\ UNCHANGED <<log, snaps, pointer, truth, confirmed, run, at, seen, mine, ptr, heard>>
  \/ f \notin files /\ Proposes(t, "ready", Commit(t, "forget", f, None))
(* -- committing ----------------------------------------------------------------------------- *)
put_if_absent(p) ==  \* The answer may be lost: then it seems that the place was taken.
  LET n == Number(p) IN
  /\ Is(p, "put") /\ UNCHANGED <<snaps, pointer, files, confirmed, run, seen, mine, ptr, heard>>
  /\ IF log[n] = None \/ ~PutsIfAbsent
     THEN /\ log' = [log EXCEPT ![n] = mine[p]] /\ (Goes(p, "made") \/ Goes(p, "taken"))
          /\ truth' = IF n = Len(truth) + 1 THEN Append(truth, mine[p]) ELSE truth
     ELSE Goes(p, "taken") /\ UNCHANGED <<log, truth>>
_try(p) ==  \* Is it mine? And had its place been emptied before?
  LET n == Number(p) IN
  /\ at[p] \in {"made", "taken"} /\ mine' = [mine EXCEPT ![p] = None]
  /\ IF Is(p, "taken") /\ log[n] # mine[p]
     THEN Goes(p, "ready") /\ UNCHANGED <<log, seen, confirmed>>
     ELSE IF LooksWhetherEmptied /\ pointer.removed >= n
     THEN /\ log' = IF log[n] = mine[p] THEN [log EXCEPT ![n] = None] ELSE log
          /\ Goes(p, "load") /\ UNCHANGED <<seen, confirmed>>
     ELSE /\ Goes(p, IF p \in Writers THEN "done" ELSE "ready") /\ UNCHANGED log
          /\ Learns(p, Append(seen[p], mine[p])) /\ confirmed' = confirmed \cup ({p} \cap Writers)
  /\ UNCHANGED <<snaps, pointer, files, truth, run, ptr, heard>>
_tail(p) ==
  /\ at[p] \in {"ready", "done", "copied"} /\ Number(p) <= Places /\ log[Number(p)] # None
  /\ heard' = [heard EXCEPT ![p] = <<at[p], log[Number(p)]>>] /\ Goes(p, "heard")
  /\ UNCHANGED <<store, truth, confirmed, run, seen, mine, ptr>>
_follow(p) ==  \* The pointer is read behind the commit.
  /\ Is(p, "heard") /\ heard' = [heard EXCEPT ![p] = None]
  /\ IF ReadsPointerAfter /\ pointer.removed >= Number(p)
     THEN Goes(p, "load") /\ UNCHANGED seen
     ELSE Goes(p, heard[p][1]) /\ Learns(p, Append(seen[p], heard[p][2]))
  /\ UNCHANGED <<store, truth, confirmed, run, mine, ptr>>
_pointer(p) ==
  /\ at[p] \in {"load", "ready"} /\ ptr' = [ptr EXCEPT ![p] = pointer] /\ Goes(p, "loading")
  /\ Is(p, "ready") => pointer.removed >= Number(p)
  /\ UNCHANGED <<store, truth, confirmed, run, seen, mine, heard>>
_load(p) ==
  LET n == ptr[p].snapshot IN
  /\ Is(p, "loading") /\ ptr' = [ptr EXCEPT ![p] = NoPointer]
  /\ IF n > 0 /\ snaps[n] = None
     THEN Goes(p, IF pointer = ptr[p] THEN "damaged" ELSE "load") /\ UNCHANGED seen
     ELSE Goes(p, "ready") /\ IF n > Len(seen[p]) THEN Learns(p, snaps[n]) ELSE UNCHANGED seen
  /\ UNCHANGED <<store, truth, confirmed, run, mine, heard>>
(* -- the log's clean-up --------------------------------------------------------------------- *)
write_snapshot(w) ==  \* A store may say «not made» of what is not there either (S3: 409).
  LET n == Len(seen[w]) IN
  /\ Is(w, "done") /\ n > pointer.snapshot /\ Goes(w, "move")
  /\ \/ snaps' = IF snaps[n] = None THEN [snaps EXCEPT ![n] = seen[w]] ELSE snaps
     \/ snaps[n] = None /\ ~LooksForSnapshot /\ UNCHANGED snaps
  /\ UNCHANGED <<log, pointer, files, truth, confirmed, run, seen, mine, ptr, heard>>
move(w) ==
  /\ Is(w, "move") /\ ptr' = [ptr EXCEPT ![w] = pointer]
  /\ Goes(w, IF pointer.snapshot >= Len(seen[w]) THEN "done" ELSE "swap")
  /\ UNCHANGED <<store, truth, confirmed, run, seen, mine, heard>>
compare_and_swap(w) ==  \* The log up to the snapshot before is given up: now, or with a later one.
  /\ Is(w, "swap") /\ ptr' = [ptr EXCEPT ![w] = NoPointer]
  /\ IF pointer = ptr[w] \/ ~SwapsPointer
     THEN Goes(w, "done") /\ \E removed \in {ptr[w].removed, ptr[w].snapshot} :
            pointer' = [snapshot |-> Len(seen[w]), removed |-> removed]
     ELSE Goes(w, "move") /\ UNCHANGED pointer
  /\ UNCHANGED <<log, snaps, files, truth, confirmed, run, seen, mine, heard>>
_remove(n) ==
  /\ n <= pointer.removed \/ (~SaysBeforeRemoving /\ n < pointer.snapshot)
  /\ log' = [log EXCEPT ![n] = None] /\ snaps' = [snaps EXCEPT ![n] = None]
  /\ UNCHANGED <<pointer, files, truth, confirmed, run, at, seen, mine, ptr, heard>>
Next ==
  \/ \E w \in Writers : open(w) \/ append(w) \/ write_snapshot(w) \/ move(w) \/ compare_and_swap(w)
  \/ \E t \in Tidies : _copy(t) \/ merge_small_files(t) \/ trim(t) \/ reclaim_orphans(t) \/ sweep(t)
  \/ \E p \in All : put_if_absent(p) \/ _try(p) \/ _tail(p) \/ _follow(p) \/ _pointer(p) \/ _load(p)
  \/ \E n \in 1..Places : _remove(n)
Spec == Init /\ [][Next]_<<store, truth, confirmed, run, at, seen, mine, ptr, heard>>
(* -- what holds ----------------------------------------------------------------------------- *)
OneHistory == \A p \in All : SubSeq(truth, 1, Len(seen[p])) = seen[p]
LogIsWhole == \A n \in pointer.snapshot + 1..Len(truth) : log[n] = truth[n]
SnapshotIsThere == LET n == pointer.snapshot IN n > 0 => snaps[n] = SubSeq(truth, 1, n)
NobodyFindsDamage == \A p \in All : ~Is(p, "damaged")
ConfirmedIsPublished == \A w \in confirmed : \E c \in Range(truth) : c.by = w
PublishedOnce == \A w \in Writers : Cardinality({n \in DOMAIN truth : truth[n].by = w}) <= 1
FilesAreThere == Live(truth) \subseteq files
=============================================================================
