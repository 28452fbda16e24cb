"""What a person looks at when something does not work: this machine, and a root.

Each check yields findings, which say what to do. None changes a topic; what is written to try a
store out is deleted again. No rule of Pulsar's is decided here.
"""
