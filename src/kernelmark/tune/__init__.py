"""Tuning a workload in a `folder`, in steps that build on each other.

plans       which problems are tuned, and how                 (kmark tune summarise, plan)
records     journals, outcomes, and the progress of plans     (kmark tune show)
search      evaluation of candidates on devices               (kmark tune check, run)
install     winners written into files of libraries           (kmark tune apply, confirm)

`strategies` choose the next candidates from the numbered `points` of a space.
"""
