import sys
from collections import namedtuple

globalParameters = {"PrintSolutionRejectionReason": False, "SupportedISA": [(9, 4, 2), (9, 5, 0)]}
# No LdsPadA, as in a version that lacks it; -1 allows every value.
validParameters = {
    "DepthU": -1,
    "PrefetchGlobalRead": [0, 1, 2],
    "VectorWidthA": [-1, 1, 2, 3, 4, 6, 8],
    "VectorWidthB": [-1, 1, 2, 3, 4, 6, 8],
    "GlobalSplitU": list(range(1025)),
    "StreamK": [0, 1, 2, 3],
}
SemanticVersion = namedtuple("SemanticVersion", "major minor patch")


def gfxToIsa(name):
    return {"gfx90a": (9, 0, 10), "gfx942": (9, 4, 2), "gfx950": (9, 5, 0)}.get(name)


def assignGlobalParameters(config, cxxCompiler=None):
    sys.stdout.write("a table of capabilities\n")
    globalParameters.update(config)
