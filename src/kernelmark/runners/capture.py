"""The environment a run takes place in."""

from __future__ import annotations

import importlib.metadata
import os
import platform
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kernelmark import backends as backend_package
from kernelmark.core.children import run_child
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.errors import KernelmarkError
from kernelmark.runners.targets import find

# Variables that change what a library computes with, or how fast.
_PREFIXES = (
    "AITER_",
    "AMD_",
    "AMDGCN_",  # Triton's code for AMD GPUs
    "CUBLAS_",
    "CUDA_",
    "CUDNN_",
    "GOMP_",
    "GOTO_",
    "HIP_",
    "HIPBLASLT_",
    "HSA_",
    "IREE_",
    "KERNELMARK_",
    "KMP_",
    "MIOPEN_",
    "MKL_",
    "NVIDIA_",
    "OMP_",
    "OPENBLAS_",
    "PYTORCH_",
    "ROCBLAS_",
    "ROCM_",
    "ROCR_",
    "TENSILE_",
    "TORCH_",
    "TORCHINDUCTOR_",
    "TRITON_",
)
_NAMES = (
    "GPU_DEVICE_ORDINAL",
    "GPU_MAX_HW_QUEUES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "PYTHONPATH",
)
# Where kernelmark keeps its files changes no number.
_PLACES = ("KERNELMARK_CACHE", "KERNELMARK_STORE")
_GIT_TIMEOUT_S = 5.0


def environment(
    devices: Sequence[str], backends: Sequence[str], *, load: bool = False
) -> Environment:
    """Host, devices, versions, commit and variables, now and here.

    With `load` each backend is asked for its libraries, which may import them: for workers.
    Without it the versions are those of the installed distributions, and nothing is imported.
    """
    commit, dirty = git_state(Path.cwd())
    return Environment(
        host=platform.node(),
        os=_os_text(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        kernelmark_version=kernelmark_version(),
        devices=tuple(_device(name) for name in devices),
        libraries=_loaded(backends) if load else _installed(backends),
        variables=variables() if load else _given(devices),
        commit=commit,
        dirty=dirty,
        container=container(),
    )


def refined(run: Environment, seen: Environment) -> Environment:
    """What the parent knows of a run, with what only its workers know."""
    return Environment(
        host=run.host,
        os=run.os,
        python=seen.python,
        kernelmark_version=run.kernelmark_version,
        devices=run.devices or seen.devices,
        libraries=seen.libraries or run.libraries,
        variables=seen.variables,
        commit=run.commit,
        dirty=run.dirty,
        container=run.container,
    )


def variables() -> dict[str, str]:
    """The variables of this process that can change a result."""
    found = {
        name: value
        for name, value in sorted(os.environ.items())
        if name not in _PLACES and (name.startswith(_PREFIXES) or name in _NAMES)
    }
    if path := found.pop("PYTHONPATH", ""):
        # Workers find kernelmark itself by it, which is nobody's choice.
        own = str(Path(backend_package.__file__).parents[2])
        if chosen := os.pathsep.join(one for one in path.split(os.pathsep) if one != own):
            found["PYTHONPATH"] = chosen
    return found


def overruled(devices: Sequence[str]) -> dict[str, tuple[str, str]]:
    """Variables of this process that workers of these devices get another value of: both."""
    found = {}
    for name in devices:
        kind, info = find(name)
        for variable, value in kind.worker_variables(info.index, 0).items():
            if os.environ.get(variable, value) != value:
                found[variable] = os.environ[variable], value
    return found


def _given(devices: Sequence[str]) -> dict[str, str]:
    """`variables` without those that say nothing about the workers of these devices."""
    found = (find(name) for name in devices)
    own = {name for kind, info in found for name in kind.worker_variables(info.index, 0)}
    return {name: value for name, value in variables().items() if name not in own}


def git_state(folder: Path) -> tuple[str, bool]:
    """(commit, whether tracked files differ from it) of the repository `folder` is in."""
    commit = _git(folder, "rev-parse", "HEAD")
    if commit is None:
        return "", False
    changes = _git(folder, "status", "--porcelain", "--untracked-files=no")
    return commit, bool(changes)


def container() -> str:
    """The container that this process is in, as far as one can tell; "" outside of one."""
    if name := os.environ.get("APPTAINER_NAME") or os.environ.get("SINGULARITY_NAME"):
        return f"apptainer {name}"
    if "KUBERNETES_SERVICE_HOST" in os.environ:
        return "kubernetes"
    if Path("/.dockerenv").exists():
        return "docker"
    if Path("/run/.containerenv").exists():
        return "podman"
    try:
        text = Path("/proc/1/cgroup").read_text()
    except OSError:
        return ""
    words = ("kubepods", "docker", "containerd", "lxc")
    return next((word for word in words if word in text), "")


def _git(folder: Path, *words: str) -> str | None:
    try:
        command = ["git", "--no-optional-locks", "-C", str(folder), *words]
        done = run_child(command, timeout_s=_GIT_TIMEOUT_S)
        done.check_returncode()
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.decode(errors="replace").strip()


def _os_text() -> str:
    kernel = f"{platform.system()} {platform.release()}"
    try:
        pretty = platform.freedesktop_os_release().get("PRETTY_NAME", "")
    except OSError:
        return kernel
    return f"{pretty} ({kernel})" if pretty else kernel


def _device(name: str) -> DeviceInfo:
    return find(name)[1]


def _loaded(names: Sequence[str]) -> dict[str, str]:
    """Versions that the backends themselves give; one that cannot tell is left out."""
    found = {"numpy": sys.modules["numpy"].__version__} if "numpy" in sys.modules else {}
    for name in names:
        try:
            backend = backend_package.find(name)
            if backend.available() is None:
                found.update(backend.libraries())
        except (KernelmarkError, ImportError, OSError, RuntimeError, AttributeError):
            continue
    return found


def _installed(names: Sequence[str]) -> dict[str, str]:
    """Versions of installed distributions whose name begins with a backend's."""
    wanted = {"numpy", *names}
    found: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        name = (distribution.name or "").lower()
        if name in wanted or name.split("-")[0] in wanted:
            found.setdefault(name, distribution.version)
    return found


def kernelmark_version() -> str:
    """Its version, where it is installed."""
    try:
        return importlib.metadata.version("kernelmark")
    except importlib.metadata.PackageNotFoundError:
        return ""
