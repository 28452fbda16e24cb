"""Random programs over the client's whole public face, in processes and threads that take turns.

They send, receive (in calls, batches, listeners, threads, with asyncio and cancellations),
acknowledge (one by one, cumulatively, in transactions), reject, seek, unsubscribe, read and keep
table views, on topics that grow or are deleted and made again, on disks and over a network, while
processes are killed, stop and go on, and the store fails. `oracle.py` says what has to hold.

`points.py` has the faults for which this net was made, `mutants.py` brings each of them back. The
points of issue 25 and the nets that notice their mutants (`tests/mutants`):

| point | fault | net |
| --- | --- | --- |
| 1 | cumulative acknowledgements of Failover consumers lose messages | here |
| 2 | a dead letter that nobody was handed | here |
| 3 | a queue outlives its lease | here |
| 4 | a busy program hands nothing over | here |
| 5 | the ack timeout runs in the queue | here |
| 6 | a restart counts; the rejections of a closed consumer wait | here, two points |
| 7 | a seek to a message moves other topics | here |
| 8 | a batch that is cancelled or fails is lost | here, two points |
| 9 | an acknowledgement undoes a seek | here |
| 10 | two transactions acknowledge one message | here |
| 11 | an embedded broker that slept never works again | here |
| 13 | a killed program is locked out | here |
| 14 | a topic that was made again is not read | here |
| 15 | a dead letter waits for a transaction, and so do other topics | `test_open_transactions.py` |
| 26 | a store that ignores conditional writes loses messages | here |
| 27 | the command ends with a store that is away | here |
| 28 | a queue has no bound in bytes | `test_handed_out.py` |
"""
