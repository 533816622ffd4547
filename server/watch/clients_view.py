"""The clients of a run: a table, trouble first, and a strip of the last rounds."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping
from statistics import median
from typing import Any

from common.units import seconds_text
from server.watch.clients import Latest
from server.watch.loose import count, number
from server.watch.rounds import STRIP_ROUNDS
from server.watch.run_files import RunFiles
from server.watch.state import State
from server.watch.status import ClientStatus

MOST_ROWS = 200
MOST_STRIPS = 50
RANKS = ("late", "away", "info", "stopped", "ok")  # trouble first
COUNTED_AS = {"ok": "answered", "late": "late"}  # all others are away
BOUNDS = (1, 2, 3, 10)  # of the strip's cells, in units of its own
USUAL = 1.5  # medians: what is less is the lightest cell
LATE, MISSED, UNKNOWN = "L", "M", "."
BITS_A_BYTE = 8
SHORTEST_SECONDS = 1e-4  # of an upload: what was shorter tells nothing of a link

Row = dict[str, Any]


def clients_table(run: RunFiles, state: State, now: float) -> list[Row]:
    """Return a row for every client, trouble first, then the slowest."""
    told = run.status.by_client if state.is_going_on else {}
    missing = run.rounds.missing()
    known = dict.fromkeys([*told, *run.clients.latest, *missing])
    rows = [_row(name, run, _standing(name, run, state, told, missing, now)) for name in known]
    return sorted(rows, key=lambda row: (RANKS.index(row["sign"]), -(row["total"] or 0.0), row["name"]))


def clients_counts(rows: list[Row]) -> dict[str, int]:
    """Return how many clients are well, late and away."""
    found = Counter(COUNTED_AS.get(row["sign"], "away") for row in rows)
    return {name: found[name] for name in ("answered", "late", "away") if found[name]}


def _standing(
    name: str,
    run: RunFiles,
    state: State,
    told: Mapping[str, ClientStatus],
    missing: Mapping[str, str],
    now: float,
) -> tuple[str, str, str]:
    """Return a client's state, its sign and the state in words."""
    if name in told:
        return _told_standing(name, run, state, told[name], now)
    if name in missing:
        return "missed", "away", f"missed round {run.rounds.last_round}: {missing[name]}"
    latest = run.clients.latest.get(name)
    if latest is None or latest.round < run.rounds.last_round:
        return "missed", "away", f"last counted in round {latest.round}" if latest else "never counted"
    return "answered", "ok", "answered"


def _told_standing(name: str, run: RunFiles, state: State, one: ClientStatus, now: float) -> tuple[str, str, str]:
    since = f" for {seconds_text(now - one.since)}" if one.since and now > one.since else ""
    if one.state in ("away", "put out"):
        return one.state, "away", one.state + since
    if state.name == "waiting" and name in run.status.waiting_for:
        return "late", "late", f"no answer for {seconds_text(state.waited_seconds)}"
    if one.done is not None and one.of:
        done = f"step {one.done:.0f} of {one.of:.0f}" if one.state == "training" else f"{one.done / one.of:.0%}"
        return one.state, "ok", f"{one.state}, {done}"
    return one.state, "ok", one.state


def _row(name: str, run: RunFiles, standing: tuple[str, str, str]) -> Row:
    state, sign, state_text = standing
    latest = run.clients.latest.get(name)
    are_complete = run.clients.are_sums_complete
    counted = run.clients.counted[name] if are_complete else None
    return {
        "name": name,
        "state": state,
        "sign": sign,
        "state_text": state_text,
        **(_last_round(latest) if latest else _NO_ROUND),
        "sent_bytes": run.clients.sent[name] if are_complete and latest else None,
        "missed": None if counted is None else max(0, run.rounds.last_round - counted),
    }


_NO_ROUND: Row = dict.fromkeys(("phases_round", "total", "mostly", "link_bits_per_second", "memory_mb", "vram_mb")) | {
    "phases": {}
}


def _last_round(latest: Latest) -> Row:
    phases, record = latest.phases, latest.record
    total = sum(phases.values())
    longest = max(phases, key=phases.__getitem__, default="")
    sent = count(record.message_bytes_up) or count(record.payload_bytes_up)
    upload = phases.get("upload")
    return {
        "phases": phases,
        "phases_round": latest.round,
        "total": total if phases else None,
        "mostly": f"{longest} {phases[longest] / total:.0%}".replace("%", " %") if total else None,
        "link_bits_per_second": BITS_A_BYTE * sent / upload if sent and upload and upload >= SHORTEST_SECONDS else None,
        "memory_mb": number(record.memory_mb),
        "vram_mb": number(record.vram_mb),
    }


def strip(run: RunFiles, rows: list[Row]) -> dict[str, Any]:
    """Return a character per round for each client, those with the most trouble first."""
    rounds = _seconds_by_round(run)
    last = max(rounds, default=0)
    first = max(min(rounds, default=1), last - STRIP_ROUNDS + 1)
    bounds = _bounds([seconds for one in rounds.values() for seconds in one.values()])
    shown = [_strip_of(row, rounds, range(first, last + 1), bounds) for row in rows]
    shown.sort(key=lambda one: -(one["late"] + one["missed"]))
    return {"first_round": first, "last_round": last, "bounds": bounds, "clients": shown[:MOST_STRIPS]}


def _seconds_by_round(run: RunFiles) -> dict[int, dict[str, float]]:
    """Return what each client took; whom a round waited for, all of it: one that was frozen knows less of it."""
    rounds = {number: dict(seconds) for number, seconds in run.clients.rounds}
    for number_of_round, name, seconds in run.rounds.waits:
        own = rounds.get(number_of_round, {})
        if name in own:
            own[name] = max(own[name], seconds)
    return rounds


def _strip_of(row: Row, rounds: Mapping[int, Mapping[str, float]], numbers: range, bounds: list[float]) -> Row:
    cells = "".join(_cell(rounds.get(one), row["name"], bounds) for one in numbers)
    late, missed = cells.count(LATE), cells.count(MISSED)
    counted = len(cells) - missed - cells.count(UNKNOWN)
    return {
        "name": row["name"],
        "sign": row["sign"],
        "cells": cells,
        "counted": counted,
        "late": late,
        "missed": missed,
    }


def _cell(seconds_by_client: Mapping[str, float] | None, name: str, bounds: list[float]) -> str:
    if seconds_by_client is None:
        return UNKNOWN
    if name not in seconds_by_client:
        return MISSED
    seconds = seconds_by_client[name]
    return next((str(shade) for shade, bound in enumerate(bounds, 1) if seconds < bound), LATE)


def _bounds(seconds: list[float]) -> list[float]:
    """Return how long the cells of each shade took at most: what is usual is the lightest."""
    usual = USUAL * median(seconds) if seconds else 0.0
    unit = _round_number(usual) if usual > 0 else 0.1
    return [float(f"{bound * unit:.3g}") for bound in BOUNDS]


def _round_number(value: float) -> float:
    """Return the next 1, 2 or 5 with zeros."""
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in (1, 2, 5, 10) if value <= step * power)
