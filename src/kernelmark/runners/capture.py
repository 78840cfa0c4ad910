"""Capture the environment of a run."""

from __future__ import annotations

import dataclasses
import importlib.metadata
import os
import platform
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from kernelmark import backends as backend_package
from kernelmark import devices as device_kinds
from kernelmark.core.environment import DeviceInfo, Environment
from kernelmark.core.errors import KernelmarkError
from kernelmark.host.processes import run_git

# Prefixes of variables that change which code a library runs, or its speed.
_PREFIXES = (
    *("AITER_", "AMD_", "AMDGCN_", "CUBLAS", "CUDA_", "CUDNN_", "GOMP_", "GOTO_", "HIP_"),
    *("HIPBLASLT_", "HSA_", "IREE_", "KERNELMARK_", "KMP_", "MIOPEN_", "MKL_", "NVIDIA_"),
    *("OMP_", "OPENBLAS_", "PYTORCH_", "ROCBLAS_", "ROCM_", "ROCR_", "TENSILE_", "TORCH_"),
    *("TORCHINDUCTOR_", "TRITON_"),
)
_NAMES = (
    "GPU_DEVICE_ORDINAL",
    "GPU_MAX_HW_QUEUES",
    "LD_LIBRARY_PATH",
    "LD_PRELOAD",
    "MALLOC_ARENA_MAX",
    "PYTHONPATH",
)
# The location of kernelmark's files does not affect results.
_PATHS = ("KERNELMARK_CACHE", "KERNELMARK_MEMORY", "KERNELMARK_STORE")
_GIT_TIMEOUT_S = 5.0
_HEAD = "# branch.oid "
_DISTRIBUTION_NAME = re.compile(r"^Name: *(\S+)", re.MULTILINE)


def environment(
    devices: Sequence[DeviceInfo],
    backends: Sequence[str],
    *,
    load: bool = False,
    repository: str = "",
) -> Environment:
    """Return host, devices, versions, commit and variables of this process.

    With `load`, for workers, each backend reports its libraries, which may import them. Without it,
    the versions are those of the installed distributions, and nothing is imported. The commit is
    that of `repository`, by default of the working directory.
    """
    commit, dirty = git_state(Path(repository or Path.cwd()))
    return Environment(
        host=platform.node(),
        os=_os_text(),
        python=f"{platform.python_implementation()} {platform.python_version()}",
        kernelmark_version=kernelmark_version(),
        devices=tuple(devices),
        libraries=_loaded_versions(backends) if load else _installed_versions(backends),
        variables=variables() if load else _user_variables(devices),
        commit=commit,
        dirty=dirty,
        container=container(),
    )


def merge_worker_environment(run: Environment, worker: Environment) -> Environment:
    """Return the parent's environment with the interpreter, libraries and variables of a worker."""
    return dataclasses.replace(
        run,
        python=worker.python,
        devices=run.devices or worker.devices,
        libraries=worker.libraries or run.libraries,
        variables=worker.variables,
    )


def variables() -> dict[str, str]:
    """Return the variables of this process that can change a result."""
    return {
        name: value
        for name, value in sorted(os.environ.items())
        if name not in _PATHS and (name.startswith(_PREFIXES) or name in _NAMES)
    }


def overridden_variables(devices: Sequence[DeviceInfo]) -> dict[str, tuple[str, str]]:
    """Return the variables whose value differs in the workers of these devices: (value here, value
    there)."""
    return {
        name: (os.environ[name], value)
        for name, value in _worker_variables(devices).items()
        if os.environ.get(name, value) != value
    }


def _user_variables(devices: Sequence[DeviceInfo]) -> dict[str, str]:
    """Return `variables` without those that the workers of these devices get from kernelmark."""
    own = _worker_variables(devices)
    return {name: value for name, value in variables().items() if name not in own}


def _worker_variables(devices: Sequence[DeviceInfo]) -> dict[str, str]:
    workers = (device_kinds.registry.get(d.kind).worker_variables(d.index, 0) for d in devices)
    return {name: value for variables_ in workers for name, value in variables_.items()}


def git_state(folder: Path) -> tuple[str, bool]:
    """Return the commit of the repository of `folder`, and whether tracked files differ from it."""
    text = _git(folder, "status", "--porcelain=v2", "--branch", "--untracked-files=no")
    lines = (text or "").splitlines()
    heads = [line.removeprefix(_HEAD) for line in lines if line.startswith(_HEAD)]
    commit = next((head for head in heads if head != "(initial)"), "")
    return commit, bool(commit) and not all(line.startswith("#") for line in lines)


def container() -> str:
    """Return the kind of container that this process is in; "" if none is detected."""
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
    engines = ("kubepods", "docker", "containerd", "lxc")
    return next((word for word in engines if word in text), "")


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = run_git(folder, "--no-optional-locks", *arguments, timeout_s=_GIT_TIMEOUT_S)
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


def _loaded_versions(names: Sequence[str]) -> dict[str, str]:
    """Return the versions that the backends report; a backend that fails is left out."""
    versions = {"numpy": sys.modules["numpy"].__version__} if "numpy" in sys.modules else {}
    for name in names:
        try:
            backend = backend_package.find(name)
            if backend.available() is None:
                versions.update(backend.libraries())
        except (KernelmarkError, ImportError, OSError, RuntimeError, AttributeError):
            continue
    return versions


def _installed_versions(names: Sequence[str]) -> dict[str, str]:
    """Return the versions of installed distributions whose name begins with a backend's."""
    distribution_names = {"numpy", *names}
    versions: dict[str, str] = {}
    for distribution in importlib.metadata.distributions():
        # Not `distribution.name`, which parses all of its metadata and takes five times as long.
        text = distribution.read_text("METADATA") or distribution.read_text("PKG-INFO") or ""
        match = _DISTRIBUTION_NAME.search(text)
        name = match[1].lower() if match else ""
        if name in distribution_names or name.split("-")[0] in distribution_names:
            versions.setdefault(name, distribution.version)
    return versions


def kernelmark_version() -> str:
    """Return the installed version; "" if kernelmark is not installed."""
    try:
        return importlib.metadata.version("kernelmark")
    except importlib.metadata.PackageNotFoundError:
        return ""
