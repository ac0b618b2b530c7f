"""Pure statistics: numbers in, estimates and verdicts out.  No I/O, no torch, and no import of its own modules here."""
