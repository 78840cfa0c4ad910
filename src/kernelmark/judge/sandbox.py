"""What a process gives up before it loads a kernel that nobody trusts.

`enter` sets limits, gives up the user and all capabilities, and applies Landlock (files, TCP, and
signals to other processes) and seccomp (processes, sockets, tracing, shared memory of System V, …).
All of it is by system calls through ctypes, as the standard library has none of them. What the host
does not offer is returned, for the verdict.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import functools
import os
import platform
import re
import resource
import stat
import struct
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)

# Calls that are refused, by their numbers on x86_64 and aarch64 (-1: the architecture has none).
_REFUSED = {
    # Processes, and what reaches others.
    "fork": (57, -1),
    "vfork": (58, -1),
    "execve": (59, 221),
    "execveat": (322, 281),
    "setsid": (112, 157),
    "setpgid": (109, 154),
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "migrate_pages": (256, 238),
    "move_pages": (279, 239),
    "sched_setscheduler": (144, 119),
    "sched_setparam": (142, 118),
    "sched_setattr": (314, 274),
    "setpriority": (141, 140),
    "ioprio_set": (251, 30),
    "setrlimit": (160, 164),
    # Other channels to the outside.
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "sendto": (44, 206),
    "shmget": (29, 194),
    "shmat": (30, 196),
    "semget": (64, 190),
    "msgget": (68, 186),
    "mq_open": (240, 180),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "io_uring_setup": (425, 425),
    # The system, and rights that Landlock does not know.
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "personality": (135, 92),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "adjtimex": (159, 171),
    "clock_adjtime": (305, 266),
    "chmod": (90, -1),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, -1),
    "lchown": (94, -1),
    "fchown": (93, 55),
    "fchownat": (260, 54),
    "utime": (132, -1),
    "utimes": (235, -1),
    "futimesat": (261, -1),
    "utimensat": (280, 88),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "mknod": (133, -1),
    "mknodat": (259, 33),
}
# A compiler needs these, and a GPU's runtime its sockets: parts of what a kernel for a GPU may do.
_FOR_COMPILERS = ("fork", "vfork", "execve", "execveat", "setpgid", "socket", "socketpair", "kill")
# Calls whose arguments decide.
_CLONE, _CLONE3, _TGKILL, _PRLIMIT = (56, 220), (435, 435), (234, 131), (302, 261)
_CLONE_THREAD = 0x00010000
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32 = 0x40000000

# Classic BPF, and offsets in struct seccomp_data.
_LOAD, _EQUAL, _AT_LEAST, _ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCH, _ARGUMENTS = 0, 4, 16
_ALLOW, _KILL, _ERROR = 0x7FFF0000, 0x80000000, 0x00050000

_PR_SET_KEEPCAPS, _PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _PR_SET_PDEATHSIG = 8, 22, 38, 1
_CAPSET = (126, 91)
_READ_SEARCH = 1 << 2  # CAP_DAC_READ_SEARCH

_LANDLOCK_CREATE, _LANDLOCK_ADD, _LANDLOCK_RESTRICT = 444, 445, 446
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR, _TRUNCATE, _IOCTL = (
    *(1 << 0, 1 << 1, 1 << 2, 1 << 3),
    *(1 << 14, 1 << 15),
)
_FILES = {1: (1 << 13) - 1, 2: (1 << 14) - 1, 3: (1 << 15) - 1, 5: (1 << 16) - 1}
_TCP, _SCOPES = 3, 3  # bind and connect; abstract UNIX sockets and signals

_SYSTEM_FOLDERS = ("/usr", "/lib", "/lib64", "/opt", "/etc/ld.so.cache", "/etc/alternatives")
_SYSTEM_FILES = (
    "/proc/self",
    "/proc/cpuinfo",
    "/proc/meminfo",
    "/proc/stat",
    "/proc/driver",
    "/proc/sys/vm",
    "/sys/devices",
    "/sys/module/amdgpu",
    "/sys/class/kfd",
    "/etc/localtime",
)
_DEVICES = ("/dev/null", "/dev/zero", "/dev/urandom", "/dev/random")
_GPU_DEVICES = ("nvidia", "kfd", "dri")


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the process may still do: read below `readable`, write below `folder` only, as user
    `uid` (0: as before), with `memory_bytes` of address space (0: unlimited). `gpu` allows device
    files of GPUs, and compilers as child processes."""

    readable: tuple[str, ...]
    folder: str
    uid: int = 0
    memory_bytes: int = 0
    file_bytes: int = 64 << 20
    gpu: bool = False


def enter(policy: Policy) -> list[str]:
    """Give up everything that the policy does not allow, for this process and all that it starts.
    Return sentences about what the host lacks."""
    lacks: list[str] = []
    _prctl(_PR_SET_PDEATHSIG, 9)
    _limit(policy)
    ruleset = _landlock_rules(policy)
    if ruleset is None:
        lacks.append("no Landlock: the kernel may read and write the files of its user")
    _drop_user(policy, lacks, confined=ruleset is not None)
    _prctl(_PR_SET_NO_NEW_PRIVS, 1)
    _prctl(_PR_SET_PDEATHSIG, 9)  # a change of user clears it
    if ruleset is not None:
        if _LIBC.syscall(_LANDLOCK_RESTRICT, ruleset, 0):
            lacks.append("Landlock was refused: the kernel may read and write its user's files")
        os.close(ruleset)
    if not _filter_calls(gpu=policy.gpu):
        lacks.append("no seccomp: the kernel may use the network and start processes")
    return lacks


# Libraries of linear algebra, by their file names, on a CPU and on GPUs.
NUMERIC_LIBRARY = re.compile(
    r"openblas|mkl_|libmkl|libblis|libatlas|cblas|libarmpl|libnvpl|libdnnl|onednn|libtorch_cpu"
    r"|cublas|cudnn|cutensor|rocblas|hipblas|miopen"
)


_OF_NUMERICS = (b"cblas_sgemm", b"cblas_dgemm", b"cublasGemmEx", b"openblas_")
_SEARCHED_BYTES = 256 << 20


def is_numeric_library(file: Path) -> bool:
    """Return whether a library is one of linear algebra, by its name or by names in it: a copy may
    have another one."""
    if NUMERIC_LIBRARY.search(file.name.lower()):
        return True
    with contextlib.suppress(OSError):
        status = file.stat()
        if stat.S_ISREG(status.st_mode) and status.st_size <= _SEARCHED_BYTES:
            return _names_numerics(file, status.st_mtime_ns, status.st_ctime_ns, status.st_ino)
    return False


@functools.lru_cache(maxsize=1024)
def _names_numerics(file: Path, *version: int) -> bool:
    # A process on a GPU maps a hundred libraries: reading them takes seconds.
    data = file.read_bytes()
    return any(name in data for name in _OF_NUMERICS)


def mapped_libraries(pid: int) -> set[str]:
    """Return the files of libraries that a process has mapped, as the kernel lists them."""
    with contextlib.suppress(OSError):
        lines = Path(f"/proc/{pid}/maps").read_text(errors="replace").splitlines()
        return {line.split(None, 5)[5] for line in lines if ".so" in line.rpartition("/")[2]}
    return set()


def close_libraries() -> None:
    """Take away the right to execute numeric libraries that this process has mapped, such as the
    BLAS in NumPy: a call ends the process."""
    for line in Path("/proc/self/maps").read_text().splitlines():
        span, rights, *_ = line.split()
        name = line.rpartition("/")[2].lower()
        if "x" in rights and ".so" in name and NUMERIC_LIBRARY.search(name):
            first, last = (int(end, 16) for end in span.split("-"))
            _LIBC.mprotect(ctypes.c_void_p(first), ctypes.c_size_t(last - first), 0)


def readable_folders(more: Iterable[Path]) -> tuple[str, ...]:
    """Return the folders of this interpreter, of its packages, and `more`."""
    folders = [sys.prefix, sys.base_prefix, *filter(None, sys.path)]
    folders += [str(Path(__file__).resolve().parents[1]), *map(str, more)]
    return tuple(dict.fromkeys(str(Path(folder).resolve()) for folder in folders))


def _prctl(option: int, value: int) -> bool:
    return bool(_LIBC.prctl(option, ctypes.c_ulong(value), 0, 0, 0) == 0)


def _limit(policy: Policy) -> None:
    # No limit of CPU time: with one, the kernel counts a process's CPU time in ticks of
    # milliseconds, and the referee reads it. The referee's own time limits end what hangs.
    limits = {
        resource.RLIMIT_CORE: 0,
        resource.RLIMIT_FSIZE: policy.file_bytes,
        resource.RLIMIT_NOFILE: 1024 if policy.gpu else 256,
    }
    if policy.uid:
        limits[resource.RLIMIT_NPROC] = 512  # threads, too
    if policy.memory_bytes:
        limits[resource.RLIMIT_AS] = policy.memory_bytes
    for name, most in limits.items():
        hard = resource.getrlimit(name)[1]
        most = most if hard == resource.RLIM_INFINITY else min(most, hard)
        with contextlib.suppress(OSError, ValueError):
            resource.setrlimit(name, (most, most))


def _drop_user(policy: Policy, lacks: list[str], *, confined: bool) -> None:
    """Become `uid` without capabilities. If other users may not read the interpreter, as in the
    home of root, keep the capability to read every file, which Landlock confines."""
    if os.geteuid() != 0 or not policy.uid:
        lacks.append("same user: the kernel runs as the user who judges")
        return
    is_open = all(map(_readable_by_others, policy.readable))
    if not is_open and not confined:
        lacks.append("same user: another one could not read the Python environment")
        _set_capabilities(0)
        return
    _prctl(_PR_SET_KEEPCAPS, 1)
    try:
        os.setgroups([])
        os.setresgid(policy.uid, policy.uid, policy.uid)
        os.setresuid(policy.uid, policy.uid, policy.uid)
    except OSError as error:
        lacks.append(f"same user: another one was refused ({error.strerror})")
    _set_capabilities(0 if is_open else _READ_SEARCH)


def _readable_by_others(folder: str) -> bool:
    path = Path(folder)
    with contextlib.suppress(OSError):
        return all(p.stat().st_mode & stat.S_IXOTH or p.is_file() for p in (path, *path.parents))
    return True  # there is none


def _set_capabilities(allowed: int) -> None:
    header = struct.pack("<Ii", 0x20080522, 0)
    data = struct.pack("<6I", allowed, allowed, 0, 0, 0, 0)
    known = _ARCHITECTURES.get(platform.machine())
    if known is not None:
        _LIBC.syscall(_CAPSET[known[0]], header, data)


def _landlock_rules(policy: Policy) -> int | None:
    """Return a ruleset, or None if the kernel has no Landlock."""
    if platform.machine() not in _ARCHITECTURES:
        return None
    abi = _LIBC.syscall(_LANDLOCK_CREATE, None, ctypes.c_size_t(0), 1)
    if abi < 1:
        return None
    files = _FILES[max(version for version in _FILES if version <= abi)]
    fields = [files, *([_TCP] if abi >= 4 else []), *([_SCOPES] if abi >= 6 else [])]
    if policy.gpu and abi >= 6:
        fields[2] = 0  # compilers signal their children
    attributes = struct.pack(f"<{len(fields)}Q", *fields)
    ruleset = int(_LIBC.syscall(_LANDLOCK_CREATE, attributes, ctypes.c_size_t(len(attributes)), 0))
    if ruleset < 0:
        return None
    reading = _EXECUTE | _READ_FILE | _READ_DIR
    for path in (*_SYSTEM_FOLDERS, *_SYSTEM_FILES, *policy.readable):
        _allow(ruleset, path, reading & files)
    for path in (*_DEVICES, *(_gpu_files() if policy.gpu else ())):
        _allow(ruleset, path, (_READ_FILE | _WRITE_FILE | _READ_DIR | _IOCTL) & files)
    _allow(ruleset, policy.folder, files)
    return ruleset


def _gpu_files() -> Iterable[str]:
    return [str(file) for file in Path("/dev").iterdir() if file.name.startswith(_GPU_DEVICES)]


def _allow(ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # there is none
    try:
        if not stat.S_ISDIR(os.fstat(place).st_mode):
            rights &= _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL
        rule = struct.pack("<Qi", rights, place)
        _LIBC.syscall(_LANDLOCK_ADD, ruleset, 1, rule, 0)
    finally:
        os.close(place)


def _filter_calls(*, gpu: bool) -> bool:
    """Install the filter of system calls; return whether the kernel took it."""
    known = _ARCHITECTURES.get(platform.machine())
    if known is None:
        return False
    code = _program(*known, gpu=gpu)
    buffer = ctypes.create_string_buffer(code)

    class Program(ctypes.Structure):
        _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]

    program = Program(len(code) // 8, ctypes.addressof(buffer))
    return bool(_LIBC.prctl(_PR_SET_SECCOMP, 2, ctypes.byref(program), 0, 0) == 0)


def _program(column: int, architecture: int, *, gpu: bool) -> bytes:
    refused = _ERROR | errno.EPERM
    steps: list[tuple[int, int, int, int]] = [
        (_LOAD, 0, 0, _ARCH),
        (_EQUAL, 1, 0, architecture),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
    ]
    if column == 0:  # x86_64 also has the calls of x32, under other numbers
        steps += [(_AT_LEAST, 0, 1, _X32), (_RETURN, 0, 0, refused)]
    for name, numbers in _REFUSED.items():
        if numbers[column] < 0 or (gpu and name in _FOR_COMPILERS):
            continue
        steps += [(_EQUAL, 0, 1, numbers[column]), (_RETURN, 0, 0, refused)]
    # tgkill: raise() and abort() signal the own process. prlimit: only reading.
    checks = [
        (_TGKILL[column], _ARGUMENTS, _EQUAL, os.getpid(), True),
        (_PRLIMIT[column], _ARGUMENTS + 16, _EQUAL, 0, True),
    ]
    if not gpu:
        # Threads are allowed. The flags of clone3 are in memory, where no filter sees them; without
        # clone3 the C library uses clone.
        steps += [(_EQUAL, 0, 1, _CLONE3[column]), (_RETURN, 0, 0, _ERROR | errno.ENOSYS)]
        checks.append((_CLONE[column], _ARGUMENTS, _ANY_BIT, _CLONE_THREAD, True))
    for number, argument, test, value, _ in checks:
        steps += [
            (_EQUAL, 0, 4, number),
            (_LOAD, 0, 0, argument),
            (test, 1, 0, value),
            (_RETURN, 0, 0, refused),
            (_RETURN, 0, 0, _ALLOW),
        ]
    steps.append((_RETURN, 0, 0, _ALLOW))
    return b"".join(struct.pack("<HBBI", *step) for step in steps)
