"""What Python users call; the command line is a thin layer over it.

Nothing is imported here: `km.bench` needs few of these modules, and the others take longer to
import than a short kernel to measure.
"""
