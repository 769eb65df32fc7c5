"""Runs a function in several processes that make up one data-parallel run, as torchrun would start them."""

from __future__ import annotations

import multiprocessing
import os
import pickle
import socket
import traceback
import warnings
from collections.abc import Callable
from typing import Any

import torch

from plugin.training.run.processes import Processes


def in_ranks(count: int, work: Callable[[Processes], Any]) -> list[Any]:
    """What `work` returns in each of `count` forked processes, by rank; an error is raised here with its traceback."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = multiprocessing.get_context("fork")
    pipes = [context.Pipe(duplex=False) for _ in range(count)]
    ranks = [
        context.Process(target=_rank, args=(rank, count, port, pipe[1], work), daemon=True)
        for rank, pipe in enumerate(pipes)
    ]
    with warnings.catch_warnings():
        warnings.simplefilter(
            "ignore", DeprecationWarning
        )  # of forking beside threads; the children use none
        for rank in ranks:
            rank.start()
    found = [
        pickle.loads(receive.recv_bytes()) if receive.poll(60) else (False, "nothing in a minute")
        for receive, _ in pipes
    ]
    for rank in ranks:
        rank.join(10)
        rank.kill()
    for number, (fine, value) in enumerate(found):
        assert fine, f"rank {number}: {value}"
    return [value for _, value in found]


def _rank(rank: int, count: int, port: int, pipe: Any, work: Callable[[Processes], Any]) -> None:
    torch.set_num_threads(1)
    os.environ |= {
        "RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "GLOO_SOCKET_IFNAME": "lo",
    }  # fmt: skip
    try:
        with Processes.joined(torch.device("cpu")) as processes:
            pipe.send_bytes(pickle.dumps((True, work(processes))))  # by value, tensors too
            processes.wait()
    except BaseException:
        pipe.send_bytes(pickle.dumps((False, traceback.format_exc())))
