"""The algorithms as their papers print them: numpy, float64, client by client, nothing shared with the product.

Each function takes the clients' gradients, the constants and the sequence theta_0, theta_1, ... of communications, and
returns, after every communication, the server's model and what each client takes from its gradients (h_i; none: empty).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Vector = NDArray[np.float64]
History = list[tuple[Vector, list[Vector]]]
Gradients = Sequence[Callable[[Vector], Vector]]


@dataclass(frozen=True)
class Constants:
    start: Vector  # w_0
    kept: int  # K
    step: float  # gamma
    period: float  # 1 / p
    locally_kept: int = 0  # L, of hybrid
    shrinkage: float = 0.0  # lambda, of RandProx
    control_step: float = 0.0  # chi, of LoCoDL
    senders: int = 0  # s, of TAMUNA
    arena: int = 0  # places, of the arena
    explored: int = 0  # of them at random
    dense_rounds: int = 0
    draw: Callable[..., np.random.Generator] = np.random.default_rng  # by purpose, round and client: all see the same

    @property
    def size(self) -> int:
        return len(self.start)


def top_k(vector: Vector, kept: int) -> Vector:
    order = sorted(range(len(vector)), key=lambda index: (-abs(vector[index]), index))
    pruned = np.zeros_like(vector)
    for index in order[:kept]:
        pruned[index] = vector[index]
    return pruned


def soft(vector: Vector, threshold: float) -> Vector:
    return np.sign(vector) * np.maximum(np.abs(vector) - threshold, 0.0)


def thetas_of_period(period: float, communications: int) -> list[int]:
    thetas: list[int] = []
    while sum(thetas) < communications:
        thetas.append(1 if len(thetas) % int(period) == 0 else 0)
    return thetas


def fedavg(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    return _averaging(grads, c, thetas, prune_locally=False, prune_at_server=lambda round_: None)


def fedht(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    return _averaging(grads, c, thetas, prune_locally=False, prune_at_server=lambda round_: c.kept)


def fediht(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    return _averaging(grads, c, thetas, prune_locally=True, prune_at_server=lambda round_: None)


def fedsparsify(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    rounds = sum(thetas)
    final_sparsity = 1 - c.kept / c.size

    def kept(round_: int) -> int:
        sparsity = final_sparsity + (0 - final_sparsity) * (1 - round_ / rounds) ** 3  # Zhu and Gupta, (1)
        return max(1, round((1 - sparsity) * c.size))

    return _averaging(grads, c, thetas, prune_locally=False, prune_at_server=kept)


def _averaging(
    grads: Gradients,
    c: Constants,
    thetas: Sequence[int],
    *,
    prune_locally: bool,
    prune_at_server: Callable[[int], int | None],
) -> History:
    w = [c.start.copy() for _ in grads]
    history: History = []
    for theta in thetas:
        for i, grad in enumerate(grads):
            w[i] = w[i] - c.step * grad(w[i])
            if prune_locally:
                w[i] = top_k(w[i], c.kept)
        if theta:
            mean = sum(w, start=np.zeros(c.size)) / len(grads)
            kept = prune_at_server(len(history) + 1)
            if kept is not None:
                mean = top_k(mean, kept)
            w = [mean.copy() for _ in grads]
            history.append((mean, []))
    return history


def scaffold(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    x = c.start.copy()
    server_control = np.zeros(c.size)
    controls = [np.zeros(c.size) for _ in grads]
    history: History = []
    steps = 0
    y = [x.copy() for _ in grads]
    for theta in thetas:
        steps += 1
        for i, grad in enumerate(grads):
            y[i] = y[i] - c.step * (grad(y[i]) - controls[i] + server_control)
        if theta:
            new = [controls[i] - server_control + (x - y[i]) / (steps * c.step) for i in range(len(grads))]
            delta = sum((new[i] - controls[i] for i in range(len(grads))), start=np.zeros(c.size)) / len(grads)
            x = sum(y, start=np.zeros(c.size)) / len(grads)
            server_control = server_control + delta
            controls = new
            y = [x.copy() for _ in grads]
            steps = 0
            history.append((x, [control - server_control for control in controls]))
    return history


def proxskip(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    n, p = len(grads), 1 / c.period
    w = [c.start.copy() for _ in grads]
    h = [np.zeros(c.size) for _ in grads]
    history: History = []
    for theta in thetas:
        tilde = [w[i] - c.step * (grads[i](w[i]) - h[i]) for i in range(n)]
        if theta:
            mean = sum(tilde, start=np.zeros(c.size)) / n
            for i in range(n):
                h[i] = h[i] + p / c.step * (mean - tilde[i])
                w[i] = mean
            history.append((mean, list(h)))
        else:
            w = tilde
    return history


def final_topk(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    return proxskip(grads, c, thetas)


def randprox_l1(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    n, p = len(grads), 1 / c.period
    w = [c.start.copy() for _ in grads]
    h = [np.zeros(c.size) for _ in grads]
    history: History = []
    for theta in thetas:
        tilde = [soft(w[i] - c.step * (grads[i](w[i]) - h[i]), c.step * c.shrinkage) for i in range(n)]
        if theta:
            mean = sum(tilde, start=np.zeros(c.size)) / n
            for i in range(n):
                h[i] = h[i] + p / c.step * (mean - tilde[i])
                w[i] = mean
            history.append((mean, list(h)))
        else:
            w = tilde
    return history


def server_pruning(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    n, p = len(grads), 1 / c.period
    w = [c.start.copy() for _ in grads]
    h = [np.zeros(c.size) for _ in grads]
    history: History = []
    for theta in thetas:
        tilde = [w[i] - c.step * (grads[i](w[i]) - h[i]) for i in range(n)]
        if theta:
            pruned_mean = top_k(sum(tilde, start=np.zeros(c.size)) / n, c.kept)
            for i in range(n):
                h[i] = h[i] + p / c.step * (pruned_mean - tilde[i])
                w[i] = pruned_mean
            history.append((pruned_mean, list(h)))
        else:
            w = tilde
    return history


def server_pruning_modified(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    n, p = len(grads), 1 / c.period
    w = [top_k(c.start, c.kept) for _ in grads]  # pruned "before any local updates", the first ones too
    h = [np.zeros(c.size) for _ in grads]
    history: History = []
    for theta in thetas:
        tilde = [w[i] - c.step * (grads[i](w[i]) - h[i]) for i in range(n)]
        if theta:
            mean = sum(tilde, start=np.zeros(c.size)) / n
            for i in range(n):
                h[i] = h[i] + p / c.step * (mean - tilde[i])
                w[i] = top_k(mean, c.kept)
            history.append((mean, list(h)))
        else:
            w = tilde
    return history


def sparse_proxskip_local(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    n, p = len(grads), 1 / c.period
    w = [c.start.copy() for _ in grads]
    h = [np.zeros(c.size) for _ in grads]
    history: History = []
    for theta in thetas:
        tilde = [top_k(w[i] - c.step * (grads[i](w[i]) - h[i]), c.kept) for i in range(n)]
        if theta:
            hat = [top_k(tilde[i], c.kept) for i in range(n)]
            mean = sum(hat, start=np.zeros(c.size)) / n
            for i in range(n):
                h[i] = h[i] + p / c.step * (mean - hat[i])
                w[i] = mean
            history.append((mean, list(h)))
        else:
            w = tilde
    return history


def sparse_proxskip(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    return _straight_through(grads, c, thetas, locally_kept=c.size, control_from_pruned=True)


def sparse_proxskip_modified(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    return _straight_through(grads, c, thetas, locally_kept=c.size, control_from_pruned=False)


def hybrid(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    return _straight_through(grads, c, thetas, locally_kept=c.locally_kept, control_from_pruned=True)


def _straight_through(
    grads: Gradients, c: Constants, thetas: Sequence[int], *, locally_kept: int, control_from_pruned: bool
) -> History:
    n, p = len(grads), 1 / c.period
    w = [c.start.copy() for _ in grads]
    h = [np.zeros(c.size) for _ in grads]
    history: History = []
    for theta in thetas:
        tilde = [top_k(w[i] - c.step * (grads[i](top_k(w[i], c.kept)) - h[i]), locally_kept) for i in range(n)]
        if theta:
            hat = [top_k(tilde[i], c.kept) for i in range(n)]
            mean = sum(hat, start=np.zeros(c.size)) / n
            for i in range(n):
                h[i] = h[i] + p / c.step * (mean - (hat[i] if control_from_pruned else tilde[i]))
                w[i] = mean
            history.append((mean, list(h)))
        else:
            w = tilde
    return history


def fedcomloc_com(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    return _fedcomloc(grads, c, thetas, uplink=c.kept)


def fedcomloc_global(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    return _fedcomloc(grads, c, thetas, downlink=c.kept)


def fedcomloc_local(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    return _fedcomloc(grads, c, thetas, local=c.kept)


def _fedcomloc(
    grads: Gradients, c: Constants, thetas: Sequence[int], *, local: int = 0, uplink: int = 0, downlink: int = 0
) -> History:
    n, p, local, uplink, downlink = len(grads), 1 / c.period, local or c.size, uplink or c.size, downlink or c.size
    x = [c.start.copy() for _ in grads]
    h = [np.zeros(c.size) for _ in grads]
    history: History = []
    for theta in thetas:
        hat = [x[i] - c.step * (grads[i](top_k(x[i], local)) - h[i]) for i in range(n)]
        if theta:
            hat = [top_k(hat[i], uplink) for i in range(n)]
            x = [top_k(sum(hat, start=np.zeros(c.size)) / n, downlink)] * n
        else:
            x = hat
        h = [h[i] + p / c.step * (x[i] - hat[i]) for i in range(n)]
        if theta:
            history.append((x[0], list(h)))
    return history


def locodl(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    n, p, omega = len(grads), 1 / c.period, c.size / c.kept - 1
    x, y = [c.start.copy() for _ in grads], c.start.copy()
    u, v = [np.zeros(c.size) for _ in grads], np.zeros(c.size)
    history: History = []

    def compress(i: int, vector: Vector) -> Vector:
        places = c.draw("rand-k", len(history) + 1, i).choice(c.size, c.kept, replace=False, shuffle=False)
        found = np.zeros(c.size)
        found[places] = vector[places] * c.size / c.kept
        return found

    for theta in thetas:
        x = [x[i] - c.step * grads[i](x[i]) + c.step * u[i] for i in range(n)]
        y = y + c.step * v
        if theta:
            d = [compress(i, x[i] - y) for i in range(n)]
            mean = sum(d, start=np.zeros(c.size)) / (2 * n)
            rate = p * c.control_step / (c.step * (1 + 2 * omega))
            u = [u[i] + rate * (mean - d[i]) for i in range(n)]
            v = v + rate * mean
            y = y + mean
            x = [y.copy() for _ in grads]  # rho = 1
            history.append((y, list(u)))
    return history


def tamuna(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    n, s = len(grads), c.senders
    x = [c.start.copy() for _ in grads]
    h = [np.zeros(c.size) for _ in grads]
    eta = 1 / c.period * (s - 1) / s
    pattern = np.zeros((c.size, n))
    ones = 0
    for row in pattern:
        for _ in range(s):
            row[ones % n] = 1
            ones += 1
    history: History = []
    for theta in thetas:
        x = [x[i] - c.step * grads[i](x[i]) + c.step * h[i] for i in range(n)]
        if theta:
            q = pattern[:, c.draw("columns", len(history) + 1).permutation(n)]
            mean = sum((q[:, i] * x[i] for i in range(n)), start=np.zeros(c.size)) / s
            h = [h[i] + eta / c.step * (q[:, i] * mean - q[:, i] * x[i]) for i in range(n)]
            x = [mean.copy() for _ in grads]
            history.append((mean, list(h)))
    return history


def sparse_proxskip_arena(grads: Gradients, c: Constants, thetas: Sequence[int]) -> History:
    """Its controls are those with which the next round begins, without what is forgotten then."""
    n, p = len(grads), 1 / c.period
    inside = set(range(c.size))
    w = [c.start.copy() for _ in grads]
    h = [np.zeros(c.size) for _ in grads]
    history: History = []

    def restricted(vector: Vector) -> Vector:
        return np.array([value if place in inside else 0.0 for place, value in enumerate(vector)])

    for theta in thetas:
        tilde = [w[i] - c.step * restricted(grads[i](top_k(w[i], c.kept)) - h[i]) for i in range(n)]
        if not theta:
            w = tilde
            continue
        hat = [top_k(tilde[i], c.kept) for i in range(n)]
        mean = sum(hat, start=np.zeros(c.size)) / n
        h = [h[i] + p / c.step * (mean - hat[i]) for i in range(n)]
        number = len(history) + 2
        if number > c.dense_rounds:
            largest = np.flatnonzero(top_k(mean, c.arena - c.explored))
            chances = 1 - c.draw("arena", number).random(c.size)
            chances[largest] = -1
            inside = {*largest, *np.argsort(-chances)[: c.explored]}
        w, h = [restricted(mean) for _ in grads], [restricted(one) for one in h]
        history.append((mean, list(h)))
    return history
