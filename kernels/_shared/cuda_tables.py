"""The split of a norm's rows over teams of warps that share tables in shared memory (the constants of row_tables.cuh)."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch

from .cuda_stream import STATIC_BYTES, ring_bytes, ring_slots, unshared
from .modulated_params import ITEM_SIZES, ModulatedParams

HOPPER_BYTES = 227 * 1024
"""Shared memory that a block may ask for (H100, H200)."""
TEAM_WARPS = 24
"""Warps of a block: 80 registers each."""
MOST_TEAMS = 15
"""Teams of several warps: a block has 16 barriers, one of which is for all threads."""
BUSY_WARPS = 18
"""Warps with vectors beyond which more teams gain nothing."""
WARP_COST, ONE_SLOT = 0.02, 0.7
"""A row's warps wait for one another, each more for the others; and a team whose ring has one slot waits for every row. With these, teams
take 1 % more than the best of five to fifteen others on the mean of 24 random shapes on an H200, and 3 % more without."""
MOST_STAGES = 4
ROWS_BYTES = 64 * 1024
"""Of a block's rings, before a second table is kept. In 800 ns, a loaded memory's latency, an H200 multiprocessor takes some 30 KB at the
full rate, of which half or more are rows that are read."""


class TableSplit(NamedTuple):
    warps: int
    """Warps that share a row: a team."""
    teams: int
    """Teams of a block: rows that it works on at once."""
    stages: int
    """Slots of each team's ring."""
    tables: int
    """Tables kept at once."""
    shared_bytes: int
    """Dynamic shared memory of a block: the rings, the tables and what lies behind them."""

    @property
    def threads(self) -> int:
        return 32 * self.warps * self.teams

    def grid(self, rows: int, multiprocessors: int) -> int:
        """Blocks of the launch: each takes an even share of neighbouring rows."""
        return min(rows, multiprocessors)

    def macros(self, hidden: int) -> dict[str, int | bool]:
        return {
            "D": hidden, "WARPS": self.warps, "THREADS": self.threads, "STAGES": self.stages, "TABLES": self.tables, "MIN_BLOCKS": 1,
            "COMBINED": True, "SINGLE": False,
        }  # fmt: skip


@functools.cache
def split_tables(
    hidden: int, item_size: int, streams: int, rows: int, multiprocessors: int, shared_limit: int, *, section_rows: int, kinds: int,
    most_vectors: int, most_warps: int = TEAM_WARPS,
) -> TableSplit | None:  # fmt: skip
    """Choose the teams of a block; None where two rows and a table do not fit into its shared memory.

    Args:
        streams: tensors of which a row is read per row of output.
        shared_limit: bytes of shared memory that a block may ask for.
        section_rows: neighbouring rows that share a table.
        kinds: float32 values per element of a table.
        most_vectors: vectors of 16 bytes that a lane may hold of a row.
        most_warps: warps of a block for which the registers suffice.
    """
    vectors = hidden * item_size // 16
    row_bytes, table_bytes = hidden * item_size, 4 * kinds * hidden
    free = shared_limit - STATIC_BYTES
    share = -(-rows // min(rows, multiprocessors))
    wanted = min(-(-share // section_rows) + 1, -(-rows // section_rows))
    # A slot has 8 bytes of barrier, and a ring may be filled up with 127.
    reserved = min(share, max(2, ROWS_BYTES // (streams * row_bytes))) * (streams * row_bytes + 136)
    tables = max(1, min(wanted, (free - reserved) // table_bytes))
    table_total = tables * table_bytes
    found: list[tuple[float, int, TableSplit]] = []
    for each in range(1, most_vectors + 1):
        warps = -(-vectors // (32 * each))
        for teams in range(1, min(share, most_warps // warps, MOST_TEAMS if warps > 1 else most_warps) + 1):
            stages = min(MOST_STAGES, -(-share // teams), ring_slots((free - table_total) // teams, streams * row_bytes))
            if stages < 1 or stages * teams < min(2, share):
                continue
            filled = vectors / (32 * warps * -(-vectors // (32 * warps)))
            even = share / (teams * -(-share // teams))
            split = TableSplit(warps, teams, stages, tables, teams * ring_bytes(stages, streams * row_bytes) + table_total)
            worth = min(BUSY_WARPS, teams * warps * filled * even) * (1 - WARP_COST * warps) * (ONE_SLOT if stages == 1 else 1)
            found.append((worth, -warps, split))
    return max(found)[2] if found else None


def shared_limit(device_index: int) -> int:
    """Bytes of shared memory that a block may ask for on this GPU."""
    return int(torch.cuda.get_device_properties(device_index).shared_memory_per_block_optin)


def declined(params: ModulatedParams, *, streams: int, kinds: int) -> str | None:
    """Why a case has no tables, or none that fit; None where it has.

    Args:
        streams: tensors of which a row is read per row of output.
        kinds: float32 values per element of a table.
    """
    if (reason := unshared(params, (params.modulation,))) is not None:
        return reason
    row_bytes = params.hidden * ITEM_SIZES[params.dtype]
    needed = 4 * kinds * params.hidden + min(2, params.rows) * streams * row_bytes + 256
    free = HOPPER_BYTES - STATIC_BYTES
    if needed > free:
        return f"rows of {row_bytes} bytes: a table and two rows of each input take {needed} bytes of shared memory, and {free} are free"
    return None
