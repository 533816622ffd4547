"""The last words on a run."""

from __future__ import annotations

from collections.abc import Sequence

from common.rounds.records import RoundRecord


def summary(records: Sequence[RoundRecord], metric: str) -> str:
    """Return what a run came to, and what a client sent and got for it."""
    last = records[-1]
    up, down = (
        sum((getattr(record, f"payload_bytes_{way}") or 0) / record.clients for record in records)
        for way in ("up", "down")
    )
    how_much = f"{last.paper_bits_up / 1e6:.3f} Mbit up a client by the paper's count"
    if up:
        how_much = f"{up / 1e3:.1f} kB up and {down / 1e3:.1f} kB down a client"
    messages = [record.all_message_bytes for record in records]
    wire_up, wire_down = (sum(way) / last.clients for way in zip(*messages, strict=True))
    if wire_up:
        how_much += f" ({wire_up / 1e3:.0f} and {wire_down / 1e3:.0f} kB with all messages around them)"
    score = last.metrics.get(metric)
    measured = "not measured" if score is None else f"{score:.4f}"
    return f"{metric} {measured} after {last.round} rounds and {how_much}"
