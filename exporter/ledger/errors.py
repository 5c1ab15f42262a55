"""What can go wrong with the ledger, as two kinds that are treated differently."""

from __future__ import annotations


class LedgerError(Exception):
    """The ledger cannot be used as it is; the message is one line and says what to do."""


class DamagedLedgerError(LedgerError):
    """The file is not a whole ledger; nothing else is ever taken for damage."""


class LedgerUnavailableError(Exception):
    """The ledger cannot be written at the moment (full disk, read-only, busy): try again later."""
