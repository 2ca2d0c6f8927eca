"""`liftlog erase`: erase records, and show the list of erasures.

erase     the group, and the command `records`, which `liftlog erase STREAM` runs
erasures  ls, show, remove and prove; waits until the bytes are gone
"""
