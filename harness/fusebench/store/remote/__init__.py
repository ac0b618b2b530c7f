"""Results on a store that fsspec reaches: S3-compatible, GCS, Azure, SSH, or a folder."""
