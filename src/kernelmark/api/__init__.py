"""The Python API; the command line is a thin layer over it.

Nothing is imported here: `km.bench` needs few of these modules, and importing the others takes
longer than measuring a short kernel.
"""
