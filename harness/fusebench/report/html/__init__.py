"""Reports for a browser: one self-contained file about a run, and a small static site about months of nightlies."""
