import sys
from pathlib import Path

import yaml


def run():
    logic, out, language, *options = sys.argv[1:]
    assert language == "HIP"
    assert options[0] == "--architecture"
    (path,) = Path(logic).rglob("*.yaml")
    (solution,) = yaml.safe_load(path.read_text())[5]
    folder = Path(out, "library")
    folder.mkdir(parents=True)
    (folder / "TensileLibrary_model.dat").write_text(f"\0{solution['SolutionNameMin']}\0")
    (folder / "TensileLibrary_model.co").write_text(repr(sorted(solution.items(), key=str)))
