"""The command `pulsarlite dashboard`: pages that show a queue to a person, on this machine.

Nothing is counted or drawn here that views, statistics and pictures have; nothing is written but by
a redrive that a person asked for.
"""
