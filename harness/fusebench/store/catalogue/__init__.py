"""The catalogue: one row per kernel, case and run, in small Parquet files by device model and month, read by DuckDB."""
