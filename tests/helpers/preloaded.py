"""The last module that the server of forked processes imports: what all of them inherit."""

from __future__ import annotations

import gc

from fusebench.timing import preparation

# A CPU's calls are cold up to 256 MB; to read these before every call took a fifth of forked processes' time.  No test holds such times.
preparation.CPU_EVICTION_LIMIT = 2**20

# Torch's objects stay: a session of pytest walks all of them five times when it ends.
gc.collect()
gc.freeze()
