import sys

from .Common import globalParameters


class DataType:
    def __init__(self, name):
        self.value = {"S": 0, "H": 4, "B": 7, "F8": 11}[name]
        self.name = name


class ProblemType:
    def __init__(self, config):
        given = {key: value for key, value in config.items() if not key.endswith("DataType")}
        kinds = {key: config[key] for key in config if key.endswith("DataType")}
        known = {key: v if isinstance(v, DataType) else DataType(v) for key, v in kinds.items()}
        self.state = {**given, **known}


class Solution:
    def __init__(self, config, cxxCompiler, srcName=""):
        self._state = {**config, "ProblemType": ProblemType(config["ProblemType"]), "Valid": True}
        m, n, _, _, _, down, across, *waves = config["MatrixInstruction"]
        self._state["MacroTile"] = (m * down * waves[0], n * across * waves[1])
        if config["DepthU"] > 128:
            self.reject("DepthU is too large")
        if config["PrefetchGlobalRead"] == 2 and config["VectorWidthA"] == 8:
            raise ZeroDivisionError("as some of Tensile's rules do")

    def reject(self, reason):
        self._state["Valid"] = False
        if globalParameters["PrintSolutionRejectionReason"]:
            sys.stdout.write(f"\nreject: {reason}\n")

    def __getitem__(self, key):
        return self._state[key]

    def getKernels(self):
        return [self]

    @staticmethod
    def getMinNaming(objects):
        return None

    getSerialNaming = getMinNaming

    @staticmethod
    def getNameMin(solution, naming, ignoreInternalArgs=False):
        state = solution._state
        kind = state["ProblemType"].state
        rows, columns = state["MacroTile"]
        a, b = "lik" if kind["TransposeA"] else "ilk", "jlk" if kind["TransposeB"] else "ljk"
        tile = f"MT{rows}x{columns}x{state['DepthU']}"
        name = f"Cijk_A{a}_B{b}_{kind['DataType'].name}_{tile}"
        return name if ignoreInternalArgs else f"{name}_GSU{state['GlobalSplitU']}"
