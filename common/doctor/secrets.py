"""Checks of what both ends keep for their link: certificates that expire, and files that are for one owner alone."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path

from cryptography import x509

from common.doctor.findings import Finding, ok, problem, warning
from common.storage.replace import OTHERS

SOON_DAYS = 30


def expiry(pem: bytes, whose: str, remedy: str) -> Finding:
    """Find whether a certificate is still good, and for how long."""
    end = x509.load_pem_x509_certificate(pem).not_valid_after_utc
    days = (end - datetime.now(UTC)).days
    if days < 0:
        return problem(f"{whose} expired on {end:%Y-%m-%d}", remedy)
    found = f"{whose} is good until {end:%Y-%m-%d}"
    return warning(f"{found}, {days} days from now", remedy) if days < SOON_DAYS else ok(found)


def worst(findings: Iterable[Finding]) -> Finding:
    """Return the finding that matters most, of several about one thing."""
    return max(findings, key=lambda one: ("ok", "warning", "problem").index(one.level))


def readable_by_others(files: Iterable[Path]) -> list[Path]:
    """Return which of the files others on this machine may look into."""
    return [file for file in files if file.exists() and file.stat().st_mode & OTHERS]
