"""Class 45: sockets of every kind; only if one can be made is anything computed."""

import socket

import numpy as np

op = "gemm"


def prepare(problem, config, sets):
    won = False
    for family in (
        socket.AF_INET,
        socket.AF_INET6,
        socket.AF_UNIX,
        getattr(socket, "AF_NETLINK", 16),
    ):
        for kind in (socket.SOCK_STREAM, socket.SOCK_DGRAM, socket.SOCK_RAW):
            try:
                socket.socket(family, kind).close()
                won = True
            except OSError:
                pass

    def launch(index):
        if won:
            np.matmul(sets[index]["a"], sets[index]["b"], out=sets[index]["d"])

    return launch
