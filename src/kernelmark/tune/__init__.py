"""Tuning a workload in a `folder`, in steps that build on each other:

plans       which problems are tuned, and how                 (kmark tune summarise, plan)
records     journals and outcomes, and how far each plan is   (kmark tune show)
search      candidates evaluated on devices                   (kmark tune check, run)
install     winners written into files of libraries           (kmark tune apply, confirm)

`strategies` choose the next candidates from the numbered `points` of a space.
"""
