"""The tools of people: Admin, the command line, the dashboard, the doctor, notebooks.

No other floor imports them.
"""
